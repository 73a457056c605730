"""What assay keeps for a user, beside the projects, is open to nobody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.store.authorship import digest_of_secret
from assay.store.job_journal import JobJournal
from assay.store.known_projects import remember
from assay.store.layout import Project
from assay.store.read_marks import mark
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
    "the marks of messages": lambda root: mark(Project(root), [("a", 1)]),
    "the secret of the page": lambda _: kept_secret(),
    "the queue": lambda _: JobJournal(),
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
