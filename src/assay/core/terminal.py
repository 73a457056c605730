"""Text for a terminal: foreign control codes are made visible, our own colours stay.

Every text that assay shows, of a record, a config, a file or an exception, goes through
`for_terminal`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import unicodedata

_INDENT = "    "
_BLANKS = "Zs"  # of all widths; str.isprintable knows one of them
_NOT_PLAIN = re.compile(r"[^\n\t -~]")
_NOT_PLAIN_IN_LINE = re.compile(r"[^\t -~]")


def in_notebook() -> bool:
    """Return whether a kernel of Jupyter runs this process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def visible(text: str) -> str:
    """Escape control codes, line ends and changes of direction in one line of text.

    >>> visible("a\\x1b[2Jb\\nc\\u202e")
    'a\\\\x1b[2Jb\\\\nc\\\\u202e'
    """
    return _NOT_PLAIN_IN_LINE.sub(_mark, text)


def style(text: str, codes: str) -> str:
    """Return `text` in the style of these terminal codes ("1;31"), for `for_terminal` to keep.

    The mark of our own styles is drawn once per process: no earlier text can hold it.
    """
    return f"{_begin()}{codes}m{text}{_begin()}0m"


def for_terminal(text: str, *, color: bool) -> str:
    """Return lines of text as they may be written to a terminal, in our styles or without."""
    styled = text.split(_begin())
    if len(styled) == 1:
        return _NOT_PLAIN.sub(_mark, text)
    shown = [_NOT_PLAIN.sub(_mark, styled[0])]
    for part in styled[1:]:
        codes, _, rest = part.partition("m")
        shown += [f"\x1b[{codes}m" if color else "", _NOT_PLAIN.sub(_mark, rest)]
    return "".join(shown)


def escaped_json(text: str) -> str:
    """Escape the unprintable characters of a JSON text; its meaning stays.

    >>> print(escaped_json('{"tag": "a\\x9b2J"}'))
    {"tag": "a\\u009b2J"}
    """
    return _NOT_PLAIN.sub(
        lambda found: found[0] if _is_shown(found[0]) else json.dumps(found[0])[1:-1], text
    )


def cell_count(text: str) -> int:
    """Return the terminal columns of `text`: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(letter) for letter in text)


def elide(text: str, limit: int) -> str:
    """Return `text` in at most `limit` columns, cut in the middle.

    >>> elide("a-very-long-tag-of-a-run", 12), elide("short", 12), elide("日本語の実験", 7)
    ('a-very…a-run', 'short', '日本…験')
    """
    if cell_count(text) <= limit:
        return text
    if limit < 2:
        return "…"[:limit]
    tail = fit_columns(text[::-1], (limit - 1) // 2)[::-1]
    head = fit_columns(text, limit - 1 - cell_count(tail))
    return f"{head}…{tail}"


def fit_columns(text: str, limit: int) -> str:
    """Return the longest beginning of `text` that takes at most `limit` columns."""
    if text.isascii():
        return text[:limit]
    taken = 0
    for i, letter in enumerate(text):
        taken += _cells_of(letter)
        if taken > limit:
            return text[:i]
    return text


def fold(line: str, columns: int | None) -> list[str]:
    """Return a line as lines of at most `columns`, broken where two blanks are.

    A part between two blanks that is wider itself stays whole, and has a line for itself.

    >>> fold("epoch 1  loss 0.25  valid/acc 0.5", 22)
    ['epoch 1  loss 0.25', '    valid/acc 0.5']
    """
    lines: list[str] = []
    for part in line.split("  "):
        if lines and (columns is None or cell_count(lines[-1]) + 2 + cell_count(part) <= columns):
            lines[-1] += f"  {part}"
        else:
            is_inner = lines and (columns is None or len(_INDENT) + cell_count(part) <= columns)
            lines.append(f"{_INDENT}{part}" if is_inner else part)
    return lines


@functools.lru_cache(1 << 14)
def _cells_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _mark(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if _is_shown(letter) else letter.encode("unicode_escape").decode("ascii")


@functools.lru_cache(1 << 14)
def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == _BLANKS


@functools.cache
def _begin() -> str:
    return f"\x1b{os.urandom(8).hex()}["
