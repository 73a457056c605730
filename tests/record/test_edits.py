"""What people say afterwards is added, never replaced."""

from __future__ import annotations

import getpass
import subprocess
import sys
import time
from pathlib import Path

import pytest

from assay.core.errors import InputError
from assay.core.event_log import read_edits, read_lines
from assay.record import edits
from assay.store.layout import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_an_edit_tells_who_when_and_what_was_before(folder: RunFolder) -> None:
    edits.retag(folder, "new", old="old")

    (edit,) = read_edits(folder.edits)
    assert (edit.what, edit.new, edit.old, edit.who) == ("tag", "new", "old", getpass.getuser())
    assert abs(edit.at_ns - time.time_ns()) < 60e9


def test_every_edit_is_one_more_line(folder: RunFolder) -> None:
    edits.note(folder, "first\nwith two lines")
    edits.note(folder, "second")
    edits.add_labels(folder, ["good", "paper"])
    edits.remove_labels(folder, [" good "])

    assert [(edit.what, edit.key, edit.new) for edit in read_edits(folder.edits)] == [
        ("note", "", "first\nwith two lines"),
        ("note", "", "second"),
        ("label", "good", True),
        ("label", "paper", True),
        ("label", "good", False),
    ]


@pytest.mark.parametrize("text", ["a/b", "x" * 10_000, "‮evil", "\ud800", '{"json": 1}', "\0"])
def test_text_is_data(folder: RunFolder, text: str) -> None:
    edits.note(folder, text)

    (edit,) = read_edits(folder.edits)
    assert edit.new == text


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_notes_and_labels_are_refused(folder: RunFolder, text: str) -> None:
    with pytest.raises(InputError, match="empty"):
        edits.note(folder, text)
    with pytest.raises(InputError, match="empty"):
        edits.add_labels(folder, [text])

    assert not folder.edits.exists()


def test_a_run_that_is_not_there_gets_no_edits(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run"):
        edits.note(RunFolder(tmp_path / "nowhere"), "x")


def test_a_line_that_was_cut_off_does_not_spoil_the_next(folder: RunFolder) -> None:
    folder.edits.write_bytes(b'{"fact":"edit","what":"no')

    edits.note(folder, "whole")

    assert [edit.new for edit in read_edits(folder.edits)] == ["whole"]


def test_edits_of_several_processes_at_once_are_all_kept(folder: RunFolder) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from assay.record import edits; from assay.store.layout import RunFolder\n"
        "for i in range(200): edits.note(RunFolder(Path(sys.argv[1])), sys.argv[2] * 500 + str(i))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(folder.path), name]) for name in "abcd"
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]

    lines = read_lines(folder.edits)
    assert lines.unreadable == 0
    assert sorted(line["new"] for line in lines.objects) == sorted(
        name * 500 + str(i) for name in "abcd" for i in range(200)
    )
