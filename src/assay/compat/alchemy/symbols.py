"""Symbol table of alchemy: a view of the context in use, for code that looks things up globally.

It has the members that alchemy names, a global table for whatever a run shares, and local frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from assay.build import Context, ContextError
from assay.build.context import context_here
from assay.build.registry import Registry, registry
from assay.core.errors import did_you_mean, nearest

_MISSING: Final = object()
_OTHERWISE_NAMED: Final = {"task": "process", "train_sched": "state"}
"""Members whose name in a context is another."""

ENDING = "alchemy_ending"
"""Name under which the context has what ends while a pipeline is called: `epoch`, `step` or ""."""


class AbsentError(ContextError, AttributeError):
    """This run does not have that member, or does not have it yet."""


class NoFrameError(ContextError):
    """A local name was used without an open frame."""


class _Frame:
    __slots__ = ("owner", "values")

    def __init__(self, owner: Context) -> None:
        self.owner = owner
        self.values: dict[str, Any] = {}


_outside: Final = Context()
"""Table of the OS process, for what a script keeps before and after its runs."""

_frames: ContextVar[tuple[_Frame, ...]] = ContextVar("assay_frames", default=())


class TrainSched:
    """Counters of training by alchemy's names; everything else is that of the state.

    `cur_epoch` and `cur_step` count from 0, and at the end of an epoch or a step they still name
    the one that ends.
    """

    def __init__(self, state: Any, ending: str = "", wrapper: Any = None) -> None:
        self._state = state
        self._ending = ending
        self._wrapper = wrapper

    @property
    def cur_epoch(self) -> int:
        return int(self._state.epoch) - (self._ending == "epoch")

    @property
    def cur_step(self) -> int:
        return int(self._state.step) - (self._ending in ("epoch", "step"))

    def step_lr(self) -> None:
        """Do nothing: the run sets the learning rate of each step."""

    def __getattr__(self, name: str) -> Any:
        if self._wrapper is not None and not hasattr(self._state, name):
            return getattr(self._wrapper, name)
        return getattr(self._state, name)


class SymbolTable:
    """Objects of one run, by name. Each `sym_tbl()` makes a new view; the context stays."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    # --- the global table -------------------------------------------------------------------------

    def set(self, name: str, value: Any) -> None:
        """Set a new name; ContextError if it exists."""
        if not self.try_set(name, value):
            raise ContextError(
                f"`{name}` is set already.", fix="force_set to replace it, try_set to leave it"
            )

    def try_set(self, name: str, value: Any) -> bool:
        """Set a new name; return False, and change nothing, if it exists."""
        return self._context.add(name, value)

    def force_set(self, name: str, value: Any) -> None:
        """Set a name, existing or not."""
        self._context.set(name, value)

    def get(self, name: str) -> Any:
        """Return the object of this name; ContextError with the nearest names if there is none."""
        found = self.try_get(name, _MISSING)
        if found is _MISSING:
            if name in self._context.promises():
                return self._context.get(name)  # says why it is not there
            _refuse_unknown(f"Nothing is set as `{name}`.", name, self._context.names())
        return found

    def try_get(self, name: str, default: Any = None) -> Any:
        """Return the object of this name, or `default`."""
        return self._context.try_get(name, default)

    def names(self) -> list[str]:
        """Return all names."""
        return self._context.names()

    def __contains__(self, name: object) -> bool:
        return name in self._context

    # --- local frames -----------------------------------------------------------------------------

    @contextmanager
    def frame(self) -> Iterator[SymbolTable]:
        """Open a frame like that of a function: local names live in the top one."""
        token = _frames.set((*_frames.get(), _Frame(self._run())))
        try:
            yield self
        finally:
            _frames.reset(token)

    def set_local(self, name: str, value: Any) -> None:
        """Set a new name in the top frame; see `set`."""
        if not self.try_set_local(name, value):
            raise ContextError(
                f"`{name}` is set already in this frame.", fix="force_set_local to replace it"
            )

    def try_set_local(self, name: str, value: Any) -> bool:
        """Set a new name in the top frame; see `try_set`."""
        values = self._top(name)
        if name in values:
            return False
        values[name] = value
        return True

    def force_set_local(self, name: str, value: Any) -> None:
        """Set a name in the top frame; see `force_set`."""
        self._top(name)[name] = value

    def get_local(self, name: str) -> Any:
        """Return the object of a name of the top frame; see `get`."""
        values = self._top(name)
        if name not in values:
            _refuse_unknown(f"Nothing is set as `{name}` in this frame.", name, list(values))
        return values[name]

    def try_get_local(self, name: str, default: Any = None) -> Any:
        """Return the object of a name of the top frame; see `try_get`."""
        return self._top(name).get(name, default)

    # --- members ----------------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        """Short names by kind."""
        return registry

    @property
    def plugins(self) -> Sequence[Any]:
        """Plugins of the run in the order of the config."""
        return cast("Sequence[Any]", self._member("plugins"))

    @property
    def task(self) -> Any:
        """Task of the config; the process, which is the training step, where there is none."""
        found = self.try_get("task")
        return self._member("process") if found is None else found

    @property
    def model(self) -> Any:
        return self._member("model")

    @property
    def optimizer(self) -> Any:
        wrapper = self.try_get("optimizer_wrapper")
        return self._member("optimizer") if wrapper is None else wrapper

    @property
    def train_sched(self) -> TrainSched:
        """State of the training, with `cur_epoch` and `cur_step`."""
        wrapper = self.try_get("sched_wrapper")
        return TrainSched(self._member("state"), self.try_get(ENDING, ""), wrapper)

    @property
    def cfg(self) -> Mapping[str, Any]:
        """Config as plain dictionaries, lists and values."""
        return cast("Mapping[str, Any]", self._member("cfg"))

    @property
    def device(self) -> Any:
        """Device for `model.to`."""
        return self._member("device")

    @property
    def device_info(self) -> Mapping[str, Any]:
        """Device in words and numbers."""
        return cast("Mapping[str, Any]", self._member("device_info"))

    @property
    def console(self) -> Any:
        """Console of the run; printing to it does not break a progress bar."""
        return self._member("console")

    @property
    def record_dir(self) -> Path | None:
        """Folder of the record; None if the run keeps none."""
        return cast("Path | None", self._member("record_dir"))

    @property
    def checkpt_dir(self) -> Path | None:
        """Folder of the checkpoints; None without a record."""
        found = self.try_get("record_dir")
        return None if found is None else Path(found) / "checkpt"

    @property
    def debug(self) -> bool:
        """Return True for a run that was launched with `--debug`."""
        return bool(self.try_get("debug", False))

    @property
    def no_file(self) -> bool:
        """Return True for a run that keeps no record."""
        return self.try_get("record_dir") is None

    def __getattr__(self, name: str) -> Any:
        if name in vars(SymbolTable) and not name.startswith("_"):
            # A property could not find it. Its error is lost by now and is raised once more.
            return self._member(_OTHERWISE_NAMED.get(name, name))
        members = [member for member in vars(SymbolTable) if not member.startswith("_")]
        near = nearest(name, members)
        fix = f"did you mean `{near[0]}`?" if near else f'what was set is read by get("{name}")'
        raise AbsentError(f"The symbol table has no member `{name}`.", fix=fix)

    def reset(self) -> None:
        """Drop everything of this run, so that its memory is free. The registry stays."""
        self._run().close()

    # --- inside -----------------------------------------------------------------------------------

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
    """Return the symbol table of the run that is open here; outside of runs that of the process."""
    return SymbolTable(context_here() or _outside)


def _refuse_unknown(what: str, name: str, names: Sequence[str]) -> NoReturn:
    known = f"set are: {', '.join(names)}" if names else ""
    raise ContextError(what, fix=" ".join(filter(None, [did_you_mean(name, names, 3), known])))
