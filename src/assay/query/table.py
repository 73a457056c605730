"""Table of many runs: rows under columns, as text, JSON, CSV, HTML and arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError
from assay.core.json_codec import dumps
from assay.core.terminal import visible
from assay.query.aligned_text import aligned
from assay.query.columns import Column
from assay.query.csv_text import csv_text
from assay.query.found_runs import FoundRuns
from assay.query.run import RunView
from assay.query.run_row import RunRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHOWN_ROWS = 40


@dataclass(frozen=True, repr=False)
class RunTable:
    """Rows of runs under columns. `cells` are values for programs; `text` is for people."""

    columns: tuple[Column, ...]
    rows: tuple[RunRow, ...]
    now_ns: int = field(default_factory=time.time_ns)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> RunView:
        """The run of a row, to look at."""
        return RunView(self.rows[i].path)

    def __iter__(self) -> Iterator[RunView]:
        return (self[i] for i in range(len(self)))

    def with_columns(self, *names: str) -> RunTable:
        """The same runs under other columns; InputError for a column that nothing has."""
        found = FoundRuns.of(self.rows)
        return RunTable(tuple(found.column(name) for name in names), self.rows, self.now_ns)

    def group_by(self, *names: str) -> dict[Any, RunTable]:
        """Return tables of the runs that are alike in columns, by the value that they share.

        With several names the key is a tuple of values; None stands for a missing one. InputError
        for a column that nothing has.
        """
        if not names:
            raise InputError(
                "group_by needs the columns to group by.", fix='group_by("optimizer.lr")'
            )
        columns = self.with_columns(*names).columns
        groups: dict[Any, list[RunRow]] = {}
        for row in self.rows:
            values = tuple(_hashable(column.get(row)) for column in columns)
            groups.setdefault(values if names[1:] else values[0], []).append(row)
        return {key: replace(self, rows=tuple(rows)) for key, rows in groups.items()}

    def to_numpy(self, *names: str) -> dict[str, NDArray[Any]]:
        """Return one array a column: float64 for numbers (nan where missing), else objects."""
        table = self.with_columns(*names) if names else self
        cells = table.cells
        return {
            column.key: _array([each[column.key] for each in cells]) for column in table.columns
        }

    def to_pandas(self, *names: str) -> Any:
        """Return a `pandas.DataFrame` indexed by run id; InputError without pandas.

        Integers stay integers: int64, Int64 where a run has none, objects beyond 64 bits.
        """
        try:
            # By name: nothing of it is needed to check or to install assay.
            pd: Any = import_module("pandas")
        except ImportError:
            raise InputError(
                "A DataFrame needs pandas.", fix="pip install pandas, or use to_numpy()"
            ) from None
        index = pd.Index([row.id for row in self.rows], name="id")
        table = self.with_columns(*names) if names else self
        cells = table.cells
        columns = {}
        for column in table.columns:
            columns[column.key] = _frame_column(pd, [each[column.key] for each in cells])
        return pd.DataFrame(columns, index=index)

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        head = "".join(f"<th>{escape(visible(column.name))}</th>" for column in self.columns)
        body = "".join(map(self._html_row, zip(*map(self._texts, self.columns), strict=True)))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _html_row(self, texts: Sequence[str]) -> str:
        cells = ""
        for column, text in zip(self.columns, texts, strict=True):
            side = "right" if column.to_right else "left"
            cells += f'<td style="text-align:{side}">{escape(text)}</td>'
        return f"<tr>{cells}</tr>"

    def __repr__(self) -> str:
        shown = replace(self, rows=self.rows[:_SHOWN_ROWS])
        lines = shown.text()
        if more := len(self) - len(shown):
            lines.append(f"... and {more} more")
        return "\n".join(lines)

    @property
    def cells(self) -> list[dict[str, Any]]:
        """One dictionary a run, by column; times as ISO text, durations in seconds."""
        return [{column.key: column.value(row) for column in self.columns} for row in self.rows]

    def to_json(self) -> str:
        """A list of objects, one a line; what JSON lacks (nan, inf) as text."""
        lines = ",\n".join(dumps(cells) for cells in self.cells)
        return f"[\n{lines}\n]" if lines else "[]"

    def to_csv(self) -> str:
        """Return CSV with a head; an apostrophe is put before text that looks like a formula."""
        lines = [[name for column in self.columns for name in _csv_names(column)]]
        for cells in self.cells:
            lines.append([cell for column in self.columns for cell in _csv_cells(column, cells)])
        return csv_text(lines)

    def text(self, *, width: int | None = 80) -> list[str]:
        """Return aligned lines, the head first; long words are elided to fit `width`."""
        texts = [[visible(column.name), *self._texts(column)] for column in self.columns]
        return aligned(self.columns, texts, width)

    def lines(self, *, width: int | None = 80) -> list[tuple[str, RunRow | None]]:
        """The same with the run that each line is about; None for the head."""
        return list(zip(self.text(width=width), [None, *self.rows], strict=True))

    def _texts(self, column: Column) -> list[str]:
        values = map(column.get, self.rows)
        show, now_ns = column.show, self.now_ns
        return [
            "-" if value in (None, "", []) else visible(show(value, now_ns)) for value in values
        ]


def _array(values: list[Any]) -> NDArray[Any]:
    import numpy as np  # here: a list of runs in a terminal needs none

    if not all(value is None or _is_number(value) for value in values):
        return _objects(values)
    known = [float("nan") if value is None else value for value in values]
    try:
        return np.array(known, dtype=np.float64)
    except OverflowError:  # an integer above the largest float
        return _objects(values)


def _objects(values: list[Any]) -> NDArray[Any]:
    import numpy as np

    objects: NDArray[Any] = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _frame_column(pd: Any, values: list[Any]) -> Any:
    """Return the values of one column of a data frame; those of integers stay integers."""
    import numpy as np

    known = [value for value in values if value is not None]
    if not known or not all(_is_number(value) and isinstance(value, int) for value in known):
        return _array(values)
    if not all(-(1 << 63) <= value < 1 << 63 for value in known):
        return _objects(values)
    return np.array(values, np.int64) if values == known else pd.array(values, dtype="Int64")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _hashable(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return math.nan  # a key equals itself alone
    return value if value is None or isinstance(value, str | int | float) else dumps(value)


def _csv_names(column: Column) -> tuple[str, ...]:
    return ("best_metric", "best") if column.name == "best" else (column.key,)


def _csv_cells(column: Column, cells: Mapping[str, Any]) -> tuple[Any, ...]:
    value = cells[column.key]
    if column.name == "best":
        return (value["metric"], value["value"]) if value else ("", "")
    if column.name == "labels":
        return (", ".join(value),)
    if isinstance(value, list | dict):
        return (dumps(value),)
    return ("" if value is None else value,)
