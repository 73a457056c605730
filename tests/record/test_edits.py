"""What people say afterwards is added, never replaced."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from assay.core.directory import open_directory
from assay.core.errors import ConflictError, InputError, RecordError
from assay.formats.event_log import read_edits, read_lines
from assay.formats.run_file import Attempt, RunFile
from assay.record import edits, readme
from assay.store.layout import RunFolder

FIRST = Attempt(number=1, started_ns=0, host="here", status="running")


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


def test_a_label_is_put_on_and_taken_off_once(folder: RunFolder) -> None:
    edits.add_labels(folder, ["good", " good", "kept"])
    edits.add_labels(folder, ["good"])
    edits.remove_labels(folder, ["absent", "kept"])

    assert [(edit.key, edit.new) for edit in read_edits(folder.edits)] == [
        ("good", True),
        ("kept", True),
        ("kept", False),
    ]


def test_of_many_who_describe_a_run_at_once_one_is_kept_and_all_others_are_told(
    folder: RunFolder,
) -> None:
    edits.describe(folder, "before", title="run")
    seen = readme.readme_revision("before")
    begin = threading.Barrier(8)
    kept, refused = [], []

    def save(text: str) -> None:
        begin.wait()
        try:
            edits.describe(folder, text, title="run", revision=seen)
            kept.append(text)
        except ConflictError as error:
            assert "meanwhile" in str(error)
            refused.append(text)

    savers = [threading.Thread(target=save, args=(f"text {i}",)) for i in range(8)]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join()

    assert len(kept) == 1 and len(refused) == 7
    assert folder.readme.read_text(encoding="utf-8") == f"# run\n\n{kept[0]}\n"


def test_a_description_that_is_saved_while_a_run_writes_its_facts_is_kept(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFile(id="kq3f", kind="train", created_ns=0, attempts=(FIRST,))
    readme.write_first(folder.readme, run, "before")
    block = readme._block
    saver = threading.Thread(
        target=edits.describe, args=(folder, "what I found"), kwargs={"title": "run"}
    )

    def while_the_page_is_held(run: RunFile) -> str:
        saver.start()
        saver.join(0.2)  # it waits
        return block(run)

    monkeypatch.setattr(readme, "_block", while_the_page_is_held)
    readme.refresh(folder.readme, replace(run, status="finished"))
    saver.join()

    page = folder.readme.read_text(encoding="utf-8")
    assert "what I found" in page and "finished" in page


def test_a_run_waits_for_nobody_who_holds_its_page_and_a_person_is_told(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readme, "_PATIENCE_S", 0.05)
    run = RunFile(id="kq3f", kind="train", created_ns=0, attempts=(FIRST,))
    readme.write_first(folder.readme, run, "before")

    with open_directory(folder.path) as held, held.alone():
        with pytest.raises(ConflictError, match="Somebody else is changing"):
            edits.describe(folder, "after", title="run")
        with pytest.raises(ConflictError, match="Somebody else is changing"):
            edits.add_labels(folder, ["good"])
        readme.refresh(folder.readme, replace(run, status="finished"))

    assert "finished" in folder.readme.read_text(encoding="utf-8")


def test_a_line_of_which_the_disk_takes_a_part_is_an_error(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))

    with pytest.raises(RecordError, match="the disk is full"):
        edits.note(folder, "looks good")

    monkeypatch.undo()
    edits.note(folder, "looks good")
    assert [edit.new for edit in read_edits(folder.edits)] == ["looks good"]
