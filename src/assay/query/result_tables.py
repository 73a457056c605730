"""Result tables with followed links: current cells, changes since seen, and exports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal
from urllib.parse import quote

from assay.core.errors import AssayError
from assay.core.formatting import number
from assay.core.text_table import csv_text
from assay.formats.json_codec import dumps
from assay.query.catalog import Asked, Catalog
from assay.query.columns import show_value
from assay.query.groups import Spread, compute_spread, is_number
from assay.query.observations import choose_counted
from assay.query.significance import describe_p, welch
from assay.store.tables import Link, ResultTable, TableColumn

State = Literal["text", "ok", "stale", "open", "gone", "empty"]
"""A text; a link to what was seen; to something else by now; to a run that goes on; to nothing; no
cell."""

P_LIMIT = 0.05
MAX_LINKED = 1_000
_TOLERANCE = 1e-12
MARK = "assay:"
"""Beginning of a comment in a document that names the runs of a number."""

_IN_MARKDOWN = ("**{}**", "*{}*", "{} †")
_IN_HTML = ("<strong>{}</strong>", "<u>{}</u>", "{} †")
_IN_LATEX = (r"\textbf{{{}}}", r"\underline{{{}}}", r"{}$^{{\dagger}}$")
"""Marks of the best value, the second, and one near the best."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$^{\dagger}$",
    # Without T1 fonts these are other signs.
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    # At the begin of a row \\ and \midrule would take them as their argument.
    "[": "{[}",
    "*": "{*}",
}


@dataclass(frozen=True, slots=True)
class ShownCell:
    """One cell as it is now.

    `value` is its number or text, `samples` the numbers of each run behind it. `left_out` has the
    status of each run that does not count, since others finished, by id; `unfinished` that of each
    run of several that counts, since none finished. `is_best`: the best of its
    column; `is_second`: the second of three or more; `p`: that of Welch's test against the best,
    None where one of the two has fewer than two runs; `is_near`: the test cannot tell it from the
    best. `seen` is what a stale one was.
    """

    text: str = ""
    state: State = "empty"
    value: float | str | None = None
    std: float | None = None
    samples: tuple[float, ...] = ()
    runs: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    unfinished: Mapping[str, str] = field(default_factory=dict)
    link: Link | None = None
    seen: str = ""
    is_best: bool = False
    is_second: bool = False
    is_near: bool = False
    p: float | None = None


@dataclass(frozen=True, slots=True)
class ShownRow:
    key: str
    cells: tuple[ShownCell, ...]


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table with all links followed."""

    table: ResultTable
    rows: tuple[ShownRow, ...]

    @property
    def stale(self) -> int:
        """Count of the cells that are no longer what somebody saw."""
        return sum(cell.state in ("stale", "gone") for row in self.rows for cell in row.cells)

    def legend(self, best: str, second: str) -> list[str]:
        """Return sentences about what the table shows: ±, n, marks and p.

        `best` and `second` are how the best of a column and the one after it are marked.
        """
        lines = [_spread_line(self.rows)] if any(map(_has_numbers, self.rows)) else []
        columns = list(enumerate(self.table.columns))
        marked = [
            f"{column.title}: the {'largest' if column.best == 'max' else 'smallest'}"
            for at, column in columns
            if any(row.cells[at].is_best for row in self.rows)
        ]
        if marked:
            has_second = any(cell.is_second for row in self.rows for cell in row.cells)
            after = f" {second}: the one after it." if has_second else ""
            lines.append(f"{best}: best of its column ({', '.join(marked)}).{after}")
        tested = [
            f"{column.title}: {', '.join(found)}"
            for at, column in columns
            if (found := [_p_text(row, at) for row in self.rows if row.cells[at].p is not None])
        ]
        if tested:
            lines.append(f"{_TEST} {'; '.join(tested)}.")
        left_out: dict[str, str] = {}
        unfinished: dict[str, str] = {}
        for row in self.rows:
            for cell in row.cells:
                left_out |= cell.left_out
                unfinished |= cell.unfinished
        if left_out:
            lines.append(f"Left out beside repeats that finished: {_name_runs(left_out)}.")
        if unfinished:
            lines.append(f"Counted, as no repeat finished: {_name_runs(unfinished)}.")
        return lines

    def to_json(self) -> str:
        """Return a list of objects, one a row: numbers as numbers."""
        titles = [column.title for column in self.table.columns]
        lines = [
            dumps(dict(zip(titles, (cell.value for cell in row.cells), strict=True)))
            for row in self.rows
        ]
        return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"

    def to_csv(self) -> str:
        """Return a CSV file with a head.

        A column with standard deviations is followed by these and by the numbers of runs, a column
        of values of runs by their ids.
        """
        places = range(len(self.table.columns))
        has_spread = [any(row.cells[i].std is not None for row in self.rows) for i in places]
        has_runs = [any(row.cells[i].runs for row in self.rows) for i in places]
        head = []
        for i, column in enumerate(self.table.columns):
            spread = ["std", "n"] if has_spread[i] else []
            more = [*spread, *(["runs"] if has_runs[i] else [])]
            head += [column.title, *(f"{column.title} {each}" for each in more)]
        lines: list[list[Any]] = [head]
        for row in self.rows:
            cells: list[Any] = []
            for i, cell in enumerate(row.cells):
                cells += _csv_cells(cell, has_spread[i])
                cells += [" ".join(cell.runs)] if has_runs[i] else []
            lines.append(cells)
        return csv_text(lines)

    def to_markdown(self) -> str:
        """Return a Markdown table with the best of each column bold, and its legend below.

        A dagger marks values that the test cannot tell from the best. A comment at the end has the
        runs of each cell.
        """
        head = [markdown_text(column.title) for column in self.table.columns]
        rows = [
            [_mark(cell, markdown_text(cell.text), _IN_MARKDOWN) for cell in row.cells]
            for row in self.rows
        ]
        text = markdown_grid(head, rows, [_is_numeric(self, i) for i in range(len(head))]) + "\n"
        text += "".join(f"\n{markdown_text(line)}\n" for line in self.legend("Bold", "Italic"))
        sources = [each for row in self.rows for each in self._sources(row)]
        return text + ("\n<!--\n" + "\n".join(sources) + "\n-->\n" if sources else "")

    def to_html(self) -> str:
        """Return an HTML table with its legend below, and the runs of each cell as `data-runs`."""
        head = "".join(f'<th scope="col">{escape(each.title)}</th>' for each in self.table.columns)
        lines = ["<table>", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
        for row in self.rows:
            cells = []
            for column, cell in zip(self.table.columns, row.cells, strict=True):
                data = ""
                if cell.link is not None:
                    place = escape(self._place(row, column))
                    data = f' data-cell="{place}" data-runs="{" ".join(cell.runs)}"'
                cells.append(f"<td{data}>{_mark(cell, escape(cell.text), _IN_HTML)}</td>")
            lines.append(f"<tr>{''.join(cells)}</tr>")
        lines += ["</tbody>", "</table>"]
        lines += [f"<p>{escape(line)}</p>" for line in self.legend("Bold", "Underlined")]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """Return a `tabular` for booktabs with the best of each column bold, and its legend below.

        A dagger marks values that the test cannot tell from the best. A comment before each row has
        the runs of its cells, by which `assay table check` finds them again.
        """
        columns = "".join(
            "r" if _is_numeric(self, i) else "l" for i in range(len(self.table.columns))
        )
        lines = [r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines.append(" & ".join(latex_text(column.title) for column in self.table.columns) + r" \\")
        lines.append(r"\midrule")
        for row in self.rows:
            lines += [f"% {each}" for each in self._sources(row)]
            cells = [_mark(cell, latex_text(cell.text), _IN_LATEX) for cell in row.cells]
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        legend = self.legend("Bold", "Underlined")
        lines += [rf"\par{{\footnotesize\noindent {latex_text(line)}\par}}" for line in legend]
        return "\n".join(lines) + "\n"

    def _sources(self, row: ShownRow) -> list[str]:
        """Return a line for each cell of a row that leads to runs: which cell, which runs."""
        return [
            f"{MARK} {self._place(row, column)}: {' '.join(cell.runs)}"
            for column, cell in zip(self.table.columns, row.cells, strict=True)
            if cell.link is not None
        ]

    def _place(self, row: ShownRow, column: TableColumn) -> str:
        """Return TABLE/ROW/COLUMN."""
        return "/".join(quote(each, safe="") for each in (self.table.name, row.key, column.key))


_TEST = f"Welch's two-sided t-test against the best of the column, † where p > {P_LIMIT:g};"


def _has_numbers(row: ShownRow) -> bool:
    return any(cell.samples for cell in row.cells)


def _spread_line(rows: Sequence[ShownRow]) -> str:
    """Return what ± is, and of how many runs each number is."""
    counts = _counts(rows)
    if counts == {1}:
        return "Each number is of one run (n = 1)."
    deviation = "± is the sample standard deviation"
    if len(counts) == 1:
        return f"{deviation} of n = {counts.pop()} runs in each cell."
    return f"{deviation} of the n runs of a cell."


def _counts(rows: Sequence[ShownRow]) -> set[int]:
    """Return the different numbers of runs that cells are of."""
    return {len(cell.samples) for row in rows for cell in row.cells if cell.samples}


def _p_text(row: ShownRow, at: int) -> str:
    """Return p of a cell with the name of its row."""
    cell = row.cells[at]
    assert cell.p is not None
    first = row.cells[0]
    name = first.text if at and first.text else row.key
    return f"{name} {describe_p(cell.p)}{' †' if cell.is_near else ''}"


def follow_links(table: ResultTable, catalog: Catalog) -> ShownTable:
    """Follow all links of a table."""
    links = {
        (row.key, key): cell
        for row in table.rows
        for key, cell in row.cells.items()
        if isinstance(cell, Link)
    }
    found = {place: cell_behind(link, catalog) for place, link in links.items()}
    rows = []
    for row in table.rows:
        cells = []
        for column in table.columns:
            cell = row.cells.get(column.key)
            if isinstance(cell, Link):
                cells.append(found[row.key, column.key])
            else:
                cells.append(_show_text(cell))
        rows.append(ShownRow(row.key, tuple(cells)))
    return ShownTable(table, _with_counts(_with_best(table.columns, rows)))


def _show_text(text: str | None) -> ShownCell:
    return ShownCell() if text is None else ShownCell(text, "text", _number_of(text))


def cell_behind(link: Link, catalog: Catalog) -> ShownCell:
    """Return what a link leads to now; a query or a value that is wrong leads to nothing."""
    seen = seen_text(link.seen)
    try:
        ids = list(link.runs) or _select_runs(link, catalog)
        rows = catalog.rows(ids)
        counted = choose_counted(
            [each for each in ids if each in rows], lambda each: rows[each].status
        )
        values = catalog.values_of(counted, link.value)
    except AssayError as error:
        return ShownCell("?", "gone", link=link, seen=seen, runs=link.runs, value=error.what)
    here = tuple(each for each in counted if each in values)
    if not here:
        return ShownCell("-", "gone", link=link, seen=seen, runs=tuple(ids))
    left_out = {each: row.status for each, row in rows.items() if each not in counted}
    is_setting = catalog.column(link.value).kind == "config"
    cell = _join_values([values[each] for each in here], is_setting=is_setting)
    is_gone = bool(link.runs) and len(here) + len(left_out) < len(link.runs)
    state: State = "stale"
    if any(row.status == "running" for row in rows.values()):
        state = "open"
    elif not is_gone and is_same(link.seen, seen_now(cell)):
        state = "ok"
    unfinished = {each: rows[each].status for each in here if rows[each].status != "finished"}
    return replace(
        cell,
        state=state,
        runs=here,
        left_out=left_out,
        unfinished=unfinished if len(here) > 1 else {},
        link=link,
        seen=seen,
    )


def _name_runs(statuses: Mapping[str, str]) -> str:
    return ", ".join(f"{run_id} ({status})" for run_id, status in statuses.items())


def _select_runs(link: Link, catalog: Catalog) -> list[str]:
    """Return the runs that the query of a link finds, the oldest first."""
    asked = Asked(where=link.where, sort=("created",), limit=MAX_LINKED)
    return catalog.ids(asked)[:MAX_LINKED]


def _join_values(values: Sequence[Any], *, is_setting: bool) -> ShownCell:
    """Return the cell of the values of several runs: mean and deviation, or the different texts.

    A setting that they share is that value, of no n.
    """
    numbers = tuple(float(each) for each in values if is_number(each))
    if len(numbers) < len(values):
        text = ", ".join(dict.fromkeys(map(show_value, values)))
        return ShownCell(text, value=text)
    together = compute_spread(numbers)
    is_shared = is_setting and len(set(numbers)) == 1
    if together.count == 1 or is_shared:
        only = values[0]
        text = str(only) if type(only) is int else number(float(only))
        return ShownCell(text, value=numbers[0], samples=() if is_setting else numbers)
    return ShownCell(str(together), value=together.mean, std=together.std, samples=numbers)


def seen_now(cell: ShownCell) -> Any:
    """Return what a link has to remember of what it shows now."""
    if cell.std is not None:
        return {"mean": cell.value, "std": cell.std, "n": len(cell.samples)}
    return cell.value


def is_same(seen: Any, fresh: Any) -> bool:
    """Return whether a value is the same as the one last seen through a link.

    If none was seen yet, the value is no news.

    >>> is_same(0.5, 0.5), is_same(None, 1.0), is_same({"mean": 1.0, "std": 0.1, "n": 3}, 1.0)
    (True, True, False)
    """
    if seen is None:
        return True
    if isinstance(seen, dict) and isinstance(fresh, dict):
        return all(is_same(seen.get(key), fresh[key]) for key in fresh)
    if isinstance(seen, int | float) and isinstance(fresh, int | float):
        return math.isclose(seen, fresh, rel_tol=_TOLERANCE) or (seen != seen and fresh != fresh)
    return bool(seen == fresh)


def seen_text(seen: Any) -> str:
    match seen:
        case None:
            return ""
        case {"mean": int() | float() as mean, "std": int() | float() as std, "n": int() as count}:
            return str(Spread(float(mean), float(std), count))
        case bool() | str():
            return str(seen)
        case int() | float():
            return number(float(seen))
        case _:
            return dumps(seen)


def _with_best(columns: Sequence[TableColumn], rows: Sequence[ShownRow]) -> tuple[ShownRow, ...]:
    """Mark the best cell of each column, and the cells that the test cannot tell from it."""
    cells = [list(row.cells) for row in rows]
    for at, column in enumerate(columns):
        finite: list[tuple[int, float]] = []
        for i, line in enumerate(cells):
            value = line[at].value
            if isinstance(value, float) and math.isfinite(value):
                finite.append((i, value))
        if not column.best or len(finite) < 2:
            continue
        choose = max if column.best == "max" else min
        top = choose(value for _, value in finite)
        others = {value for _, value in finite if value != top}
        second = choose(others) if others and len(finite) > 2 else None
        best = next(cells[i][at] for i, value in finite if value == top)
        for i, value in finite:
            cell = cells[i][at]
            if value == top:
                cells[i][at] = replace(cell, is_best=True)
                continue
            test = welch(best.samples, cell.samples)
            is_near = test is not None and test.p > P_LIMIT
            p = test.p if test is not None else None
            cells[i][at] = replace(cell, is_second=value == second, is_near=is_near, p=p)
    return tuple(ShownRow(row.key, tuple(line)) for row, line in zip(rows, cells, strict=True))


def _with_counts(rows: tuple[ShownRow, ...]) -> tuple[ShownRow, ...]:
    """Add to the text of each number of how many runs it is, unless that is the same in all."""
    if len(_counts(rows)) < 2:
        return rows
    return tuple(replace(row, cells=tuple(map(_with_count, row.cells))) for row in rows)


def _with_count(cell: ShownCell) -> ShownCell:
    return replace(cell, text=f"{cell.text} (n {len(cell.samples)})") if cell.samples else cell


def _csv_cells(cell: ShownCell, has_spread: bool) -> list[Any]:
    is_number = cell.link is not None and isinstance(cell.value, float)
    cells: list[Any] = [cell.value if is_number else cell.text]
    if has_spread:
        deviation = "" if cell.std is None else cell.std
        cells += [deviation, len(cell.samples) or ""]
    return cells


def _number_of(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _is_numeric(found: ShownTable, at: int) -> bool:
    values = [row.cells[at].value for row in found.rows if row.cells[at].state != "empty"]
    return bool(values) and all(isinstance(value, float) for value in values)


def _mark(cell: ShownCell, text: str, marks: tuple[str, str, str]) -> str:
    best, second, near = marks
    text = best.format(text) if cell.is_best else text
    text = second.format(text) if cell.is_second else text
    return near.format(text) if cell.is_near else text


def markdown_text(text: str) -> str:
    """Return a text as one line of Markdown that shows it as it is."""
    one_line = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\|*_`<>[]&~" else char for char in one_line)


def markdown_grid(
    head: Sequence[str], rows: Sequence[Sequence[str]], to_right: Sequence[bool]
) -> str:
    """Return a Markdown table of cells that are Markdown already."""
    sides = ["---:" if is_right else "---" for is_right in to_right]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, sides, *rows))


def latex_text(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in " ".join(text.split()))
