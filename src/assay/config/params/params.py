"""Hyper-parameters with attribute access, set in a class, on the command line, or from a file.

>>> class Mine(BaseParams):
...     lr: float = arange(0.1, 0, 1)
...     topk: tuple[int, ...] = (1, 5)
>>> print(Mine().from_args(["--lr=0.01", "topk=1,2,3"]))
Mine[('lr', 0.01),
 ('topk', (1, 2, 3))]
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import math
import os
import pprint
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from assay.config.diff import KeyChange, changed_keys
from assay.config.params import files
from assay.config.params.changes import Unknown, assign, change, read_arguments
from assay.config.params.coercion import arange, choice, type_of
from assay.config.params.declared import (
    REQUIRED,
    Declared,
    Names,
    clash,
    conflict,
    declarations,
    hints_of,
    join,
)
from assay.config.params.group import (
    Notes,
    ParamDict,
    caller,
    child,
    is_holder,
    store_at,
    unknown_parameter,
)
from assay.config.sources.classes import PYTHON, node_of, table_of
from assay.config.tree import KeyPath, Table, dotted, parse_dotted, problem_at, set_at
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError, InputError

WIDTH = 78  # of one pair: what pprint leaves it on a line of 80 characters
DEFAULT = "<default>"
_ABSENT = object()


@dataclass(slots=True)
class _Own:
    """State of a Params besides its values.

    `declaring`: classes whose `__init__` runs, innermost last.
    """

    notes: Notes = field(default_factory=Notes)
    declared_by: dict[str, type] = field(default_factory=dict)
    declaring: list[type] = field(default_factory=list)
    conflicts: dict[str, InputError] = field(default_factory=dict)
    is_locked: bool = False
    exp_name: str = ""


class BaseParams:
    """Hyper-parameters in the order in which they were declared, and nothing else.

    Declare them in the body of a class, in its `__init__`, or by setting them. A dictionary becomes
    a group, whose values are reached by attribute or by a dotted key: `p.optim.lr`,
    `p["optim.lr"]`. Names with a leading underscore are plain attributes. What a class with
    `namespace="data"` declares in its body stands in the group `data`.
    """

    _declared: ClassVar[Mapping[Names, Declared]] = {}
    _declared_here: ClassVar[Mapping[Names, Declared]] = {}
    _hints: ClassVar[Mapping[str, Any] | None] = None
    _not_settings: ClassVar[frozenset[str]] = frozenset()
    _is_bare: ClassVar[bool] = True
    _own: _Own

    def __init_subclass__(cls, *, namespace: str = "", is_bare: bool = False) -> None:
        super().__init_subclass__()
        cls._is_bare = is_bare
        cls._hints = None
        cls._declared_here = declarations(cls, namespace, _class_origin(cls))
        for path in cls._declared_here:
            _check_name(path[0], cls.__mro__[1:])
        bases = [base for base in cls.__mro__ if issubclass(base, BaseParams)]
        cls._declared = join(cls, {base: base._declared_here for base in bases})
        init = cls.__dict__.get("__init__")
        if init is not None:
            if namespace:
                raise InputError(
                    f"{cls.__name__} has a namespace: it declares its parameters in its body alone."
                )
            # By name: mypy forbids an assignment to a method, which is meant here.
            setattr(cls, "__init__", _declaring(cls, init))  # noqa: B010

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "_own", _Own())
        for path, declared in cls._declared.items():
            if declared.default is not REQUIRED:
                store_at(self, path, copy.deepcopy(declared.default), declared.origin)
            self._own.declared_by[path[0]] = declared.owner
        return self

    def __init__(self, /, **values: Any) -> None:
        origin = caller()
        _raise(self._take(values, lambda name: origin, self._unknown("auto")))

    # --- one value --------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(getattr(type(self), name, None), "__set__"):
            object.__setattr__(self, name, value)
        else:
            self._store(name, value, caller())

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._own.declared_by:
            raise AttributeError(_no_value(name), name=name, obj=self)
        raise AttributeError(unknown_parameter(name, self._names()), name=name, obj=self)

    def __delattr__(self, name: str) -> None:
        if name.startswith("_"):
            object.__delattr__(self, name)
        elif name in self.__dict__:
            self._drop(name)
        else:
            raise AttributeError(unknown_parameter(name, self._names()), name=name, obj=self)

    def __getitem__(self, key: str) -> Any:
        """Return the value at a dotted key."""
        value: Any = self
        for part in _path(key):
            try:
                value = child(value, part)
            except KeyError:
                known = value.keys() if hasattr(value, "keys") else ()
                raise KeyError(f"{key}: {unknown_parameter(str(part), known)}") from None
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        """Set the value at a dotted key; groups on the way are made."""
        store_at(self, _path(key), value, caller())

    def __delitem__(self, key: str) -> None:
        path = _path(key)
        self[key]  # KeyError, with what was meant
        parent: Any = self[dotted(path[:-1])] if len(path) > 1 else self
        if is_holder(parent):
            parent._drop(path[-1])
        else:
            del parent[path[-1]]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key, _ABSENT) is not _ABSENT

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value at a dotted key, or `default`."""
        try:
            return self[key]
        except (KeyError, InputError):
            return default

    def keys(self) -> list[str]:
        """Return the names in the order of their declaration."""
        return [name for name in self.__dict__ if not name.startswith("_")]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    # --- declaring --------------------------------------------------------------------------------

    def choice(self, *choices: Any) -> Any:
        """For `p.name = p.choice("adam", "sgd")`: one of these, the first when nothing is said."""
        return choice(*choices)

    def arange(self, default: float, left: float = -math.inf, right: float = math.inf) -> Any:
        """For `p.lr = p.arange(0.1, 0, 1)`: a number from `left` to `right`, both included."""
        return arange(default, left, right)

    def optim_option(self, /, **options: Any) -> ParamDict:
        """Declare the nested parameters `optim`; the result may be assigned to `self.optim`."""
        self._store("optim", ParamDict(options), caller())
        group: ParamDict = self.__dict__["optim"]
        return group

    def lock(self) -> Self:
        """Declare no more: from now on setting a new name is an error."""
        self._own.is_locked = True
        return self

    # --- many values ------------------------------------------------------------------------------

    def from_args(self, argv: Sequence[str] | None = None, *, unknown: Unknown = "error") -> Self:
        """Change values from the command line: `--epoch=400 --optim.lr=0.01`, dashes optional.

        A value keeps the type of the one it replaces. Values that do not fit, and undeclared names,
        are all in one ConfigError, and nothing is changed. `+name=value` declares a new one; so
        does every new name under `unknown="warn"` or "allow". Without `argv` the arguments of this
        process are read.
        """
        changed = self.copy()
        given = sys.argv[1:] if argv is None else argv
        arguments, problems = read_arguments(
            given, is_flag=lambda key: isinstance(changed.get(key), bool)
        )
        for argument in arguments:
            problems += change(changed, argument, unknown)
        told = {problem.key for problem in problems}
        problems += [problem for problem in changed._missing() if problem.key not in told]
        _raise(problems)
        self._become(changed)
        return self

    def from_dict(
        self, values: Mapping[str, Any], *, unknown: Unknown | Literal["auto"] = "auto"
    ) -> Self:
        """Change values to those given, keeping types; after an error nothing is changed.

        By default a class with parameters of its own refuses other names, and a bare Params takes
        them all.
        """
        origin = caller()
        changed = self.copy()
        _raise(changed._take(values, lambda name: origin, self._unknown(unknown)))
        self._become(changed)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return a deep copy of all values as plain dictionaries."""
        return copy.deepcopy(_plain(self))

    def load(
        self, path: str | os.PathLike[str], *, unknown: Unknown | Literal["auto"] = "auto"
    ) -> Self:
        """Change values to those in a JSON, YAML or TOML file; otherwise like `from_dict`."""
        root = files.read(Path(path))
        changed = self.copy()
        _raise(
            changed._take(
                files.values_of(root), lambda name: root.items[name].origin, self._unknown(unknown)
            )
        )
        self._become(changed)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all values to a JSON, YAML or TOML file, by its suffix, for `load` to read."""
        files.write(self.to_dict(), Path(path))

    def copy(self) -> Self:
        """Return a deep copy, limits included."""
        return copy.deepcopy(self)

    def grid(
        self, key: str | Mapping[str, Iterable[Any]], values: Iterable[Any] = ()
    ) -> Iterator[Self]:
        """Yield a copy for each of `values` at `key`, or each combination of a mapping's values.

        >>> [p.lr for p in Params(lr=0.1).grid("lr", [0.1, 0.2])]
        [0.1, 0.2]
        """
        axes = (
            {key: list(values)}
            if isinstance(key, str)
            else {name: list(each) for name, each in key.items()}
        )
        for name in axes:
            self[name]  # KeyError, with what was meant
        for point in itertools.product(*axes.values()):
            variant = self.copy()
            for name, value in zip(axes, point, strict=True):
                variant[name] = copy.deepcopy(value)
            yield variant

    # --- what they say ----------------------------------------------------------------------------

    def build_exp_name(self, prefix: str, *names: str, sep: str = "_") -> str:
        """Return a name for an experiment, `prefix` and values: "mytrainer_lr=0.01".

        It is kept as `exp_name` and safe as a file name: unsafe characters are written as %2F, and
        a long value ends in ~ and a hash.
        """
        self._own.exp_name = files.experiment_name(
            prefix, {name: self[name] for name in names}, sep
        )
        return self._own.exp_name

    @property
    def exp_name(self) -> str:
        """Newest result of `build_exp_name`, else ""."""
        return self._own.exp_name

    def hash(self) -> str:
        """SHA-256 of all settings, whatever their order; progress and the device do not count."""
        settings = {
            name: value for name, value in _plain(self).items() if name not in self._not_settings
        }
        text = json.dumps(files.encode(settings), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def diff(self, other: BaseParams) -> list[KeyChange]:
        """Every key whose value differs, in the order of these parameters, then of `other`'s."""
        return changed_keys(self._table(), other._table())

    def tree(self) -> Table:
        """Return the settings as a config tree, each with the place where it was set."""
        return self._table(leaving=self._not_settings)

    def origin(self, key: str) -> Origin:
        """Return the place where the value at a dotted key was set."""
        self[key]  # KeyError, with what was meant
        origin = Origin(source=PYTHON)
        here: Any = self
        for part in _path(key):
            origin = here._notes.origins.get(part, origin) if is_holder(here) else origin
            here = child(here, part)
        return origin

    def __eq__(self, other: object) -> bool:
        """Compare class and values."""
        return (
            isinstance(other, BaseParams)
            and type(other) is type(self)
            and _plain(self) == _plain(other)
        )

    __hash__ = None  # type: ignore[assignment] # they change

    def __repr__(self) -> str:
        pairs = [
            pprint.pformat(pair, width=WIDTH, sort_dicts=False) for pair in _plain(self).items()
        ]
        text = ",\n".join(pairs).replace("\n", "\n ")
        return f"{type(self).__name__}[{text}]"

    def __copy__(self) -> Self:
        return self.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.clear()
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(
            {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
        )
        return twin

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _notes(self) -> Notes:
        return self._own.notes

    def _names(self) -> list[str]:
        return list(dict.fromkeys([*self._own.declared_by, *self.keys()]))

    def _at(self, name: str) -> Any:
        return self.__dict__[name]

    def _kind(self, name: str) -> Any:
        if type(self)._hints is None:
            type(self)._hints = hints_of(type(self))
        hint = (type(self)._hints or {}).get(name, Any)
        return hint if hint is not Any else type_of(self.__dict__.get(name))

    def _store(self, name: str, value: Any, origin: Origin) -> None:
        own = self._own
        if name not in self.__dict__ and name not in own.declared_by:
            _check_name(name, type(self).__mro__, origin)
            if own.is_locked:
                what = (
                    f"{type(self).__name__} is locked and {unknown_parameter(name, self._names())}"
                )
                raise InputError(what, where=str(origin))
        value = (
            self._notes.admit(name, value, origin)
            if value is not self.__dict__.get(name)
            else value
        )
        if own.declaring:
            self._note_declaration(name, value, own.declaring[-1])
        self.__dict__[name] = value

    def _note_declaration(self, name: str, value: Any, owner: type) -> None:
        """Raise InputError if two unrelated classes under construction differ in a value."""
        before = self._own.declared_by.get(name)
        old = self.__dict__.get(name, _ABSENT)
        if before is not None and old is not _ABSENT and clash(before, owner, old, value):
            self._own.conflicts[name] = conflict(type(self), name, (before, old), (owner, value))
        elif before is not None and issubclass(owner, before):
            self._own.conflicts.pop(name, None)
        self._own.declared_by[name] = owner

    def _drop(self, name: str) -> None:
        del self.__dict__[name]
        self._notes.forget(name)
        self._own.declared_by.pop(name, None)

    def _unknown(self, unknown: Unknown | Literal["auto"]) -> Unknown:
        if unknown != "auto":
            return unknown
        return "allow" if self._is_bare else "error"

    def _take(
        self, values: Mapping[str, Any], origin_of: Callable[[str], Origin], unknown: Unknown
    ) -> list[Problem]:
        problems: list[Problem] = []
        for name in values:
            origin = origin_of(name)
            problems += assign(
                self, (name,), values[name], origin=origin, key_origin=origin, unknown=unknown
            )
        return problems

    def _missing(self) -> list[Problem]:
        return [
            problem_at(
                "missing-argument", _no_value(name), declared.origin, name, f"give --{name}=..."
            )
            for (name, *_), declared in self._declared.items()
            if name in self._own.declared_by and name not in self.__dict__
        ]

    def _become(self, changed: Self) -> None:
        self.__dict__.clear()
        self.__dict__.update(changed.__dict__)

    def _table(self, leaving: frozenset[str] = frozenset()) -> Table:
        origins = self._notes.origins
        here = Origin(source=PYTHON, note=type(self).__name__)
        items = ((name, self.__dict__[name]) for name in self.keys() if name not in leaving)
        return table_of(items, origins, here)


def _declaring(cls: type, init: Callable[..., None]) -> Callable[..., None]:
    """Wrap `__init__` to note its class while it runs, so that conflicts of mixins are found."""

    @functools.wraps(init)
    def declaring(self: BaseParams, /, *args: Any, **kwargs: Any) -> None:
        own = self._own
        own.declaring.append(cls)
        try:
            init(self, *args, **kwargs)
        finally:
            own.declaring.pop()
        if not own.declaring and own.conflicts:
            raise next(iter(own.conflicts.values()))

    return declaring


def _check_name(name: str, bases: Iterable[type], origin: Origin | None = None) -> None:
    """InputError for a name that a parameter cannot have."""
    where = str(origin) if origin else ""
    if name.startswith("_"):
        raise InputError(
            f"`{name}` cannot be a parameter: it begins with an underscore.", where=where
        )
    declared = {
        path[0] for base in bases if issubclass(base, BaseParams) for path in base._declared_here
    }
    owner = next((base for base in bases if name in base.__dict__ and name not in declared), None)
    if owner is not None:
        raise InputError(
            f"`{name}` cannot be a parameter: {owner.__name__} has a method of that name.",
            where=where,
        )


def _class_origin(cls: type) -> Origin:
    return Origin(source=DEFAULT) if cls.__module__ == __name__ else caller()


def _path(key: str) -> KeyPath:
    try:
        return parse_dotted(key)
    except ValueError:
        raise InputError(f"{key!r} is no key of a parameter.", fix='Write p["a.b"].') from None


def _plain(value: Any) -> Any:
    """Return parameters as nested dictionaries that share their values."""
    if isinstance(value, BaseParams):
        return {name: _plain(value.__dict__[name]) for name in value}
    return (
        {name: _plain(item) for name, item in value.items()}
        if isinstance(value, ParamDict)
        else value
    )


def _no_value(name: str) -> str:
    return f"the parameter `{name}` has no value"


def _device() -> str:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return "cuda:0" if cuda is not None and cuda.is_available() else "cpu"


def _raise(problems: Sequence[Problem]) -> None:
    if problems:
        raise ConfigError(problems)


class Params(BaseParams, is_bare=True):
    """Hyper-parameters with a trainer's counters and device.

    The counters are epoch, eidx (from 1), idx and global_step.

    The device is cuda:0 when torch is loaded and sees a GPU, else cpu. In the tree `epoch` is
    `train.epochs`, unless `train` sets another length; counters and device are no part of it.
    """

    _not_settings = frozenset({"eidx", "idx", "global_step", "device"})

    epoch: int = 10
    eidx: int = 1
    idx: int = 0
    global_step: int = 0
    device: str = "cpu"

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls, *args, **kwargs)
        if cls._declared[("device",)].owner is Params:
            self._store("device", _device(), Origin(source=DEFAULT))
        return self

    def tree(self) -> Table:
        root = self._table(leaving=self._not_settings | {"epoch"})
        train = root.items.get("train")
        section = schema.section("train")
        lengths = section.one_of if section is not None else ()
        if "epoch" not in self.__dict__ or (
            isinstance(train, Table) and not train.items.keys().isdisjoint(lengths)
        ):
            return root
        origin = self.origin("epoch")
        return set_at(root, ("train", "epochs"), node_of(self.epoch, origin), origin)
