"""Folders of other trackers in which something is a link: nothing behind it is brought in."""

from __future__ import annotations

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
def test_whatever_leads_out_of_a_folder_is_as_if_it_were_not_there(
    name: str, tmp_path: Path
) -> None:
    root = unpacked(name, tmp_path / "given")
    outside = tmp_path / "outside"
    for place in sorted(root.rglob("*")):
        shutil.move(place, outside)
        without = runs_in(FOLDERS[name], root)
        place.symlink_to(outside)
        assert runs_in(FOLDERS[name], root) == without, place
        place.unlink()
        shutil.move(outside, place)

    assert runs_in(FOLDERS[name], root)


def test_a_run_of_mlflow_that_is_given_alone_has_the_name_of_its_experiment(tmp_path: Path) -> None:
    root = unpacked("mlflow-files", tmp_path)
    (run,) = root.glob("mlruns/*/*/artifacts")
    of_all = {source.key: source.read().about for source in mlflow.find(root)}

    (alone,) = mlflow.find(run.parent)

    assert alone.read().about == of_all[alone.key]


def runs_in(find: Callable[[Path], list[ForeignSource]], root: Path) -> list[Any]:
    """Return all that is imported but the warnings, and that no file lies outside of `root`."""
    try:
        sources = find(root)
    except InputError:
        return []
    return [contents_of(source, root) for source in sources]


def contents_of(source: ForeignSource, root: Path) -> Any:
    try:
        run = source.read()
    except AssayError:
        return source.key
    files = [file.source for file in run.files]
    assert all(file.resolve().is_relative_to(root) for file in files if isinstance(file, Path))
    return (
        source.key,
        source.name,
        repr((run.tag, run.desc, run.config, run.values, run.about, run.labels, run.environment)),
        (run.status, run.points, run.metrics),
        sorted(file.name for file in run.files),
        run.output if isinstance(run.output, bytes) else run.output.read_bytes(),
    )
