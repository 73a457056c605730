"""Code as files again."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.core.errors import InputError, RecordError
from assay.core.ports import MemoryBlobs
from assay.store.code_trees import CodeFile, make_room, write_tree
from assay.store.safe_path import safe_path


def test_files_come_back_with_their_bytes_and_modes(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    files = {
        "a/b.py": CodeFile(digest=blobs.put(b"x\r\n")),
        "run.sh": CodeFile(digest=blobs.put(b"#!"), mode=0o755),
        "/opt/lib/c.py": CodeFile(digest=blobs.put(b"c")),
    }

    write_tree(files, blobs, tmp_path)

    assert (tmp_path / "a/b.py").read_bytes() == b"x\r\n"
    assert (tmp_path / "run.sh").stat().st_mode & 0o111
    assert (tmp_path / "outside/opt/lib/c.py").read_bytes() == b"c"


def test_code_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"a\.py"):
        write_tree({"a.py": CodeFile(digest="0" * 64)}, MemoryBlobs(), tmp_path)


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/x", "", "a//b", "a/./b", "..", "a\\b", "a\0b", "C:/x"]
)
def test_no_name_leads_out_of_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leads out"):
        safe_path(tmp_path, name)


@pytest.mark.row("D27")
def test_what_is_in_the_way_is_moved_away_and_never_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert make_room(folder, force=False) is None
    (folder / "mine.txt").write_text("keep me")

    with pytest.raises(InputError, match="something in this folder"):
        make_room(folder, force=False)
    first = make_room(folder, force=True)
    (folder / "mine.txt").write_text("me too")
    second = make_room(folder, force=True)

    assert first is not None and second is not None
    assert [(path / "mine.txt").read_text() for path in (first, second)] == ["keep me", "me too"]
    assert list(folder.iterdir()) == []
