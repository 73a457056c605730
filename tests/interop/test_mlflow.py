"""`mlruns` and `mlflow.db` as MLflow writes them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import AssayError, InputError, RecordError
from assay.interop import mlflow_database, mlflow_run
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


@pytest.mark.parametrize(
    "name",
    [
        "two\nlines",
        "a\xa0space that breaks nowhere",
        "folded by YAML at\nits eightieth character \\ and more, é, \U0001f600\n" * 3,
        "C:\\runs\\ with spaces " * 8,
    ],
)
@pytest.mark.parametrize("allow_unicode", [True, False])
def test_the_name_of_a_run_is_the_text_that_yaml_wrote(
    name: str, allow_unicode: bool, tmp_path: Path
) -> None:
    meta = tmp_path / "1" / "run" / "meta.yaml"
    meta.parent.mkdir(parents=True)
    about = {"run_id": "a" * 32, "run_name": name, "status": 3}
    meta.write_text(yaml.safe_dump(about, allow_unicode=allow_unicode), encoding="utf-8")

    (source,) = find(tmp_path)
    assert source.read().tag == name


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


def test_a_metric_file_that_was_cut_off_gives_its_whole_lines(tmp_path: Path) -> None:
    (path,) = unpacked("mlflow-files", tmp_path).glob("mlruns/*/*/metrics/train/loss")
    data = path.read_bytes()
    path.write_bytes(data[:-18] + b"1e99 1" + b"7" * 30)

    run = find(tmp_path)[0].read()

    (loss,) = (block for block in run.blocks if block.keys.names == ("train/loss",))
    assert list(loss.steps) == [-2, -1, 0, 1, 2]
    (warning,) = run.warnings
    assert warning.startswith(str(path))
    assert warning.endswith(f"at byte {data.rindex(b'1760')}")


def test_a_metric_file_without_a_point_counts_as_no_metric(tmp_path: Path) -> None:
    (path,) = unpacked("mlflow-files", tmp_path).glob("mlruns/*/*/metrics/train/loss")
    before = find(tmp_path)[0].read()
    path.write_bytes(b"1760000010000 abc 1\n")

    run = find(tmp_path)[0].read()

    assert run.metrics == before.metrics - 1


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
    names = {file.name for file in found.files if not file.name.startswith("models/")}
    assert names == {"said.txt", "out/deep/model.txt", "near"}
    assert sum("leads out of the folder" in warning for warning in found.warnings) == 4


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


def test_a_database_with_values_of_the_wrong_kind_is_told_by_the_run(tmp_path: Path) -> None:
    root = unpacked("mlflow-db", tmp_path)
    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute("UPDATE metrics SET step = 'x' WHERE key = 'train/loss'")
    database.close()

    first, child, _ = find(root)

    with pytest.raises(RecordError, match="cannot be read"):
        first.read()
    assert child.read().points == 1


@pytest.mark.parametrize("value", ["'x'", "x'ff00'", "1.5", "NULL", "9e99"])
def test_a_column_of_another_type_is_read_as_it_can_be_or_one_error(
    tmp_path: Path, value: str
) -> None:
    root = unpacked("mlflow-db", tmp_path)
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        columns = {
            table: [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
            for table in ("experiments", "runs", "metrics", "params", "tags")
        }
    for table, names in columns.items():
        for name in names:
            changed = tmp_path / "changed.db"
            shutil.copy(root / "mlflow.db", changed)
            with contextlib.closing(sqlite3.connect(changed)) as database, database:
                database.execute("PRAGMA ignore_check_constraints = 1")
                with contextlib.suppress(sqlite3.IntegrityError):
                    database.execute(f"UPDATE {table} SET {name} = {value}")
            with contextlib.suppress(AssayError):
                for each in find(changed):
                    with contextlib.suppress(AssayError):
                        each.read()


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


VIEW_WITHOUT_END = """
    ALTER TABLE runs RENAME TO kept;
    CREATE VIEW runs AS WITH RECURSIVE more(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM more)
        SELECT kept.* FROM kept, more;
"""
METRICS_WITHOUT_END = """
    ALTER TABLE metrics RENAME TO kept;
    CREATE VIEW metrics AS WITH RECURSIVE more(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM more)
        SELECT kept.*, more.i AS rowid FROM kept, more;
"""


@pytest.mark.parametrize("harm", [VIEW_WITHOUT_END, METRICS_WITHOUT_END])
def test_a_view_in_the_place_of_a_table_is_not_asked(tmp_path: Path, harm: str) -> None:
    root = unpacked("mlflow-db", tmp_path)
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        database.executescript("PRAGMA legacy_alter_table = ON;" + harm)

    with pytest.raises(InputError, match="no runs of MLflow"):
        find(root)


def test_a_question_that_has_no_end_is_ended(tmp_path: Path) -> None:
    root = unpacked("mlflow-db", tmp_path)
    with (
        mlflow_database.open_database(root / "mlflow.db") as database,
        pytest.raises(sqlite3.OperationalError, match="interrupted"),
    ):
        database.execute(
            "WITH RECURSIVE more(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM more) SELECT max(i) FROM more"
        )


@pytest.mark.parametrize("name", ["mlruns/meta.yaml", "mlflow.db", "mlruns/1/run/meta.yaml"])
def test_pipes_where_files_should_be_are_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)

    with pytest.raises(InputError):
        find(tmp_path)


def test_thousands_of_parameters_and_parts_of_a_name_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_run, "_MOST_PARAMS", 5)
    root = unpacked("mlflow-files", tmp_path)
    (params,) = (path for path in root.glob("mlruns/*/*/params") if (path / "lr").exists())
    (params / ".".join("a" * 60)).write_text("deep")
    run = find(root)[0].read()

    assert "3 of 8 parameters were left out" in run.warnings
    assert ".".join("a" * 60) in run.config


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


@given(st.floats(allow_nan=False) | st.integers(-(10**17), 10**17))
@settings(max_examples=200, deadline=None)
def test_every_number_that_was_logged_is_one_again(number: float) -> None:
    found = parameter_of(str(number))

    assert found == number and type(found) is type(number)
