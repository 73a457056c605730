"""Owner of a project: one that another user put above a folder is not used, and named."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from assay.core.errors import InputError
from assay.formats import project as projects
from assay.formats.project import project_root, records_around
from assay.store.layout import find_project, make_project, open_project

NOBODY = 65534
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)


@pytest.fixture(autouse=True)
def nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projects, "_told", set())


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder below one with `.assay/`."""
    make_project(tmp_path)
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_the_nearest_folder_with_the_marker_is_the_project(work: Path, tmp_path: Path) -> None:
    assert project_root(work / "not" / "there") == tmp_path
    make_project(work)
    assert project_root(work) == work


@needs_root
def test_a_project_of_another_user_above_is_not_used_and_that_is_said_once(
    work: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(tmp_path / ".assay", NOBODY, -1)

    with caplog.at_level(logging.WARNING, "assay"):
        assert find_project(work) is None
        assert find_project(work) is None

    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        f"{tmp_path} is not used as a project: {tmp_path}/.assay belongs to nobody."
        f" Set ASSAY_SHARED={tmp_path} if you share it."
    )
    assert open_project(work, create=True).root == work
    with pytest.raises(InputError, match="belongs to nobody"):
        make_project(tmp_path)


@needs_root
def test_a_project_further_above_that_is_ones_own_is_used_instead(work: Path) -> None:
    inner = work / "inner"
    inner.mkdir()
    make_project(work)
    os.chown(work / ".assay", NOBODY, -1)

    assert project_root(inner) == work.parent


@needs_root
def test_a_shared_project_is_used_when_it_is_named_and_in_the_folders_of_its_owner(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path / ".assay", NOBODY, -1)
    monkeypatch.setenv("ASSAY_SHARED", f"/elsewhere{os.pathsep}{tmp_path}")
    assert project_root(work) == tmp_path

    monkeypatch.delenv("ASSAY_SHARED")
    os.chown(work, NOBODY, -1)  # as in a container whose root works in what a user has mounted
    assert project_root(work) == tmp_path


def test_a_marker_that_is_a_link_is_that_of_no_project(work: Path, tmp_path: Path) -> None:
    (tmp_path / ".assay").rename(tmp_path / "elsewhere")
    (tmp_path / ".assay").symlink_to("elsewhere")

    assert project_root(work) is None
    with pytest.raises(InputError, match="is a link"):
        make_project(tmp_path)


def test_a_marker_that_is_a_file_is_that_of_no_project(work: Path, tmp_path: Path) -> None:
    make_project(work)
    (work / ".assay").rename(work / "away")
    (work / ".assay").touch()

    assert project_root(work) == tmp_path


# ------------------------------------------------------------------------------------------------------- among the records


@pytest.mark.parametrize(
    "place",
    [
        "runs/sent",
        "runs/261126-1200-abcdefgh-sent/config",
        "runs/.trash/261126-1200-abcdefgh-sent",
        ".assay/trash/x",
        "copied/here",
    ],
)
def test_no_folder_among_records_is_a_project_whoever_put_it_there(
    work: Path, tmp_path: Path, place: str
) -> None:
    folder = tmp_path / place
    (folder / ".assay").mkdir(parents=True)
    if place.startswith("copied"):
        hidden = " " * 5000 + '{"format": 1, "id": "x", "\\u006bind": "train"}'
        (tmp_path / "copied" / "run.json").write_text(hidden)

    assert project_root(folder) == tmp_path
    assert records_around(folder) is not None
    assert records_around(tmp_path) is None and records_around(work) is None


def test_the_folder_of_runs_is_that_of_the_settings_or_of_the_variable(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "far"):
        (tmp_path / name / "x" / ".assay").mkdir(parents=True)
    (tmp_path / ".assay" / "settings.toml").write_text('runs_dir = "kept"\n')

    assert records_around(tmp_path / "kept" / "x") == tmp_path / "kept"
    assert project_root(tmp_path / "far" / "x") == tmp_path / "far" / "x"
    monkeypatch.setenv("ASSAY_RUNS_DIR", str(tmp_path / "far"))
    assert project_root(tmp_path / "far" / "x") == tmp_path


@pytest.mark.parametrize("runs_dir", [".", "..", "{link}"])
def test_a_variable_that_makes_the_only_project_a_record_is_one_clear_error(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_dir: str
) -> None:
    (tmp_path / "around").symlink_to(tmp_path)
    named = runs_dir.replace("{link}", str(tmp_path / "around"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_RUNS_DIR", named)

    with pytest.raises(InputError) as caught:
        project_root(work)

    assert str(caught.value).startswith(f"{tmp_path} is not used as a project: it lies among")
    assert "the folder of runs by ASSAY_RUNS_DIR" in str(caught.value)
    assert f"at:  ASSAY_RUNS_DIR={named}" in str(caught.value)
    assert f"fix: Unset it, or let it name a folder for runs alone: {tmp_path}/runs" in str(
        caught.value
    )
    monkeypatch.setenv("ASSAY_RUNS_DIR", str(tmp_path / "runs"))
    assert project_root(work) == tmp_path


def test_a_project_that_a_variable_makes_a_record_is_named_where_one_above_it_is_used(
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_project(work / "inner")
    monkeypatch.setenv("ASSAY_RUNS_DIR", str(work))

    with caplog.at_level(logging.WARNING, "assay"):
        assert project_root(work / "inner") == tmp_path

    (said,) = [record.getMessage() for record in caplog.records]
    assert "is not used as a project" in said and "by ASSAY_RUNS_DIR" in said


@pytest.mark.parametrize("place", ["runs/sent", "runs/261126-1200-abcdefgh-sent", ".assay/x"])
def test_no_folder_among_records_becomes_a_project(work: Path, tmp_path: Path, place: str) -> None:
    with pytest.raises(InputError, match="cannot become a project: it lies among the records in"):
        make_project(tmp_path / place)

    assert not (tmp_path / place / ".assay").exists()


def test_a_link_to_a_record_is_no_way_around(work: Path, tmp_path: Path) -> None:
    record = tmp_path / "runs" / "261126-1200-abcdefgh-sent"
    (record / ".assay").mkdir(parents=True)
    (work / "innocent").symlink_to(record)

    assert records_around(work / "innocent") is not None
    assert project_root(work / "innocent") == tmp_path


def test_a_file_that_happens_to_be_called_run_json_makes_no_record(work: Path) -> None:
    make_project(work)
    (work / "run.json").write_text('{"scripts": ["a"]}')

    assert project_root(work) == work


def test_the_work_of_finding_a_project_does_not_explode_with_projects_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth = 12
    folder = tmp_path
    for number in range(depth):
        folder = folder / str(number)
        (folder / ".assay").mkdir(parents=True)
    asked = []
    why_not_ours = projects.why_not_ours

    def count(root: Path, start: Path) -> str:
        asked.append(root)
        return why_not_ours(root, start)

    monkeypatch.setattr(projects, "why_not_ours", count)

    assert project_root(folder) == folder
    assert len(asked) < 3 * depth


@pytest.mark.parametrize("runs_dir", ["a/../sent", "./sent", "sent/"])
def test_a_folder_of_runs_is_known_however_a_setting_spells_it(
    tmp_path: Path, runs_dir: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".assay").mkdir()
    (tmp_path / ".assay" / "settings.toml").write_text(f'runs_dir = "{runs_dir}"\n')
    place = tmp_path / "sent" / "anything"
    (place / ".assay").mkdir(parents=True)

    assert project_root(place) == tmp_path
