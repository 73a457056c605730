"""Search through the objects that an object references, before it is copied to loader workers."""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from assay.core.errors import InputError

MAX_OBJECTS: Final = 100_000
"""Objects looked at; a data set of millions of its own is not searched to the last."""

# Holds nothing, or is sent by its name and not copied.
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    type(None),
    type,
    types.ModuleType,
    logging.Logger,
)
_HEAP_TYPE = 1 << 9  # a class written in Python: the slots of others lead to modules and globals


Parts = Callable[[Any], Iterable[tuple[str, Any]]]
"""Function from an object to (path, object) of each of its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Object found in the graph, and the path to it, such as `.pipes[1].owner`."""

    name: str
    way: str

    def text(self, start: str) -> str:
        return start + self.way


def check_for_workers(thing: object, where: str, kept: Mapping[str, object]) -> None:
    """InputError when `thing`, which `where` names in the config, holds anything of `kept`.

    Worker processes get a copy of `thing` and of all it holds: with the model or the context, of
    the whole run.
    """
    held = path_to(thing, kept)
    if held is not None:
        raise InputError(
            f"`{held.text(where)}` holds the {held.name} of the run,"
            " which worker processes must not copy.",
            fix="keep the one value that is needed there, or load without workers",
        )


def path_to(start: object, kept: Mapping[str, object]) -> Held | None:
    """Return the shortest path from `start` to one of the named objects in `kept`, or None."""
    wanted = {id(thing): name for name, thing in kept.items()}
    for thing, way in inside(start):
        if id(thing) in wanted:
            return Held(name=wanted[id(thing)], way=way)
    return None


def inside(
    start: object, *, limit: int | None = None, parts: Parts | None = None
) -> Iterator[tuple[Any, str]]:
    """Yield `start` and the objects that it references, nearest first, with their paths.

    `parts` yields what an object references in the place of `parts_of`.
    """
    limit = MAX_OBJECTS if limit is None else limit
    parts = parts or parts_of
    seen = {id(start)}
    todo: deque[tuple[Any, str]] = deque([(start, "")])
    # what attributes give may be made on the spot: an id means nothing once its object is gone
    alive = []
    while todo and len(seen) <= limit:
        thing, way = todo.popleft()
        yield thing, way
        for step, inner in parts(thing):
            if id(inner) not in seen:
                seen.add(id(inner))
                alive.append(inner)
                todo.append((inner, way + step))


def being_sent() -> object | None:
    """Return the object that this thread is pickling for another process, or None."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if (
            frame.f_code.co_name == "dump"
            and frame.f_globals.get("__name__") == "multiprocessing.reduction"
        ):
            return frame.f_locals.get("obj")
        frame = frame.f_back
    return None


def is_plain(thing: object) -> bool:
    """Return True for an object that holds nothing, or that is sent by its name."""
    return issubclass(type(thing), _PLAIN)


def parts_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object that are not plain, with the path to each."""
    return ((step, inner) for step, inner in all_parts_of(thing) if not is_plain(inner))


def all_parts_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object with the path to each; none of the object's own code runs."""
    kind = type(thing)  # not isinstance, which asks the object what it is
    if issubclass(kind, dict):
        for key, value in list(dict.items(thing)):
            yield f"[{key!r}]" if type(key) in (str, int) else "[...]", value
    for sequence in (list, tuple, deque):
        if issubclass(kind, sequence):
            items = islice(sequence.__iter__(thing), MAX_OBJECTS)
            yield from ((f"[{i}]", item) for i, item in enumerate(items))
    for group in (set, frozenset):
        if issubclass(kind, group):
            yield from (("{...}", item) for item in islice(group.__iter__(thing), MAX_OBJECTS))
    if kind is functools.partial:
        yield ".func", thing.func
        yield from ((f".args[{i}]", item) for i, item in enumerate(thing.args))
        yield from ((f".keywords[{key!r}]", item) for key, item in thing.keywords.items())
    elif kind in (types.MethodType, types.BuiltinMethodType):
        yield ".__self__", thing.__self__
    elif kind is types.FunctionType:
        yield from _closed_over(thing)
    yield from _attributes(thing)


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"({name})", cell.cell_contents
        except ValueError:  # not set yet
            continue
    for i, default in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{i}]", default


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        own = {}
    if isinstance(own, dict):
        yield from (
            (f".{name}", value) for name, value in list(own.items()) if isinstance(name, str)
        )
    for kind in (kind for kind in type(thing).__mro__ if kind.__flags__ & _HEAP_TYPE):
        for name, slot in list(vars(kind).items()):
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield f".{name}", slot.__get__(thing)
                except AttributeError:  # not set
                    continue
