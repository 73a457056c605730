"""One typed store per run: what was put in, what can be made when asked for, and who gets it.

An entry has a name and a type. A type finds what was declared with exactly it, else what is an instance of it; a name
finds that name. The inner scope (run > epoch > step) is asked first. Builtin types find nothing: a bare `int` could be
anybody's; a NewType alias can be declared and found.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal, NewType, NoReturn, TypeVar, overload

from assay.build.parameters import Parameter, Signature, from_assay, injectable, signature_of
from assay.build.register import Provision, is_injected, provision_of
from assay.core.errors import InputError, nearest

T = TypeVar("T")
Scope = Literal["run", "epoch", "step"]

ROLES: Final = ("params", "model", "optimizer", "criterion", "state", "recorder", "mesh")
"""Names that fill a required parameter of any code. One role never fills the parameter of another by its type."""

NOT_BY_NAME: Final = ("device", "dtype")
"""Never injected by name into code that is neither the user's nor assay's: there the name means something else."""

_SCOPES: Final = ("run", "epoch", "step")


class ContextError(InputError):
    """Something was asked for that is not there, that is there twice, or that needs itself."""


class Entry:
    """Something that is in a context, or that a provider will make once somebody asks."""

    __slots__ = ("is_ready", "name", "owner", "provider", "type", "value")

    def __init__(self, owner: Context, name: str, type: Any, value: Any, provider: Callable[..., Any] | None) -> None:
        self.owner = owner
        self.name = name
        self.type = type
        self.value = value
        self.provider = provider
        self.is_ready = provider is None

    def is_a(self, kind: Any) -> bool:
        """Whether this is found by a type it was not declared with."""
        if not isinstance(kind, type):
            return False
        try:
            if isinstance(self.type, type) and issubclass(self.type, kind):
                return True
            return self.is_ready and isinstance(self.value, kind)
        except TypeError:  # a Protocol that cannot be asked
            return False

    def __str__(self) -> str:
        return f"`{self.name}` ({_type_name(self.type or type(self.value))})"


class _Book:
    """What the scopes of one run share.

    `version` counts what comes and goes: after that, lookups are done anew. `making`: whose providers run now.
    """

    __slots__ = ("lock", "making", "version")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self.making: list[Entry] = []


class Context:
    """The objects of one run, or of one epoch or step inside it."""

    def __init__(self, scope: Scope = "run", parent: Context | None = None) -> None:
        if parent is not None and _SCOPES.index(scope) <= _SCOPES.index(parent.scope):
            raise ContextError(f"A scope `{scope}` cannot be in a scope `{parent.scope}`.", fix="run > epoch > step")
        self.scope: Scope = scope
        self.parent = parent
        self.built: dict[Any, Any] = {}
        self._book: _Book = parent._book if parent else _Book()
        self._entries: dict[str, Entry] = {}
        self._found: dict[Any, Entry] = {}
        self._found_at = -1

    def child(self, scope: Scope) -> Context:
        """A scope inside this one: sees everything here, and what is set in it is gone with it."""
        return Context(scope, self)

    def names(self) -> list[str]:
        """Everything that can be asked for by name, the innermost scope first."""
        return list(dict.fromkeys(name for scope in self._chain() for name in scope._entries))

    def __contains__(self, key: object) -> bool:
        return bool(self._candidates(key))

    # --- putting in -----------------------------------------------------------------------------------------------

    def set(self, name: str, value: Any, type: Any = None) -> None:
        """Put `value` in under `name`, in place of what this scope had there. With `type`, that type finds this one."""
        old = self._entries.get(name)
        is_alike = old and old.provider is None and old.type is type and old.value.__class__ is value.__class__
        if old and is_alike and not any(one.value is old.value for one in self._entries.values() if one is not old):
            old.value = value  # found by the same lookups as before: what changes each step costs no new ones
            return
        self._put(Entry(self, name, type, value, None))

    def provide(self, provider: Callable[..., Any], *, type: Any = None, name: str | None = None) -> None:
        """Call `provider` once, when somebody asks for what it returns; its own parameters come from this context.

        Found by `type` (else its return annotation, or the class itself) and by `name` (else its own).
        """
        mark = provision_of(provider) or Provision()
        kind = type or mark.type or _returns(provider)
        label = name or mark.name or getattr(provider, "__name__", "") or repr(provider)
        self._put(Entry(self, label, kind, None, provider))

    def install(self, module: object) -> None:
        """Take every method of `module` that is marked with `provides`."""
        for name, _ in inspect.getmembers_static(module):
            if not name.startswith("__") and provision_of(inspect.getattr_static(module, name)):
                self.provide(getattr(module, name))

    def close(self) -> None:
        """Let go of everything, so that what nobody else holds is freed."""
        with self._book.lock:
            self._entries.clear()
            self._found.clear()
            self.built.clear()
            self._book.version += 1

    # --- getting out ----------------------------------------------------------------------------------------------

    @overload
    def get(self, key: str) -> Any: ...
    @overload
    def get(self, key: type[T]) -> T: ...
    def get(self, key: Any) -> Any:
        """What has this name or type; ContextError when there is none or more than one."""
        if self._found_at == self._book.version:
            entry = self._found.get(key)
            if entry is not None:
                return entry.value
        found = self._entry(key)
        if found is None:
            self._missing(key)
        return self._remember(key, found)

    @overload
    def try_get(self, key: str, default: Any = None) -> Any: ...
    @overload
    def try_get(self, key: type[T], default: T | None = None) -> T | None: ...
    def try_get(self, key: Any, default: Any = None) -> Any:
        """As `get`, but `default` when nothing is there. Two candidates are still an error."""
        found = self._entry(key)
        return default if found is None else self._remember(key, found)

    def source(self, parameter: Parameter, *, roles: Collection[str] | None = None) -> Entry | None:
        """Who fills a parameter: by its annotation, then by its name (any that is set, or only `roles`)."""
        name = parameter.name
        by_name = self._named(name) if roles is None or name in roles else None
        kind = injectable(parameter.hint)
        if kind is None:
            return by_name
        found = self._candidates(kind)
        if by_name in found:
            return by_name
        if name in ROLES:  # a criterion is a module too: never hand out the model for it
            found = [entry for entry in found if entry.type is kind or entry.name not in ROLES]
        if len(found) > 1:
            self._ambiguous(kind, found, f" for `{name}`")
        if found:
            return found[0]
        return by_name or self._marked(kind)

    def arguments(
        self, target: Callable[..., Any], *, given: Collection[str] = (), roles: Collection[str] | None = None
    ) -> dict[str, Entry]:
        """Who fills the parameters of `target` that are not `given`. One that nobody fills is left out.

        Required ones always; those with a default only under `inject`, or when annotated with a type of assay's.
        """
        signature = signature_of(target) or Signature(named=())
        with_defaults = is_injected(target)
        sources: dict[str, Entry] = {}
        for parameter in signature.named:
            if parameter.name in given or not (parameter.required or with_defaults or from_assay(parameter.hint)):
                continue
            entry = self.source(parameter, roles=roles)
            if entry is not None:
                sources[parameter.name] = entry
        return sources

    def value(self, entry: Entry) -> Any:
        """The object of an entry, made now if nobody asked before."""
        if not entry.is_ready:
            with self._book.lock:  # two threads that ask at once get one object
                entry.owner._plan(entry, [])
                entry.owner._make(entry)
        return entry.value

    def bind(self, function: Callable[..., T]) -> Callable[[], T]:
        """`function` with everything it asks for, looked up once, now."""
        sources = self._all_arguments(function, [])
        if not sources:
            return function
        args, kwargs = self._call_arguments(function, sources)
        return functools.partial(function, *args, **kwargs)

    def validate(self) -> None:
        """Everything that can be asked for can be made, without making it; else the error that asking would give."""
        with self._book.lock:
            for scope in self._chain():
                for entry in list(scope._entries.values()):
                    scope._plan(entry, [])

    @contextmanager
    def use(self) -> Iterator[Context]:
        """Make this the context that `current` returns, in this thread and what it starts."""
        token = _current.set(self)
        root = self._chain()[-1]
        with _lock:
            _in_use.append(root)
        try:
            yield self
        finally:
            with _lock:
                _in_use.remove(root)
            _current.reset(token)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ContextError(
            "A Context cannot be copied or sent to another process: it holds the whole run.",
            fix="hand over the one thing that is needed, not the context",
        )

    # --- inside ---------------------------------------------------------------------------------------------------

    def _chain(self) -> list[Context]:
        scopes = [self]
        while scopes[-1].parent is not None:
            scopes.append(scopes[-1].parent)
        return scopes

    def _put(self, entry: Entry) -> None:
        with self._book.lock:
            self._entries[entry.name] = entry
            self._book.version += 1

    def _remember(self, key: Any, entry: Entry) -> Any:
        value = self.value(entry)
        with self._book.lock:
            if self._found_at != self._book.version:
                self._found.clear()
                self._found_at = self._book.version
            self._found[key] = entry
        return value

    def _named(self, name: str) -> Entry | None:
        return next((scope._entries[name] for scope in self._chain() if name in scope._entries), None)

    def _candidates(self, key: Any) -> list[Entry]:
        """Of the innermost scope that has any; the same object under two names counts once."""
        if isinstance(key, str):
            entry = self._named(key)
            return [entry] if entry else []
        if injectable(key) is not key:
            return []
        for scope in self._chain():
            entries = list(scope._entries.values())
            found = [entry for entry in entries if entry.type is key] or [e for e in entries if e.is_a(key)]
            if found:
                distinct = {id(entry.value) if entry.is_ready else id(entry): entry for entry in reversed(found)}
                return list(reversed(distinct.values()))
        return []

    def _entry(self, key: Any) -> Entry | None:
        if not isinstance(key, str) and injectable(key) is not key:
            raise ContextError(
                f"`{_type_name(key)}` says too little to find anything by it.",
                fix="ask by name, or declare a NewType alias and ask for that",
            )
        found = self._candidates(key)
        if len(found) > 1:
            self._ambiguous(key, found, "")
        return found[0] if found else self._marked(key)

    def _marked(self, key: Any) -> Entry | None:
        """A class under `inject` needs no provider: it is one."""
        if not isinstance(key, type) or not is_injected(key):
            return None
        entry = Entry(self, f"{key.__module__}.{key.__qualname__}", key, None, key)
        self._put(entry)
        return entry

    def _all_arguments(self, function: Callable[..., Any], chain: Sequence[Entry]) -> dict[str, Entry]:
        sources = self.arguments(function)
        signature = signature_of(function) or Signature(named=())
        for parameter in signature.named:
            if parameter.required and parameter.name not in sources:
                self._nobody(parameter, function, chain)
        return sources

    def _plan(self, entry: Entry, chain: list[Entry]) -> None:
        """Find everything the provider needs, and what that needs, before anything is made."""
        if entry.is_ready or entry.provider is None:
            return
        before = [*self._book.making, *chain]
        if entry in before:
            loop = [*before[before.index(entry) :], entry]
            raise ContextError(
                f"These need each other: {' -> '.join(_label(link) for link in loop)}.",
                where=_place(entry.provider),
                fix="one of them must be made without the other",
            )
        for source in self._all_arguments(entry.provider, [*chain, entry]).values():
            source.owner._plan(source, [*chain, entry])

    def _make(self, entry: Entry) -> None:
        if entry.is_ready or entry.provider is None:
            return  # another thread was first
        self._book.making.append(entry)
        try:
            args, kwargs = self._call_arguments(entry.provider, self._all_arguments(entry.provider, []))
            entry.value = entry.provider(*args, **kwargs)
        finally:
            self._book.making.pop()
        entry.is_ready = True

    def _call_arguments(
        self, function: Callable[..., Any], sources: dict[str, Entry]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Objects for a call, by position where possible: a partial is faster that way."""
        signature = signature_of(function) or Signature(named=())
        args: list[Any] = []
        kwargs = {name: self.value(entry) for name, entry in sources.items()}
        for parameter in signature.named:
            if not parameter.by_position or parameter.name not in kwargs:
                break
            args.append(kwargs.pop(parameter.name))
        return args, kwargs

    def _missing(self, key: Any) -> NoReturn:
        word = key if isinstance(key, str) else _type_name(key)
        what = f"Nothing is set as `{word}`." if isinstance(key, str) else f"Nothing here is a `{word}`."
        raise ContextError(what, fix=self._near(word))

    def _nobody(self, parameter: Parameter, function: Callable[..., Any], chain: Sequence[Entry]) -> NoReturn:
        asked = "".join(f", asked for by {_label(entry)}" for entry in reversed(chain[:-1]))
        hint = f" ({_type_name(parameter.hint)})" if parameter.hint is not inspect.Parameter.empty else ""
        raise ContextError(
            f"Nothing provides `{parameter.name}`{hint}, needed by `{_callable_name(function)}`{asked}.",
            where=_place(function),
            fix=self._near(parameter.name),
        )

    def _ambiguous(self, key: Any, found: Sequence[Entry], purpose: str) -> NoReturn:
        names = " and ".join(str(entry) for entry in found)
        raise ContextError(
            f"More than one `{_type_name(key)}`{purpose}: {names}.",
            fix="ask by name, or declare one with `set(name, value, type=...)`",
        )

    def _near(self, word: str) -> str:
        names = self.names()
        near = nearest(word, names, 3)
        if near:
            return f"did you mean {' or '.join(f'`{name}`' for name in near)}?"
        return f"set are: {', '.join(names)}" if names else "nothing is set yet"


_current: ContextVar[Context | None] = ContextVar("assay_context", default=None)
_in_use: list[Context] = []
_lock = threading.Lock()


def context_here() -> Context | None:
    """As `current`, but None when no run is open."""
    context = _current.get()
    if context is not None:
        return context
    with _lock:
        roots = {id(root): root for root in _in_use}
    if len(roots) > 1:
        raise ContextError(
            f"{len(roots)} runs are open in this process, and this thread belongs to none of them.",
            fix="start the thread with contextvars.copy_context().run, or hand it the context",
        )
    return next(iter(roots.values()), None)


def current() -> Context:
    """The context in use here; in a thread that has none, that of the only run this process has open."""
    context = context_here()
    if context is None:
        raise ContextError("No run is open here.", fix="with context.use(): ...")
    return context


def _returns(provider: Callable[..., Any]) -> Any:
    if isinstance(provider, type):
        return provider
    signature = signature_of(provider)
    return injectable(signature.returns) if signature else None


def _type_name(kind: Any) -> str:
    if isinstance(kind, NewType):
        return str(kind.__name__)
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _label(entry: Entry) -> str:
    return _type_name(entry.type) if entry.type else entry.name


def _callable_name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", function))


def _place(function: Callable[..., Any]) -> str:
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
        return f"{file}:{inspect.getsourcelines(inspect.unwrap(function))[1]}"
    except (TypeError, OSError):  # written in C, or in a place without source
        return ""
