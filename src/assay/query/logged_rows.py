"""Everything that a run logged, call by call or step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from assay.core.text_table import csv_text
from assay.query.run import RunView
from assay.store.series import read_contents


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """One call of `log`, or all of one step: step, unix time of the last, values by metric."""

    step: int
    time_ns: int
    values: dict[str, float]


def logged_rows(run: RunView) -> Iterator[LoggedRow]:
    """Yield the calls of `log` in order, without what a resume left behind."""
    found = []
    for block in read_contents(run.folder.metrics).blocks:
        whole = block.on_curve()
        lines = zip(
            whole.places.tolist(),
            whole.steps.tolist(),
            whole.times_ns.tolist(),
            whole.values.tolist(),
            strict=True,
        )
        found += [(*line, block.keys.names) for line in lines]
    found.sort(key=itemgetter(0))
    for _, step, time_ns, values, names in found:
        yield LoggedRow(step, time_ns, dict(zip(names, values, strict=True)))


def merge_steps(rows: Iterable[LoggedRow]) -> list[LoggedRow]:
    """Return one row for each step, in the order in which the steps were first logged.

    Of a metric that was logged twice at a step the later value counts.
    """
    found: dict[int, LoggedRow] = {}
    for row in rows:
        before = found.get(row.step)
        values = row.values if before is None else {**before.values, **row.values}
        found[row.step] = replace(row, values=values)
    return list(found.values())


def rows_csv(rows: Sequence[LoggedRow]) -> str:
    """Return rows as CSV: step, unix time in seconds, and a column for each metric."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    lines: list[list[str | float]] = [["step", "time", *names]]
    for row in rows:
        values = [row.values.get(name, "") for name in names]
        lines.append([row.step, row.time_ns / 1e9, *values])
    return csv_text(lines)
