"""Inputs that code names: variables, data files and library files, and nothing that a run writes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from assay.record import outside_inputs
from assay.record.outside_inputs import OutsideInputs


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project in the working directory, with an empty folder of runs."""
    folder = tmp_path / "project"
    (folder / "runs").mkdir(parents=True)
    monkeypatch.chdir(folder)
    yield folder


def load(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a module of the user or of a library, as if it had been imported."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, f"outside_{path.stem}", module)


def inputs(project: Path, *texts: str) -> OutsideInputs:
    return OutsideInputs(
        project, [project], texts, written=project / "runs", since_ns=time.time_ns() + 10**9
    )


def test_variables_count_that_a_module_names_and_that_are_set(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GAIN", "UNNAMED", "IN_TEXT", "PYTHONHASHSEED", "HOME"):
        monkeypatch.setenv(name, "1")
    load(
        project / "net.py",
        'import os\nA = os.environ.get("GAIN"), os.getenv("HOME"), "UNSET", "PYTHONHASHSEED"',
        monkeypatch,
    )
    load(project / "other.py", 'TITLE = "IN_TEXT"', monkeypatch)

    assert inputs(project).find()["variables"] == {"GAIN": "1"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('open("points.bin")', "points.bin"),
        ('Path("data") / "train.bin"', "data/train.bin"),
        ('Path(__file__).parent / "data"', "data/train.bin"),
        ("open('data/train.bin')", "data/train.bin"),
    ],
)
def test_a_changed_file_that_code_names_has_another_digest(
    project: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str
) -> None:
    (project / "data").mkdir()
    for path in ("points.bin", "data/train.bin"):
        (project / path).write_bytes(b"\x01")
    load(project / "points.py", text, monkeypatch)

    before = inputs(project).find()["files"]
    (project / name).write_bytes(b"\x02")
    after = inputs(project).find()["files"]

    assert before.keys() == after.keys() == {name}
    assert before[name] != after[name]


def test_a_file_and_a_folder_of_the_config_count_wherever_they_lie(
    project: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")

    found = inputs(project, str(corpus), "../b.txt", "", ".", str(tmp_path)).find()["files"]

    assert found.keys() == {str(corpus / "a.txt"), str(tmp_path / "b.txt")}


def test_a_file_that_the_run_has_written_is_no_input(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "log.csv").write_text("old")
    (project / "runs" / "a.bin").write_text("a record")
    load(project / "net.py", 'open("log.csv", "w"); "runs"', monkeypatch)
    found = OutsideInputs(
        project, [project], [], written=project / "runs", since_ns=time.time_ns() + 10**9
    )
    assert found.find()["files"].keys() == {"log.csv"}

    later = time.time() + 60
    os.utime(project / "log.csv", (later, later))

    assert found.find()["files"] == {}


def test_a_library_file_counts_if_it_was_edited_after_its_installation(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "lib" / "site-packages"
    monkeypatch.setattr(outside_inputs, "_MAX_FILES", 10_000)  # modules of all tests are loaded
    monkeypatch.syspath_prepend(packages)
    record = packages / "gains-1.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.touch()
    load(packages / "gains.py", "GAIN = 1", monkeypatch)
    as_installed = inputs(project).find()["libraries"]

    later = time.time() + 3600
    os.utime(packages / "gains.py", (later, later))
    edited = inputs(project).find()

    assert "gains.py" not in as_installed
    assert "gains.py" in edited["libraries"] and "gains.py" in edited["edited_ns"]
