"""Entries of a context: objects that are there, to be made, or promised."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NewType, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Description of an entry that does not exist yet.

    `type` is the expected type, None if unknown. The object is made from the nodes at `paths` of
    the config and the entries of `names`, or by `provider`. `never` says why it will not come at
    all.
    """

    type: Any = None
    provider: Callable[..., Any] | None = None
    paths: tuple[tuple[str | int, ...], ...] = ()
    names: tuple[str, ...] = ()
    never: str = ""


class EntryScope(Protocol):
    """Scope of a context that has an entry, and makes its object."""

    def _plan(self, entry: Entry, chain: list[Entry]) -> None: ...
    def _make(self, entry: Entry) -> Any: ...


class Entry:
    """Object of a context: ready, to be made by a provider on first use, or promised."""

    __slots__ = ("is_ready", "name", "owner", "promise", "provider", "type", "value")

    def __init__(
        self,
        owner: EntryScope,
        name: str,
        type: Any = None,
        value: Any = None,
        provider: Callable[..., Any] | None = None,
        *,
        promise: Promise | None = None,
    ) -> None:
        self.owner = owner
        self.name = name
        self.type = type
        self.value = value
        self.provider = provider
        self.promise = promise
        self.is_ready = provider is None and promise is None

    @property
    def expected(self) -> Any:
        """Type that is known before there is a value."""
        return self.promise.type if self.promise else self.type

    def is_a(self, kind: Any) -> bool:
        """Return True if this entry is found by a type it was not declared with."""
        if not isinstance(kind, type):  # an alias: only what was promised under it
            return self.promise is not None and self.promise.type is kind
        expected = self.expected
        try:
            if isinstance(expected, type) and issubclass(expected, kind):
                return True
            return self.is_ready and isinstance(self.value, kind)
        except TypeError:  # a Protocol that cannot be asked
            return False

    def may_be(self, kind: Any) -> bool:
        """Return True if a promised entry may turn out to be of this type.

        That is so if nothing, or only a base class, is known of its type.
        """
        if self.promise is None or self.promise.never:
            return False
        expected = self.promise.type
        if not isinstance(expected, type) or not isinstance(kind, type):
            return expected is None
        try:
            return issubclass(kind, expected)
        except TypeError:  # a Protocol that cannot be asked
            return False

    def __str__(self) -> str:
        return f"`{self.name}` ({type_name(self.expected or type(self.value))})"


def type_name(kind: Any) -> str:
    """Return the name of a type or of an alias, as messages say it."""
    if isinstance(kind, NewType):
        return str(kind.__name__)
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def label_of(entry: Entry) -> str:
    """Return the type of an entry, else its name, as messages say it."""
    return type_name(entry.expected) if entry.expected else entry.name


class Book:
    """State that all scopes of one run share.

    `version` counts changes; cached look-ups of an older version are dropped. `making` lists the
    entries whose providers are running.
    """

    __slots__ = ("lock", "making", "version")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self.making: list[Entry] = []
