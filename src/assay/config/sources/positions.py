"""Offsets in a text as origins, and the limits that hold for every front end."""

from __future__ import annotations

import re
from bisect import bisect_right

from assay.config.tree import MAX_DEPTH
from assay.core.diagnostics import Origin, Problem

MAX_BYTES = 8 * 1024 * 1024
MAX_VALUES = 250_000  # values in one file: a few hundred bytes of memory each
# characters of one bare key or number: int() refuses 4,300 digits, and far fewer are a mistake
MAX_WORD = 1000
MAX_MISTAKES = 20  # syntax errors listed for one file; more help nobody


class UnreadableError(Exception):
    """Text whose reading has ended: too large, too deep, or with a syntax error."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class TextPositions:
    """Text whose offsets are turned into origins."""

    def __init__(self, text: str, source: str, *, keep: bool) -> None:
        self.text = text
        self.source = source
        self.kept = text if keep else None
        self.line_starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def origin(self, start: int, end: int) -> Origin:
        first = bisect_right(self.line_starts, start)
        last = bisect_right(self.line_starts, end)
        return Origin(
            source=self.source,
            line=first,
            column=start - self.line_starts[first - 1] + 1,
            end_line=last,
            end_column=end - self.line_starts[last - 1] + 1,
            text=self.kept,
        )

    def line_start(self, at: int) -> int:
        """Return the offset of the first character of the line around `at`."""
        return self.text.rfind("\n", 0, at) + 1

    def line_end(self, at: int) -> int:
        """Return the offset of the line feed behind `at`, or the end of the text."""
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end


def by_place(problem: Problem) -> tuple[int, int]:
    """Return the sort key of a problem within its file."""
    return problem.origin.line, problem.origin.column


def too_large(text: str, source: str, *, limit: int = MAX_BYTES) -> Problem | None:
    """Return the problem of a text that is larger than a config may be, or None."""
    if len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit:
        size = f"{limit // 2**20} MB" if limit >= 2**20 else f"{limit // 2**10} kB"
        return Problem(
            kind="too-large",
            message=f"the config is larger than {size}",
            origin=Origin(source=source),
            fix="keep data in files of its own and give their paths",
        )
    return None


def too_many(source: str) -> Problem:
    return Problem(
        kind="too-large",
        message=f"the config holds more than {MAX_VALUES:,} values",
        origin=Origin(source=source),
        fix="keep data in files of its own and give their paths",
    )


def too_deep(origin: Origin) -> Problem:
    message = f"tables and lists nest more than {MAX_DEPTH} levels deep"
    return Problem(kind="too-deep", message=message, origin=origin)


def too_long(origin: Origin) -> Problem:
    return Problem(
        kind="syntax", message=f"a name or number of more than {MAX_WORD} characters", origin=origin
    )


def duplicate(key: str, origin: Origin, first: Origin | None) -> Problem:
    """Return the problem of a key that is in one table twice, first at `first` if that is known."""
    note = Problem(
        kind="duplicate-key", severity="note", message="first here", origin=first or origin
    )
    related = (note,) if first is not None else ()
    return Problem(
        kind="duplicate-key",
        message=f"`{key}` is given twice",
        origin=origin,
        key=key,
        fix="keep one of the two",
        related=related,
    )
