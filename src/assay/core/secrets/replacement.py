"""Replacement of secrets in every text and value that is written down."""

from __future__ import annotations

import binascii
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.core.secrets.names import (
    REDACTED,
    is_distinct,
    is_folder_of_shell,
    is_like_password,
    is_opaque,
    is_secret,
    may_be_secret,
    sureness,
)
from assay.core.secrets.places import Kind
from assay.core.secrets.texts import secrets_in

_ASSIGNMENT = re.compile(r"(?:--?|\+)?([A-Za-z_][\w.\[\]-]*)=(?=.)", re.DOTALL)
# Characters that an address has as they are.
_UNQUOTED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
_OPTIONS = frozenset(
    {"token", "auth", "pass", "pw", "cookie", "bearer", "credentials", "creds", "pat", "otp"}
)
"""Options whose value is always a secret, though a variable of that name may hold another."""


_IN_MARKUP = {
    ord(letter): f"&{name};" for letter, name in zip("&<>", ("amp", "lt", "gt"), strict=True)
}
_DEEPEST = 200
"""Levels to which data are searched: everything that writes data refuses deeper ones."""

_MOST_LEARNT = 1000
"""Values found in texts that are replaced from then on: each costs a search in every text."""

_NAME_KEYS = ("name", "key", "id", "field", "variable", "env", "property")
_VALUE_KEYS = frozenset({"value", "val", "content", "default"})


class Secrets:
    """Known secrets, and functions that remove them, and what looks like one, from texts.

    What one text says to be a secret is known from then on, and replaced in every other text.

    >>> secrets = Secrets(["correct-horse-battery"])
    >>> secrets.clean("login with correct-horse-battery and ghp_" + "a1B2c3" * 6)
    'login with <redacted> and <redacted>'
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.values: tuple[str, ...] = ()
        self._forms: tuple[str, ...] = ()
        self._learnt = 0
        self._lock = threading.Lock()
        self.add(values)

    @classmethod
    def among(cls, variables: Mapping[str, object], command: Sequence[str] = ()) -> Secrets:
        """Return the secrets among variables, by their names, and among the words of a command."""
        named = [
            value
            for name, value in variables.items()
            if isinstance(value, str) and sureness(name) and not is_folder_of_shell(name, value)
        ]
        given = [word[begin:] for word, begin in _given_in(command)]
        return cls([*named, *given])

    def add(self, values: Iterable[str]) -> None:
        """Replace these values from now on, except those that may be an ordinary word or number."""
        distinct = {value for value in map(str.strip, values) if is_distinct(value)}
        with self._lock:
            fresh = distinct - set(self.values)
            if not fresh:
                return
            self.values = tuple(sorted({*self.values, *fresh}, key=len, reverse=True))
            forms = [form for value in self.values for form in _forms(value)]
            self._forms = tuple(dict.fromkeys(forms))

    def _learn(self, values: Iterable[str]) -> bool:
        """Add what was found in a text, unless other texts may have it; return if it is new."""
        lines = {line.strip() for value in values for line in re.split(r"\n|\\n", value)}
        kept = [line for line in lines if is_opaque(line) or is_like_password(line)]
        before = self.values
        if kept and self._learnt + len(kept) <= _MOST_LEARNT:
            self.add(kept)
            self._learnt += len(self.values) - len(before)
        return self.values != before

    def without_known(self, data: bytes, *, numbers: bool = True) -> bytes:
        """Return bytes of a file without the secrets that are known.

        Those that are `numbers` may be left, for a file in which a number is no text.
        """
        for form in self._forms:
            if numbers or not form.replace(".", "").isdigit():
                data = data.replace(form.encode("utf-8", "surrogateescape"), REDACTED.encode())
        return data

    def clean(self, text: str, kind: Kind = "text") -> str:
        """Return `text` with a word in the place of each secret; it has as many lines as before."""
        return self.clean_and_count(text, kind)[0]

    def clean_and_count(self, text: str, kind: Kind = "text") -> tuple[str, int]:
        """Return the same, and how many secrets there were.

        >>> Secrets().clean_and_count('API_KEY = "sk-a1b2c3d4e5f6a7b8c9d0"', "code")
        ('API_KEY = "<redacted>"', 1)
        """
        if len(text) < 6:
            return text, 0
        text, count = self._without_forms(text)
        parts, at, found = [], 0, []
        for begin, end in secrets_in(text, kind):
            if REDACTED not in text[begin:end]:
                found.append(text[begin:end])
                parts += [text[at:begin], _in_place_of(text[begin:end])]
                at = end
        if not found:
            return text, count
        text = "".join([*parts, text[at:]])
        again = 0
        if self._learn(found):  # it may stand elsewhere in this text without its name
            text, again = self._without_forms(text)
        return text, count + len(found) + again

    def _without_forms(self, text: str) -> tuple[str, int]:
        count = 0
        for form in self._forms:
            if form in text:
                count += text.count(form)
                text = text.replace(form, _in_place_of(form))
        return text, count

    def names(self, names: Sequence[str]) -> list[str]:
        """Return names without secrets, which still differ from each other.

        >>> Secrets(["correct-horse"]).names(["loss", "correct-horse", "<redacted>"])
        ['loss', '<redacted>', '<redacted>-2']
        """
        cleaned: dict[str, None] = {}
        for name in names:
            clean = fresh = self.clean(name)
            number = 1
            while fresh in cleaned:
                number += 1
                fresh = f"{clean}-{number}"
            cleaned[fresh] = None
        return list(cleaned)

    def tree(self, value: Any, name: str = "", *, depth: int = 0) -> Any:
        """Return plain data with clean texts, and with all below secret names replaced.

        >>> db = {"password": "hunter2", "url": "pg://me:hunter2@host"}
        >>> Secrets().tree({"lr": 0.1, "db": db})
        {'lr': 0.1, 'db': {'password': '<redacted>', 'url': 'pg://me:<redacted>@host'}}
        """
        match value:
            case str():
                return self._redact(value) if is_secret(name, value) else self.clean(value)
            case int() if not isinstance(value, bool):
                return REDACTED if is_secret(name, str(value)) else value
            case list() | tuple() if depth < _DEEPEST:
                return [self.tree(item, name, depth=depth + 1) for item in value]
            case Mapping() if depth < _DEEPEST:
                items = [
                    self.tree(item, name_below(name, str(key), value), depth=depth + 1)
                    for key, item in value.items()
                ]
                return dict(zip(self.keys(value), items, strict=True))
        return value

    def keys(self, mapping: Mapping[Any, object]) -> list[Any]:
        """Return the keys of a mapping, those that are texts without secrets."""
        texts = [key for key in mapping if isinstance(key, str)]
        clean = dict(zip(texts, self.names(texts), strict=True))
        return [clean.get(key, key) if isinstance(key, str) else key for key in mapping]

    def _redact(self, value: str) -> str:
        self._learn([value])
        return REDACTED

    def command(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the words of a command without the values of options such as `--api-key`.

        >>> words = ["train.py", "--api-key", "abc", "--lr", "0.1", "db.password=hunter2"]
        >>> Secrets().command(words)
        ('train.py', '--api-key', '<redacted>', '--lr', '0.1', 'db.password=<redacted>')
        """
        given = {id(word): begin for word, begin in _given_in(words)}
        cleaned = []
        for word in words:
            begin = given.get(id(word))
            is_plain = begin is None
            cleaned.append(
                self.clean(word) if is_plain else word[:begin] + self._redact(word[begin:])
            )
        return tuple(cleaned)


def secrets_under(value: Any, name: str = "", *, depth: int = 0) -> Iterator[str]:
    """Yield the texts in plain data that stand under names of secrets."""
    match value:
        case str() if is_secret(name, value):
            yield value
        case list() | tuple() if depth < _DEEPEST:
            for item in value:
                yield from secrets_under(item, name, depth=depth + 1)
        case Mapping() if depth < _DEEPEST:
            for key, item in value.items():
                yield from secrets_under(item, name_below(name, str(key), value), depth=depth + 1)


def name_below(name: str, key: str, siblings: Mapping[Any, object]) -> str:
    """Return the name that says whether a value is secret: of its key, or of what it belongs to.

    That is a table with such a name, or the other half of a pair.

    >>> name_below("client_secret", "v", {"v": "x"})
    'client_secret'
    >>> name_below("env", "value", {"name": "DB_PASSWORD", "value": "x"})
    'DB_PASSWORD'
    """
    if sureness(key) == "surely":
        return key
    if sureness(name) == "surely":
        return name
    if key.lower() in _VALUE_KEYS:
        other_halves = (siblings.get(half) for half in _NAME_KEYS)
        for half in other_halves:
            if isinstance(half, str) and sureness(half) == "surely":
                return half
    return key


def to_line(values: Iterable[str]) -> bytes:
    """Return secrets as a line of hexadecimal words, in which one process tells them another."""
    return " ".join(it.encode("utf-8", "surrogateescape").hex() for it in values).encode() + b"\n"


def from_line(line: bytes) -> list[str]:
    """Return the secrets of such a line."""
    words = line.decode("ascii").split()
    return [bytes.fromhex(word).decode("utf-8", "surrogateescape") for word in words]


def _given_in(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the words of a command that hold a secret by name, with the secret's offset."""
    option = ""
    for word in words:
        assigned = _ASSIGNMENT.match(word)
        if option and not word.startswith("-"):
            if (option in _OPTIONS and may_be_secret(word)) or is_secret(option, word):
                yield word, 0
            elif option in ("u", "user") and ":" in word:
                yield word, word.index(":") + 1
        elif assigned and (
            assigned[1] in _OPTIONS or is_secret(assigned[1], word[assigned.end() :])
        ):
            yield word, assigned.end()
        option = word.lstrip("-").lower() if word.startswith("-") and not assigned else ""


def _in_place_of(secret: str) -> str:
    return REDACTED + "\n" * secret.count("\n")


def _forms(value: str) -> Iterator[str]:
    """Yield a secret as it is, and as addresses, JSON, headers and markup have it."""
    data = value.encode("utf-8", "surrogateescape")
    yield value
    yield "".join(
        letter if letter in _UNQUOTED else f"%{ord(letter):02X}"
        for letter in data.decode("latin-1")
    )
    yield value.encode("unicode_escape").decode("ascii").replace('"', '\\"')
    yield binascii.b2a_base64(data, newline=False).decode("ascii").rstrip("=")
    yield data.hex()
    yield value.translate(_IN_MARKUP)
