"""The list of known projects."""

from __future__ import annotations

from pathlib import Path

from assay.store.known_projects import known_file, known_projects, remember
from assay.store.layout import open_project


def test_projects_are_remembered_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "b"):
        remember(open_project(tmp_path / name, create=True).root)

    assert known_projects() == [tmp_path / "b", tmp_path / "a"]


def test_projects_that_are_gone_are_passed_over(tmp_path: Path) -> None:
    remember(tmp_path / "never")

    assert known_projects() == []


def test_the_list_lies_in_the_users_data_folder(home: Path) -> None:
    assert known_file() == home / ".local/share/assay/projects.txt"
    assert known_projects() == []


def test_a_path_with_a_line_end_is_not_written_into_the_list(tmp_path: Path) -> None:
    remember(open_project(tmp_path / "a\nb", create=True).root)

    assert not known_file().exists()
