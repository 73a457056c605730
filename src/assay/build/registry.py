"""Registry of short names for classes and functions, by kind, which configs may use as targets.

A name given in the user's folders lives as long as their run; any other lives as long as the
OS process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar, overload

from assay.config.isolation import while_open
from assay.core.code_places import lies_under
from assay.core.errors import InputError, choose

F = TypeVar("F", bound=Callable[..., Any])


class RegistryError(InputError):
    """A short name is registered twice, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Entry of the registry. `kind` is "" if it has none; `place` is file:line."""

    name: str
    kind: str
    thing: Any
    place: str

    def __str__(self) -> str:
        return f"`{self.name}`{f' of kind {self.kind}' if self.kind else ''}"


class Names:
    """Names of one owner: the OS process, or the user's folders of one open run."""

    def __init__(self, owns: Callable[[str], bool]) -> None:
        self.owns = owns
        self.thread = threading.get_ident()
        self.known: dict[tuple[str, str], Registered] = {}


class Registry:
    """Names visible here: those of the run open in this thread, and those of the OS process."""

    def __init__(self) -> None:
        self._process = Names(lambda _: True)
        self._runs: list[Names] = []
        self._lock = threading.RLock()

    def add(self, thing: Any, *, name: str, kind: str, file: str, line: int) -> None:
        """Register `thing`; RegistryError, with both places, if the name of this kind is taken."""
        new = Registered(name=name, kind=kind, thing=thing, place=f"{file}:{line}")
        with self._lock:
            owner = next(
                (names for names in reversed(self._runs) if names.owns(file)), self._process
            )
            for names in (owner, self._process):
                old = names.known.get((kind, name))
                # One file may be imported as `src.data` and as `data`.
                is_same_place = old is not None and old.place == new.place
                if old is not None and not is_same_place and not _is_redefined(old.thing, thing):
                    raise RegistryError(
                        f"{new} is registered twice.",
                        where=f"{old.place} and {new.place}",
                        fix="give one of them another name",
                    )
            owner.known[kind, name] = new

    def all(self, kind: object = None) -> list[Registered]:
        """Return all entries, or those of one kind (a class or its name), sorted by name."""
        wanted = None if kind is None else kind_name(kind)
        with self._lock:
            here = [
                names for names in self._runs if names.thread == threading.get_ident()
            ] or self._runs
            found = [each for names in [self._process, *here] for each in names.known.values()]
        return sorted(
            (each for each in found if wanted in (None, each.kind)),
            key=lambda each: (each.name, each.kind),
        )

    def try_get(self, name: str, kind: object = None) -> Any:
        """Return the object of this name, or None; RegistryError if several kinds have it."""
        found = [each for each in self.all(kind) if each.name == name]
        if len(found) > 1:
            raise RegistryError(
                f"More than one thing is registered as `{name}`: {' and '.join(map(str, found))}.",
                where=" and ".join(each.place for each in found),
                fix="say which kind is meant, or write its dotted path",
            )
        return found[0].thing if found else None

    def get(self, name: str, kind: object = None) -> Any:
        """Return the object of this name; RegistryError with the nearest names if there is none."""
        found = self.try_get(name, kind)
        if found is None:
            self._refuse_unknown(
                name, "" if kind is None else f" of kind {kind_name(kind)}", self.all(kind)
            )
        return found

    def __contains__(self, name: object) -> bool:
        return any(each.name == name for each in self.all())

    def open(self, owns: Callable[[str], bool]) -> Names:
        """Collect the names registered in files for which `owns` returns True, until `close`."""
        names = Names(owns)
        with self._lock:
            self._runs.append(names)
        return names

    def close(self, names: Names) -> None:
        """Forget the names of one owner."""
        with self._lock:
            self._runs.remove(names)

    def _refuse_unknown(self, name: str, of_kind: str, known: list[Registered]) -> NoReturn:
        fix = choose(name, (each.name for each in known), "registered are:", n=3)
        raise RegistryError(f"Nothing{of_kind} is registered as `{name}`.", fix=fix)


registry: Final = Registry()


def _collect(roots: tuple[str, ...]) -> Callable[[], None]:
    names = registry.open(lambda file: lies_under(file, roots))
    return lambda: registry.close(names)


while_open(_collect)


@overload
def register(target: F, /) -> F: ...
@overload
def register(kind: type, /, name: str | None = None) -> Callable[[F], F]: ...
@overload
def register(name: str | None = None, /, *, kind: type | None = None) -> Callable[[F], F]: ...
def register(first: Any = None, /, name: str | None = None, *, kind: type | None = None) -> Any:
    """Register a class or function under its own name, or under the one given.

    `@register`, `@register("small")`, `@register(Pipe)`, `@register(Pipe, "small")`: names of
    different kinds do not meet. A kind is any class; only its name counts.
    """
    caller = sys._getframe(1)
    if isinstance(first, str):
        name = first
    elif isinstance(first, type) and _is_bound(first, caller):
        kind = first
    elif callable(first):
        return _keep_name(first, None, None, caller)
    elif first is not None:
        raise TypeError(f"register takes a name or a kind, not {first!r}")

    def wrap(target: F) -> F:
        return _keep_name(target, name, kind, sys._getframe(1))

    return wrap


def kind_name(kind: object) -> str:
    """Return the namespace of a kind."""
    return kind if isinstance(kind, str) else str(getattr(kind, "__name__", kind))


def _keep_name(target: F, name: str | None, kind: type | None, caller: FrameType) -> F:
    if not callable(target):
        raise TypeError(f"register stands on a class or a function, not on {target!r}")
    registry.add(
        target,
        name=name or target.__name__,
        kind="" if kind is None else kind_name(kind),
        file=caller.f_code.co_filename,
        line=caller.f_lineno,
    )
    return target


def _is_bound(thing: type, caller: FrameType) -> bool:
    """Return True if a class is bound to its name: a class being decorated is not yet."""
    found: Any = sys.modules.get(thing.__module__)
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is thing:
        return True
    frame: FrameType | None = caller
    while frame is not None and frame.f_code.co_filename == caller.f_code.co_filename:
        if any(value is thing for value in frame.f_locals.values()):
            return True
        frame = frame.f_back
    return any(value is thing for value in caller.f_globals.values())


def _is_redefined(old: Any, new: Any) -> bool:
    """Return True for the same definition again: a reimported module, a rerun notebook cell."""
    return bool((old.__module__, old.__qualname__) == (new.__module__, new.__qualname__))
