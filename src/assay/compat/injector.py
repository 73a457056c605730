"""Dependency injection with the rules of the package `injector`, for code written against it.

Rules that hide a mistake there are left out: neither a bare `int` or `str` nor an alias is made out
of nothing, and a parameter with a default keeps it where nothing provides its type.

>>> from typing import NewType
>>> Args = NewType("Args", dict)
>>> class Settings(Module):
...     @singleton
...     @provider
...     def args(self) -> Args:
...         return {"batch_size": 16}
>>> Injector(Settings).get(Args)
{'batch_size': 16}
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from assay.build.context_errors import ContextError
from assay.build.marks import inject, is_injected
from assay.build.parameters import Parameter, injectable, signature_of
from assay.core.errors import nearest

__all__ = ["Binder", "Injector", "Module", "inject", "provider", "singleton"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_PROVIDER = "__assay_provider__"
_SINGLETON = "__assay_singleton__"


def provider(method: F) -> F:
    """Mark a method of a module: its return value is injected where its return type is asked for.

    It is called again each time, unless it is under `singleton` too. Its parameters are injected.
    """
    setattr(method, _PROVIDER, True)
    return method


def singleton(target: F) -> F:
    """Mark a provider or a class: one object for each injector, made on first use."""
    setattr(target, _SINGLETON, True)
    return target


class Module:
    """Base class of a group of providers; `configure` may bind more."""

    def configure(self, binder: Binder) -> None:
        """Bind types that no method provides."""


@dataclass(frozen=True, slots=True)
class TypeBinding:
    """Way to make the object of one type, and the number of times: once, or each time."""

    make: Callable[[], Any]
    is_single: bool


class Binder:
    """Bindings of one injector, by type; a later one replaces an earlier one."""

    def __init__(self, injector: Injector) -> None:
        self.injector = injector
        self.bindings: dict[Any, TypeBinding] = {}

    def bind(self, interface: Any, to: Any = None, scope: Any = None) -> None:
        """Bind a type to an object, a function that returns one, or a class; by default itself."""
        source = interface if to is None else to
        self.bindings[interface] = TypeBinding(
            self._maker(source), scope is singleton or _is_single(source)
        )

    def install(self, module: Any) -> None:
        """Add the bindings of a module: a class, an object of one, or a function of the binder."""
        if isinstance(module, type):
            module = self.injector.create_object(module)
        for method in _providers_of(module):
            returns = _returned_type(method)
            self.bindings[returns] = TypeBinding(self._maker(method), _is_single(method))
        configure = getattr(module, "configure", None)
        if callable(configure):
            configure(self)
        elif callable(module):
            module(self)

    def _maker(self, source: Any) -> Callable[[], Any]:
        if isinstance(source, type):
            return lambda: self.injector.create_object(source)
        if callable(source):
            return lambda: self.injector.call_with_injection(source)
        return lambda: source


class Injector:
    """Container that makes objects by type: from the providers of modules, or from a class itself.

    `auto_bind` False: only what a module provides is made.
    """

    def __init__(self, modules: Any = None, auto_bind: bool = True) -> None:
        self.auto_bind = auto_bind
        self.binder = Binder(self)
        self._lock = threading.RLock()
        self._singles: dict[Any, Any] = {}
        self._making: list[Any] = []
        self.binder.bind(Injector, to=self)
        listed = [] if modules is None else modules
        for module in listed if isinstance(listed, Sequence) else [listed]:
            self.binder.install(module)

    def get(self, interface: type[T], scope: Any = None) -> T:
        """Return an object of this type; ContextError when none can be made."""
        found: T
        with self._lock:
            binding = self._binding(interface)
            if not (binding.is_single or scope is singleton):
                found = self._make(interface, binding)
                return found
            if interface not in self._singles:
                self._singles[interface] = self._make(interface, binding)
            found = self._singles[interface]
            return found

    def create_object(self, cls: type[T], additional_kwargs: Mapping[str, Any] | None = None) -> T:
        """Return a new object of a class, with injected arguments where it is under `inject`."""
        given = dict(additional_kwargs or {})
        if is_injected(cls):
            given = {**self._arguments(cls, given, 0), **given}
        missing = [each.name for each in _required_parameters(cls) if each.name not in given]
        if missing:
            raise ContextError(
                f"`{cls.__qualname__}` needs {', '.join(missing)}, and is not under `inject`.",
                fix="put @inject on its `__init__`",
            )
        return cls(**given)

    def call_with_injection(
        self,
        callable: Callable[..., T],
        self_: Any = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> T:
        """Return the result of a call whose remaining parameters are injected."""
        given = dict(kwargs or {})
        before = [*([] if self_ is None else [self_]), *args]
        return callable(*before, **{**self._arguments(callable, given, len(before)), **given})

    def _binding(self, interface: Any) -> TypeBinding:
        found = self.binder.bindings.get(interface)
        if found is not None:
            return found
        kind = injectable(interface)
        if kind in self.binder.bindings:
            return self.binder.bindings[kind]
        if not (self.auto_bind and isinstance(kind, type)):
            raise self._explain_unbound(interface)
        self.binder.bind(kind)
        return self.binder.bindings[kind]

    def _make(self, interface: Any, binding: TypeBinding) -> Any:
        if interface in self._making:
            loop = [*self._making[self._making.index(interface) :], interface]
            raise ContextError(
                f"These need each other: {' -> '.join(map(_name, loop))}.",
                fix="one of them must be made without the other",
            )
        self._making.append(interface)
        try:
            return binding.make()
        finally:
            self._making.pop()

    def _arguments(
        self, target: Callable[..., Any], given: Mapping[str, Any], positional: int
    ) -> dict[str, Any]:
        """Return the arguments to inject: all parameters that are not given, by their types."""
        signature = signature_of(target)
        found = {}
        for parameter in (signature.named if signature else ())[positional:]:
            if parameter.name in given:
                continue
            kind = injectable(parameter.hint)
            if kind is None and parameter.required:
                raise ContextError(
                    f"`{parameter.name}` of `{_name(target)}` has no type to inject it by.",
                    fix="annotate it with a class, or with a NewType that a module provides",
                )
            if kind is not None and (parameter.required or self._can_make(kind)):
                found[parameter.name] = self.get(kind)
        return found

    def _can_make(self, kind: Any) -> bool:
        is_buildable = self.auto_bind and isinstance(kind, type)
        return kind in self.binder.bindings or is_buildable

    def _explain_unbound(self, interface: Any) -> ContextError:
        names = [_name(each) for each in self.binder.bindings]
        near = nearest(_name(interface), names)
        fix = f"did you mean `{near[0]}`?" if near else f"provided are: {', '.join(names)}"
        return ContextError(f"Nothing provides `{_name(interface)}`.", fix=fix)


def _providers_of(module: Any) -> Iterator[Callable[..., Any]]:
    for name, value in inspect.getmembers_static(module):
        if getattr(value, _PROVIDER, False) is True:
            yield getattr(module, name)


def _returned_type(method: Callable[..., Any]) -> Any:
    signature = signature_of(method)
    kind = injectable(signature.returns) if signature else None
    if kind is None:
        raise ContextError(
            f"The provider `{_name(method)}` does not name the type that it returns.",
            fix="annotate its return value with a class or a NewType",
        )
    return kind


def _is_single(target: Any) -> bool:
    # Of a class only its own mark counts: a child of a singleton is none.
    own = vars(target) if isinstance(target, type) else getattr(target, "__dict__", {})
    return own.get(_SINGLETON) is True or (
        inspect.ismethod(target) and getattr(target.__func__, _SINGLETON, False) is True
    )


def _required_parameters(cls: type) -> list[Parameter]:
    signature = signature_of(cls)
    return [each for each in signature.named if each.required] if signature else []


def _name(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", None) or getattr(thing, "__name__", thing))
