"""Reader of MLflow: the folder `mlruns`, or an SQLite database such as `mlflow.db`."""

from __future__ import annotations

from pathlib import Path

from assay.core.errors import InputError
from assay.interop.foreign_run import (
    ForeignSource,
)
from assay.interop.mlflow_database import databases_in, runs_in_database
from assay.interop.mlflow_files import runs_in_folder


def find(root: Path) -> list[ForeignSource]:
    """Return the runs of `root`, the oldest first: of a database, `mlruns`, or a folder with them.

    InputError when there are none. Runs that were deleted in MLflow are not among them.
    """
    base = root if root.is_dir() else root.parent
    databases = databases_in(root)
    found = [run for path in databases for run in runs_in_database(path, base)]
    for folder in (root, root / "mlruns"):
        if folder.is_dir():
            found += runs_in_folder(folder, root)
    if not found:
        raise _nothing(root, databases)
    once = {run.key: (start_ms, run) for start_ms, run in reversed(found)}
    return [run for _, run in sorted(once.values(), key=lambda each: each[0])]


def _nothing(root: Path, databases: list[Path]) -> InputError:
    if databases:
        return InputError("This database of MLflow has no runs.", where=str(databases[0]))
    beside = root.parent / "mlflow.db" if root.name == "mlruns" else None
    fix = (
        "It is `mlflow.db`, another database of SQLite, or `mlruns` with a meta.yaml in the "
        "folder of each run"
    )
    if beside is not None and beside.is_file():
        fix = f"its runs are in {beside}: give the folder that holds both"
    return InputError("There are no runs of MLflow in this place.", where=str(root), fix=fix)
