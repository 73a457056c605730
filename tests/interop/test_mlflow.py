"""`mlruns` and `mlflow.db` as MLflow writes them."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from assay.core.errors import InputError, RecordError
from assay.interop.foreign_run import ForeignRun
from assay.interop.mlflow import find
from assay.interop.mlflow_run import parameter_of
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
    assert {key: first.values[key] for key in ("team", "stage")} == {
        "team": "nlp/ärzte",
        "stage": "dev",
    }
    assert first.desc == "does it learn?\n\nyes"
    assert (first.user, first.command, first.git_commit[:4]) == ("ada", ["train.py"], "0123")
    assert first.about["experiment"] == "points of view"
    assert (first.created_ns, first.ended_ns) == (1_760_000_000 * 10**9, 1_760_000_060 * 10**9)
    assert child.parent == first.about["id"]


def test_metrics_keep_every_number_step_and_time(runs: list[ForeignRun]) -> None:
    (loss,) = (block for block in runs[0].blocks if block.keys.names != ("acc",))

    assert loss.keys.names == ("train/loss",)
    assert list(loss.steps) == [-2, -1, 0, 1, 2, 3]
    np.testing.assert_array_equal(loss.values[:, 0], NUMBERS)
    assert loss.times_ns[5] == 1_760_000_005 * 10**9


def test_the_data_that_went_in_and_the_models_that_came_out_are_brought_along(
    runs: list[ForeignRun],
) -> None:
    values = {
        key: value
        for key, value in runs[0].values.items()
        if key.startswith(("dataset/", "model/"))
    }

    model = values["model/net"]
    assert model.pop("id").startswith("m-") and values["model/teacher"].pop("id").startswith("m-")
    assert values == {
        "dataset/train/digits": {
            "digest": "0a1b2c3d",
            "source_type": "local",
            "source": {"uri": "/data/digits.csv"},
            "schema": {"columns": []},
            "profile": {"rows": 5000},
        },
        "dataset/validation/digits": {
            "digest": "4e5f6071",
            "source_type": "http",
            "source": {"url": "https://example.org/valid.csv"},
            "fold": "3",
        },
        "model/net": {
            "type": "cnn",
            "status": "ready",
            "step": 3,
            "params": {"width": 16},
            "metrics": {"acc": 0.75},
            "tags": {"stage": "dev"},
        },
        "model/teacher": {"status": "failed", "role": "input"},
    }
    (weights,) = (file for file in runs[0].files if file.name == "models/net/weights.txt")
    assert isinstance(weights.source, Path)
    assert (weights.source.read_text(), weights.step) == ("weights of the net", 3)
    assert [run.warnings for run in runs] == [[], [], []]


def test_artifacts_are_found_though_the_folder_was_moved(runs: list[ForeignRun]) -> None:
    kept = {file.name: file.source for file in runs[0].files}

    assert kept.keys() == {
        "said.txt",
        "out/deep/model.txt",
        "models/net/MLmodel",
        "models/net/weights.txt",
    }
    path = kept["out/deep/model.txt"]
    assert isinstance(path, Path)
    assert path.read_text() == "weights"
    assert [run.warnings for run in runs] == [[], [], []]


def test_artifacts_of_a_database_that_lie_elsewhere_are_named_and_not_copied(
    tmp_path: Path,
) -> None:
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


@pytest.mark.parametrize("value", ["'x'", "x'ff00'", "1.5", "NULL", "9e99"])
@pytest.mark.parametrize("column", ["runs.start_time", "runs.status", "metrics.step"])
def test_a_database_with_a_column_of_another_type_is_read_or_one_error(
    tmp_path: Path, column: str, value: str
) -> None:
    root = unpacked("mlflow-db", tmp_path)
    table, _, name = column.partition(".")
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        database.execute("PRAGMA ignore_check_constraints = 1")
        database.execute(f"UPDATE OR IGNORE {table} SET {name} = {value}")

    refused, read = 0, 0
    try:
        for each in find(root):
            read += each.read().points
    except RecordError as error:
        assert "MLflow cannot read it" in error.what
        refused = 1

    assert (read == 9) != bool(refused)
    if value in ("'x'", "x'ff00'") and column != "runs.status":
        assert refused


VIEW = """
    ALTER TABLE runs RENAME TO kept;
    CREATE VIEW runs AS WITH RECURSIVE more(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM more)
        SELECT kept.* FROM kept, more;
"""


def test_a_database_that_asks_questions_or_is_damaged_is_refused(tmp_path: Path) -> None:
    root = unpacked("mlflow-db", tmp_path)
    whole = (root / "mlflow.db").read_bytes()
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        database.executescript("PRAGMA legacy_alter_table = ON;" + VIEW)
    with pytest.raises(InputError, match="it has views"):
        find(root)

    (root / "mlflow.db").write_bytes(whole[:4096] + whole[: len(whole) - 4096])
    with pytest.raises(InputError, match="no database that can be read"):
        find(root)


def test_a_database_is_only_read(tmp_path: Path) -> None:
    root = unpacked("mlflow-db", tmp_path)
    before = {path: (os.stat(path).st_mtime_ns, path.is_file()) for path in root.rglob("*")}

    assert len([found.read() for found in find(root)]) == 3
    assert {path: (os.stat(path).st_mtime_ns, path.is_file()) for path in root.rglob("*")} == before


def test_a_run_that_mlflow_cannot_read_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    root = unpacked("mlflow-files", tmp_path)
    (path,) = root.glob("mlruns/*/*/metrics/train/loss")
    path.write_bytes(path.read_bytes()[:-18])

    runs = {found.key: found for found in find(root)}

    with pytest.raises(RecordError, match=r"MLflow cannot read it: .*train/loss"):
        runs.pop(path.parents[2].name).read()
    assert len([found.read() for found in runs.values()]) == 2


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no runs of MLflow[\s\S]*mlflow\.db"):
        find(tmp_path)
    root = unpacked("mlflow-db", tmp_path / "both")
    with pytest.raises(InputError, match="give the folder that holds both"):
        find(root / "mlruns")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, text) for text in ("12e4567", "001", "1.10", "1_000", "1e10", "0x10", "+5", "5.")),
        *((text, text) for text in ("NaN", "", " 5", "1" * 30, "1e999", "-0", "٣")),
        ("0.003", 0.003),
        ("1e-05", 1e-5),
        ("1e+22", 1e22),
        ("-1.5", -1.5),
        ("16", 16),
        ("inf", math.inf),
        ("True", True),
        ("None", None),
    ],
)
def test_a_parameter_is_a_number_only_if_a_number_is_written_so(text: str, value: object) -> None:
    found = parameter_of(text)

    assert found == value and type(found) is type(value)
