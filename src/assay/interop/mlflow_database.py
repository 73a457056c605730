"""Reader of MLflow's runs in an SQLite database such as `mlflow.db`."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from assay.core.errors import InputError, RecordError
from assay.core.regular_file import open_regular
from assay.interop.foreign_run import (
    ForeignRun,
    ForeignSource,
    is_inside,
)
from assay.interop.mlflow_run import MlflowDataset, MlflowModel, MlflowRun, as_foreign_run
from assay.store.safe_path import safe_path

_MOST_CELL_BYTES = 64 << 20
_STEPS_A_TURN = 10_000
_LEAST_TURNS = 5_000  # fifty million steps of SQLite: a second or two
_TURNS_PER_BYTE = 20
_MAX_FLOAT = sys.float_info.max
_TABLES = {"experiments", "runs", "metrics", "params", "tags"}
_SUFFIXES = {".db", ".sqlite", ".sqlite3"}
_TABLES_OF_3 = {"inputs", "input_tags", "datasets", "logged_models", "logged_model_metrics"}
_TABLES_OF_3 |= {"logged_model_params", "logged_model_tags"}
_NAMES_OF_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_OF_A_DATASET = ("source_type", "source", "schema", "profile")
_MODELS_OF_A_RUN = """SELECT m.model_id, m.name, m.status, m.model_type, m.artifact_location,
        m.experiment_id,
        (SELECT i.step FROM inputs i WHERE i.destination_id = m.model_id AND i.source_id = :run
         AND i.destination_type = 'MODEL_OUTPUT'),
        m.source_run_id = :run OR m.model_id IN (SELECT destination_id FROM inputs
            WHERE source_id = :run AND destination_type = 'MODEL_OUTPUT')
        FROM logged_models m WHERE m.lifecycle_stage IS NOT 'deleted'
            AND (m.source_run_id = :run OR m.model_id IN
            (SELECT destination_id FROM inputs WHERE source_id = :run
             AND destination_type IN ('MODEL_OUTPUT', 'MODEL_INPUT'))) ORDER BY m.rowid"""


def databases_in(root: Path) -> list[Path]:
    """Return the databases of MLflow: `root` itself, or those in that folder."""
    paths = [root]
    if root.is_dir():
        real_root = os.path.realpath(root)
        paths = [
            path
            for path in root.iterdir()
            if path.suffix in _SUFFIXES and path.is_file() and is_inside(real_root, path)
        ]
    meant = (root, root / "mlflow.db")
    return [path for path in sorted(paths) if _is_ours(path, is_meant=path in meant)]


def _is_ours(path: Path, *, is_meant: bool) -> bool:
    try:
        with open_database(path) as database:
            return {name for (name,) in database.execute(_NAMES_OF_TABLES)} >= _TABLES
    except (OSError, sqlite3.Error) as error:
        if is_meant and path.stat().st_size:
            raise InputError(
                f"This is no database that can be read: {error}.", where=str(path)
            ) from error
        return False


@contextlib.contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database read-only, so that a running MLflow does not notice.

    A table that is none, or a page that leads back to itself, would be read without end: the work
    stays in proportion to the file.
    """
    os.close(open_regular(path, follow=True))  # SQLite would wait for ever at a named pipe
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_CELL_BYTES)
    turns = _LEAST_TURNS + _TURNS_PER_BYTE * path.stat().st_size // _STEPS_A_TURN
    database.set_progress_handler(Countdown(turns), _STEPS_A_TURN)
    try:
        yield database
    finally:
        database.close()


def runs_in_database(path: Path, base: Path) -> Iterator[tuple[int, ForeignSource]]:
    """Yield the runs of a database, each with the time at which it began, in ms."""
    query = """SELECT r.run_uuid, r.name, r.start_time FROM runs r
        WHERE r.lifecycle_stage IS NOT 'deleted'"""
    try:
        with open_database(path) as database:
            rows = database.execute(query).fetchall()
    except sqlite3.Error as error:
        raise InputError(f"The database cannot be read: {error}.", where=str(path)) from error
    for run_id, name, start_ms in rows:
        yield (
            start_ms if isinstance(start_ms, int) else 0,  # a column takes any type
            ForeignSource(
                tool="mlflow",
                key=str(run_id),
                name=str(name or run_id),
                path=path,
                read=partial(_read_database, path, base, run_id),
            ),
        )


def _read_database(path: Path, base: Path, run_id: str) -> ForeignRun:
    try:
        with open_database(path) as database:
            return as_foreign_run(_rows_of(database, base, run_id), base)
    except (sqlite3.Error, AttributeError, TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"The database cannot be read: {error}.", where=str(path)) from error


def _rows_of(database: sqlite3.Connection, base: Path, run_id: str) -> MlflowRun:
    query = """SELECT r.name, r.status, r.start_time, r.end_time, r.user_id, r.artifact_uri,
        r.experiment_id, e.name
        FROM runs r LEFT JOIN experiments e ON e.experiment_id = r.experiment_id
        WHERE r.run_uuid = ?"""
    name, status, start, end, user, uri, number, experiment = database.execute(
        query, (run_id,)
    ).fetchone()
    kept = MlflowRun(
        run_id, name or "", status or "", start or 0, end or 0, experiment or "", user or ""
    )
    for table, values in (("params", kept.params), ("tags", kept.tags)):
        values.update(
            database.execute(
                f"SELECT key, value FROM {table} WHERE run_uuid = ?", (run_id,)
            ).fetchall()
        )
    query = (
        "SELECT key, timestamp, value, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid"
    )
    for key, at_ms, value, step, is_nan in database.execute(query, (run_id,)):
        kept.metrics.setdefault(key, []).append((at_ms, _as_it_was(value, bool(is_nan)), step))
    kept.artifacts = _artifacts_of(
        str(uri or ""), base, [str(number), run_id, "artifacts"], kept.warnings
    )
    if {name for (name,) in database.execute(_NAMES_OF_TABLES)} >= _TABLES_OF_3:
        kept.datasets = list(_datasets_of(database, run_id))
        kept.models = list(_models_of(database, base, run_id, kept.warnings))
    return kept


def _datasets_of(database: sqlite3.Connection, run_id: str) -> Iterator[MlflowDataset]:
    query = """SELECT i.input_uuid, d.name, d.digest, d.dataset_source_type, d.dataset_source,
        d.dataset_schema,
        d.dataset_profile FROM inputs i JOIN datasets d ON d.dataset_uuid = i.source_id
        WHERE i.source_type = 'DATASET' AND i.destination_id = ? ORDER BY i.rowid"""
    for input_id, name, digest, *about in database.execute(query, (run_id,)).fetchall():
        tags = database.execute(
            "SELECT name, value FROM input_tags WHERE input_uuid = ?", (input_id,)
        ).fetchall()
        told = {
            key: str(value)
            for key, value in zip(_OF_A_DATASET, about, strict=True)
            if value is not None
        }
        yield MlflowDataset(
            str(name), str(digest), told, {str(key): str(value or "") for key, value in tags}
        )


def _models_of(
    database: sqlite3.Connection, base: Path, run_id: str, warnings: list[str]
) -> Iterator[MlflowModel]:
    for model_id, name, status, kind, uri, number, step, is_own in database.execute(
        _MODELS_OF_A_RUN, {"run": run_id}
    ).fetchall():
        model = MlflowModel(
            str(model_id),
            str(name),
            str(status),
            str(kind or ""),
            "output" if is_own else "input",
            step or 0,
        )
        _add_details(database, model, model_id)
        if is_own:
            usual = [str(number), "models", str(model_id), "artifacts"]
            model.artifacts = _artifacts_of(str(uri or ""), base, usual, warnings)
        yield model


def _add_details(database: sqlite3.Connection, model: MlflowModel, model_id: str) -> None:
    """Add the parameters, tags and metrics of a model."""
    for table, values in (("param", model.params), ("tag", model.tags)):
        query = f"SELECT {table}_key, {table}_value FROM logged_model_{table}s WHERE model_id = ?"
        for key, value in database.execute(query, (model_id,)):
            values[str(key)] = str(value or "")
    query = (
        "SELECT metric_name, metric_value FROM logged_model_metrics WHERE model_id = ? ORDER "
        "BY metric_timestamp_ms"
    )
    for key, value in database.execute(query, (model_id,)):
        model.metrics[str(key)] = float(value)


def _as_it_was(value: float, is_nan: bool) -> float:
    """The database has no infinity: MLflow writes the largest number in its place."""
    if is_nan:
        return float("nan")
    if abs(value) >= _MAX_FLOAT:
        return float("inf") if value > 0 else float("-inf")
    return float(value)


def _artifacts_of(uri: str, base: Path, usual: list[str], warnings: list[str]) -> Path | None:
    """Return the folder of the artifacts: as MLflow wrote it, or beside a store that was moved."""
    scheme = urlsplit(uri).scheme
    if scheme not in ("", "file", "mlflow-artifacts") and not os.path.isabs(uri):
        warnings.append(f"Its artifacts are not here but at {uri}; they were not copied")
        return None
    given = None
    if scheme != "mlflow-artifacts":
        given = Path(unquote(urlsplit(uri).path) if scheme == "file" else uri)
    if given is not None and uri and given.is_dir():
        inside = os.path.realpath(base)
        if os.path.commonpath([inside, os.path.realpath(given)]) == inside:
            return given
        warnings.append(
            f"Its artifacts are in {given}, outside of the folder that was given; they were not "
            "copied"
        )
        return None
    for above in ("mlruns", "mlartifacts", "."):
        with contextlib.suppress(InputError):
            place = safe_path(base / above, "/".join(usual))
            if place.is_dir() and not place.is_symlink():
                return place
    return None


class Countdown:
    """A handler for SQLite that ends what takes more than so many turns."""

    def __init__(self, turns: int) -> None:
        self.left = turns

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0
