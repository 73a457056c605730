"""Projects and run folders on a real disk."""

from __future__ import annotations

import errno
import os
from datetime import datetime
from pathlib import Path

import pytest

from assay.core.errors import AssayError, InputError, RecordError
from assay.store.layout import (
    Project,
    RunFolder,
    create_run_folder,
    find_project,
    open_project,
    refusal,
    run_folders,
)

CREATED = datetime(2026, 11, 21, 3, 39)


def test_a_project_is_the_nearest_folder_with_assay_at_or_above(tmp_path: Path) -> None:
    outer = open_project(tmp_path, create=True)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find_project(tmp_path / "a" / "b") == Project(tmp_path)
    assert open_project(tmp_path / "a" / "b", create=True).root == outer.root

    (tmp_path / "a" / ".assay").mkdir()

    assert find_project(tmp_path / "a" / "b") == Project(tmp_path / "a")


def test_looking_for_a_project_makes_none(tmp_path: Path) -> None:
    assert find_project(tmp_path) is None
    assert open_project(tmp_path) == Project(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_new_project_says_so_once_and_keeps_all_but_its_settings_out_of_git(
    tmp_path: Path,
) -> None:
    assert open_project(tmp_path, create=True).is_new
    assert not open_project(tmp_path, create=True).is_new

    ignored = (tmp_path / ".assay" / ".gitignore").read_text().splitlines()

    assert ignored[-3:] == ["*", "!.gitignore", "!settings.toml"]
    assert (tmp_path / ".assay" / "settings.toml").exists()


def test_making_a_project_again_keeps_its_settings(tmp_path: Path) -> None:
    (tmp_path / ".assay").mkdir()
    settings = tmp_path / ".assay" / "settings.toml"
    settings.write_text('runs_dir = "elsewhere"\n')

    assert open_project(tmp_path, create=True).runs_dir == tmp_path / "elsewhere"
    assert settings.read_text() == 'runs_dir = "elsewhere"\n'


def test_runs_lie_where_the_variable_says_then_the_settings_then_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = open_project(tmp_path, create=True)
    assert project.runs_dir == tmp_path / "runs"

    project.settings.write_text('runs_dir = "/data/runs"\n')
    assert project.runs_dir == Path("/data/runs")

    monkeypatch.setenv("ASSAY_RUNS_DIR", "here")
    assert project.runs_dir == Path.cwd() / "here"


@pytest.mark.parametrize("text", ["runs_dir = 3", "runs_dir = [", "[runs_dir]"])
def test_settings_that_make_no_sense_are_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    project = open_project(tmp_path, create=True)
    project.settings.write_text(text)

    with pytest.raises(InputError) as caught:
        _ = project.runs_dir

    assert caught.value.where == str(project.settings)


@pytest.mark.row("A30")
def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    project = open_project(tmp_path, create=True)
    create_run_folder(project, run_id="abcdefgh", tag="t", created=CREATED)

    with pytest.raises(InputError, match="something else is in its place"):
        create_run_folder(project, run_id="abcdefgh", tag="t", created=CREATED)


@pytest.mark.parametrize("tag", ["", "a/b", "../..", "\n", "x" * 10_000, "‮", "日本"])
def test_any_tag_gives_a_folder_inside_the_runs(tmp_path: Path, tag: str) -> None:
    project = open_project(tmp_path, create=True)

    folder = create_run_folder(project, run_id="abcdefgh", tag=tag, created=CREATED)

    assert folder.path.parent == project.runs_dir
    assert folder.path.name.startswith("261121-0339-abcdefgh")
    assert folder.id == "abcdefgh"


def test_runs_are_listed_oldest_first_and_what_is_no_run_is_not(tmp_path: Path) -> None:
    project = open_project(tmp_path, create=True)
    assert run_folders(project) == []
    for day, name in ((22, "b"), (21, "c")):
        create_run_folder(project, run_id=name * 8, tag="", created=CREATED.replace(day=day))
    (project.runs_dir / "notes").mkdir()
    (project.runs_dir / "261121-0339-zzzzzzzz").write_text("a file")

    assert [folder.id for folder in run_folders(project)] == ["cccccccc", "bbbbbbbb"]


def test_a_renamed_folder_still_knows_its_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        '{"format": 1, "id": "abcdefgh", "kind": "train", "created_ns": 1}'
    )

    assert RunFolder(tmp_path).id == "abcdefgh"


@pytest.mark.parametrize(
    ("number", "kind", "word"),
    [
        (errno.EACCES, InputError, "no permission"),
        (errno.EROFS, InputError, "read-only"),
        (errno.ENOSPC, RecordError, "the disk is full"),
        (errno.EIO, RecordError, "Input/output error"),
    ],
)
def test_what_the_system_refuses_is_one_sentence(
    number: int, kind: type[AssayError], word: str
) -> None:

    error = refusal(OSError(number, os.strerror(number)), Path("/runs/x"), "It cannot be written")

    assert isinstance(error, kind)
    assert error.what.startswith("It cannot be written: ")
    assert word in error.what
    assert error.where == "/runs/x"
