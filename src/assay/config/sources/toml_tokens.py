"""Tokens of TOML 1.1: patterns, the meaning of a bare word, and advice about one that has none."""

from __future__ import annotations

import math
import re
from datetime import date, datetime, time

from assay.config.tree import NONE, Scalar

SPACE = re.compile(r"[ \t]*+")
# Possessive, here and below: a way back for every comment takes gigabytes.
BLANK = re.compile(r"(?:[ \t\n]++|\r\n|#[^\x00-\x08\n-\x1f\x7f]*+)*+")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
WORD = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:[\w:.+-]+|\([^()\n]*\)?|[^\s,\[\]{}#=\"']+", re.ASCII)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
"""Characters that no TOML may hold, not even in a comment."""

STRINGS = {
    '"': re.compile(r'"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"'),
    "'": re.compile(r"'[^'\n]*+'"),
    '"""': re.compile(r'"""(?:[^\\"]|\\.|"{1,2}(?!"))*+"{3,5}', re.DOTALL),
    "'''": re.compile(r"'''(?:[^']|'{1,2}(?!'))*+'{3,5}"),
}
"""Whole strings by the quotes that they start with."""

ESCAPE = re.compile(
    r"\r\n|\\(?:(?P<short>[btnfre\"\\])"
    r"|(?:x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8}))"
    r"|(?P<fold>[ \t]*\r?\n[ \t\r\n]*)|)"
)
"""Parts of a string that stand for something else, and a backslash that stands for nothing."""

SHORT_ESCAPES = {
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    '"': '"',
    "\\": "\\",
}

# Unclosed strings match too, up to where they must end: a second look at the same text would be
# quadratic.
BRACKET = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)'
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|\'[^\'\n]*\'?|#[^\n]*'
    r"|(?P<open>[\[{])|(?P<close>[\]}])|(?P<newline>\n)",
    re.DOTALL,
)
"""Brackets and line ends by group name; strings and comments match without a group."""

_KEY = "|".join([STRINGS['"'].pattern, STRINGS["'"].pattern, BARE_KEY.pattern])
_DOTTED = rf"(?:{_KEY})(?:[ \t]*\.[ \t]*(?:{_KEY}))*"
PAIR_START = re.compile(rf"[ \t]*{_DOTTED}[ \t]*=(?!=)")
HEADER_START = re.compile(rf"[ \t]*\[\[?[ \t]*{_DOTTED}[ \t]*\]")
NAMED_HEADER_START = re.compile(r"[ \t]*\[\[?[ \t]*(?!(?:true|false|inf|nan)\b)[A-Za-z_]")
"""Start of a header that cannot be a nested list of numbers, strings or truth values."""

_WORDS: dict[str, Scalar] = {
    "true": True,
    "false": False,
    **{sign + "inf": float(sign + "inf") for sign in ("", "+", "-")},
    **{sign + "nan": float("nan") for sign in ("", "+", "-")},
}
_NUMBER = re.compile(
    r"[+-]?(?:0|[1-9](?:_?\d)*)(?P<float>(?:\.\d(?:_?\d)*)?(?:[eE][+-]?\d(?:_?\d)*)?)", re.ASCII
)
_BASED = re.compile(r"0x[0-9A-Fa-f](?:_?[0-9A-Fa-f])*|0o[0-7](?:_?[0-7])*|0b[01](?:_?[01])*")
_DATE = r"\d{4}-\d\d-\d\d"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"
_ZONE = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_MOMENT = re.compile(rf"(?P<date>{_DATE})|(?P<time>{_TIME})|{_DATE}[Tt ]{_TIME}{_ZONE}?", re.ASCII)


def scalar_of(word: str) -> tuple[Scalar] | None:
    """Return the number, date, time or truth value that a bare word is; None when it is none.

    >>> scalar_of("1_000"), scalar_of("07:32"), scalar_of("True")
    ((1000,), (datetime.time(7, 32),), None)
    """
    if word in _WORDS:
        return (_WORDS[word],)
    number = _NUMBER.fullmatch(word)
    if number is not None:
        found = float_of(word) if number["float"] else int(word)
        return None if found is None else (found,)
    if _BASED.fullmatch(word):
        return (int(word, 0),)
    return moment_of(word)


def float_of(word: str) -> float | None:
    """Return the float nearest to a number in decimal digits; None where that is inf, or 0.

    `12e4567` is a digest rather than a number.
    """
    number = float(word)
    digits = word.lower().partition("e")[0]
    return None if math.isinf(number) or (number == 0 and re.search("[1-9]", digits)) else number


def moment_of(word: str) -> tuple[date | time] | None:
    """Return the date, the time or both that a bare word is; None when it is neither."""
    found = _MOMENT.fullmatch(word)
    try:
        if found is None:
            return None
        if found["date"]:
            return (date.fromisoformat(word),)
        if found["time"]:
            return (time.fromisoformat(word),)
        return (datetime.fromisoformat(word.upper()),)
    except ValueError:  # the 30th of February
        return None


def beyond_floats(word: str) -> str:
    """Return how to write a number that `float_of` has no float for."""
    return f'no float is near it; as a text it needs quotes: "{word}"'


def advice(word: str) -> str:
    """Return how to write a word that is no TOML value; "" where that is unclear."""
    if _NUMBER.fullmatch(word):
        return beyond_floats(word)
    if word.lower() in ("true", "false"):
        return f"write {word.lower()}"
    if word.lower() in ("none", "null", "nil"):
        return f'write "{NONE}"'
    if word.startswith("("):
        return f"write a list: [{word.strip('()').strip().rstrip(',')}]"
    if re.fullmatch(r"[+-]?\.\d+\S*", word):
        return f"write {word.replace('.', '0.', 1)}"
    if re.fullmatch(r"[+-]?\d+\.(?:[eE]\S*)?", word):
        return f"write {word.replace('.', '.0', 1)}"
    return f'strings need quotes: "{word}"' if re.fullmatch(r"[A-Za-z_@$./][^\"']*", word) else ""
