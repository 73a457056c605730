"""Everything that a run logged, call by call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from assay.core.text_table import csv_text
from assay.query.run import RunView
from assay.store.series import read_contents


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """One call of `log`: step, unix time, values by metric. `branch` as in a Series."""

    step: int
    time_ns: int
    values: dict[str, float]
    branch: int = 0


def logged_rows(run: RunView, *, branches: bool = False) -> Iterator[LoggedRow]:
    """Yield the rows of a run in the order logged; `branches` adds what a resume left behind."""
    found = []
    for block in read_contents(run.folder.metrics).blocks:
        whole = block if branches else block.on_curve()
        lines = zip(
            whole.places.tolist(),
            whole.steps.tolist(),
            whole.times_ns.tolist(),
            whole.branches.tolist(),
            whole.values.tolist(),
            strict=True,
        )
        found += [(*line, block.keys.names) for line in lines]
    found.sort(key=itemgetter(0))
    for _, step, time_ns, branch, values, names in found:
        yield LoggedRow(step, time_ns, dict(zip(names, values, strict=True)), branch)


def rows_csv(rows: Sequence[LoggedRow]) -> str:
    """Return rows as CSV: step, unix time in seconds, and a column for each metric."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    lines: list[list[str | float]] = [["step", "time", *names]]
    for row in rows:
        values = [row.values.get(name, "") for name in names]
        lines.append([row.step, row.time_ns / 1e9, *values])
    return csv_text(lines)
