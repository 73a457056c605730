"""What every store of blobs keeps to."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from assay.core.ports import Blobs, MemoryBlobs
from assay.store.blobs import FileBlobs


@pytest.fixture(params=["memory", "files"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return (
        MemoryBlobs()
        if request.param == "memory"
        else FileBlobs(tmp_path / "not" / "there" / "yet")
    )


@pytest.mark.parametrize("data", [b"", b"hello", bytes(100_000)])
def test_what_was_put_comes_back_by_its_sha256(blobs: Blobs, data: bytes) -> None:
    digest = blobs.put(data)

    assert digest == hashlib.sha256(data).hexdigest()
    assert blobs.get(digest) == data
    assert digest in blobs


def test_the_same_bytes_are_kept_once(blobs: Blobs) -> None:
    assert blobs.put(b"a") == blobs.put(b"a")
    blobs.put(b"b")

    assert len(list(blobs.digests())) == 2


def test_what_was_never_put_is_not_there(blobs: Blobs) -> None:
    digest = hashlib.sha256(b"never").hexdigest()

    assert digest not in blobs
    assert list(blobs.digests()) == []
    with pytest.raises(KeyError):
        blobs.get(digest)


@pytest.mark.parametrize("text", ["", "abc", "../../etc/passwd", "Z" * 64])
def test_what_is_no_digest_is_not_there(blobs: Blobs, text: str) -> None:
    assert text not in blobs
    with pytest.raises(KeyError):
        blobs.get(text)


def test_bytes_that_are_changed_by_their_owner_afterwards_stay_as_they_were(blobs: Blobs) -> None:
    data = bytearray(b"before")
    digest = blobs.put(data)  # type: ignore[arg-type]

    data[:] = b"after!"

    assert blobs.get(digest) == b"before"
