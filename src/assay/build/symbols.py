"""The symbol table: a view of the context in use, for code that reaches for things instead of
asking for them.

It has assay's own members, a global table for whatever a run wants to share, and local frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from assay.build.context import Context, ContextError, current
from assay.build.registry import Registry, registry
from assay.core.errors import did_you_mean, nearest

_MISSING: Final = object()
_NAMES: Final = {"task": "process", "train_sched": "state"}
"""Members whose name in a context is another."""


class AbsentError(ContextError, AttributeError):
    """A member that this run does not have, or does not have yet."""


class NoFrameError(ContextError):
    """A local name was used where no frame is open."""


class _Frame:
    __slots__ = ("owner", "values")

    def __init__(self, owner: Context) -> None:
        self.owner = owner
        self.values: dict[str, Any] = {}


_frames: ContextVar[tuple[_Frame, ...]] = ContextVar("assay_frames", default=())


class SymbolTable:
    """What one run holds, by name. Made anew by each `sym_tbl()`; the context is what stays."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    # --- the global table ---------------------------------------------------------------------------------------------

    def set(self, name: str, value: Any) -> None:
        """Set what is not there yet; ContextError when it is."""
        if not self.try_set(name, value):
            raise ContextError(
                f"`{name}` is set already.", fix="force_set to replace it, try_set to leave it"
            )

    def try_set(self, name: str, value: Any) -> bool:
        """Set what is not there yet; False when it is, and then nothing changes."""
        return self._context.add(name, value)

    def force_set(self, name: str, value: Any) -> None:
        """Set, whatever was there."""
        self._context.set(name, value)

    def get(self, name: str) -> Any:
        """What has this name; ContextError with the nearest names and all that is set when nothing
        has it."""
        found = self.try_get(name, _MISSING)
        if found is _MISSING:
            if name in self._context.promised():
                return self._context.get(name)  # says why it is not there
            _unknown(f"Nothing is set as `{name}`.", name, self._context.names())
        return found

    def try_get(self, name: str, default: Any = None) -> Any:
        """What has this name, or `default`."""
        return self._context.try_get(name, default)

    def names(self) -> list[str]:
        """Everything that can be asked for."""
        return self._context.names()

    def __contains__(self, name: object) -> bool:
        return name in self._context

    # --- local frames -------------------------------------------------------------------------------------------------

    @contextmanager
    def frame(self) -> Iterator[SymbolTable]:
        """A frame of its own, as of a function: only what is set in the top frame is local, and it
        goes with it."""
        token = _frames.set((*_frames.get(), _Frame(self._run())))
        try:
            yield self
        finally:
            _frames.reset(token)

    def set_local(self, name: str, value: Any) -> None:
        """As `set`, in the top frame."""
        if not self.try_set_local(name, value):
            raise ContextError(
                f"`{name}` is set already in this frame.", fix="force_set_local to replace it"
            )

    def try_set_local(self, name: str, value: Any) -> bool:
        """As `try_set`, in the top frame."""
        values = self._top(name)
        if name in values:
            return False
        values[name] = value
        return True

    def force_set_local(self, name: str, value: Any) -> None:
        """As `force_set`, in the top frame."""
        self._top(name)[name] = value

    def get_local(self, name: str) -> Any:
        """As `get`, in the top frame."""
        values = self._top(name)
        if name not in values:
            _unknown(f"Nothing is set as `{name}` in this frame.", name, list(values))
        return values[name]

    def try_get_local(self, name: str, default: Any = None) -> Any:
        """As `try_get`, in the top frame."""
        return self._top(name).get(name, default)

    # --- members ------------------------------------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        """Short names by kind."""
        return registry

    @property
    def plugins(self) -> Sequence[Any]:
        """The plugins of the run in the order of the config."""
        return cast("Sequence[Any]", self._member("plugins"))

    @property
    def task(self) -> Any:
        """What a batch means in this run: its process."""
        return self._member(_NAMES["task"])

    @property
    def model(self) -> Any:
        return self._member("model")

    @property
    def optimizer(self) -> Any:
        return self._member("optimizer")

    @property
    def train_sched(self) -> Any:
        """How far the training is: its state, with `epoch` and `step`."""
        return self._member(_NAMES["train_sched"])

    @property
    def cfg(self) -> Mapping[str, Any]:
        """The config as plain dictionaries, lists and values."""
        return cast("Mapping[str, Any]", self._member("cfg"))

    @property
    def device(self) -> Any:
        """What `model.to` takes."""
        return self._member("device")

    @property
    def device_info(self) -> Mapping[str, Any]:
        """The device in words and numbers."""
        return cast("Mapping[str, Any]", self._member("device_info"))

    @property
    def console(self) -> Any:
        """Where a person reads along; what is printed to it does not break a progress bar."""
        return self._member("console")

    @property
    def record_dir(self) -> Path | None:
        """The folder of the record; None when the run keeps none."""
        return cast("Path | None", self._member("record_dir"))

    def __getattr__(self, name: str) -> Any:
        if name in vars(SymbolTable) and not name.startswith("_"):
            return self._member(
                _NAMES.get(name, name)
            )  # a property could not find it: say that once more
        members = [member for member in vars(SymbolTable) if not member.startswith("_")]
        near = nearest(name, members)
        fix = f"did you mean `{near[0]}`?" if near else f'what was set is read by get("{name}")'
        raise AbsentError(f"The symbol table has no member `{name}`.", fix=fix)

    def reset(self) -> None:
        """Let go of everything of this run, so that its memory is free. The registry stays."""
        self._run().close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _member(self, name: str) -> Any:
        try:
            return self._context.get(name)
        except ContextError as error:
            raise AbsentError(error.what, where=error.where, fix=error.fix) from None

    def _run(self) -> Context:
        return self._context.run

    def _top(self, name: str) -> dict[str, Any]:
        frames = [frame for frame in _frames.get() if frame.owner is self._run()]
        if not frames:
            raise NoFrameError(
                f"No frame is open in which `{name}` could be local.",
                fix="with sym_tbl().frame(): ...",
            )
        return frames[-1].values


def sym_tbl() -> SymbolTable:
    """The symbol table of the run that is open here."""
    return SymbolTable(current())


def _unknown(what: str, name: str, names: Sequence[str]) -> NoReturn:
    known = f"set are: {', '.join(names)}" if names else ""
    raise ContextError(what, fix=" ".join(filter(None, [did_you_mean(name, names, 3), known])))
