"""A pack is data: nothing in one runs, wherever it is put and whatever command looks at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from run_folders import make_checkpoint, make_project

HERE = Path(__file__).resolve().parent


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a run of somebody else."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "theirs"))
    project = make_project(tmp_path / "their project")
    config = (HERE / "packs.py").read_text(encoding="utf-8").split('CONFIG = """\\\n')[1]
    spec = AttemptSpec(
        config_toml=config.split('"""')[0].replace("{{", "{").replace("}}", "}"),
        launch={"user_dirs": [str(project.root)]},
    )
    with start_run(project, spec, tag="theirs") as recorder:
        recorder.log({"loss": 0.5}, 1)
        make_checkpoint(recorder.folder.path, 1)
    monkeypatch.delenv("XDG_DATA_HOME")
    return recorder.folder.path


def troubles(folder: Path, foreign: Path, first: int, count: int) -> list[str]:
    done = subprocess.run(
        [
            sys.executable,
            "-B",
            str(HERE / "packs.py"),
            str(folder),
            str(foreign),
            str(first),
            str(count),
        ],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "XDG_DATA_HOME": str(folder / "data"),
            "ASSAY_QUEUE_DIR": str(folder / "queue"),
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_some_hostile_packs_run_nothing(tmp_path: Path, foreign: Path) -> None:
    found = troubles(tmp_path, foreign, 0, 12)
    assert found == [], "\n".join(found)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(6))
def test_three_hundred_hostile_packs_run_nothing(tmp_path: Path, foreign: Path, part: int) -> None:
    assert troubles(tmp_path, foreign, 1000 + 50 * part, 50) == []
