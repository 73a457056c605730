"""`mlruns` and `mlflow.db` as MLflow writes them."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from assay.core.errors import InputError, RecordError
from assay.store.foreign.mlflow import find
from assay.store.foreign.run import ForeignRun
from foreign_files import unpacked

NUMBERS = [2.0, math.nan, 0.5, math.inf, -math.inf, 0.25]


@pytest.fixture(scope="module", params=["mlflow-files", "mlflow-db"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(request.param, tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[ForeignRun]:
    return [found.read() for found in find(folder)]


def test_all_runs_but_the_deleted_are_found_the_oldest_first(runs: list[ForeignRun]) -> None:
    name = "first: a run whose name is so long that YAML has to fold it, 'quoted', over two lines"
    assert [run.tag for run in runs] == [name, "../../child", "still open"]
    assert [run.status for run in runs] == ["finished", "failed", "stopped"]
    assert "RUNNING" in runs[2].reason


def test_a_run_has_its_params_tags_description_and_source(runs: list[ForeignRun]) -> None:
    first, child, _ = runs

    assert first.config == {
        "lr": 0.003,
        "model": {"width": 16, "bias": True},
        "act": "relu",
        "layers": "[16, 8]",
        "seed": "007",
        "text": "two\nlines",
    }
    assert first.values == {"team": "nlp/ärzte", "stage": "dev"}
    assert first.desc == "does it learn?\n\nyes"
    assert (first.user, first.command, first.git_commit[:4]) == ("ada", ["train.py"], "0123")
    assert first.about["experiment"] == "points of view"
    assert (first.created_ns, first.ended_ns) == (1_760_000_000 * 10**9, 1_760_000_060 * 10**9)
    assert child.parent == first.about["id"]


def test_metrics_keep_every_number_step_and_time(runs: list[ForeignRun]) -> None:
    (loss,) = runs[0].blocks

    assert loss.keys.names == ("train/loss",)
    assert list(loss.steps) == [-2, -1, 0, 1, 2, 3]
    np.testing.assert_array_equal(loss.columns[0], NUMBERS)
    assert loss.times_ns[5] == 1_760_000_005 * 10**9


def test_artifacts_are_found_though_the_folder_was_moved(runs: list[ForeignRun]) -> None:
    kept = {file.name: file.source for file in runs[0].files}

    assert kept.keys() == {"said.txt", "out/deep/model.txt"}
    path = kept["out/deep/model.txt"]
    assert isinstance(path, Path)
    assert path.read_text() == "weights"
    assert [run.warnings for run in runs] == [[], [], []]


def test_a_metric_file_that_was_cut_off_gives_its_whole_lines(tmp_path: Path) -> None:
    (path,) = unpacked("mlflow-files", tmp_path).glob("mlruns/*/*/metrics/train/loss")
    data = path.read_bytes()
    path.write_bytes(data[:-18] + b"1e99 1" + b"7" * 30)

    run = find(tmp_path)[0].read()

    assert list(run.blocks[0].steps) == [-2, -1, 0, 1, 2]
    (warning,) = run.warnings
    assert warning.startswith(str(path))
    assert warning.endswith(f"at byte {data.rindex(b'1760')}")


def test_links_do_not_bring_in_what_lies_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hidden")
    root = unpacked("mlflow-files", tmp_path / "given")
    (run,) = root.glob("mlruns/*/*/artifacts")
    (run / "key").symlink_to(secret / "key")
    (run / "keys").symlink_to(secret)
    (run.parent / "params" / "key").symlink_to(secret / "key")
    (run / "near").symlink_to(run / "said.txt")
    shutil.rmtree(run.parent / "tags")
    (run.parent / "tags").symlink_to(secret)

    found = find(root)[0].read()

    assert "hidden" not in repr((found.config, found.values))
    assert {file.name for file in found.files} == {"said.txt", "out/deep/model.txt", "near"}
    assert sum("leads out of the folder" in warning for warning in found.warnings) == 4


def test_artifacts_of_a_database_that_lie_elsewhere_are_named_and_not_copied(tmp_path: Path) -> None:
    root = unpacked("mlflow-db", tmp_path / "given")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "key").write_text("hidden")
    places = {"still open": elsewhere.as_uri(), "../../child": "s3://bucket/1"}
    with sqlite3.connect(root / "mlflow.db") as database:
        for name, uri in places.items():
            database.execute("UPDATE runs SET artifact_uri = ? WHERE name = ?", (uri, name))
    database.close()

    _, child, still_open = (found.read() for found in find(root / "mlflow.db"))

    assert (child.files, still_open.files) == ([], [])
    assert "s3://bucket/1" in child.warnings[0]
    assert str(elsewhere) in still_open.warnings[0]


def test_a_database_with_values_of_the_wrong_kind_is_told_by_the_run(tmp_path: Path) -> None:
    root = unpacked("mlflow-db", tmp_path)
    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute("UPDATE metrics SET step = 'x' WHERE key = 'train/loss'")
    database.close()

    first, child, _ = find(root)

    with pytest.raises(RecordError, match="cannot be read"):
        first.read()
    assert child.read().points == 1


def test_the_database_is_only_read(tmp_path: Path) -> None:
    root = unpacked("mlflow-db", tmp_path)
    before = {path: os.stat(path).st_mtime_ns for path in root.rglob("*")}

    for found in find(root):
        found.read()

    assert {path: os.stat(path).st_mtime_ns for path in root.rglob("*")} == before


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no runs of MLflow[\s\S]*mlflow\.db"):
        find(tmp_path)
    root = unpacked("mlflow-db", tmp_path / "both")
    with pytest.raises(InputError, match="give the folder that holds both"):
        find(root / "mlruns")
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0 and no more")
    with pytest.raises(InputError, match="no database that can be read"):
        find(tmp_path)
