"""Objects that a checkpoint keeps beside model and optimizers: all that can be reached.

The walk begins at the process (or at a listener). It goes through lists, tuples, sets and
dicts, modules, hooks, objects whose class is the user's or the engine's, and what functions close
over or name. Kept is, once and under its path: each object with `state_dict` and `load_state_dict`,
each random generator, the buffers of modules that are not persistent, each parameter outside of
modules, and each attribute that a class lists in `keeps`. A list of more than `MAX_ITEMS` is data,
and not gone through.
"""

from __future__ import annotations

import argparse
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from assay.core import object_graph
from assay.core.code_places import is_of_user
from assay.core.errors import CheckpointError, InputError
from assay.engine.checkpoint.codec import encode
from assay.engine.checkpoint.optimizer_state import NamedState
from assay.engine.checkpoint.weights import load_model_state
from assay.engine.loop.run_parts import RunParts
from assay.engine.loop.state import State
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import is_dtensor
from assay.engine.numerics.seed import GLOBAL_GENERATORS
from assay.engine.numerics.structures import map_values, tensors_in
from assay.engine.optim.optimizer_step_base import Stateful

MAX_ITEMS = 10_000
_COLLECTIONS = (dict, list, tuple, set, frozenset, deque)
_CALLABLES = (partial, types.MethodType, types.BuiltinMethodType, types.FunctionType)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_NUMPY = (np.random.RandomState, np.random.Generator, np.random.BitGenerator)
_GENERATORS = (torch.Generator, random.Random, *_NUMPY)
_ENGINE = ("assay.engine.loop.", "assay.engine.callbacks.", "assay.engine.optim.")
_ROOMS = (*_ENGINE, "assay.engine.metrics.", "assay.compat.", "torch.utils.data.dataset")
_STOPS = (RunParts, State, DataLoader)
_TABLES = frozenset(vars(nn.Module()))
"""Attributes that torch gives to every module."""


def has_state(thing: Any) -> bool:
    """Return True for an object that gives its state and takes it back."""
    names = ("state_dict", "load_state_dict")
    return not isinstance(thing, type) and all(callable(getattr(thing, n, None)) for n in names)


class Walk:
    """Walk from one object after another; what was found or is `known` is not found again.

    Of known modules only what torch does not keep of them is found. `modules` are those found, and
    `own` the user's objects that were gone through, by path.
    """

    def __init__(self, known: Iterable[object] = ()) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.own: dict[str, Any] = {}
        self._known = {id(each): each for each in known}
        self._closed = frozenset(self._known)
        self._kinds: dict[type, tuple[bool, bool]] = {}
        self._start: object = None
        self._found: dict[str, Stateful] = {}

    def find(self, start: object) -> dict[str, Stateful]:
        """Return what is kept of the objects reached from `start`, by path.

        The path of `start` itself is "". CheckpointError when two objects have one path.
        """
        self._start, self._found, alone = start, {}, dict[str, Tensor]()
        for thing, way in object_graph.inside(start, limit=sys.maxsize, parts=self._parts):
            path = way.removeprefix(".")
            self._add(thing, path)
            if isinstance(thing, nn.Parameter):
                alone[path] = thing
            elif isinstance(thing, Optimizer):
                alone |= {f"{path}.{name}": each for name, each in _trained_by(thing)}
        modules = [each for each in self._known.values() if isinstance(each, nn.Module)]
        own = [private_torch.parameters_of(module).values() for module in modules]
        known = {id(tensor) for tensors in own for tensor in tensors}
        for path, tensor in alone.items():
            if id(tensor) not in known:
                known.add(id(tensor))
                self._known[id(tensor)] = tensor
                self._keep(path, _Tensor(tensor))
        return self._found

    def _add(self, thing: Any, path: str) -> None:
        is_known = id(thing) in self._known
        if isinstance(thing, nn.Module):
            if not is_known:
                self._add_module(thing, path)
            if passing := _passing_buffers(thing):
                self._keep(f"{path}:buffers", _Tensors(thing, passing))
        elif not is_known and isinstance(thing, _GENERATORS):
            self._keep(path, _Generator(thing))
        elif not is_known and has_state(thing):
            is_optimizer = isinstance(thing, Optimizer)
            self._keep(path, NamedState(thing, nn.Module()) if is_optimizer else thing)
        is_of_user, is_gone_through = self._look_up(type(thing))
        if is_of_user and not isinstance(thing, (*_COLLECTIONS, *_CALLABLES)):
            self.own[path] = thing
        if not is_known and is_gone_through:
            for name in _names_to_keep(thing):
                self._keep(f"{path}.{name}".removeprefix("."), _Attribute(thing, name))
        self._known.setdefault(id(thing), thing)

    def _add_module(self, module: nn.Module, path: str) -> None:
        """Keep a module as a whole, or what it has itself if other parts of it are kept."""
        self.modules[path] = module
        if any(id(each) in self._known for each in module.modules()):
            own = {**private_torch.parameters_of(module), **private_torch.buffers_of(module)}
            passing = _passing_buffers(module)
            names = [name for name, each in own.items() if each is not None]
            self._keep(path, _Tensors(module, [name for name in names if name not in passing]))
        else:
            self._known |= {id(each): each for each in module.modules()}
            self._keep(path, ModuleState(module))

    def _keep(self, path: str, holder: Stateful) -> None:
        if isinstance(holder, _Tensors) and not holder.names:
            return
        if path in self._found:
            raise CheckpointError(
                f"Two objects with a state are both at {path}.",
                fix="Let the keys of the dict that holds them be texts or numbers.",
            )
        self._found[path] = holder

    def _parts(self, thing: Any) -> Iterator[tuple[str, Any]]:
        kind = type(thing)
        if isinstance(thing, nn.Module):
            parts: Iterable[tuple[str, Any]] = _parts_of_module(thing)
        elif isinstance(thing, Optimizer):
            is_own = id(thing) not in self._closed and self._look_up(kind)[1]
            parts = [*_hooks_of(thing), *(object_graph.parts_of(thing) if is_own else ())]
        elif thing is not self._start and id(thing) in self._closed:
            return
        elif isinstance(thing, LRScheduler):
            parts = [(".optimizer", thing.optimizer)]
        elif isinstance(thing, types.FunctionType):
            parts = [*object_graph.parts_of(thing), *_named_globals(thing)]
        elif issubclass(kind, (*_COLLECTIONS, *_CALLABLES)) or self._look_up(kind)[1]:
            parts = object_graph.parts_of(thing)
        else:
            return
        if issubclass(kind, dict) and not all(type(key) in (str, int) for key in thing):
            parts = [(f"[{_spell_key(key)}]", part) for key, part in dict.items(thing)]
        yield from ((step, part) for step, part in parts if self._is_entered(part))

    def _is_entered(self, part: Any) -> bool:
        kind = type(part)
        if issubclass(kind, nn.Parameter):
            return id(part) not in self._known
        if issubclass(kind, (Tensor, np.ndarray, type, types.ModuleType, *_STOPS)):
            return False
        if any(part is each for each in GLOBAL_GENERATORS):
            return False  # keyed
        if issubclass(kind, _COLLECTIONS):
            return 0 < len(part) <= MAX_ITEMS
        if issubclass(kind, types.FunctionType):
            return is_of_user(part.__code__.co_filename)
        if kind.__module__.startswith("assay.engine.data."):
            return False
        is_one = issubclass(kind, (nn.Module, *_CALLABLES, *_GENERATORS)) or has_state(part)
        return is_one or self._look_up(kind)[1]

    def _look_up(self, kind: type) -> tuple[bool, bool]:
        """Return whether a class is the user's, and whether its objects are gone through."""
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = (_is_of_user(kind), _is_gone_through(kind))
        return found


def _spell_key(key: object) -> str:
    """Return a key of a dict as text that is the same in another OS process, if it has one."""
    if isinstance(key, Enum):
        return key.name
    return repr(key) if isinstance(key, str | int | float | tuple) else "..."


def _parts_of_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, child in private_torch.children_of(module).items():
        if child is not None:
            yield f".{name}", child
    for name, value in list(vars(module).items()):
        if name not in _TABLES and not object_graph.is_plain(value):
            yield f".{name}", value
    yield from _hooks_of(module)


def _hooks_of(thing: nn.Module | Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield the hooks of a pass or a step, numbered in their order: their keys are of a process."""
    for name, table in private_torch.hooks_of(thing).items():
        yield from ((f".{name}[{i}]", hook) for i, hook in enumerate(table.values()))


def _trained_by(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for i, group in enumerate(optimizer.param_groups):
        yield from ((f"params[{i}][{j}]", each) for j, each in enumerate(group["params"]))


def _passing_buffers(module: nn.Module) -> list[str]:
    """Return the names of a module's own buffers that its state does not have."""
    passing = private_torch.passing_buffers_of(module)
    if not passing:
        return []
    own = private_torch.buffers_of(module)
    return [
        name
        for name, each in own.items()
        if name in passing and each is not None and not each.is_meta and not is_dtensor(each)
    ]


def _named_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that the code of a function names, but for modules and classes."""
    for name in dict.fromkeys(_names_in(function.__code__)):
        value = function.__globals__.get(name)
        if value is not None and not object_graph.is_plain(value):
            yield f".{name}", value


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)


def _is_gone_through(kind: type) -> bool:
    """Return True for a class of the user, or of the engine's rooms that hold the user's objects.

    A class that inherits from such a one counts as well.
    """
    if issubclass(kind, _NAMESPACES):
        return True
    return any(
        each.__module__.startswith(_ROOMS) or _is_of_user(each) for each in kind.__mro__[:-1]
    )


def _is_of_user(kind: type) -> bool:
    if kind.__module__ in sys.builtin_module_names:
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return file is None or is_of_user(file)


def _names_to_keep(thing: Any) -> Sequence[str]:
    """Return the attributes that the class of an object lists in `keeps`."""
    names = getattr(type(thing), "keeps", ())
    if isinstance(names, str) or not isinstance(names, list | tuple):
        names = (names,)
    for name in names:
        if not isinstance(name, str) or not hasattr(thing, name):
            kind = type(thing).__name__
            raise InputError(
                f"{kind}.keeps lists {name!r}, which is no attribute of it.",
                fix=f'Set it in __init__, and list names: keeps = ("seen",) in {kind}.',
            )
    return names


def plain_attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object that are plain data or tensors, and that nothing keeps."""
    skipped = {*_TABLES, *getattr(type(thing), "keeps", ())}
    values = {name: value for name, value in vars(thing).items() if name not in skipped}
    return {name: value for name, value in values.items() if _is_plain_data(value)}


def _is_plain_data(value: Any) -> bool:
    if isinstance(value, nn.Parameter):
        return False
    try:
        encode(value)
    except CheckpointError:
        return False
    return True


# ---------------------------------------------------------------------------------------- holders


def name_of(holder: object) -> str:
    """Return the class of the object whose state a holder gives."""
    for name in ("module", "optimizer", "owner", "generator", "tensor"):
        if isinstance(holder, _HOLDERS) and hasattr(holder, name):
            return type(getattr(holder, name)).__name__
    return type(holder).__name__


class ModuleState:
    """State of a module, whose buffers may have grown."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def is_frozen(self) -> bool:
        """True where nothing of it is trained: its file is written once while it is equal."""
        parameters = list(self.module.parameters())
        return bool(parameters) and not any(each.requires_grad for each in parameters)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_model_state(self.module, state, resizes=True)


class _Tensors:
    """Own tensors of a module, by name."""

    def __init__(self, module: nn.Module, names: Iterable[str]) -> None:
        self.module = module
        self.names = list(names)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self.module, name) for name in self.names}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            own = getattr(self.module, name, None)
            if not isinstance(own, Tensor):
                continue
            if own.shape == value.shape:
                own.copy_(value)
            elif not isinstance(own, nn.Parameter):
                setattr(self.module, name, value.to(own.device, own.dtype))


class _Tensor:
    """Parameter that is in no module."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.tensor}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tensor.copy_(state["value"])


class _Attribute:
    """Attribute that a class lists in `keeps`: plain data or tensors."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name

    def state_dict(self) -> dict[str, Any]:
        value = getattr(self.owner, self.name)
        device = next((str(each.device) for each in tensors_in(value)), "cpu")
        return {"value": value, "device": device}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        device = state["device"]
        value = state["value"]
        if device != "cpu":
            value = map_values(value, lambda tensor: tensor.to(device))
        setattr(self.owner, self.name, value)


class _Generator:
    """State of a random generator of torch, numpy or Python."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        own = self.generator
        if isinstance(own, np.random.Generator):
            own = own.bit_generator
        if isinstance(own, np.random.BitGenerator):
            return {"state": own.state}
        return {"state": own.getstate() if isinstance(own, random.Random) else own.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self.generator
        if isinstance(own, np.random.Generator):
            own = own.bit_generator
        if isinstance(own, np.random.BitGenerator):
            own.state = state["state"]
        elif isinstance(own, random.Random):
            own.setstate(state["state"])
        else:
            own.set_state(state["state"])


_HOLDERS = (ModuleState, NamedState, _Tensors, _Tensor, _Attribute, _Generator)
