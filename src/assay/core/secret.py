"""What looks like a secret, by its name or by itself: it is used and never written down."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

REDACTED = "<redacted>"

_NAMES = re.compile(
    r"(?:^|[_-])(?:api_?key|key|token|secret|passw(?:or)?d|pwd|pass|passphrase|credentials?|auth|cookie|bearer"
    r"|private|signature|dsn|pat)(?:$|[_\d-])",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"(?:\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|AIza|ya29\.|eyJ|npm_|pypi-|dop_v1_|r8_|nvapi-)"
    r"[\w.=/+-]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]*:[^/\s@]+@)"  # user:password@ in an address
)
_DENSE = re.compile(r"[\w+/=-]{24,}", re.ASCII)
_BITS = 3.9  # per character; words and paths stay below, random letters and digits of this length above


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name usually holds a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "API_KEY", "monkey", "KEYBOARD", "db-password")]
    [True, True, False, False, True]
    """
    return bool(_NAMES.search(name))


def is_secret_text(text: str) -> bool:
    """Whether a text holds what looks like a secret: a known kind of key, a password in an address, random letters.

    >>> is_secret_text("/data/imagenet/train"), is_secret_text("hf_" + "a1B2" * 8)
    (False, True)
    """
    return bool(_KNOWN.search(text)) or any(_is_random(found[0]) for found in _DENSE.finditer(text))


def secret_values(variables: Mapping[str, str]) -> list[str]:
    """The values of environment variables that hold secrets by their name: what must not be found anywhere else."""
    found = {value for name, value in variables.items() if is_secret_name(name) and _is_opaque(value, 12)}
    return sorted(found, key=len, reverse=True)


def redact(text: str, values: Iterable[str] = (), *, assigned: bool = False) -> tuple[str, int]:
    """`text` with a word in the place of each secret in it, and how many there were.

    Secrets are known kinds of keys and passwords in addresses, and each of `values`; with `assigned` also what stands
    in quotes behind a name that says it: `api_key = "..."`. Meant for whole files of code: words and paths stay.

    >>> redact('KEY = "sk-a1b2c3d4e5f6a7b8c9d0"')
    ('KEY = "<redacted>"', 1)
    """
    count = 0
    for value in values:
        if value in text:
            count += text.count(value)
            text = text.replace(value, REDACTED)
    for pattern, is_one in (_PATTERNS + _ASSIGNED) if assigned else _PATTERNS:
        text, found = _replaced(pattern, is_one, text)
        count += found
    return text, count


def _replaced(pattern: re.Pattern[str], is_one: Callable[[re.Match[str]], bool], text: str) -> tuple[str, int]:
    """What the group `it` of each match holds, when it is one, with a word in its place; line ends stay."""
    count = 0

    def word(match: re.Match[str]) -> str:
        nonlocal count
        if REDACTED in match["it"] or not is_one(match):
            return match[0]
        count += 1
        begin, end = match.start("it") - match.start(), match.end("it") - match.start()
        return match[0][:begin] + REDACTED + "\n" * match["it"].count("\n") + match[0][end:]

    return pattern.sub(word, text), count


def _is_opaque(text: str, least: int, *, digits: int = 1) -> bool:
    """At least so long, letters and digits, and no repetition: not a word, a number or a row of x."""
    letters = sum(map(str.isalpha, text))
    return len(text) >= least and letters > 0 and sum(map(str.isdigit, text)) >= digits and _bits(text) >= 2.0


def _is_assigned(match: re.Match[str]) -> bool:
    quoted, value = bool(match["quote"]), match["it"]
    opaque = _is_opaque(value, 16, digits=3) if quoted else _PLAIN.fullmatch(value) and _is_opaque(value, 20, digits=4)
    if not opaque and not (quoted and not re.search(r"[{}<>$]", value)):
        return False
    name = _NAME_BEFORE.search(match.string, max(0, match.start() - 100), match.start())
    if name is None or not is_secret_name(name[1]):
        return False
    return bool(opaque) or re.search(r"passw|pwd|pass\b", name[1], re.IGNORECASE) is not None


_PLAIN = re.compile(r"[\w+/=-]+")
_NAME_BEFORE = re.compile(r"""([A-Za-z_][\w-]*)["']?\]?[ \t]*(?::[ \t]*\w+[ \t]*)?\Z""")
_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], bool]], ...] = (
    (
        re.compile(
            r"\b(?P<it>hf_[A-Za-z0-9]{20,}|sk-(?:[a-z]+\d*-)*\w{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
            r"|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|npm_[A-Za-z0-9]{36}"
            r"|eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]+)?|pypi-[\w-]{50,}|dop_v1_[0-9a-f]{32,}|r8_[A-Za-z0-9]{30,}"
            r"|nvapi-[\w-]{30,})",
            re.ASCII,
        ),
        lambda match: _is_opaque(match["it"], 16),
    ),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<it>.*?)(?:-----END|\Z)", re.DOTALL),
        lambda match: len(match["it"]) > 40,
    ),
    (re.compile(r"""://[^/\s:@'"{}<$]*:(?P<it>[^/\s:@'"{}<$]{3,})@"""), lambda match: True),
)
_ASSIGNED: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], bool]], ...] = (
    (
        re.compile(r"""[:=][ \t]*(?P<quote>["']?)(?P<it>[^"'\s,;#()\[\]]{6,})(?=(?P=quote)(?:["'\s,;#)}\]]|\Z))"""),
        _is_assigned,
    ),
)


def redacted(name: str, value: object) -> object:
    """`value`, or a word in its place when its name or itself says that it is a secret."""
    if is_secret_name(name) or (isinstance(value, str) and is_secret_text(value)):
        return REDACTED
    if isinstance(value, list):
        return [redacted(name, item) for item in value]
    if isinstance(value, dict):
        return {key: redacted(str(key), item) for key, item in value.items()}
    return value


def _is_random(text: str) -> bool:
    if not (re.search(r"[A-Z]", text) and re.search(r"[a-z]", text) and re.search(r"\d", text)):
        return False
    return _bits(text) >= _BITS and "/" not in text[:2]


def _bits(text: str) -> float:
    """Of information per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
