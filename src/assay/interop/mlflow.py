"""Runs out of MLflow's stores, read by its library: `mlruns`, or a database as `mlflow.db`."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError, InputError, RecordError
from assay.interop.foreign_run import (
    ForeignRun,
    ForeignSource,
    check_foreign_file,
    is_inside,
    paths_below,
    quiet_library,
)
from assay.interop.mlflow_run import as_foreign_run

_META = "meta.yaml"
_ARTIFACTS = "artifacts"
_FOLDERS_OF_A_RUN = (_ARTIFACTS, "metrics", "params", "tags")
_SUFFIXES = {".db", ".sqlite", ".sqlite3"}
_TABLES = {"experiments", "runs", "metrics", "params", "tags"}
_PAGE = 1000


def find(root: Path) -> list[ForeignSource]:
    """Return the runs of `root`, the oldest first: of a database, `mlruns`, or a folder with them.

    InputError when there are none. Runs that were deleted in MLflow are not among them.
    """
    base = root if root.is_dir() else root.parent
    databases = [path for path in _candidates(root) if _is_ours(path, is_meant=path == root)]
    found = [run for path in databases for run in _runs_in_database(path, base)]
    for folder in (root, root / "mlruns"):
        if folder.is_dir() and is_inside(os.path.realpath(root), folder):
            found += _runs_in_folder(folder, root)
    if not found:
        raise _nothing(root, databases)
    once = {run.key: (start_ms, run) for start_ms, run in reversed(found)}
    return [run for _, run in sorted(once.values(), key=lambda each: each[0])]


def _nothing(root: Path, databases: list[Path]) -> InputError:
    if databases:
        return InputError("This database of MLflow has no runs.", where=str(databases[0]))
    fix = "Give `mlflow.db`, another database of SQLite, `mlruns`, or the folder that holds them"
    beside = root.parent / "mlflow.db"
    if root.name == "mlruns" and beside.is_file():
        fix = f"its runs are in {beside}: give the folder that holds both"
    return InputError("There are no runs of MLflow in this place.", where=str(root), fix=fix)


Found = Iterator[tuple[int, ForeignSource]]
"""Runs, each with the time at which it began, in ms."""


def _sources(store: Any, path: Path, base: Path, ids: list[str]) -> Found:
    """Yield the runs of a store of MLflow; one that cannot be read says so when it is read."""
    for run_id in ids:
        try:
            run = _read(path, store.get_run, run_id)
        except RecordError as error:
            yield 0, _refuse(run_id, path, error)
            continue
        if run.info.lifecycle_stage == "deleted":
            continue
        read = partial(_read, path, as_foreign_run, store, run, base)
        name = run.info.run_name or run_id
        start_ms = run.info.start_time or 0
        yield start_ms, ForeignSource(tool="mlflow", key=run_id, name=name, path=path, read=read)


def _refuse(run_id: str, path: Path, error: AssayError) -> ForeignSource:
    def read() -> ForeignRun:
        raise error

    return ForeignSource(tool="mlflow", key=run_id, name=run_id, path=path, read=read)


def _read(path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of MLflow; RecordError for whatever it raises of what stands in the store."""
    try:
        with quiet_library():
            return function(*arguments)
    except (AssayError, OSError):
        raise
    except Exception as error:  # MLflow, SQLAlchemy and PyYAML have no common one
        said = str(error).partition("\n")[0] or type(error).__name__
        raise RecordError(f"MLflow cannot read it: {said}", where=str(path)) from error


# ------------------------------------------------------------------------------------- databases


def _candidates(root: Path) -> list[Path]:
    if not root.is_dir():
        return [root]
    real_root = os.path.realpath(root)
    return sorted(
        path
        for path in root.iterdir()
        if path.suffix in _SUFFIXES and path.is_file() and is_inside(real_root, path)
    )


def _is_ours(path: Path, *, is_meant: bool) -> bool:
    """Return whether a file is a sound database with MLflow's tables.

    InputError where the file that was given, or one called `mlflow.db`, is damaged.
    """
    try:
        check_foreign_file(path)
        with contextlib.closing(_open_read_only(path)) as database:
            parts = database.execute("SELECT name, rootpage, type FROM sqlite_master").fetchall()
            if not {name for name, _, _ in parts} >= _TABLES:
                return False
            # A view or a virtual table is a question of whoever made the file, perhaps one without
            # end; and a page that leads back to itself is read for ever.
            if not all(page for _, page, kind in parts if kind != "trigger"):
                raise sqlite3.DatabaseError("it has views or virtual tables")
            ((answer,), *_) = database.execute("PRAGMA quick_check(1)").fetchall()
            if answer != "ok":
                raise sqlite3.DatabaseError(answer)
            return True
    except (OSError, sqlite3.Error) as error:
        if (is_meant or path.name == "mlflow.db") and path.stat().st_size:
            what = f"This is no database that can be read: {error}."
            raise InputError(what, where=str(path)) from error
        return False


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open a database so that an MLflow that uses it does not notice."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)


def _runs_in_database(path: Path, base: Path) -> Found:
    copy = _temporary_folder() / "mlflow.db"
    with (
        contextlib.closing(_open_read_only(path)) as database,
        contextlib.closing(sqlite3.connect(copy)) as to,
    ):
        database.backup(to)
        _drop_triggers(to)
    store = _read(path, _sql_store, copy)
    ids = _read(path, _all_ids, store)
    yield from _sources(store, path, base, ids)


def _drop_triggers(database: sqlite3.Connection) -> None:
    """Drop what would run where MLflow writes, as when it brings its tables up to date."""
    names = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in names:
        quoted = name.replace('"', '""')
        database.execute(f'DROP TRIGGER "{quoted}"')
    database.commit()


def _sql_store(path: Path) -> Any:
    """Open a copy of a database, brought up to the tables of the installed MLflow."""
    from mlflow.store.db import utils
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    engine = utils.create_sqlalchemy_engine(f"sqlite:///{path}")
    # What `mlflow db upgrade` does; on a copy it changes nothing of the user's.
    if utils._get_schema_version(engine) != utils._get_latest_schema_revision():
        utils._upgrade_db(engine)
    return SqlAlchemyStore(f"sqlite:///{path}", str(path.parent))


def _all_ids(store: Any) -> list[str]:
    from mlflow.entities import ViewType

    experiments = [each.experiment_id for each in _pages(store.search_experiments, ViewType.ALL)]
    runs = _pages(store.search_runs, experiments, "", ViewType.ACTIVE_ONLY)
    return [run.info.run_id for run in runs]


def _pages(search: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(*arguments, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


# ---------------------------------------------------------------------------------------- mlruns


def _runs_in_folder(folder: Path, root: Path) -> Found:
    """Yield the runs of `mlruns`, by a folder of links to what MLflow may read."""
    mirror = _temporary_folder()
    runs: list[Path] = []
    for experiment in sorted(folder.iterdir()):
        if experiment.name.startswith(".") or not (experiment / _META).is_file():
            continue
        troubles = {part: _trouble(part) for part in sorted(experiment.iterdir())}
        shared = [f"{experiment.name} is a link"] if experiment.is_symlink() else []
        shared += [why for part, why in troubles.items() if why and not _is_run(part)]
        (mirror / experiment.name).mkdir()
        for part, why in troubles.items():
            if _is_run(part) and (whys := [why] if why else shared):
                error = RecordError(f"It is not read: {whys[0]}.", where=str(part))
                yield 0, _refuse(part.name, part, error)
            elif _is_run(part):
                _link_run(part, mirror / experiment.name / part.name)
                runs.append(part)
            elif not shared:
                (mirror / experiment.name / part.name).symlink_to(part.absolute())
    if runs:
        store = _read(folder, _file_store, mirror)
        for run in runs:
            yield from _sources(store, run, root, [run.name])


def _is_run(part: Path) -> bool:
    return (part / _META).exists()


def _trouble(part: Path) -> str:
    """Return why MLflow must not read a part of an experiment, "" if it may: it follows any link.

    Artifacts are not among what it reads: those are copied by us.
    """
    depth = 0 if _is_run(part) else 1  # models/ID/artifacts
    left_out: list[str] = []
    is_entry = part.is_symlink() or not part.is_dir()
    for path in [part] if is_entry else paths_below(part, left_out):
        if path.relative_to(part).parts[depth : depth + 1] == (_ARTIFACTS,):
            continue
        if path.is_symlink():
            return f"{path.name} is a link"
        try:
            check_foreign_file(path)
        except RecordError as error:
            return f"{path.name}: {error.what.rstrip('.')}"
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror}"
    return left_out[0] if left_out else ""


def _link_run(run: Path, to: Path) -> None:
    """Make a run of links, and the folders that MLflow wants: git keeps no empty ones."""
    for name in _FOLDERS_OF_A_RUN:
        if not (run / name).is_dir():
            (to / name).mkdir(parents=True)
    to.mkdir(exist_ok=True)
    for part in run.iterdir():
        (to / part.name).symlink_to(part.absolute())


def _file_store(mirror: Path) -> Any:
    from mlflow.store.tracking.file_store import FileStore

    return FileStore(str(mirror))


def _temporary_folder() -> Path:
    """Make a folder that is there until the process ends, as a run is read later than found."""
    folder = Path(tempfile.mkdtemp(prefix="assay-import-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
