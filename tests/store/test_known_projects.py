"""The list of known projects."""

from __future__ import annotations

import shutil
from pathlib import Path

from assay.store.known_projects import forget, known_file, known_projects, lost_roots, remember
from assay.store.layout import make_project, open_project


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


def test_a_deleted_project_leaves_the_list_and_one_on_a_disk_that_is_away_stays(
    tmp_path: Path,
) -> None:
    file = tmp_path / "list" / "projects.txt"
    disk = tmp_path / "disk"
    roots = [make_project(folder).root for folder in (tmp_path / "a", disk / "b", tmp_path / "c")]
    for root in roots:
        remember(root, file=file)
    shutil.rmtree(roots[0])
    shutil.rmtree(roots[1])  # the empty mount point stays
    shutil.rmtree(roots[2] / ".assay")  # no project any more, but there

    remember(make_project(tmp_path / "d").root, file=file)

    assert file.read_text().split() == [str(roots[1]), str(roots[2]), str(tmp_path / "d")]
    assert lost_roots(file=file) == roots[1:]


def test_nobody_else_may_read_the_list_whatever_it_was_before(tmp_path: Path) -> None:
    def mode() -> int:
        return known_file().stat().st_mode & 0o777

    remember(open_project(tmp_path / "a", create=True).root)
    assert mode() == 0o600

    known_file().chmod(0o664)
    remember(open_project(tmp_path / "b", create=True).root)
    assert mode() == 0o600

    known_file().parent.chmod(0o755)
    forget([tmp_path / "a"])
    assert mode() == 0o600 and known_projects() == [tmp_path / "b"]


def test_an_older_list_is_made_private_though_nothing_is_added(tmp_path: Path) -> None:
    home = open_project(tmp_path / "a", create=True).root
    remember(home)
    known_file().chmod(0o644)

    remember(home)

    assert known_file().stat().st_mode & 0o777 == 0o600
