"""What assay keeps for a user, beside the projects, is open to nobody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.config.settings import Globals
from assay.store.authorship import digest_of_secret
from assay.store.job_journal import JobJournal
from assay.store.known_projects import forget, known_file, remember
from assay.store.layout import Project, make_project
from assay.store.read_marks import mark_read
from assay.web.access import kept_secret


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DATA", "STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))
    (tmp_path / "home").mkdir()
    (tmp_path / "project" / ".assay").mkdir(parents=True)
    return tmp_path / "home"


WRITERS: dict[str, Callable[[Path], object]] = {
    "the key": lambda _: digest_of_secret("hunter2"),
    "the list of projects": remember,
    "the marks of messages": lambda root: mark_read(Project(root), [("a", 1)]),
    "the secret of the page": lambda _: kept_secret(),
    "the queue": lambda _: JobJournal().close(),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_no_other_user_may_enter_a_folder_that_is_made_for_this_one(
    writer: str, umask: int, home: Path
) -> None:
    before = os.umask(umask)
    try:
        WRITERS[writer](home.parent / "project")
    finally:
        os.umask(before)

    folders = [path for path in home.rglob("*") if path.is_dir()]
    assert folders
    # A key that others may move away is as good as one that they wrote.
    assert {stat.S_IMODE(path.lstat().st_mode) for path in folders} == {0o700}


FILES: dict[str, Callable[[Path], Path]] = {
    "settings of a new project": lambda home: make_project(home / "new").settings,
    "settings that are changed": lambda home: changed_settings(make_project(home / "new")),
    "settings of the user": lambda home: set_globally("a"),
    "the list of projects": lambda home: listed(home / "new"),
    "the list of projects, shorter": lambda home: forgotten(home / "new"),
}


def changed_settings(project: Project) -> Path:
    project.settings.chmod(0o666)  # as an earlier version left it
    Globals(project.root).update("local", "a", 1)
    return project.settings


def set_globally(name: str) -> Path:
    Globals().update("global", name, 1)
    return Globals().glob_fn


def listed(root: Path) -> Path:
    remember(root)
    return known_file()


def forgotten(root: Path) -> Path:
    remember(root)
    forget([root])
    return known_file()


@pytest.mark.parametrize("kind", FILES)
def test_nobody_else_writes_or_reads_what_names_commands_packages_and_places(
    kind: str, home: Path
) -> None:
    (home / "new").mkdir()
    before = os.umask(0)
    try:
        file = FILES[kind](home)
    finally:
        os.umask(before)

    assert oct(stat.S_IMODE(file.stat().st_mode)) == "0o600"


def test_settings_that_share_runs_with_the_group_are_the_groups_too(
    home: Path,
) -> None:
    project = make_project(home.parent / "project")
    project.settings.write_text('permissions = "group"\n')
    before = os.umask(0o002)
    try:
        Globals(project.root).update("local", "a", 1)
    finally:
        os.umask(before)

    assert oct(stat.S_IMODE(project.settings.stat().st_mode)) == "0o660"
