"""Dependency injection: one typed container per run.

An entry has a name and a type. A type finds the entry declared with exactly it, else instances of
it; a name finds the entry of that name. The inner scope (run > epoch > step) is searched first.
Builtin types find nothing, as a bare `int` could be anything; a NewType alias can be declared.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal, NoReturn, TypeVar, overload

from assay.build.context_entries import (
    Book,
    Entry,
    Promise,
    type_name,
)
from assay.build.context_errors import (
    ContextError,
    ambiguous,
    callable_name,
    cyclic,
    explain_provided_twice,
    is_redefined,
    missing,
    nobody_provides,
    not_there,
    too_general,
)
from assay.build.marks import Provision, is_injected, is_provider, provision_of
from assay.build.parameters import (
    Parameter,
    Signature,
    from_assay,
    injectable,
    returned_type,
    signature_of,
)
from assay.core import object_graph
from assay.core.errors import nearest

T = TypeVar("T")
Scope = Literal["run", "epoch", "step"]

ROLES: Final = ("params", "model", "optimizer", "criterion", "state", "recorder", "mesh")
"""Names that fill a required parameter of any code. No role fills another's parameter by type."""

NOT_BY_NAME: Final = ("device", "dtype")
"""Names that are not injected into third-party code, where they mean something else."""

_SCOPES: Final = ("run", "epoch", "step")


class Context:
    """Objects of one run, or of one epoch or step inside it.

    `modules` are classes or objects whose methods under `provides` become providers.
    """

    def __init__(
        self, *modules: object, scope: Scope = "run", parent: Context | None = None
    ) -> None:
        if parent is not None and _SCOPES.index(scope) <= _SCOPES.index(parent.scope):
            raise ContextError(
                f"A scope `{scope}` cannot be in a scope `{parent.scope}`.",
                fix="run > epoch > step",
            )
        self.scope: Scope = scope
        self.parent = parent
        self.built: dict[Any, Any] = {}
        self._book: Book = parent._book if parent else Book()
        self._entries: dict[str, Entry] = {}
        self._found: dict[Any, Entry] = {}
        self._found_at = -1
        for module in modules:
            self.install(module)

    def child(self, scope: Scope) -> Context:
        """Return a scope inside this one, which sees everything here."""
        return Context(scope=scope, parent=self)

    @contextmanager
    def opened(self, scope: Scope) -> Iterator[Context]:
        """Open a scope inside this one and use it; close it at the end."""
        inner = self.child(scope)
        try:
            with inner.use():
                yield inner
        finally:
            inner.close()

    @property
    def run(self) -> Context:
        """Outermost scope."""
        return self._chain()[-1]

    def promises(self) -> list[str]:
        """Return the names of entries that do not exist yet, or never will."""
        return [entry.name for entry in self.entries() if entry.promise is not None]

    def names(self) -> list[str]:
        """Return every name that can be asked for, the innermost scope first."""
        return [
            entry.name
            for entry in self.entries()
            if entry.promise is None or not entry.promise.never
        ]

    def entries(self) -> list[Entry]:
        """Return all entries, the innermost scope first; inner names hide outer ones."""
        found: dict[str, Entry] = {}
        for scope in self._chain():
            for name, entry in list(scope._entries.items()):
                found.setdefault(name, entry)
        return list(found.values())

    def __contains__(self, key: object) -> bool:
        return any(entry.promise is None for entry in self._candidates(key))

    # --- putting in -------------------------------------------------------------------------------

    def set(self, name: str, value: Any, type: Any = None) -> None:
        """Store `value` under `name` in this scope; `type` finds this entry from now on."""
        old = self._entries.get(name)
        is_value = old is not None and old.provider is None and old.promise is None
        is_alike = old and is_value and old.type is type and old.value.__class__ is value.__class__
        if (
            old
            and is_alike
            and not any(one.value is old.value for one in self._entries.values() if one is not old)
        ):
            # found by the same lookups as before: what changes each step costs no new ones
            old.value = value
            return
        self._put(Entry(self, name, type, value))

    def add(self, name: str, value: Any, type: Any = None) -> bool:
        """Store `value` unless the name is taken, here or further out; return False if it is."""
        with self._book.lock:
            old = self._find_named(name)
            if old is not None and not (old.promise and old.promise.never):
                return False
            self.set(name, value, type)
        return True

    def promise(self, name: str, promise: Promise) -> None:
        """Announce that `name` will be set later, or never; asking for it now is an error."""
        self._put(Entry(self, name, promise=promise))

    def provide(
        self, provider: Callable[..., Any], *, type: Any = None, name: str | None = None
    ) -> None:
        """Register a provider, called once, on first use; its own parameters are injected.

        It is found by `type` (else its return annotation, or the class itself) and by `name` (else
        its own).
        """
        mark = provision_of(provider) or Provision()
        kind = type or mark.type or returned_type(provider)
        label = name or mark.name or getattr(provider, "__name__", "") or repr(provider)
        old = self._entries.get(label)
        before = old.provider if old is not None else None
        if before is not None and not is_redefined(before, provider):
            raise explain_provided_twice(label, before, provider)
        self._put(Entry(self, label, kind, provider=provider))

    def install(self, module: object) -> None:
        """Register all methods of `module` marked with `provides`; instantiate a class first."""
        marked = [
            name for name, _ in inspect.getmembers_static(module) if is_provider(module, name)
        ]
        source = module() if isinstance(module, type) else module
        for name in marked:
            self.provide(getattr(source, name))

    def close(self) -> None:
        """Drop all entries, so that objects held by nobody else are freed."""
        with self._book.lock:
            self._entries.clear()
            self._found.clear()
            self.built.clear()
            self._book.version += 1

    # --- getting out ------------------------------------------------------------------------------

    @overload
    def get(self, key: str) -> Any: ...
    @overload
    def get(self, key: type[T]) -> T: ...
    def get(self, key: Any) -> Any:
        """Return the object of this name or type; ContextError for none, or for more than one."""
        if self._found_at == self._book.version:
            entry = self._found.get(key)
            if entry is not None:
                return entry.value
        found = self._entry(key)
        if found is None:
            word = key if isinstance(key, str) else type_name(key)
            raise missing(key, self._name_like(word))
        return self._remember(key, found)

    @overload
    def try_get(self, key: str, default: Any = None) -> Any: ...
    @overload
    def try_get(self, key: type[T], default: T | None = None) -> T | None: ...
    def try_get(self, key: Any, default: Any = None) -> Any:
        """Return the object of this name or type, `default` if there is none yet.

        Two candidates are still an error.
        """
        found = self._entry(key)
        return default if found is None or found.promise else self._remember(key, found)

    def source(self, parameter: Parameter, *, roles: Collection[str] | None = None) -> Entry | None:
        """Return the entry that fills a parameter: by annotation, then by name.

        By name any entry is found, or only those of `roles`.
        """
        name = parameter.name
        by_name = self._find_named(name) if roles is None or name in roles else None
        if by_name is not None and by_name.promise and by_name.promise.never:
            by_name = None
        kind = injectable(parameter.hint)
        if kind is None:
            return by_name
        found = self._candidates(kind)
        if by_name in found:
            return by_name
        if name in ROLES:  # a criterion is a module too: never hand out the model for it
            found = [entry for entry in found if entry.type is kind or entry.name not in ROLES]
        if len(found) > 1:
            raise ambiguous(kind, found, f" for `{name}`")
        if found:
            return found[0]
        return by_name or self._find_marked(kind)

    def arguments(
        self,
        target: Callable[..., Any],
        *,
        given: Collection[str] = (),
        roles: Collection[str] | None = None,
    ) -> dict[str, Entry]:
        """Return the entries that fill the parameters of `target` which are not `given`.

        Required parameters are always filled; those with a default only under `inject`, or if
        annotated with a type of assay's. A parameter without an entry is left out.
        """
        signature = signature_of(target) or Signature(named=())
        with_defaults = is_injected(target)
        sources: dict[str, Entry] = {}
        for parameter in signature.named:
            if parameter.name in given or not (
                parameter.required or with_defaults or from_assay(parameter.hint)
            ):
                continue
            entry = self.source(parameter, roles=roles)
            if entry is not None:
                sources[parameter.name] = entry
        return sources

    def value(self, entry: Entry) -> Any:
        """Return the object of an entry, calling its provider on first use."""
        if entry.promise is not None:
            raise not_there(entry.name, entry.promise)
        if not entry.is_ready:
            with self._book.lock:  # two threads that ask at once get one object
                entry.owner._plan(entry, [])
                return entry.owner._make(entry)
        return entry.value

    def bind(self, fn: Callable[..., T]) -> Callable[[], T]:
        """Return `fn` with all its parameters bound, looked up once, now."""
        sources = self._all_arguments(fn, [])
        if not sources:
            return fn
        args, kwargs = self._call_arguments(fn, sources)
        return functools.partial(fn, *args, **kwargs)

    def validate(self) -> None:
        """Check that every entry can be made, without making any; raise what asking would."""
        with self._book.lock:
            for scope in self._chain():
                for entry in list(scope._entries.values()):
                    scope._plan(entry, [])

    @contextmanager
    def use(self) -> Iterator[Context]:
        """Make this the current context, in this thread and the threads it starts."""
        _stay_here()
        token = _current.set(self)
        root = self.run
        with _lock:
            _in_use.append(root)
        try:
            yield self
        finally:
            with _lock, contextlib.suppress(ValueError):  # in a forked process it has left already
                _in_use.remove(root)
            _current.reset(token)

    def keep_here(self) -> dict[str, object]:
        """Return the objects that must not be copied to loader workers, by name."""
        kept: dict[str, object] = {"context": self.run}
        for entry in self.entries():
            if entry.name in _KEPT_HERE and entry.is_ready and entry.value is not None:
                kept[entry.name] = entry.value
        return kept

    def check_for_workers(self, thing: object, where: str) -> None:
        """Raise InputError, with the path of attributes, if `thing` holds one of these objects."""
        object_graph.check_for_workers(thing, where, self.keep_here())

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        sent = object_graph.being_sent()
        path = object_graph.path_to(sent, {"context": self}) if sent is not None else None
        raise ContextError(
            "A Context cannot be copied or sent to another process: it holds the whole run.",
            where=path.text(type(sent).__name__) if path else "",
            fix="hand over the one thing that is needed, not the context",
        )

    # --- inside -----------------------------------------------------------------------------------

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

    def _find_named(self, name: str) -> Entry | None:
        return next(
            (scope._entries[name] for scope in self._chain() if name in scope._entries), None
        )

    def _candidates(self, key: Any) -> list[Entry]:
        """Return the distinct matches of the innermost scope that has any."""
        if isinstance(key, str):
            entry = self._find_named(key)
            return [entry] if entry else []
        if injectable(key) is not key:
            return []
        for scope in self._chain():
            entries = [
                e for e in list(scope._entries.values()) if not (e.promise and e.promise.never)
            ]
            found = [entry for entry in entries if entry.type is key] or [
                e for e in entries if e.is_a(key)
            ]
            if found:
                distinct = {
                    id(entry.value) if entry.is_ready else id(entry): entry
                    for entry in reversed(found)
                }
                return list(reversed(distinct.values()))
        return []

    def _entry(self, key: Any) -> Entry | None:
        if not isinstance(key, str) and injectable(key) is not key:
            raise too_general(key)
        found = self._candidates(key)
        if len(found) > 1:
            raise ambiguous(key, found, "")
        return found[0] if found else self._find_marked(key)

    def _find_marked(self, key: Any) -> Entry | None:
        """Return a new entry for a class under `inject`, which is its own provider."""
        if not isinstance(key, type) or not is_injected(key):
            return None
        entry = Entry(self, f"{key.__module__}.{key.__qualname__}", key, None, key)
        self._put(entry)
        return entry

    def _all_arguments(
        self, function: Callable[..., Any], chain: Sequence[Entry]
    ) -> dict[str, Entry]:
        sources = self.arguments(function)
        signature = signature_of(function) or Signature(named=())
        for parameter in signature.named:
            if parameter.required and parameter.name not in sources:
                raise nobody_provides(parameter, function, chain, self._name_like(parameter.name))
        return sources

    def _plan(self, entry: Entry, chain: list[Entry]) -> None:
        """Resolve the provider's dependencies, and theirs, before anything is made."""
        if entry.is_ready or entry.provider is None:
            return
        before = [*self._book.making, *chain]
        if entry in before:
            raise cyclic([*before[before.index(entry) :], entry], entry.provider)
        for source in self._all_arguments(entry.provider, [*chain, entry]).values():
            source.owner._plan(source, [*chain, entry])

    def _make(self, entry: Entry) -> Any:
        if entry.is_ready or entry.provider is None:
            return entry.value  # another thread was first
        self._book.making.append(entry)
        try:
            args, kwargs = self._call_arguments(
                entry.provider, self._all_arguments(entry.provider, [])
            )
            value = entry.provider(*args, **kwargs)
        finally:
            self._book.making.pop()
        entry.value, entry.is_ready = value, True
        return value

    def _call_arguments(
        self, function: Callable[..., Any], sources: dict[str, Entry]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, by position where possible: such a partial is faster."""
        signature = signature_of(function) or Signature(named=())
        args: list[Any] = []
        kwargs = {}
        for name, entry in sources.items():
            if entry.promise is not None:
                asker = f", which `{callable_name(function)}` asks for,"
                raise not_there(entry.name, entry.promise, asker)
            kwargs[name] = self.value(entry)
        for parameter in signature.named:
            if not parameter.by_position or parameter.name not in kwargs:
                break
            args.append(kwargs.pop(parameter.name))
        return args, kwargs

    def _name_like(self, word: str) -> str:
        """Return a hint at the names that can be asked for instead of `word`."""
        names = self.names()
        near = nearest(word, names, 3)
        if near:
            return f"did you mean {' or '.join(f'`{name}`' for name in near)}?"
        return f"set are: {', '.join(names)}" if names else ""


_KEPT_HERE: Final = ("engine", "process", "model", "optimizer", "backward", "recorder")

_current: ContextVar[Context | None] = ContextVar("assay_context", default=None)
_in_use: list[Context] = []
_lock = threading.Lock()


@functools.cache
def _stay_here() -> None:
    """Make every process forked from now on, such as a loader worker, begin without a run."""

    def begin_without() -> None:
        global _lock
        _lock = threading.Lock()  # another thread may have held it when the process was forked
        _in_use.clear()
        _current.set(None)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=begin_without)


def context_here() -> Context | None:
    """Return the context in use, None if no run is open."""
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
    """Return the context in use here; in a foreign thread that of the only open run."""
    context = context_here()
    if context is None:
        raise ContextError("No run is open here.", fix="with context.use(): ...")
    return context
