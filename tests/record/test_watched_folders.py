"""Watched folders and key code: what a script made, and with which of its functions."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import assay
from assay.core.errors import InputError
from assay.formats import run_file
from assay.record import watched_folders as watch_module
from assay.record.start import Run
from assay.record.watched_folders import FolderWatcher
from assay.store.blobs import FileBlobs
from assay.store.file_changes import FileChange, file_changes, files_left
from assay.store.layout import Project, RunFolder, open_project, run_folders

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return open_project(tmp_path / "project", create=True)


def start(project: Project, **given: object) -> Run:
    return assay.start(project=project, **given)  # type: ignore[arg-type]


def folder_of(run: Run) -> RunFolder:
    assert run.folder is not None
    return run.folder


def seen(run: Run, path: str, event: str) -> FileChange:
    """The change, as soon as the watcher has seen it."""
    until = time.monotonic() + 100
    while time.monotonic() < until:
        for change in file_changes(folder_of(run)):
            if (change.path, change.event) == (path, event):
                return change
        time.sleep(0.02)
    raise AssertionError(f"{path} was never {event}")


@pytest.mark.row("C42")
def test_files_of_the_suffixes_are_listed_with_size_hash_time_and_event(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "SCAN_S", 0.01)
    begun = time.time_ns()
    with start(project) as run:
        logs, save = run.watch("log", [".log"]), run.watch("save", [".ckpt", ".pth"])
        (logs / "train.log").write_text("first")
        (save / "1.ckpt").write_bytes(b"one")
        (save / "deep").mkdir()
        (save / "deep" / "2.pth").write_bytes(b"two")
        (save / "notes.txt").write_text("not asked for")
        seen(run, "save/1.ckpt", "created")
        (save / "1.ckpt").unlink()
        seen(run, "save/1.ckpt", "deleted")
        (logs / "train.log").write_text("first and second")
        seen(run, "log/train.log", "changed")

    left = files_left(folder_of(run))
    assert {path: (change.size_bytes, change.sha256) for path, change in left.items()} == {
        "log/train.log": (16, hashlib.sha256(b"first and second").hexdigest()),
        "save/deep/2.pth": (3, hashlib.sha256(b"two").hexdigest()),
    }
    assert all(begun < change.at_ns < time.time_ns() for change in file_changes(folder_of(run)))


@pytest.mark.slow
@pytest.mark.row("C42")
def test_a_checkpoint_of_torch_in_a_watched_folder_is_listed_and_can_be_loaded(
    project: Project,
) -> None:
    import torch

    model = torch.nn.Linear(4, 2)
    with start(project) as run:
        file = run.watch("save", [".ckpt", ".pth"]) / "epoch-1.pth"
        torch.save({"epoch": 1, "model": model.state_dict()}, file)

    (path, change) = next(iter(files_left(folder_of(run)).items()))
    assert path == "save/epoch-1.pth" and change.size_bytes == file.stat().st_size
    assert change.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    loaded = torch.load(file, weights_only=True)
    assert loaded["epoch"] == 1 and torch.equal(loaded["model"]["weight"], model.weight)


@pytest.mark.row("C42")
def test_a_folder_of_the_users_may_be_watched_and_what_was_in_it_before_is_not_the_runs(
    project: Project, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "old.txt").write_text("old")
    (mine / "changed.txt").write_text("before")
    with start(project) as run:
        assert run.watch("mine", folder=mine) == mine
        (mine / "changed.txt").write_text("afterwards")
        (mine / "new.txt").write_text("new")

    assert sorted((change.path, change.event) for change in file_changes(folder_of(run))) == [
        ("mine/changed.txt", "changed"),
        ("mine/new.txt", "created"),
    ]
    assert all(change.sha256 for change in file_changes(folder_of(run)))


def test_a_file_at_rest_is_hashed_before_the_run_ends(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "SCAN_S", 0.01)
    with start(project) as run:
        (run.watch("save") / "1.ckpt").write_bytes(b"one")
        assert seen(run, "save/1.ckpt", "kept").sha256 == hashlib.sha256(b"one").hexdigest()


def test_links_are_not_followed_out_of_the_folder(project: Project, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    with start(project) as run:
        folder = run.watch("save")
        (folder / "link").symlink_to(tmp_path / "secret")
        (folder / "loop").symlink_to(folder)
        (folder / "file").write_text("y")

    assert list(files_left(folder_of(run))) == ["save/file"]


@pytest.mark.parametrize("name", ["../up", "/abs", "a/b", "", ".hidden", "a\nb", "n" * 200])
def test_a_name_is_no_path(project: Project, name: str) -> None:
    with start(project) as run, pytest.raises(InputError, match="cannot be called"):
        run.watch(name)


def test_one_name_is_one_folder(project: Project, tmp_path: Path) -> None:
    with start(project) as run:
        assert run.watch("save", [".a"]) == run.watch("save", [".a"])
        with pytest.raises(InputError, match="watched as 'save' already"):
            run.watch("save", folder=tmp_path)
        with pytest.raises(InputError, match="is a list"):
            run.watch("log", ".log")


def test_a_full_disk_is_told_and_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    watcher = FolderWatcher(tmp_path / "no" / "such" / "files.jsonl", on_problem=said.append)
    watcher.add("save", tmp_path / "save", ())
    (tmp_path / "save" / "a").write_text("x")
    watcher.finish()

    assert said and "could not be written" in said[0]


SCRIPT = """
import assay
run = assay.start(project=".", keep_output=False)

@run.keycode()
def train():
    return {value}

run.keycode(assay.Logger)
train()
run.finish()
"""


def blobs(project: Project) -> list[bytes]:
    store = FileBlobs(project.code_dir)
    return [store.get(digest) for digest in store.digests()]


@pytest.mark.row("C43")
def test_the_same_code_is_stored_once_and_changed_code_a_second_time(project: Project) -> None:
    def run_script(value: int) -> None:
        script = project.root / "script.py"
        script.write_text(SCRIPT.format(value=value))
        environment = {**os.environ, "PYTHONPATH": str(SRC)}
        subprocess.run([sys.executable, str(script)], cwd=project.root, env=environment, check=True)

    def stored() -> int:
        return sum(data.startswith(b"@run.keycode()\ndef train") for data in blobs(project))

    run_script(1)
    count = len(blobs(project))
    run_script(1)
    assert (stored(), len(blobs(project))) == (1, count)
    run_script(2)
    assert stored() == 2

    keys = [run_file.read(folder.path).newest.code.keys for folder in run_folders(project)]
    assert [sorted(each) for each in keys] == [["__main__.train", "assay.record.logger.Logger"]] * 3
    assert len({each["__main__.train"] for each in keys}) == 2
    assert len({each["assay.record.logger.Logger"] for each in keys}) == 1


def test_key_code_may_be_a_module_and_what_has_no_source_is_refused(project: Project) -> None:
    with start(project) as run:
        assert run.keycode(json) is json
        with pytest.raises(InputError, match="cannot be read"):
            run.keycode(len)

    keys = run_file.read(folder_of(run).path).newest.code.keys
    assert list(keys) == ["json"]


# ---------------------------------------------------------------------------------------------------------- four exits

EXITS = """
import os, signal, sys, time
import assay
run = assay.start(project=".", keep_output=False)
(run.watch("save") / "a.txt").write_text("x")
run.log({"loss": 0.5}, 1)
print("ready", flush=True)
if sys.argv[1] == "error":
    raise ValueError("broken")
if sys.argv[1] != "normal":
    time.sleep(60)
"""


@pytest.mark.row("C44", "C41")
@pytest.mark.parametrize(
    ("how", "status", "reason", "code"),
    [
        ("normal", "finished", "", 0),
        ("error", "failed", "ValueError: broken", 1),
        ("SIGINT", "stopped", "SIGINT", -signal.SIGINT),
        ("SIGTERM", "stopped", "SIGTERM", 143),
        ("SIGKILL", "killed", "", -signal.SIGKILL),
    ],
)
def test_however_a_script_ends_its_record_says_so(
    project: Project, how: str, status: str, reason: str, code: int
) -> None:
    (project.root / "exits.py").write_text(EXITS)
    with subprocess.Popen(
        [sys.executable, "exits.py", how],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        if how.startswith("SIG"):
            script.send_signal(getattr(signal, how))
        assert script.wait(60) == code

    listed = subprocess.run(
        [sys.executable, "-m", "assay", "ls", "--json"],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = json.loads(listed.stdout)
    (folder,) = run_folders(project)
    assert row["status"] == status
    assert run_file.read(folder.path).newest.reason == reason
    if status != "killed":
        assert files_left(folder)["save/a.txt"].sha256 == hashlib.sha256(b"x").hexdigest()
