"""Trees of code in a store of blobs."""

from __future__ import annotations

import pytest

from assay.core.errors import RecordError
from assay.core.ports import MemoryBlobs
from assay.store.code_trees import CodeFile, put_tree, read_file, read_tree


def test_a_tree_comes_back_with_its_files() -> None:
    blobs = MemoryBlobs()
    files = {
        "b.py": CodeFile(digest=blobs.put(b"b")),
        "ä/\n.py": CodeFile(digest=blobs.put(b"a"), mode=0o755),
    }

    digest = put_tree(blobs, files)

    assert read_tree(blobs, digest) == files
    assert read_file(blobs, digest, "ä/\n.py") == b"a"


def test_the_same_files_in_another_order_are_the_same_tree() -> None:
    blobs = MemoryBlobs()
    a, b = CodeFile(digest="1" * 64), CodeFile(digest="2" * 64)

    assert put_tree(blobs, {"a": a, "b": b}) == put_tree(blobs, {"b": b, "a": a})


def test_a_name_that_is_no_utf8_survives() -> None:
    blobs = MemoryBlobs()

    digest = put_tree(blobs, {"\udcff.py": CodeFile(digest="1" * 64)})

    assert list(read_tree(blobs, digest)) == ["\udcff.py"]


def test_code_that_is_not_here_is_a_key_error() -> None:
    blobs = MemoryBlobs()
    tree = put_tree(blobs, {})

    with pytest.raises(KeyError):
        read_tree(blobs, "0" * 64)
    with pytest.raises(KeyError):
        read_file(blobs, tree, "nowhere.py")


@pytest.mark.parametrize(
    "data", [b"not json", b"[]", b'{"format": 99, "files": {}}', b'{"files": {"a": 1}}']
)
def test_a_blob_that_is_no_tree_we_can_read_is_refused(data: bytes) -> None:
    blobs = MemoryBlobs()

    with pytest.raises(RecordError):
        read_tree(blobs, blobs.put(data))
