"""Only a regular file is read as one: no pipe blocks, no link is followed, memory is bounded."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core.regular_file import (
    FileTooLargeError,
    NotRegularFileError,
    open_regular,
    read_bytes,
    read_start,
)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a path of a socket is short


KINDS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": listening,
    "a folder": os.mkdir,
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a device": lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5)),  # /dev/zero
}


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND | os.O_CREAT])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_at_once_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, flags: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.json"
    try:
        KINDS[kind](path)
    except PermissionError:
        pytest.skip("only root makes devices")

    with pytest.raises(NotRegularFileError, match=f"it is {kind}, not a file") as caught:
        open_regular(path, flags)

    assert caught.value.filename == str(path)


def test_a_link_is_followed_on_request_only_and_then_to_a_file_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-pipe").symlink_to("pipe")

    assert read_bytes(tmp_path / "to-file", 10, follow=True) == b"data"
    with pytest.raises(NotRegularFileError, match="a link"):
        read_bytes(tmp_path / "to-file", 10)
    with pytest.raises(NotRegularFileError, match="a named pipe"):
        read_bytes(tmp_path / "to-pipe", 10, follow=True)


def test_a_file_that_is_larger_than_its_limit_is_not_read_and_its_size_is_told(
    tmp_path: Path,
) -> None:
    sparse = tmp_path / "1.rows"
    with open(sparse, "wb") as file:
        file.truncate(2 * 10**12)

    with pytest.raises(
        FileTooLargeError, match="it has 2 TB, and at most 64 kB are read"
    ) as caught:
        read_bytes(sparse, 64_000)

    assert caught.value.errno == errno.EFBIG
    assert read_start(sparse, 5) == bytes(5)


def test_a_file_is_read_whole_up_to_its_limit_and_from_an_open_folder(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(data)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert read_bytes("file", len(data), dir_fd=descriptor) == data
    finally:
        os.close(descriptor)

    assert read_bytes(tmp_path / "file", len(data)) == data
    assert read_start(tmp_path / "file", 2 << 20) == data[: 2 << 20]
    assert read_start(tmp_path / "file", 9 << 20) == data
    with pytest.raises(FileTooLargeError):
        read_bytes(tmp_path / "file", len(data) - 1)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "absent", 1)


def test_a_file_that_says_no_size_is_read_up_to_its_limit() -> None:
    """As those of /proc do."""
    assert b"Name:" in read_bytes("/proc/self/status", 100_000)
    with pytest.raises(FileTooLargeError):
        read_bytes("/proc/self/status", 10)
