"""Links planted in a project or a record: nothing is written or deleted at their targets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import InputError
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_attempt, start_run
from assay.store.blobs import FileBlobs
from assay.store.layout import Project
from run_folders import make_run

Assay = Callable[..., Any]
OLD = (1_600_000_000, 1_600_000_000)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the user's: a run, kept code and other files, all of them old."""
    folder = tmp_path / "victim"
    (folder / "261122-0101-kq3fabcd-mine").mkdir(parents=True)
    (folder / "261122-0101-kq3fabcd-mine" / "run.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    FileBlobs(folder).put(b"code that nobody here needs")
    (folder / "stat.json").write_text("{}")
    for path in folder.rglob("*"):
        os.utime(path, OLD)
    return folder


def state_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in sorted(folder.rglob("*"))
    }


def planted(place: Path, to: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        place.rename(place.with_name("moved-away"))
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(to)


def test_gc_deletes_nothing_behind_a_trash_that_is_a_link(
    project: Project, assay: Assay, victim: Path
) -> None:
    project.runs_dir.mkdir()
    planted(project.runs_dir / ".trash", victim)
    before = state_of(victim)

    done = assay("gc")

    assert done.code == 2
    assert "it is a link, not a folder" in done.err and ".trash" in done.err
    assert state_of(victim) == before


def test_gc_deletes_links_in_the_trash_and_not_what_they_lead_to(
    project: Project, assay: Assay, victim: Path
) -> None:
    folder = make_run(project)
    (folder / "checkpoints").symlink_to(victim)
    (folder / "more").symlink_to(victim / "notes.txt")
    linked = project.runs_dir / "261122-0102-kq3fabce-linked"
    linked.symlink_to(victim / "261122-0101-kq3fabcd-mine")
    before = state_of(victim)

    assert assay("rm", "last", "kq3fabce").code == 0
    assert assay("gc").code == 0

    assert state_of(victim) == before
    assert not (project.runs_dir / ".trash" / folder.name).exists()
    assert not os.path.lexists(project.runs_dir / ".trash" / linked.name)


def test_gc_of_code_deletes_nothing_behind_a_store_that_is_a_link(
    project: Project, assay: Assay, victim: Path
) -> None:
    make_run(project)
    planted(project.code_dir, victim)
    before = state_of(victim)

    done = assay("gc", "--code")

    assert "it is a link, not a folder" in done.out + done.err
    assert state_of(victim) == before


def test_gc_of_code_deletes_nothing_behind_links_inside_of_the_store(
    project: Project, assay: Assay, victim: Path
) -> None:
    make_run(project)
    project.code_dir.mkdir(exist_ok=True)
    (blob,) = FileBlobs(victim).digests()
    (project.code_dir / blob[:2]).symlink_to(victim / blob[:2])
    (project.code_dir / "stat.json").symlink_to(victim / "stat.json")
    before = state_of(victim)

    assert assay("gc", "--code").code == 0

    assert state_of(victim) == before


@pytest.mark.parametrize(
    "command",
    [
        ["edit", "last", "--note", "hello"],
        ["edit", "last", "--tag", "other"],
        ["edit", "last", "--label", "good"],
        ["edit", "last", "--archive"],
    ],
)
@pytest.mark.parametrize("place", ["edits.jsonl", "the run's folder"])
def test_nothing_is_said_of_a_run_through_a_link(
    project: Project, assay: Assay, victim: Path, command: list[str], place: str
) -> None:
    folder = make_run(project)
    if place == "edits.jsonl":
        planted(folder / place, victim / "notes.txt")
    else:
        planted(folder, victim)
    before = state_of(victim)

    done = assay(*command)

    assert done.code in (1, 2), done.out
    assert "a link" in done.err
    assert state_of(victim) == before


def test_a_run_is_not_removed_into_a_trash_that_is_a_link(
    project: Project, assay: Assay, victim: Path
) -> None:
    folder = make_run(project)
    planted(project.runs_dir / ".trash", victim)
    before = state_of(victim)

    assert assay("rm", "last").code == 2
    assert assay("rm", "--undo", "kq3fabcd").code == 2

    assert folder.is_dir()
    assert state_of(victim) == before


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints",
        "artifacts",
        "config",
        "files",
        "ranks",
        "board",
        "figures",
        "trace",
        "log.txt",
    ],
)
def test_a_run_is_not_resumed_whose_files_are_links(
    project: Project, victim: Path, name: str
) -> None:
    with start_run(project, AttemptSpec(keep_code=False)) as recorder:
        recorder.log({"loss": 1.0}, 1)
    planted(recorder.folder.path / name, victim / "notes.txt" if "." in name else victim)
    before = state_of(victim)

    with pytest.raises(InputError, match=f"`{name}` of this run is a link"):
        start_attempt(recorder.folder, from_step=1)

    assert state_of(victim) == before
    assert not recorder.folder.lease.exists()


@pytest.mark.parametrize("target", ["../../victim", "../checkpoints/../../..", "/etc"])
def test_a_run_is_not_resumed_whose_link_to_a_checkpoint_leads_elsewhere(
    project: Project, target: str
) -> None:
    with start_run(project, AttemptSpec(keep_code=False)) as recorder:
        recorder.log({"loss": 1.0}, 1)
    (recorder.folder.path / "checkpt").mkdir()
    (recorder.folder.path / "checkpt" / "best").symlink_to(target)

    with pytest.raises(InputError, match="`checkpt/best` of this run is a link"):
        start_attempt(recorder.folder, from_step=1)


def test_code_is_not_kept_behind_a_store_that_is_a_link(project: Project, victim: Path) -> None:
    (project.root / "model.py").write_text("x = 1\n")
    planted(project.code_dir, victim)
    before = state_of(victim)

    with start_run(project) as recorder:
        pass

    assert recorder.run.newest.code.snapshot == ""
    assert "The code could not be kept" in recorder.folder.events.read_text()
    assert state_of(victim) == before
