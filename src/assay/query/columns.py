"""Columns of a list of runs: the value of a run in each, and how that value reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from assay.core.formatting import age, duration, number
from assay.core.json_codec import dumps
from assay.core.terminal import cell_count, elided
from assay.query.run_row import RunRow

DEFAULT_COLUMNS = ("status", "tag", "id", "best", "duration", "age")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what a run has there (None: nothing), and how that reads."""

    name: str
    get: Callable[[RunRow], Any]
    show: Callable[[Any, int], str] = lambda value, now_ns: _shown(value)
    to_right: bool = False
    shorten: Callable[[str, int], str] = elided
    sort_key: Callable[[Any], Any] | None = None

    @property
    def key(self) -> str:
        """The name that programs get: with the unit, where there is one."""
        return {"duration": "duration_s", "age": "created"}.get(self.name, self.name)

    def sort_value(self, row: RunRow) -> Any:
        """Return what a run is sorted by."""
        value = self.get(row)
        return self.sort_key(value) if self.sort_key is not None and value is not None else value

    def value(self, row: RunRow) -> Any:
        """Return the value for programs: a time as ISO text."""
        value = self.get(row)
        if self.name in ("age", "created"):
            return _local_time(value).isoformat(timespec="seconds")
        return value


COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("status", lambda row: row.status),
        Column("tag", lambda row: row.tag),
        Column("id", lambda row: row.id),
        Column(
            "best",
            lambda row: row.best,
            lambda best, now_ns: f"{best['metric']} {number(best['value'])}",
            shorten=lambda text, limit: _with_whole_number(text, limit),
            sort_key=lambda best: best["value"],
        ),
        Column(
            "duration", lambda row: row.duration_s, lambda s, now_ns: duration(s), to_right=True
        ),
        # The age is a moment, so that it reads the same tomorrow; shown is how long ago that was.
        Column(
            "age", lambda row: row.written.created_ns, age, to_right=True, sort_key=lambda ns: -ns
        ),
        Column(
            "created",
            lambda row: row.written.created_ns,
            lambda ns, now_ns: f"{_local_time(ns):%Y-%m-%d %H:%M}",
        ),
        Column("kind", lambda row: row.written.kind),
        Column("step", lambda row: row.written.step, to_right=True),
        Column("attempts", lambda row: row.written.attempts, to_right=True),
        Column(
            "labels",
            lambda row: row.labels,
            lambda labels, now_ns: _shown(", ".join(labels)),
            sort_key=lambda labels: ", ".join(sorted(labels)),
        ),
        Column("note", lambda row: row.note),
        Column("reason", lambda row: row.written.error or row.written.reason or None),
        Column("parent", lambda row: row.written.parent or None),
        Column("sweep", lambda row: row.written.sweep or None),
        Column("point", lambda row: row.written.point or None),
        Column("config", lambda row: row.written.config_hash[:16] or None),
        Column("project", lambda row: str(row.project.root)),
        Column("folder", lambda row: str(row.path)),
    )
}
"""Columns by name; any metric (`valid/acc`, `valid/acc.max`) and any result is a column as well."""


def metric_column(name: str, metric: str, statistic: str) -> Column:
    """Return the column of one statistic of a metric."""
    return Column(name, lambda row: row.statistic(metric, statistic), to_right=True)


def _local_time(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9).astimezone()


def _shown(value: Any) -> str:
    match value:
        case float():
            return number(value)
        case str():
            return value if value.isprintable() else " ".join(value.split())
        case int():
            return str(value)
        case _:
            return dumps(value)


def _with_whole_number(text: str, limit: int) -> str:
    """Return a name and a number within `limit` cells; the name is shortened, never the number."""
    if cell_count(text) <= limit:
        return text
    name, _, value = text.rpartition(" ")
    room = limit - cell_count(value) - 1
    return f"{elided(name, room)} {value}" if room > 0 else elided(value, limit)
