"""Texts of every kind and of any length that somebody may ask for runs with."""

from __future__ import annotations

from collections.abc import Sequence

KINDS = {
    "digits and a letter": "1",
    "digits after a name": "lr = 1",
    "underscores": "lr = 1_",
    "points": "lr = 1.",
    "exponents": "lr = 1e1",
    "signs": "+-",
    "a name": "a",
    "a name with places": "a[1]",
    "places": "[1",
    "conjunctions": "lr = 1 and ",
    "alternatives": "lr = 1 || ",
    "negations": "not ",
    "opening brackets": "(",
    "nested conjunctions": "lr and (",
    "nested negations": "not (lr or ",
    "values": "lr in (1, 2, 3), ",
    "listed values": "1, ",
    "double quotes": '"',
    "escaped quotes": '\\"',
    "single quotes": "'x'",
    "backquotes": "`x` ",
    "an open backquote": "`x",
    "spaces": " ",
    "lines": "\n",
    "words": "word ",
    "dates": "2026-11-20T",
    "durations": "12h30",
    "signs without meaning": "&",
    "other digits": "٣",
    "letters of no alphabet": "実",
    "half a character": "\ud83d",
    "zero characters": "\0",
}
ENDS = ("", "x", ")", '"', " = 1")


def texts_of(length: int, ends: Sequence[str] = ENDS) -> dict[str, str]:
    """Return for each kind, with each end, a text of this length."""
    return {
        f"{kind}, then {end!r}": (part * (length // len(part) + 1))[: length - len(end)] + end
        for kind, part in KINDS.items()
        for end in ends
    }
