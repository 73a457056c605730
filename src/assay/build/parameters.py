"""What a callable takes: names, what is required, and each type hint that can be resolved, one by one."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

UNKNOWN: Any = inspect.Parameter.empty
"""The hint of a parameter that has none, or one that cannot be resolved (a name imported for type checkers only)."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter; `hint` is UNKNOWN or a real type."""

    name: str
    kind: inspect._ParameterKind
    required: bool
    hint: Any

    @property
    def by_position(self) -> bool:
        return self.kind in _POSITIONAL

    @property
    def by_keyword(self) -> bool:
        return self.kind in _KEYWORD


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The parameters that can be named, and those that stand for any number."""

    named: tuple[Parameter, ...]
    var_args: Parameter | None = None
    var_kwargs: Parameter | None = None
    returns: Any = UNKNOWN

    def at(self, index: int) -> Parameter | None:
        """The parameter that positional argument `index` fills."""
        by_position = [parameter for parameter in self.named if parameter.by_position]
        return by_position[index] if index < len(by_position) else self.var_args

    def by_keyword(self) -> dict[str, Parameter]:
        """The parameters that can be given by name."""
        return {parameter.name: parameter for parameter in self.named if parameter.by_keyword}


_signatures: weakref.WeakKeyDictionary[Any, Signature | None] = weakref.WeakKeyDictionary()


def signature_of(target: Callable[..., Any]) -> Signature | None:
    """What `target` takes, or None when Python cannot tell (functions written in C)."""
    try:
        if target not in _signatures:
            _signatures[target] = _read(target)
        return _signatures[target]
    except TypeError:  # no weak reference to it, or no hash
        return _read(target)


def forget() -> None:
    """Let go of every callable that was read."""
    _signatures.clear()


def injectable(hint: Any) -> Any:
    """The class or NewType to look for when a parameter has this hint; None when the hint says too little.

    >>> injectable(int) is None
    True
    >>> from fractions import Fraction
    >>> injectable(Fraction | None)
    <class 'fractions.Fraction'>
    """
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return injectable(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        return injectable(members[0]) if len(members) == 1 else None
    kind = origin or hint
    if isinstance(kind, typing.NewType):
        return kind
    if kind is UNKNOWN or not isinstance(kind, type) or kind.__module__ in ("builtins", "typing", "collections.abc"):
        return None
    return kind


def from_assay(hint: Any) -> bool:
    """Whether a parameter with this hint asks for something of assay's own."""
    kind = injectable(hint)
    return kind is not None and (kind.__module__ or "").partition(".")[0] == "assay"


def _read(target: Callable[..., Any]) -> Signature | None:
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError, NameError):  # written in C, or an annotation that names nothing
        return None
    spaces = _namespaces(target)
    read = [
        Parameter(
            name=parameter.name,
            kind=parameter.kind,
            required=parameter.default is inspect.Parameter.empty,
            hint=_resolved(parameter.annotation, spaces),
        )
        for parameter in signature.parameters.values()
    ]
    var_args = next((p for p in read if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
    var_kwargs = next((p for p in read if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    named = tuple(p for p in read if p.by_position or p.by_keyword)
    returns = _resolved(signature.return_annotation, spaces)
    return Signature(named=named, var_args=var_args, var_kwargs=var_kwargs, returns=returns)


def _namespaces(target: Callable[..., Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Where the names in the annotations may be found, the likeliest first."""
    while isinstance(target, functools.partial):
        target = target.func
    local: dict[str, Any] = {}
    modules: list[str] = []
    if isinstance(target, type):
        local = dict(vars(target))
        modules = [base.__module__ for base in target.__mro__]
        makers = (inspect.getattr_static(target, "__init__"), target.__new__)
        target = next((maker for maker in makers if isinstance(maker, types.FunctionType)), target)
    elif not isinstance(target, types.FunctionType | types.MethodType):
        target = inspect.getattr_static(type(target), "__call__", target)
    own = getattr(inspect.unwrap(target), "__globals__", {})
    spaces = [own, *(vars(sys.modules[name]) for name in dict.fromkeys(modules) if name in sys.modules)]
    return [(space, local) for space in spaces]


def _resolved(annotation: Any, spaces: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Any:
    if annotation is inspect.Parameter.empty:
        return UNKNOWN

    def probe() -> None: ...

    for space, local in spaces:
        probe.__annotations__ = {"hint": annotation}
        try:
            return typing.get_type_hints(probe, space, local, include_extras=True)["hint"]
        except Exception:  # annotations are the user's text and may raise anything; an unknown hint is only not checked
            continue
    return UNKNOWN if isinstance(annotation, str) else annotation
