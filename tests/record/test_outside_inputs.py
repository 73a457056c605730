"""Inputs of a run: variables, files that it opens, library files, and nothing that it writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
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


def inputs(project: Path, *texts: str, opened: Iterable[Path] = ()) -> OutsideInputs:
    return OutsideInputs(
        project,
        [project],
        texts,
        {str(path): None for path in opened},
        written=project / "runs",
        since_ns=time.time_ns() + 10**9,
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


READERS = """
import os, pathlib, subprocess, sys, threading
import numpy as np
from assay.core.regular_file import read_bytes
from assay.record import outside_inputs as seen

def names():
    return sorted(map(os.path.basename, seen._opened))

for name in ("a", "b", "c", "d", "e", "f", "ours", "before", "after", "code.py"):
    pathlib.Path(name).write_bytes(b"1")
np.save("n.npy", np.zeros(2))
open("before").close()
with seen.noting_opened_files():
    open("a").close()
    pathlib.Path("b").read_bytes()
    os.close(os.open("c", os.O_RDONLY))
    thread = threading.Thread(target=lambda: open("d").close())
    thread.start()
    thread.join()
    np.load("n.npy", mmap_mode="r")
    open("r+", "w").close()
    open("r+", "r+").close()
    open("made", "w").close()
    open("made", "a").close()
    open(os.dup(0)).close()
    read_bytes(pathlib.Path("ours"), 10)
    open("code.py").close()
    try:
        open("missing")
    except FileNotFoundError:
        pass
    with seen.noting_opened_files():
        open("e").close()
        print(*names())
    print(*names())
open("after").close()
print(seen._opened)
"""


def test_files_that_the_process_opens_for_reading_are_noted_while_a_run_is_trained(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READERS],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["e", "a b c d missing n.npy r+", "None"]


def test_an_opened_file_is_an_input_unless_it_belongs_to_the_system_or_to_libraries(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    files = {
        tmp_path / "corpus" / "a.bin": True,
        project / "data" / "a.bin": True,
        project / "data" / "absent.bin": False,
        project / "runs" / "x" / "run.json": False,
        project / "token.txt": False,
        tmp_path / "tmp" / "cache.so": False,
        tmp_path / ".cache" / "kernel.bin": False,
        tmp_path / "lib" / "site-packages" / "words.txt": False,
        Path(os.__file__).parent / "LICENSE.txt": False,
        Path("/etc/hostname"): False,
    }
    for path in files:
        if path.is_relative_to(tmp_path) and path.name != "absent.bin":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"1")

    found = inputs(project, opened=files).find()["files"]

    assert found.keys() == {str(tmp_path / "corpus" / "a.bin"), "data/a.bin"}


def test_a_changed_file_has_another_digest(project: Path) -> None:
    path = project / "points.bin"
    path.write_bytes(b"\x01")
    before = inputs(project, opened=[path]).find()["files"]
    path.write_bytes(b"\x02")
    after = inputs(project, opened=[path]).find()["files"]

    assert before.keys() == after.keys() == {"points.bin"}
    assert before != after


def test_a_file_and_a_folder_of_the_config_count_wherever_they_lie(
    project: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")

    found = inputs(project, str(corpus), "../b.txt", "", ".", str(tmp_path)).find()["files"]

    assert found.keys() == {str(corpus / "a.txt"), str(tmp_path / "b.txt")}


def test_a_file_that_was_changed_since_the_run_began_is_no_input(project: Path) -> None:
    path = project / "log.csv"
    path.write_text("old")
    found = inputs(project, opened=[path])
    assert found.find()["files"].keys() == {"log.csv"}

    later = time.time() + 60
    os.utime(path, (later, later))

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
