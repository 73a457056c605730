"""What is named in an open folder stays in it, whatever is put into its place meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from assay.core.directory import (
    LinkedFolderError,
    create_file,
    discard,
    make_directory,
    open_directory,
)
from assay.core.regular_file import NotRegularFileError


def mode_of(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_a_link_to_a_folder_is_no_folder_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()

    with pytest.raises(LinkedFolderError, match="it is a link, not a folder"):
        open_directory(tmp_path / "link")
    with pytest.raises(LinkedFolderError, match="it is a file, not a folder"):
        open_directory(tmp_path / "file")
    with (
        open_directory(tmp_path / "link", follow=True) as folder,
        open_directory(tmp_path) as above,
    ):
        assert [entry.name for entry in folder.entries()] == []
        with pytest.raises(LinkedFolderError, match="a link"):
            above.folder("link")
        with pytest.raises(FileNotFoundError):
            above.folder("absent")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_a_name_is_the_name_of_an_entry_and_no_path(tmp_path: Path, name: str) -> None:
    with open_directory(tmp_path) as folder:
        for use in (
            folder.open,
            folder.folder,
            folder.remove,
            folder.status,
            folder.make_read_only,
        ):
            with pytest.raises(ValueError, match="no name of an entry"):
                use(name)


def test_a_file_is_replaced_whole_and_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").symlink_to(victim)

    with open_directory(tmp_path / "run") as folder:
        folder.write("run.json", b"new")
        assert folder.read("run.json", 10) == b"new"
        (tmp_path / "run" / "edits.jsonl").symlink_to(victim)
        with pytest.raises(NotRegularFileError):
            folder.open("edits.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    assert victim.read_bytes() == b"mine"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["edits.jsonl", "run.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with open_directory(tmp_path) as folder, pytest.raises(OSError, match="directory"):
        folder.write("sub", b"data")  # a folder is in its place

    assert [path.name for path in tmp_path.iterdir()] == ["sub"]


def test_what_is_made_is_as_open_as_the_folder_it_is_made_in_and_umask_narrows_it(
    tmp_path: Path,
) -> None:
    before = os.umask(0)
    try:
        for mode, umask, folder_mode, file_mode in (
            (0o700, 0o022, 0o700, 0o600),
            (0o770, 0o002, 0o770, 0o660),
            (0o770, 0o022, 0o750, 0o640),
            (0o770, 0o077, 0o700, 0o600),
            (0o755, 0o022, 0o755, 0o644),
        ):
            os.umask(0)
            place = tmp_path / f"{mode:o}-{umask:o}"
            place.mkdir(mode)
            os.umask(umask)
            make_directory(place / "a" / "b")
            with open_directory(place) as folder:
                folder.folder("c", create=True).close()
                folder.write("file", b"")
                os.close(folder.open("other", os.O_WRONLY | os.O_CREAT))
            os.close(create_file(place / "third"))
            folders = {mode_of(path) for path in place.rglob("*") if path.is_dir()}
            files = {mode_of(path) for path in place.rglob("*") if path.is_file()}
            assert (folders, files) == ({folder_mode}, {file_mode})
    finally:
        os.umask(before)


def test_removing_follows_no_link_and_goes_as_deep_as_there_are_folders(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_bytes(b"mine")
    trash = tmp_path / "trash"
    trash.mkdir()
    before = os.getcwd()
    os.chdir(trash)
    try:
        for _ in range(1050):  # deeper than Python calls itself, longer than a path may be
            os.mkdir("deep")
            os.chdir("deep")
        os.symlink(outside, "link")
    finally:
        os.chdir(before)
    (trash / "link").symlink_to(outside)
    (trash / "deep" / "file").touch()

    with open_directory(trash) as folder:
        assert [name for name, _ in folder.files()] == ["deep/file"]
        folder.remove("deep")
        folder.remove("link")

    assert list(trash.iterdir()) == []
    assert (outside / "mine").read_bytes() == b"mine"
    discard(trash)
    discard(tmp_path / "absent")
    assert not trash.exists()


def test_a_folder_swapped_for_a_link_while_it_is_removed_takes_nothing_else_with_it(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    for i in range(20):
        (outside / "sub" / f"mine-{i}").touch()
    trash = tmp_path / "trash"
    trash.mkdir()
    over = threading.Event()

    def swap() -> None:
        """Replace a folder that is being emptied by a link to `outside`, again and again."""
        while not over.is_set():
            for path in (trash / "run" / "sub", trash / "run"):
                with contextlib.suppress(OSError):
                    path.rename(tmp_path / "away")
                    path.symlink_to(outside)
                    path.unlink()
                    (tmp_path / "away").rename(path)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        with open_directory(trash) as folder:
            for i in range(80):
                made = tmp_path / f"made-{i}"
                (made / "sub").mkdir(parents=True)
                for j in range(5):
                    (made / "sub" / f"file-{j}").touch()
                with contextlib.suppress(OSError):
                    made.rename(trash / "run")
                for entry in list(folder.entries()):
                    with contextlib.suppress(OSError):  # it is something else by now
                        folder.remove(entry.name)
    finally:
        over.set()
        swapper.join()

    assert len(list((outside / "sub").glob("mine-*"))) == 20
