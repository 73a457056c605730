"""Folders of other trackers in which something is a link, or is no file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import AssayError, InputError
from assay.interop import mlflow, tensorboard, wandb
from assay.interop.foreign_run import ForeignSource
from foreign_files import unpacked

FOLDERS = {
    "mlflow-files": mlflow.find,
    "mlflow-db": mlflow.find,
    "tensorboard": tensorboard.find,
    "wandb": wandb.find,
    "wandb-resumed": wandb.find,
}


@pytest.mark.parametrize("name", FOLDERS)
def test_of_what_leads_out_of_a_folder_nothing_is_read(name: str, tmp_path: Path) -> None:
    root = unpacked(name, tmp_path / "given")
    outside = tmp_path / "outside"
    all_runs = runs_in(FOLDERS[name], root)
    assert all_runs and None not in all_runs.values()
    for place in sorted(root.rglob("*")):
        shutil.move(place, outside)
        without = runs_in(FOLDERS[name], root)
        place.symlink_to(outside)
        with_link = runs_in(FOLDERS[name], root)
        place.unlink()
        shutil.move(outside, place)

        for key, run in with_link.items():
            assert run is None or run == without.get(key), place


@pytest.mark.parametrize(
    ("find", "name"),
    [
        (mlflow.find, "mlruns/meta.yaml"),
        (mlflow.find, "mlflow.db"),
        (mlflow.find, "mlruns/1/run/meta.yaml"),
        (tensorboard.find, "run/events.out.tfevents.1"),
        (wandb.find, "run-1.wandb"),
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    find: Callable[[Path], list[ForeignSource]], name: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)

    with pytest.raises((InputError, OSError)):
        find(tmp_path)


def runs_in(find: Callable[[Path], list[ForeignSource]], root: Path) -> dict[str, Any]:
    """Return what is imported of each run but its warnings; None of one that is refused."""
    try:
        return {source.key: contents_of(source, root) for source in find(root)}
    except InputError:
        return {}


def contents_of(source: ForeignSource, root: Path) -> Any:
    try:
        run = source.read()
    except AssayError:
        return None
    files = [file.source for file in run.files]
    assert all(file.resolve().is_relative_to(root) for file in files if isinstance(file, Path))
    return (
        source.name,
        repr((run.tag, run.desc, run.config, run.values, run.about, run.labels, run.environment)),
        (run.status, run.points, run.metrics),
        sorted(file.name for file in run.files),
        run.output if isinstance(run.output, bytes) else run.output.read_bytes(),
    )
