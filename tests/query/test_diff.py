"""What differs between two runs."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest

from assay.query.diff import PARTS, ChangedKey, diff, flat
from assay.query.run import RunView
from assay.script import start
from assay.store.layout import Project
from run_folders import make_run


def recorded(project: Project, **config: object) -> RunView:
    with start("digits", config, project=project) as run:
        run.log({"loss": 0.5}, step=1)
    assert run.folder is not None
    return RunView(run.folder)


def test_a_run_and_its_repeat_do_not_differ(project: Project) -> None:
    (project.root / "model.py").write_text("width = 3\n")
    found = diff(recorded(project, lr=0.1), recorded(project, lr=0.1))

    assert found.is_equal
    assert found.code_missing == ""
    assert found.to_json()["equal"] is True


def test_speed_time_and_memory_differ_between_equal_runs_and_count_when_they_are_asked_for(
    project: Project,
) -> None:
    left, right = (
        RunView(
            make_run(
                project,
                points={"loss": [1.0], "speed/steps_per_s": [speed], "memory/process_mib": [speed]},
            )
        )
        for speed in (10.0, 11.0)
    )

    assert diff(left, right).metrics == ()
    found = diff(left, right, ("metrics",)).metrics
    assert [each.name for each in found] == ["speed/steps_per_s", "memory/process_mib"]


def test_changed_keys_are_shown_as_toml_writes_them(project: Project) -> None:
    left = make_run(
        project,
        config='lr = 0.1\nname = "a"\nonly_left = [1, 2]\n[net]\nwidth = 3\non = true\nnest = {a = 1}\n',
    )
    right = make_run(
        project,
        config='lr = 1e-3\nname = "b"\n[net]\nwidth = 3\non = false\nnest = {}\nd = {x = "@none"}\n',
    )

    found = diff(RunView(left), RunView(right), ("config",))

    assert found.config == (
        ChangedKey("lr", "0.1", "0.001"),
        ChangedKey("name", '"a"', '"b"'),
        ChangedKey("only_left", "[1, 2]", None),
        ChangedKey("net.on", "true", "false"),
        ChangedKey("net.nest.a", "1", None),
        ChangedKey("net.d", None, found.config[5].right),
    )
    assert not found.is_equal
    assert found.to_json()["config"][2] == {"key": "only_left", "left": "[1, 2]", "right": None}
    assert "metrics" not in found.to_json()


def test_metrics_differ_by_their_numbers_and_nan_equals_nan(project: Project) -> None:
    same = {"void": [math.nan], "same": [1.0, 2.0]}
    left = make_run(project, points={**same, "loss": [1.0], "left": [1.0]})
    right = make_run(project, points={**same, "loss": [2.0], "right": [1.0]})

    found = diff(RunView(left), RunView(right), ("metrics",))

    assert [(m.name, m.left is None, m.right is None) for m in found.metrics] == [
        ("loss", False, False),
        ("left", False, True),
        ("right", True, False),
    ]
    assert json.loads(json.dumps(found.to_json()))["metrics"][0]["left"]["last"] == 1.0


@pytest.mark.row("A84")
def test_environments_differ_key_by_key(project: Project) -> None:
    torch = {
        "version": "2.6",
        "cuda": "12.4",
        "cudnn": 90100,
        "deterministic": True,
        "devices": ["H200"],
    }
    one = {"python": "3.11", "torch": torch, "variables": {"OMP_NUM_THREADS": "1"}}
    other = {
        "python": "3.11",
        "torch": {**torch, "cuda": None, "cudnn": None, "deterministic": False, "devices": []},
        "variables": {},
    }
    left = make_run(project, attempt={"environment": one})
    right = make_run(project, attempt={"environment": other})

    found = diff(RunView(left), RunView(right), ("environment",))

    assert found.environment == (
        ChangedKey("torch.cuda", "12.4", "null"),
        ChangedKey("torch.cudnn", "90100", "null"),
        ChangedKey("torch.deterministic", "true", "false"),
        ChangedKey("torch.devices", '["H200"]', "[]"),
        ChangedKey("variables.OMP_NUM_THREADS", "1", None),
    )


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_code_differs_file_by_file_with_a_unified_diff(project: Project) -> None:
    root = project.root
    (root / "model.py").write_text("a = 1\nb = 2\x0c\nc = 3")
    (root / "gone.py").write_text("x\n")
    (root / "mode.sh").write_text("echo\n")
    (root / "data.json").write_bytes(b"\0\1")
    left = recorded(project)
    (root / "model.py").write_text("a = 1\nb = 5\x0c\nc = 3\n")
    (root / "gone.py").unlink()
    (root / "new.py").write_text("y\n")
    (root / "mode.sh").chmod(0o755)
    (root / "data.json").write_bytes(b"\0\2")
    right = recorded(project)

    found = diff(left, right)

    assert [(file.path, file.how) for file in found.code] == [
        ("data.json", "changed"),
        ("gone.py", "removed"),
        ("mode.sh", "mode"),
        ("model.py", "changed"),
        ("new.py", "added"),
    ]
    by_path = {file.path: file.diff for file in found.code}
    assert by_path["data.json"] == by_path["mode.sh"] == ""
    assert by_path["gone.py"] == "--- a/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    assert by_path["model.py"] == (
        "--- a/model.py\n+++ b/model.py\n@@ -1,3 +1,3 @@\n a = 1\n-b = 2\x0c\n-c = 3\n\\ No newline at end of file\n"
        "+b = 5\x0c\n+c = 3\n"
    )
    assert found.config == found.metrics == ()


def test_a_folder_that_was_copied_away_says_that_its_code_is_missing(
    project: Project, tmp_path: Path
) -> None:
    (project.root / "model.py").write_text("a = 1\n")
    left = recorded(project)
    (project.root / "model.py").write_text("a = 2\n")
    right = recorded(project)
    away = tmp_path / "away"
    shutil.copytree(right.path, away)
    # While its project is still where it was, the code is found there.
    assert diff(left, RunView(away)).code[0].path == "model.py"

    shutil.rmtree(project.code_dir)

    found = diff(left, RunView(away), ("code",))
    assert "is not here" in found.code_missing
    assert found.is_equal
    assert "is not here" in found.to_json()["code_missing"]


def test_a_file_whose_bytes_were_lost_differs_without_its_lines(project: Project) -> None:
    (project.root / "model.py").write_text("a = 1\n")
    left = recorded(project)
    (project.root / "model.py").write_text("a = 2\n")
    right = recorded(project)
    for path in project.code_dir.rglob("*"):
        if path.is_file() and path.read_bytes() == b"a = 2\n":
            path.unlink()

    (file,) = diff(left, right).code

    assert (file.path, file.how, file.diff) == ("model.py", "changed", "")


def test_runs_without_code_say_so(project: Project) -> None:
    bare, other = RunView(make_run(project)), RunView(make_run(project, attempts=()))
    (project.root / "model.py").write_text("a = 1\n")

    assert diff(bare, other, ("code",)).code_missing == "No code was kept with either run."
    assert (
        diff(recorded(project), bare, ("code",)).code_missing == f"No code was kept with {bare.id}."
    )


def test_only_what_is_asked_for_is_compared(project: Project) -> None:
    left, right = (
        make_run(project, config="a = 1"),
        make_run(project, config="a = 2", points={"x": [1.0]}),
    )

    found = diff(RunView(left), RunView(right), ("metrics", "environment"))

    assert found.parts == ("metrics", "environment")
    assert found.config == () and found.metrics != ()
    assert set(PARTS) == {"config", "metrics", "environment", "code"}


def test_nested_tables_become_dotted_keys() -> None:
    assert dict(flat({"a": {"b": {"c": 1}}, "d": "x", "e": None})) == {
        "a.b.c": "1",
        "d": "x",
        "e": "null",
    }
