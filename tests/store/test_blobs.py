"""Blobs in files; what every store of blobs keeps to is in tests/contract."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from assay.core.errors import RecordError
from assay.store.blobs import FileBlobs


def test_a_blob_that_was_changed_on_disk_is_not_handed_out(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    digest = blobs.put(b"true")
    blobs.path(digest).chmod(0o644)
    blobs.path(digest).write_bytes(b"false")

    with pytest.raises(RecordError, match="damaged"):
        blobs.get(digest)


def test_a_kept_file_is_read_only_and_leaves_no_temporary(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)

    digest = blobs.put(b"data")

    assert blobs.path(digest).stat().st_mode & 0o777 == 0o400, (
        "as open as the folder, which is the test's own"
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [blobs.path(digest)]


def test_the_same_bytes_put_by_many_threads_at_once_are_kept_once(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    barrier = threading.Barrier(8)

    def put() -> None:
        barrier.wait()
        blobs.put(bytes(1_000_000))

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (digest,) = blobs.digests()
    assert blobs.get(digest) == bytes(1_000_000)


def test_files_that_are_no_blobs_are_not_listed(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    digest = blobs.put(b"x")
    (blobs.path(digest).parent / ".half.tmp").write_bytes(b"")
    (tmp_path / "stat.json").write_bytes(b"{}")

    assert list(blobs.digests()) == [digest]


def test_where_no_folder_can_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Exception, match="The file cannot be kept"):
        FileBlobs(tmp_path / "file").put(b"x")
