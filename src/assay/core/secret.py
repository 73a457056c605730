"""Replacement of secrets in every text and value that is written down."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.core.secret_names import REDACTED, is_distinct, is_given, is_secret, sureness
from assay.core.secret_texts import Kind, secrets_in

_ASSIGNMENT = re.compile(r"(?:--?|\+)?([A-Za-z_][\w.\[\]-]*)=(?=.)", re.DOTALL)
# Characters that an address has as they are.
_UNQUOTED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
_OPTIONS = frozenset(
    {"token", "auth", "pass", "pw", "cookie", "bearer", "credentials", "creds", "pat", "otp"}
)
"""Options whose value is always a secret, though a variable of that name may hold another."""


_DEEPEST = 200
"""Levels to which data are searched: everything that writes data refuses deeper ones."""


class Secrets:
    """Known secrets, and functions that remove them, and what looks like one, from texts.

    >>> secrets = Secrets(["correct-horse-battery"])
    >>> secrets.clean("login with correct-horse-battery and ghp_" + "a1B2c3" * 6)
    'login with <redacted> and <redacted>'
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.values: tuple[str, ...] = ()
        self._forms: tuple[str, ...] = ()
        self.add(values)

    @classmethod
    def known(cls, variables: Mapping[str, object], command: Sequence[str] = ()) -> Secrets:
        """Return the secrets among variables, by their names, and among the words of a command."""
        named = [
            value for name, value in variables.items() if isinstance(value, str) and sureness(name)
        ]
        given = [word[begin:] for word, begin in _given_in(command)]
        return cls([*named, *given])

    def add(self, values: Iterable[str]) -> None:
        """Replace these values from now on, except those that may be an ordinary word or number."""
        distinct = {value for value in map(str.strip, values) if is_distinct(value)}
        fresh = distinct - set(self.values)
        if not fresh:
            return
        self.values = tuple(sorted({*self.values, *fresh}, key=len, reverse=True))
        forms = [form for value in self.values for form in _forms(value)]
        self._forms = tuple(dict.fromkeys(forms))

    def without_known(self, data: bytes) -> bytes:
        """Return bytes of a file without the secrets that are known."""
        for form in self._forms:
            data = data.replace(form.encode("utf-8", "surrogateescape"), REDACTED.encode())
        return data

    def clean(self, text: str, kind: Kind = "text") -> str:
        """Return `text` with a word in the place of each secret; it has as many lines as before."""
        return self.cleaned(text, kind)[0]

    def cleaned(self, text: str, kind: Kind = "text") -> tuple[str, int]:
        """Return the same, and how many secrets there were.

        >>> Secrets().cleaned('API_KEY = "sk-a1b2c3d4e5f6a7b8c9d0"', "code")
        ('API_KEY = "<redacted>"', 1)
        """
        if len(text) < 6:
            return text, 0
        count = 0
        for form in self._forms:
            if form in text:
                count += text.count(form)
                text = text.replace(form, _in_place_of(form))
        parts, at = [], 0
        for begin, end in secrets_in(text, kind):
            if REDACTED not in text[begin:end]:
                parts += [text[at:begin], _in_place_of(text[begin:end])]
                at = end
                count += 1
        return "".join([*parts, text[at:]]) if parts else text, count

    def tree(self, value: Any, name: str = "", *, depth: int = 0) -> Any:
        """Return plain data with clean texts, and with the values of secret names replaced.

        >>> db = {"password": "hunter2", "url": "pg://me:hunter2@host"}
        >>> Secrets().tree({"lr": 0.1, "db": db})
        {'lr': 0.1, 'db': {'password': '<redacted>', 'url': 'pg://me:<redacted>@host'}}
        """
        match value:
            case str():
                return REDACTED if is_secret(name, value) else self.clean(value)
            case int() if not isinstance(value, bool):
                return REDACTED if is_secret(name, str(value)) else value
            case list() | tuple() if depth < _DEEPEST:
                return [self.tree(item, name, depth=depth + 1) for item in value]
            case Mapping() if depth < _DEEPEST:
                return {
                    key: self.tree(item, str(key), depth=depth + 1) for key, item in value.items()
                }
        return value

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
            cleaned.append(self.clean(word) if begin is None else word[:begin] + REDACTED)
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
                yield from secrets_under(item, str(key), depth=depth + 1)


def _given_in(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the words of a command that hold a secret by name, with the secret's offset."""
    option = ""
    for word in words:
        assigned = _ASSIGNMENT.match(word)
        if option and not word.startswith("-"):
            if (option in _OPTIONS and is_given(word)) or is_secret(option, word):
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
    """Yield a secret as it is, and as it stands in an address, in JSON and in a header."""
    data = value.encode("utf-8", "surrogateescape")
    yield value
    yield "".join(
        letter if letter in _UNQUOTED else f"%{ord(letter):02X}"
        for letter in data.decode("latin-1")
    )
    yield value.encode("unicode_escape").decode("ascii").replace('"', '\\"')
    yield binascii.b2a_base64(data, newline=False).decode("ascii").rstrip("=")
