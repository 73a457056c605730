"""State of the user's code that no checkpoint keeps: what changes in a step, and where it is.

Objects are compared before and after a step, from the roots that the engine knows. Classes of
assay, torch and Python's library are looked through for objects of the user; what they hold
themselves is theirs to keep. What no Python object shows, as the state of a C extension, is not
seen.
"""

from __future__ import annotations

import array
import functools
import gc
import io
import itertools
import operator
import os
import queue
import random
import sys
import types
import warnings
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from assay.core import object_graph
from assay.core.code_places import is_of_house, is_of_user
from assay.engine.checkpoint.codec import digest_tensor
from assay.engine.checkpoint.state_trials import ModelTrial
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.seed import read_generator_state
from assay.engine.numerics.sparse import is_sparse
from assay.engine.numerics.structures import map_values

Kind = Literal["number", "collection", "tensor", "generator", "iterator", "cache", "file", "state"]

MAX_OBJECTS: Final = 50_000
MAX_ITEMS: Final = 1_000
"""Plain items of a collection that are compared, at each end."""
MAX_NUMEL: Final = 1 << 22
"""Numbers of a tensor that are compared; of a larger one only torch's count of writes is."""

_ABSOLUTE = "\0"
"""Begins the step to what has a path of its own, such as a global of a module."""
_OF_MODULE = frozenset(vars(nn.Module()))
_STATE_OF_MODULE = ("state_dict", "get_extra_state", "_save_to_state_dict")
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_SHARED = (torch.default_generator, np.random.rand.__self__, random.random.__self__)  # type: ignore[attr-defined]
_SLOTS_OF_PARTIAL = (".args", ".keywords", ".__vectorcalloffset__")
"""Slots whose items are parts of a `partial` themselves."""
_WHOLE = (Tensor, np.ndarray, types.ModuleType, ModelTrial, *_GENERATORS)
"""Kinds that nothing is looked for inside: a trial's model is another than that which trains."""
_CALLABLE = (types.FunctionType, types.MethodType, functools.partial)
_COLLECTIONS = (dict, list, tuple, set, frozenset, deque)
_HOLDERS = (
    types.SimpleNamespace,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    UserDict,
    UserList,
    ChainMap,
    queue.Queue,
)
"""Classes of Python that hold what is given to them."""
_TORCH_MODULES = "torch.nn.modules."
_LRU = type(functools.lru_cache(len))
_UNCHANGING = (type, types.CodeType, types.ModuleType)


@dataclass(frozen=True, slots=True)
class Mark:
    """Comparable content of one place, and the kind of thing that is there."""

    kind: Kind
    content: Any


@dataclass(frozen=True, slots=True)
class Hidden:
    """Place of a state that no checkpoint keeps.

    `once`: it was set in the first step and has not changed since.
    """

    path: str
    kind: Kind
    once: bool = False

    @property
    def is_harmful(self) -> bool:
        """False where a resumed run may well come to the same: of a cache, of what is set once."""
        return not self.once and self.kind != "cache"


@dataclass(slots=True)
class Snapshot:
    """Marks of everything that can be seen from the roots, by path."""

    marks: dict[str, Mark] = field(default_factory=dict)
    is_whole: bool = True


def take_snapshot(
    roots: Mapping[str, Any], *, kept: Iterable[Tensor] = (), known: Iterable[object] = ()
) -> Snapshot:
    """Mark what can be seen from named roots.

    `kept` are the tensors that a checkpoint keeps; `known` objects have a state of their own that
    it keeps, or none that matters, and are not looked into.
    """
    storages = {_storage_of(tensor) for tensor in kept}
    ignored = {id(thing) for thing in known}
    snapshot = Snapshot()

    def parts(thing: Any) -> Iterator[tuple[str, Any]]:
        for step, part in _parts(thing):
            if id(part) not in ignored and (isinstance(part, type) or not _is_value(part)):
                yield step, part

    num_seen = 0
    for thing, way in object_graph.inside(_Roots(roots), limit=MAX_OBJECTS, parts=parts):
        num_seen += 1
        path = way.rpartition(_ABSOLUTE)[2].removeprefix(".")
        if isinstance(thing, Tensor) and _storage_of(thing) in storages:
            continue
        for step, mark in _marks(thing):
            place = step[1:] if step.startswith(_ABSOLUTE) else path + step
            snapshot.marks[place.removeprefix(".")] = mark
    snapshot.is_whole = num_seen < MAX_OBJECTS
    return snapshot


def mark_states(things: Mapping[str, Any], kept: Iterable[Tensor]) -> dict[str, Mark]:
    """Mark what the `state_dict` of named objects gives, but for the tensors that are `kept`."""
    storages = {_storage_of(tensor) for tensor in kept}

    def content(tensor: Tensor) -> Any:
        return None if _storage_of(tensor) in storages else _content_of(tensor)

    states = {name: thing.state_dict() for name, thing in things.items()}
    return {
        name: Mark("state", repr(map_values(state, content)))
        for name, state in states.items()
        if state
    }


def find_changes(things: Mapping[str, object], call: Callable[[], object]) -> dict[str, list[str]]:
    """Return the paths of what changes in a call inside each of `things`, by their names."""
    before = {name: take_snapshot({name: thing}) for name, thing in things.items()}
    call()
    return {
        name: sorted(_find_changed(before[name], take_snapshot({name: thing})))
        for name, thing in things.items()
    }


def compare_snapshots(before: Snapshot, first: Snapshot, last: Snapshot) -> list[Hidden]:
    """Return what changed: from before the steps to after the first one, and to after the last."""
    late = _find_changed(first, last)
    hidden = [Hidden(path, last.marks[path].kind) for path in late]
    for path in _find_changed(before, first) - late:
        if path in last.marks and not any(above in late for above in _ancestors_of(path)):
            kind = first.marks[path].kind
            if isinstance(first.marks[path].content, str | bool):
                continue  # a flag, such as the one that says that the first step was made
            once = kind not in ("generator", "iterator", "file")
            hidden.append(Hidden(path, kind, once=once))
    return sorted(hidden, key=lambda each: (not each.is_harmful, each.path))


def _find_changed(before: Snapshot, after: Snapshot) -> set[str]:
    """Return the paths whose marks differ; of what is new, that which holds the rest."""
    changed = {
        path
        for path, mark in after.marks.items()
        if path not in before.marks or before.marks[path].content != mark.content
    }
    return {path for path in changed if not any(above in changed for above in _ancestors_of(path))}


def _ancestors_of(path: str) -> Iterator[str]:
    for i, letter in enumerate(path):
        if letter in ".[(" and i:
            yield path[:i]


class _Roots:
    """Start of the search: its parts are the roots, by name."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.roots = roots


# ------------------------------------------------------------------------------- what leads to what


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, _Roots):
        yield from ((f".{name}", root) for name, root in thing.roots.items() if root is not None)
        return
    if isinstance(thing, type):
        yield from ((f".{name}", value) for name, value in _class_attributes(thing))
        return
    if isinstance(thing, _WHOLE):
        return
    kind = type(thing)
    if isinstance(thing, nn.Module):
        yield from _parts_of_module(thing)
    elif isinstance(thing, Iterator) and _is_house_class(kind):
        yield from ((f"({i})", inner) for i, inner in enumerate(_iterators_in(thing)))
    elif _is_house_class(kind) or _is_library_function(thing):
        yield from _objects_in(thing)
    else:
        yield from ((step, part) for step, part in _own_parts(thing) if not _is_unchanging(part))
    if isinstance(thing, types.FunctionType) and _is_users(thing):
        yield from _globals_of(thing)
    elif not isinstance(thing, types.FunctionType) and _is_users(kind):
        yield f"{_ABSOLUTE}{kind.__module__}.{kind.__qualname__}", kind


def _own_parts(thing: Any) -> Iterator[tuple[str, Any]]:
    skipped = _names_of_optimizers() if isinstance(thing, Optimizer) else frozenset()
    is_kept = isinstance(thing, Optimizer) and _keeps_itself(thing, "state_dict")
    if is_kept or isinstance(thing, LRScheduler):  # which is put to a step, not resumed
        yield from _objects_in(thing)
        return
    for step, part in object_graph.all_parts_of(thing):
        if step.removeprefix(".") not in skipped and step not in _SLOTS_OF_PARTIAL:
            yield step, part


def _iterators_in(iterator: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """Yield the iterators that one of Python or torch takes its items from."""
    for part in [*gc.get_referents(iterator), *getattr(iterator, "__dict__", {}).values()]:
        for each in part if type(part) is tuple else (part,):
            if isinstance(each, Iterator):
                yield each


@functools.cache
def _names_of_optimizers() -> frozenset[str]:
    """Return the attributes that torch and its schedulers give to every optimizer."""
    plain = torch.optim.SGD([torch.zeros(1)])
    return frozenset({*vars(plain), "_opt_called", "step", "_step_count"})


def _parts_of_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    own = vars(module)
    for name, child in own.get("_modules", {}).items():
        if child is not None:
            yield f".{name}", child
    for name, buffer in private_torch.buffers_of(module).items():
        if buffer is not None:
            yield f".{name}", buffer
    for name in own:
        if name.endswith("_hooks") and own[name]:
            yield from ((f".{name}[...]", hook) for hook in list(own[name].values()))
    if not _is_house_class(type(module)) and not _keeps_itself(module, *_STATE_OF_MODULE):
        for name, value in list(own.items()):
            if name not in _OF_MODULE and not _is_unchanging(value):
                yield f".{name}", value
    elif type(module).__module__.startswith(_TORCH_MODULES):  # such as the rate of a dropout
        for name, value in list(own.items()):
            if name not in _OF_MODULE and _is_value(value):
                yield f".{name}", value


def _keeps_itself(thing: object, *methods: str) -> bool:
    """Return True if the class of `thing` says itself what is kept of it."""
    own = (getattr(type(thing), name) for name in methods)
    return any(not (method.__module__ or "").startswith("torch.") for method in own)


def _objects_in(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that an object of assay, torch or Python holds, also within collections."""
    for step, part in object_graph.parts_of(thing):
        if isinstance(part, _COLLECTIONS):
            inner = part.items() if isinstance(part, dict) else enumerate(part)
            for key, each in itertools.islice(inner, MAX_ITEMS):
                if _may_be_users(each):
                    yield f"{step}[{key!r}]" if isinstance(key, str | int) else step, each
        elif _may_be_users(part):
            yield step, part


def _may_be_users(part: Any) -> bool:
    """Return True for what an object of assay or torch may hold of the user, or leads to it."""
    kind = type(part)
    if object_graph.is_plain(part) or issubclass(kind, (Tensor, np.ndarray, *_COLLECTIONS)):
        return False
    if kind in _CALLABLE or issubclass(kind, nn.Module | Optimizer | LRScheduler):
        return True
    if issubclass(kind, io.TextIOBase) and (part.closed or not part.readable()):
        return False  # what is printed to: in a notebook it leads to the whole kernel
    return kind.__module__.startswith("assay.engine.") or not _is_house_class(kind)


def _class_attributes(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(kind).items()):
        if not name.startswith(("__", "_abc_")):
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            if not _is_unchanging(inner):
                yield name, inner


def _globals_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that the code of a function names, those of the user's modules too."""
    names = _names_in(function.__code__)
    homes = [(function.__module__, function.__globals__)]
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and is_of_user(getattr(value, "__file__", "")):
            homes.append((value.__name__, vars(value)))
    for home, values in homes:
        for name in names & values.keys():
            value = values[name]
            is_code = isinstance(value, types.FunctionType | type)
            if not _is_unchanging(value) or (is_code and _is_users(value)):
                yield f"{_ABSOLUTE}{home}.{name}", value


def _names_in(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _is_unchanging(value: object) -> bool:
    return isinstance(value, _UNCHANGING)


def _is_value(thing: object) -> bool:
    return isinstance(thing, np.generic) or object_graph.is_plain(thing)


def _is_house_class(kind: type) -> bool:
    """Return True for classes of assay, torch and Python but those that hold a user's state."""
    home = (getattr(kind, "__module__", "") or "").partition(".")[0]
    if kind in _CALLABLE or issubclass(kind, _HOLDERS):
        return False
    if issubclass(kind, _COLLECTIONS) or kind is _LRU:
        return home in ("assay", "torch")
    return home in ("assay", "torch") or home in sys.stdlib_module_names


def _is_users(thing: Any) -> bool:
    """Return True for a function or class that is written in a file of the user."""
    if isinstance(thing, types.FunctionType):
        return is_of_user(thing.__code__.co_filename)
    module = sys.modules.get(getattr(thing, "__module__", "") or "")
    return is_of_user(getattr(module, "__file__", None) or "")


def _is_library_function(thing: object) -> bool:
    """Return True for a function of assay or of a library, whose closure is its own matter."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    thing = getattr(thing, "__func__", thing) if isinstance(thing, types.MethodType) else thing
    return isinstance(thing, types.FunctionType) and not is_of_user(thing.__code__.co_filename)


# --------------------------------------------------------------------------------- what is compared


def _marks(thing: Any) -> Iterator[tuple[str, Mark]]:
    """Yield (path from the thing, mark) of the state of one thing itself."""
    if isinstance(thing, Tensor):
        yield "", Mark("tensor", _content_of(thing))
    elif isinstance(thing, np.ndarray):
        yield "", Mark("tensor", (thing.shape, str(thing.dtype), hash(_bytes_of(thing))))
    elif isinstance(thing, _GENERATORS):
        if not any(thing is shared for shared in _SHARED):
            yield "", Mark("generator", read_generator_state(thing))
    elif isinstance(thing, array.array):
        yield "", Mark("collection", thing.tobytes())
    elif isinstance(thing, ContextVar):
        value = thing.get(None)
        yield "", Mark("number", _comparable(value) if _is_value(value) else None)
    elif isinstance(thing, _LRU):
        if _is_users(thing.__wrapped__):
            yield "", Mark("cache", thing.cache_info().misses)
    elif isinstance(thing, io.IOBase):
        if thing.readable():
            yield "", Mark("file", _offset_in(thing))
    elif isinstance(thing, _COLLECTIONS):
        if not _is_house_class(type(thing)):
            yield "", Mark("collection", _items_of(thing))
    else:
        if isinstance(thing, Iterator):
            yield "", Mark("iterator", _position_of(thing))
        # By whoever holds them: equal numbers are one object to Python.
        for step, part in _parts(thing):
            if _is_value(part) and not isinstance(part, type):
                yield step, Mark("number", _comparable(part))


def _comparable(value: Any) -> Any:
    if isinstance(value, bytearray | np.generic):
        return repr(value)
    return "nan" if value != value else value


def _items_of(thing: Collection[Any]) -> tuple[Any, ...]:
    """Return the length of a collection, and its plain items up to a limit."""
    ends: Iterable[Any] = thing.items() if isinstance(thing, dict) else thing
    if len(thing) > 2 * MAX_ITEMS:
        ends = itertools.islice(ends, MAX_ITEMS)
        if isinstance(thing, list | tuple | deque):
            ends = [*ends, *(thing[-i] for i in range(1, MAX_ITEMS))]
    if isinstance(thing, dict):
        ends = itertools.chain.from_iterable(ends)
    plain = [_comparable(item) if _is_value(item) else None for item in ends]
    return type(thing), len(thing), plain


def _content_of(tensor: Tensor) -> Any:
    shape = (tuple(tensor.shape), tensor.dtype)
    tensor = local_tensor(tensor)
    if tensor.is_meta or is_sparse(tensor) or tensor.numel() > MAX_NUMEL:
        return *shape, private_torch.version_of(tensor), id(tensor)
    try:
        return *shape, digest_tensor(tensor)
    except (RuntimeError, TypeError, NotImplementedError):  # a class of tensors without memory
        return *shape, private_torch.version_of(tensor), id(tensor)


def _bytes_of(array: np.ndarray[Any, Any]) -> bytes:
    return array.tobytes() if array.size <= MAX_NUMEL else array.ravel()[:MAX_ITEMS].tobytes()


def _offset_in(file: Any) -> Any:
    try:
        return file.tell()
    except (OSError, ValueError):  # a file of text that is iterated does not tell
        return object()


def _position_of(iterator: Any) -> Any:
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        if frame is None:
            return None
        plain = {
            name: value for name, value in frame.f_locals.items() if object_graph.is_plain(value)
        }
        return frame.f_lasti, plain
    if isinstance(iterator, itertools.count):
        return repr(iterator)
    if isinstance(iterator, itertools.cycle) and sys.version_info < (3, 14):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            made: Any = iterator.__reduce__()
        iterator = made[1][0]
    return operator.length_hint(iterator, -1)


def _storage_of(tensor: Tensor) -> int:
    try:
        return local_tensor(tensor).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a class of tensors without memory
        return id(tensor)


_MAX_FRAMES = 50
_COMPILERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_dynamo", "_inductor", "triton"))
_active: KeptFiles | None = None
_is_heard = False


class KeptFiles:
    """Files that the user's code opens between `start` and `stop`, in this OS process.

    `is_ignored` is asked for each: data read and cache what they want.
    """

    def __init__(self, is_ignored: Callable[[], bool]) -> None:
        self.is_ignored = is_ignored
        self.read: set[str] = set()
        self.written: set[str] = set()

    def start(self) -> None:
        global _active, _is_heard
        _active = self
        if not _is_heard:  # CPython cannot take an audit hook away: it costs 0.1 us an event
            _is_heard = True
            sys.addaudithook(_hear)

    def stop(self) -> list[str]:
        """Return the files that were both read and written, by their paths from here."""
        global _active
        if _active is self:
            _active = None
        here = os.getcwd() + os.sep
        return sorted(path.removeprefix(here) for path in self.read & self.written)

    def note(self, path: object, flags: object) -> None:
        """Note that a file is opened, if it is the user's code that opens it."""
        if not isinstance(path, str | bytes | os.PathLike) or not isinstance(flags, int):
            return
        if not _is_opened_by_user() or self.is_ignored():
            return
        place = os.path.abspath(os.fsdecode(path))
        access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
        if access != os.O_RDONLY:
            self.written.add(place)
        if access != os.O_WRONLY:
            self.read.add(place)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _active is not None and event == "open":
        path, _, flags = arguments
        _active.note(path, flags)


def _is_opened_by_user() -> bool:
    """Return True if the nearest frame that is no library's is the user's, not one of assay.

    A compiler works within the call of the user's code that it compiles; its files are its own.
    """
    frame = sys._getframe(3)
    for _ in range(_MAX_FRAMES):
        file = frame.f_code.co_filename
        if is_of_user(file):
            return True
        is_compiler = any(name in file for name in _COMPILERS)
        if is_compiler or is_of_house(file) or frame.f_back is None:
            return False
        frame = frame.f_back
    return False
