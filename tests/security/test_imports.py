"""Folders of other trackers are data: what is planted in one runs nothing, and becomes no record."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from assay.store.layout import run_folders, why_not_of_record
from foreign_files import unpacked
from run_folders import make_project
from warm_python import Run

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
TOOLS = {
    "mlflow-files": "mlflow",
    "mlflow-db": "mlflow",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "wandb-resumed": "wandb",
}
NAME = "\x1b]0;painted\x07\nnew\u202e"
SETTINGS = """\
trusted = ["model"]
runs_dir = "{mark}-runs"
[[notify]]
when = ["finished", "failed", "stopped"]
channel = "command"
command = "touch {mark}"
"""
MODULES = ("model.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "config.py")
LOOKS = (["ls"], ["show", "last"], ["log", "last"], ["check", "last"], ["metrics", "last"])
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def make_huge(file: Path) -> None:
    """Let a file claim 9 GB, of which the disk holds none."""
    file.unlink(missing_ok=True)
    with file.open("wb") as huge:
        huge.truncate(9 << 30)


def plant(root: Path, mark: Path) -> None:
    """Put settings and modules into each folder; give those a hostile name that may have one."""
    # In those of MLflow's metrics each file is one, and a module none that it could read.
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    folders = [path for path in folders if "metrics" not in path.parts]
    for folder in sorted(folders, key=lambda path: -len(path.parts)):
        (folder / ".assay").mkdir()
        (folder / ".assay" / "settings.toml").write_text(SETTINGS.format(mark=mark))
        for name in MODULES:
            (folder / name).write_text(f"open({str(mark)!r}, 'w').close()\n")
        if folder != root and "tensorboard" in root.name:
            folder.rename(folder.with_name(folder.name + NAME))


@pytest.mark.slow
@pytest.mark.parametrize("name", TOOLS)
def test_what_is_planted_in_a_folder_of_another_tracker_runs_nothing_and_steers_nothing(
    name: str, tmp_path: Path, warm: Run
) -> None:
    mark = tmp_path / "PWNED"
    root = unpacked(name, tmp_path / name)
    plant(root, mark)
    project = make_project(tmp_path / "project")
    variables = {**os.environ, "PYTHONPATH": SOURCE, "XDG_DATA_HOME": str(tmp_path / "data")}

    for place, words in [
        (project.root, ["import", TOOLS[name], str(root)]),
        *((project.root, words) for words in LOOKS),
        (root, ["import", TOOLS[name], ".", "--dry-run"]),
    ]:
        done = warm(["-m", "assay", *words], folder=place, variables=variables)
        said = done.stdout + done.stderr
        assert done.returncode in (0, 1, 2), said
        assert "Traceback" not in said and "fault in assay" not in said, said
        assert CONTROL.search(said) is None, repr(said)

    assert list(tmp_path.glob("PWNED*")) == []
    runs = run_folders(project)
    assert runs
    for run in runs:
        for file in run.path.rglob("*"):
            place = file.relative_to(run.path).as_posix()
            assert file.is_dir() or not why_not_of_record(place), place
            assert file.suffix != ".py" and not file.is_symlink(), place
            assert file.stat().st_size < 1 << 20, place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mlflow-files", "mlruns/*/*/artifacts/new.bin"),
        ("wandb", "wandb/*/files/*.log"),
        ("mlflow-files", "mlruns/*/*/metrics/lr"),
        ("tensorboard", "logs/first/events.*"),
        ("wandb", "wandb/*/*.wandb"),
    ],
)
def test_a_file_of_9_gb_that_holds_nothing_is_left_out_in_words_and_not_copied(
    name: str, file: str, tmp_path: Path, warm: Run
) -> None:
    root = unpacked(name, tmp_path / name)
    folder, _, last = file.rpartition("/")
    places = sorted(root.glob(folder))
    for place in places:
        for each in [place / last] if "*" not in last else sorted(place.glob(last)):
            make_huge(each)
    project = make_project(tmp_path / "project")
    variables = {**os.environ, "PYTHONPATH": SOURCE, "XDG_DATA_HOME": str(tmp_path / "data")}

    words = ["-m", "assay", "import", TOOLS[name], str(root)]
    done = warm(words, folder=project.root, variables=variables)

    assert "Traceback" not in done.stderr and "fault in assay" not in done.stderr
    assert re.search("9.66 GB", done.stderr), done.stderr
    blocks = sum(path.lstat().st_size for path in project.root.rglob("*") if path.is_file())
    assert blocks < 10 << 20
