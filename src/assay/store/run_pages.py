"""Pages of runs from the index: order, filter and cells in SQL, without loading other rows."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.store.cells import from_cell, sql_order
from assay.store.conditions import RUN_FIELDS, STATISTICS, Condition, Field, Sql
from assay.store.index import Index
from assay.store.index_rows import IndexRow

States = Mapping[str, tuple[str, float]]
"""Status and seconds of the runs that wrote no end, by folder."""

RUN_COLUMNS = RUN_FIELDS | {
    "best": "runs.best_value",
    "reason": "NULLIF(CASE runs.error WHEN '' THEN runs.reason ELSE runs.error END, '')",
    "parent": "NULLIF(runs.parent, '')",
    "config": "NULLIF(substr(runs.config_hash, 1, 16), '')",
    "labels": (
        "(SELECT group_concat(name, ', ') FROM items WHERE kind = 'label' AND folder = runs.folder)"
    ),
}
"""SQL for what a run can show without a metric or a key of its config, by name."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key to sort by, in the order of `store.cells`."""

    field: Field
    descending: bool = False


@dataclass(frozen=True, slots=True)
class RunSelection:
    """Ordered selection of runs that fulfil `condition`; tests and `hidden` ones on request."""

    condition: Condition | None = None
    orders: Sequence[SortKey] = ()
    tests: bool = False
    hidden_label: str = ""


def select_folders(
    index: Index, selected: RunSelection, *, now_ns: int, states: States
) -> list[str]:
    """Return the folders of the selected runs in order; of ties the newest comes first."""
    with _joined(index, states) as database:
        return [folder for (folder,) in _select(database, index, "runs.folder", selected, now_ns)]


def column_of(
    index: Index, folders: Sequence[str], field: Field, *, now_ns: int, states: States
) -> dict[str, str | int | float]:
    """Return the value of one field for each of these runs that has one, by folder."""
    with _joined(index, states) as database:
        return _column(database, index, folders, field, now_ns)


def columns_of(
    index: Index, folders: Sequence[str], fields: Sequence[Field], *, now_ns: int, states: States
) -> list[dict[str, str | int | float]]:
    """Return the same for several fields, one dictionary each."""
    with _joined(index, states) as database:
        return [_column(database, index, folders, field, now_ns) for field in fields]


def rows_of_folders(index: Index, folders: Sequence[str]) -> dict[str, IndexRow]:
    """Return the rows of these runs, by folder; a run that is gone is left out."""
    with index.asked() as database:
        _fill_page(database, folders)
        columns = ", ".join(f"runs.{name}" for name in IndexRow._fields)
        rows = map(
            IndexRow._make, database.execute(f"SELECT {columns} FROM page JOIN runs USING (folder)")
        )
        return {row.folder: row for row in rows}


def open_rows(index: Index) -> list[IndexRow]:
    """Return the rows of the runs that wrote no end."""
    with index.asked() as database:
        query = f"SELECT {', '.join(IndexRow._fields)} FROM runs WHERE status = 'running'"
        return [IndexRow._make(row) for row in database.execute(query)]


def recent_rows(index: Index, since_ns: int, limit: int) -> list[IndexRow]:
    """Return the runs that are open or ended after a moment, the newest first."""
    with index.asked() as database:
        query = (
            f"SELECT {', '.join(IndexRow._fields)} FROM runs"
            " WHERE status = 'running' OR started_ns + seconds * 1e9 > :since ORDER BY created_ns "
            "DESC LIMIT :limit"
        )
        rows = database.execute(query, {"since": since_ns, "limit": limit})
        return [IndexRow._make(row) for row in rows]


def folders_by_id(index: Index, ids: Iterable[str]) -> dict[str, str]:
    """Return the folder of each of these runs that is there, by id."""
    with index.asked() as database:
        database.execute("CREATE TEMP TABLE wanted (id PRIMARY KEY)")
        database.executemany("INSERT OR IGNORE INTO wanted VALUES (?)", [(each,) for each in ids])
        return dict(
            database.execute("SELECT runs.id, runs.folder FROM wanted JOIN runs USING (id)")
        )


def metrics_of_folders(index: Index, folders: Sequence[str]) -> list[str]:
    """Return the metrics that any of these runs has, in the order of the alphabet."""
    with index.asked() as database:
        _fill_page(database, folders)
        query = "SELECT DISTINCT metrics.name FROM page JOIN metrics USING (folder) ORDER BY 1"
        return [name for (name,) in database.execute(query)]


_FEW = 500
_NOW = "LEFT JOIN now ON now.folder = runs.folder"


class _Joins:
    """SQL joins of one value for each field to a query over `runs`; `names` are their names."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.parameters: dict[str, str] = {}
        self.names: list[str] = []
        joins = []
        for i, field in enumerate(fields):
            if field.kind == "run":
                self.names.append(RUN_COLUMNS[field.name])
                continue
            table, where, value = _value_of(field, f":o{i}")
            joins.append(
                f"LEFT JOIN {table} AS o{i} ON o{i}.folder = runs.folder AND "
                f"{where.format(f'o{i}')}"
            )
            self.names.append(f"o{i}.{value}")
            self.parameters[f"o{i}"] = field.name
        self.sql = " ".join(joins)


def _value_of(field: Field, name: str) -> tuple[str, str, str]:
    """Return the table of a field, the condition on its key, and its column."""
    if field.kind == "metric":
        assert field.statistic in STATISTICS
        return "metrics", f"{{0}}.name = {name}", field.statistic
    return "items", f"{{0}}.kind = '{field.kind}' AND {{0}}.name = {name}", "value"


def _column(
    database: sqlite3.Connection, index: Index, folders: Sequence[str], field: Field, now_ns: int
) -> dict[str, str | int | float]:
    parameters: dict[str, Any] = {
        "now_ns": now_ns,
        "project": str(index.project.root),
        "name": field.name,
    }
    if field.kind == "run":
        query = f"SELECT runs.folder, {RUN_COLUMNS[field.name]} FROM runs {_NOW}"
        key = "runs.folder"
    else:
        table, where, value = _value_of(field, ":name")
        query = f"SELECT folder, {value} FROM {table} WHERE {where.format(table)}"
        key = "folder"
    if len(folders) <= _FEW:
        names = [f"f{i}" for i in range(len(folders))]
        parameters |= dict(zip(names, folders, strict=True))
        word = "WHERE" if field.kind == "run" else "AND"
        query += f" {word} {key} IN ({', '.join(f':{name}' for name in names)})"
        return {
            folder: known
            for folder, cell in database.execute(query, parameters)
            if (known := from_cell(cell)) is not None
        }
    # One walk along the key of the column takes less than a look-up for each of thousands of runs.
    wanted = set(folders)
    found = database.execute(query, parameters)
    return {
        folder: known
        for folder, cell in found
        if folder in wanted and (known := from_cell(cell)) is not None
    }


def _select(
    database: sqlite3.Connection, index: Index, columns: str, selected: RunSelection, now_ns: int
) -> Iterator[tuple[Any, ...]]:
    orders = _Joins([order.field for order in selected.orders])
    parameters: dict[str, Any] = {
        **orders.parameters,
        "now_ns": now_ns,
        "project": str(index.project.root),
    }
    where = ["1" if selected.tests else "runs.kind = 'train'"]
    if selected.hidden_label:
        parameters["hidden"] = selected.hidden_label
        where.append(
            "runs.folder NOT IN (SELECT folder FROM items WHERE kind = 'label' AND name = :hidden)"
        )
    if selected.condition is not None:
        sql = Sql(selected.condition)
        parameters |= sql.parameters
        where.append(sql.where)
    by = [
        sql_order(name, descending=order.descending)
        for name, order in zip(orders.names, selected.orders, strict=True)
    ]
    query = (
        f"SELECT {columns} FROM runs {_NOW} {orders.sql}"
        f" WHERE {' AND '.join(where)} ORDER BY "
        f"{', '.join([*by, 'runs.created_ns DESC', 'runs.folder DESC'])}"
    )
    return database.execute(query, parameters)


@contextlib.contextmanager
def _joined(index: Index, states: States) -> Iterator[sqlite3.Connection]:
    with index.asked() as database:
        database.execute("CREATE TEMP TABLE now (folder PRIMARY KEY, status, seconds)")
        database.executemany(
            "INSERT INTO now VALUES (?, ?, ?)",
            [(folder, *state) for folder, state in states.items()],
        )
        yield database


def _fill_page(database: sqlite3.Connection, folders: Sequence[str]) -> None:
    database.execute("CREATE TEMP TABLE page (folder PRIMARY KEY)")
    database.executemany("INSERT OR IGNORE INTO page VALUES (?)", [(folder,) for folder in folders])
