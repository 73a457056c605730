"""Signatures: parameters of a callable, required or not, each with its resolved type hint.

`**kwargs` are followed to the call that takes them, where the source is plain: its parameters then
belong to this signature.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.build.forwarding import Handover, handover, inits_after
from assay.config.isolation import while_open

UNKNOWN: Any = inspect.Parameter.empty
"""Hint of a parameter without one, or with one that cannot be resolved."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Parameter of a callable; `hint` is a type or UNKNOWN, `default` UNKNOWN if there is none.

    `written` is the hint as in the source, also where it cannot be resolved.
    """

    name: str
    kind: inspect._ParameterKind
    required: bool
    hint: Any
    default: Any = UNKNOWN
    written: str = ""

    @property
    def by_position(self) -> bool:
        return self.kind in _POSITIONAL

    @property
    def by_keyword(self) -> bool:
        return self.kind in _KEYWORD


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Named parameters of a callable, and those that take any number of arguments."""

    named: tuple[Parameter, ...]
    var_args: Parameter | None = None
    var_kwargs: Parameter | None = None
    returns: Any = UNKNOWN

    def at(self, index: int) -> Parameter | None:
        """Return the parameter of positional argument `index`."""
        by_position = [parameter for parameter in self.named if parameter.by_position]
        return by_position[index] if index < len(by_position) else self.var_args

    def by_keyword(self) -> dict[str, Parameter]:
        """Return the parameters that can be given by name."""
        return {parameter.name: parameter for parameter in self.named if parameter.by_keyword}


_signatures: weakref.WeakKeyDictionary[Any, Signature | None] = weakref.WeakKeyDictionary()


def signature_of(target: Callable[..., Any]) -> Signature | None:
    """Return the signature of `target`; None if Python cannot tell (functions written in C)."""
    try:
        if target not in _signatures:
            _signatures[target] = _read_signature(target)
        return _signatures[target]
    except TypeError:  # no weak reference to it, or no hash
        return _read_signature(target)


# What is known of the user's classes would keep them, and all they hold.
while_open(lambda _: _signatures.clear)


def injectable(hint: Any) -> Any:
    """Return the class or NewType to inject for this hint; None if the hint is too general.

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
    if (
        kind is UNKNOWN
        or not isinstance(kind, type)
        or kind.__module__ in ("builtins", "typing", "collections.abc")
    ):
        return None
    return kind


def from_assay(hint: Any) -> bool:
    """Return True if this hint is a type of assay's own."""
    kind = injectable(hint)
    return kind is not None and (kind.__module__ or "").partition(".")[0] == "assay"


def _read_signature(target: Callable[..., Any]) -> Signature | None:
    advertised = _read_advertised(target)
    return None if advertised is None else _with_wrappers(advertised, _outermost(target))


def _read_advertised(target: Callable[..., Any]) -> Signature | None:
    own = _own(target, _namespaces(target))
    maker = _maker(target) if isinstance(target, type) else None
    if own is None or own.var_kwargs is None or maker is None:
        return own
    assert isinstance(target, type)
    if _takes_nothing(target, maker[0]):
        return Signature(named=(), returns=own.returns)
    return _follow(own, *maker, cls=target)


def _own(target: Any, spaces: Sequence[_Space]) -> Signature | None:
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError, NameError):  # written in C, or an annotation that names nothing
        return None
    return _parameters(signature, spaces)


def _parameters(signature: inspect.Signature, spaces: Sequence[_Space]) -> Signature:
    read = [
        Parameter(
            name=parameter.name,
            kind=parameter.kind,
            required=parameter.default is inspect.Parameter.empty,
            hint=_resolve(parameter.annotation, spaces),
            default=parameter.default,
            written=_spell(parameter.annotation),
        )
        for parameter in signature.parameters.values()
    ]
    var_args = next((p for p in read if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
    var_kwargs = next((p for p in read if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    named = tuple(p for p in read if p.by_position or p.by_keyword)
    returns = _resolve(signature.return_annotation, spaces)
    return Signature(named=named, var_args=var_args, var_kwargs=var_kwargs, returns=returns)


def _spell(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# --- following **kwargs ---------------------------------------------------------------------------


def _maker(cls: type) -> tuple[type, types.FunctionType] | None:
    """Return the `__init__` that a call of `cls` reaches, with its class; None for a `__new__`."""
    calls_init = inspect.getattr_static(type(cls), "__call__") is vars(type)["__call__"]
    makes_plainly = inspect.getattr_static(cls, "__new__") is vars(object)["__new__"]
    if not (calls_init and makes_plainly) or "__signature__" in vars(cls):
        return None
    defining = next(base for base in cls.__mro__ if "__init__" in vars(base))
    init = inspect.unwrap(vars(defining)["__init__"])
    return (defining, init) if isinstance(init, types.FunctionType) else None


def _follow(own: Signature, defining: type, init: Any, *, cls: type) -> Signature:
    """Return `own`, the signature of `defining.__init__`, extended by the one after it for `cls`.

    That is the `super().__init__` that takes its `**kwargs`, and nothing else is followed.
    """
    hand = handover(init) if isinstance(init, types.FunctionType) else None
    inner = _init(cls, *next(inits_after(cls, defining))) if hand is not None else None
    return own if hand is None or inner is None else _join(own, hand, inner)


def _init(cls: type, defining: type, init: Any) -> Signature | None:
    """Return the signature of `defining.__init__` without self, for an object of `cls`."""
    if _takes_nothing(cls, defining):
        return Signature(named=())
    own = _own(init, _namespaces(init))
    if own is None or not own.named or not own.named[0].by_position:
        return None
    own = replace(own, named=own.named[1:])
    if own.var_kwargs is not None:
        own = _follow(own, defining, inspect.unwrap(init), cls=cls)
    return _with_wrappers(own, init)


def _outermost(target: Any) -> Any:
    """Return the function that a call reaches first."""
    if isinstance(target, type):
        maker = _maker(target)
        return vars(maker[0])["__init__"] if maker is not None else None
    return target.__func__ if isinstance(target, types.MethodType) else target


def _with_wrappers(advertised: Signature, function: Any) -> Signature:
    """Add the parameters of wrappers to the signature of the function they wrap.

    What a wrapper does with its `**kwargs` nobody can tell: as the configs of transformers, it may
    take more than it advertises.
    """
    while isinstance(function, types.FunctionType) and hasattr(function, "__wrapped__"):
        own = _parameters(inspect.signature(function, follow_wrapped=False), _namespaces(function))
        names = {parameter.name for parameter in advertised.named}
        more = [each for each in own.named if not each.by_position and each.name not in names]
        advertised = replace(advertised, named=(*advertised.named, *more))
        if own.var_kwargs is not None and not _is_faithful(function):
            return replace(advertised, var_kwargs=advertised.var_kwargs or own.var_kwargs)
        function = function.__wrapped__
    return advertised


def _is_faithful(function: types.FunctionType) -> bool:
    """Return True for wrappers of Python, torch and assay, whose signatures are true."""
    top = str(function.__globals__.get("__name__", "")).partition(".")[0]
    return top in ("assay", "torch") or top in sys.stdlib_module_names


def _takes_nothing(cls: type, defining: type) -> bool:
    """Return True for object and torch's Module: their *args and **kwargs must be empty."""
    is_torchs = f"{defining.__module__}.{defining.__qualname__}" == "torch.nn.modules.module.Module"
    return defining is object or (is_torchs and getattr(cls, "call_super_init", None) is False)


def _join(own: Signature, hand: Handover, inner: Signature) -> Signature:
    by_position = [parameter.name for parameter in inner.named if parameter.by_position]
    filled = {*by_position[: hand.positional], *hand.keywords}
    named = {parameter.name: parameter for parameter in own.named}
    for parameter in inner.named:
        if parameter.name not in filled and (hand.with_args or parameter.by_keyword):
            kind = parameter.kind if hand.with_args else inspect.Parameter.KEYWORD_ONLY
            named.setdefault(parameter.name, replace(parameter, kind=kind))
    return Signature(
        named=tuple(named.values()),
        var_args=inner.var_args if hand.with_args else own.var_args,
        var_kwargs=inner.var_kwargs,
        returns=own.returns,
    )


# --- hints ----------------------------------------------------------------------------------------

_Space = tuple[dict[str, Any], dict[str, Any]]


def _namespaces(target: Callable[..., Any]) -> list[_Space]:
    """Return the namespaces in which annotations may be resolved, the likeliest first."""
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
    loaded = [sys.modules[name] for name in dict.fromkeys(modules) if name in sys.modules]
    spaces = [own, *map(vars, loaded)]
    return [*((space, local) for space in spaces), ({**_usual_names(), **own}, local)]


@functools.cache
def _usual_names() -> dict[str, Any]:
    """Return names often used in annotations and imported under TYPE_CHECKING only."""
    return {
        name: vars(place)[name] for place in (typing, collections.abc) for name in place.__all__
    }


def _resolve(annotation: Any, spaces: Sequence[_Space]) -> Any:
    if annotation is inspect.Parameter.empty:
        return UNKNOWN

    def probe() -> None: ...

    for space, local in spaces:
        probe.__annotations__ = {"hint": annotation}
        try:
            return typing.get_type_hints(probe, space, local, include_extras=True)["hint"]
        # annotations are the user's text and may raise anything; an unknown hint is only not
        # checked
        except Exception:
            continue
    return UNKNOWN if isinstance(annotation, str) else annotation


def returned_type(provider: Callable[..., Any]) -> Any:
    """Return the type of what a provider makes, None if its signature does not say."""
    if isinstance(provider, type):
        return provider
    signature = signature_of(provider)
    return injectable(signature.returns) if signature else None
