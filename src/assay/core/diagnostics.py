"""Diagnostics like a compiler's: the origin of a value, a problem with it, and its excerpt."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.core.regular_file import read_start
from assay.core.terminal import cell_count, style, visible

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A place in a source. Lines and columns count from 1, columns in code points; 0 means unknown.

    `source` is the path as the user gave it, or a name in angle brackets ("<cli>"). `text` holds
    the source itself when it is no file. `end_column` is exclusive. `replaced` is the origin of the
    value that this one overrode.
    """

    source: str
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    text: str | None = None
    note: str = ""
    replaced: Origin | None = None

    def __str__(self) -> str:
        place = self.source
        if self.line:
            place += f":{self.line}:{self.column}" if self.column else f":{self.line}"
        return f"{place} ({self.note})" if self.note else place

    def chain(self) -> list[Origin]:
        """Return this origin, the origin that it overrode, the one before that, and so on."""
        links: list[Origin] = []
        link: Origin | None = self
        while link is not None:
            links.append(link)
            link = link.replaced
        return links


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Mistake in the user's input. `kind` is stable and kebab-case; `key` is the dotted path."""

    kind: str
    message: str
    origin: Origin
    key: str = ""
    fix: str = ""
    severity: Severity = "error"
    related: tuple[Problem, ...] = ()


_COLORS = {"error": "1;31", "warning": "1;33", "note": "1;36"}
_BLUE, _BOLD = "1;34", "1"


MAX_SHOWN = 50
"""Problems that are shown; the others are counted."""
MAX_FOUND = 2_000
"""Problems after which a check stage that reads files or modules for each problem ends."""
_MAX_LINE = 2_000  # characters of a line around what is marked
_MAX_SOURCE_BYTES = 1 << 26
_MAX_TEXT = 2_000  # characters of a message


def render(
    problems: Sequence[Problem], *, color: bool, width: int = 80, limit: int = MAX_SHOWN
) -> str:
    """Return the first problems as text, each with its source line and a caret under the mistake.

    A mistake whose column is unknown has its line alone.

    Of more than `limit` problems the errors come first, and the rest is counted.
    """
    sources: dict[str, list[str]] = {}
    shown = list(problems)
    if len(shown) > limit:
        first = sorted(range(len(shown)), key=lambda i: shown[i].severity != "error")[:limit]
        shown = [shown[i] for i in sorted(first)]
    parts = ["\n".join(_lines(problem, sources, color, width)) for problem in shown]
    left = len(problems) - len(shown)
    return "\n\n".join([*parts, f"... and {left:,} more"] if left else parts)


def at_most(problems: Iterable[Problem], limit: int = MAX_FOUND) -> Iterator[Problem]:
    """Yield the first `limit` problems, then one problem that says that the search ended there."""
    for count, problem in enumerate(problems):
        if count == limit:
            message = f"more than {limit:,} mistakes: what comes after this one was not looked at"
            yield Problem(kind="too-many", message=message, origin=problem.origin)
            return
        yield problem


def summary(problems: Sequence[Problem]) -> str:
    """Return the counts by severity for the last line of a listing: `3 errors, 1 warning`."""
    parts = []
    for severity in ("error", "warning", "note"):
        count = sum(problem.severity == severity for problem in problems)
        if count:
            parts.append(f"{count} {severity}{'s' * (count > 1)}")
    return ", ".join(parts)


def to_json(problems: Iterable[Problem]) -> list[dict[str, object]]:
    """Return one plain dictionary for each problem."""
    return [
        {
            "kind": problem.kind,
            "severity": problem.severity,
            "message": problem.message,
            "key": problem.key,
            "source": problem.origin.source,
            "line": problem.origin.line,
            "column": problem.origin.column,
            "end_line": problem.origin.end_line,
            "end_column": problem.origin.end_column,
            "fix": problem.fix,
            "related": to_json(problem.related),
        }
        for problem in problems
    ]


def _lines(problem: Problem, sources: dict[str, list[str]], color: bool, width: int) -> list[str]:
    def paint(codes: str, text: str) -> str:
        return style(text, codes) if color else text

    head = _wrap(
        f"{problem.severity}: {_cut(problem.message)}", width, indent=len(problem.severity) + 2
    )
    label = f"[{problem.kind}]"
    room = width - cell_count(head[-1]) - len(label)
    if room < 2:
        head.append("")
        room = width - len(label)
    out = [paint(_BOLD, line) if line else "" for line in head]
    start = len(problem.severity)
    out[0] = paint(_COLORS[problem.severity], problem.severity) + paint(_BOLD, head[0][start:])
    out[-1] += f"{' ' * room}{label}"
    gutter = len(str(problem.origin.line or 0))
    margin = " " * gutter
    out.append(f"{margin}{paint(_BLUE, '-->')} {_cut(str(problem.origin))}")
    excerpt = _excerpt(problem.origin, sources)
    if excerpt is not None:
        text, start, length = _window(excerpt, problem.origin, width - gutter - 3)
        bar = paint(_BLUE, "|")
        number = paint(_BLUE, str(problem.origin.line))
        out.append(f"{margin} {bar}")
        out.append(f"{number} {bar} {text}".rstrip())
        if problem.origin.column:
            carets = paint(_COLORS[problem.severity], "^" * length)
            out.append(f"{margin} {bar} {' ' * start}{carets}")
    said = [f"replaces the value from {_cut(str(link))}" for link in problem.origin.chain()[1:]]
    if problem.fix:
        said.append(_cut(problem.fix))
    for text in said:
        first, *rest = _wrap(text, width - gutter - 3, indent=0)
        out.append(f"{margin} {paint(_BLUE, '=')} {first}")
        out.extend(f"{margin}   {line}" for line in rest)
    for other in problem.related:
        out.extend(_lines(other, sources, color, width))
    return out


def _cut(text: str) -> str:
    """Return a text as a terminal may show it, the end of a very long one left out."""
    return visible(text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}...")


def _wrap(text: str, width: int, *, indent: int) -> list[str]:
    """Wrap `text` at `width` columns. A longer word stays whole, so that a path can be copied."""
    lines = textwrap.wrap(
        text,
        max(width, 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return lines or [text]


def _excerpt(origin: Origin, sources: dict[str, list[str]]) -> str | None:
    if not origin.line:
        return None
    if origin.text is not None:
        lines = _split(origin.text)
    elif origin.source in sources:
        lines = sources[origin.source]
    else:
        try:
            lines = _split(
                read_start(origin.source, _MAX_SOURCE_BYTES, follow=True).decode("utf-8-sig")
            )
        except (OSError, ValueError):
            lines = []
        sources[origin.source] = lines
    return lines[origin.line - 1] if origin.line <= len(lines) else None


def _split(text: str) -> list[str]:
    """Split at line feeds, as TOML counts lines; str.splitlines also breaks at form feeds."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def _window(line: str, origin: Origin, width: int) -> tuple[str, int, int]:
    """Cut a long line to the part around the marked columns.

    Returns the text, and the start and length of the mark in terminal cells.
    """
    first = max(0, origin.column - 1)
    same_line = origin.end_line in (0, origin.line)
    last = origin.end_column - 1 if same_line and origin.end_column else len(line)
    last = min(max(last, first + 1), max(len(line), first + 1))
    cut = max(0, first - _MAX_LINE // 2)
    if len(line) > _MAX_LINE:
        line = line[cut : cut + _MAX_LINE]
        first -= cut
        last = min(last - cut, _MAX_LINE)
    shown = [visible(c) for c in line.replace("\t", " ")]
    cells = [cell_count(c) for c in shown]
    low = 0
    high = len(line)
    if sum(cells) > width > 20:
        # A third of the width before the mark, the rest behind it; at the end of the line, all the
        # width before it.
        low = high = min(first, len(line))
        low = _back(cells, low, width // 3)
        while high < len(line) and sum(cells[low : high + 1]) <= width:
            high += 1
        low = _back(cells, low, width - sum(cells[low:high]))
    start = sum(cells[low:first])
    length = max(1, sum(cells[first : min(last, high)]))
    if width > 20:
        # A mark of no width behind a full line stands at its last cell.
        start = min(start, width - length)
    return "".join(shown[low:high]), start, length


def _back(cells: Sequence[int], low: int, room: int) -> int:
    """Return the index from which the cells in front of `low` take at most `room` columns."""
    while low > 0 and cells[low - 1] <= room:
        low -= 1
        room -= cells[low]
    return low
