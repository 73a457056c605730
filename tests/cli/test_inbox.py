"""`assay inbox`: what finished, what died and why; read once, and never in a record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.core.facts import Ended, Evaluated, Started, Warned
from assay.formats.run_file import Best
from assay.store.layout import Project
from cli.conftest import Assay
from run_folders import hold_lease, make_run, tell_now

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no such column\n'


@pytest.fixture(autouse=True)
def own_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.row("A40")
def test_each_end_of_a_run_is_one_line_with_its_cause(project: Project, assay: Assay) -> None:
    ends = {
        "good": Ended(status="finished", step=3),
        "bad": Ended(
            status="failed", step=3, reason="ValueError: no such column", traceback=TRACEBACK
        ),
        "wild": Ended(status="failed", step=3, reason="The loss is not finite (nan) at step 3."),
    }
    for tag, end in ends.items():
        tell_now(make_run(project, tag=tag, status=end.status), end)

    said = assay("inbox")

    assert said.code == 0
    for words in (
        ["finished", "good"],
        ["failed", "bad", "no such column"],
        ["nan", "wild", "step 3"],
    ):
        assert any(all(word in line for word in words) for line in said.lines), (words, said.out)
    assert 'File "train.py", line 3' in said.out


def test_a_message_is_new_once(project: Project, assay: Assay) -> None:
    tell_now(make_run(project, tag="good"), Ended(status="finished", step=3))

    assert "good" in assay("inbox", "--keep").out
    assert "good" in assay("inbox").out
    assert "good" not in assay("inbox").out
    assert "good" in assay("inbox", "--all").out


def test_a_run_that_was_killed_or_resumed_says_so(project: Project, assay: Assay) -> None:
    hold_lease(make_run(project, tag="dead", ran_s=None), pid=2**22 - 3)
    tell_now(
        make_run(project, tag="back"),
        Started(attempt=1, step=0),
        Started(attempt=2, step=7),
        Ended(status="finished", step=9),
    )

    found = {
        (each["kind"], each["tag"]) for each in json.loads(assay("inbox", "--json", "--keep").out)
    }

    assert {("killed", "dead"), ("resumed", "back"), ("finished", "back")} <= found


def test_a_disk_that_is_full_is_its_own_kind(project: Project, assay: Assay) -> None:
    tell_now(
        make_run(project, tag="full"),
        Warned(message="The disk is full: metrics are kept in memory.", step=3),
    )

    kinds = [each["kind"] for each in json.loads(assay("inbox", "--json", "--keep").out)]

    assert kinds == ["disk full"]


def test_what_was_read_is_kept_for_the_user_and_in_no_record(
    project: Project, assay: Assay, tmp_path: Path
) -> None:
    folder = make_run(project, tag="good")
    tell_now(folder, Ended(status="finished", step=3))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    assay("inbox")

    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert list((tmp_path / "data").rglob("inbox.json"))


def test_a_message_holds_what_was_true_when_it_was_made(project: Project, assay: Assay) -> None:
    folder = make_run(
        project,
        tag="back",
        points={"acc": [0.5, 0.9]},
        best=Best(metric="acc", mode="max", value=0.9, step=2),
    )
    for attempt, value in ((1, 0.5), (2, 0.9)):
        tell_now(
            folder,
            Started(attempt=attempt, step=attempt - 1),
            Evaluated(split="valid", step=attempt, metrics={"acc": value}),
            Ended(status="finished", step=attempt),
        )

    ends = [line for line in assay("inbox").lines if "finished after" in line]

    assert sorted(line.rpartition("acc ")[2].split()[0] for line in ends) == ["0.5", "0.9"]
