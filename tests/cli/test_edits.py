"""What is said about runs afterwards: notes, labels, titles; and putting runs away."""

from __future__ import annotations

import pytest

from assay.store.layout import Project
from run_folders import hold_lease, make_run

from .conftest import Assay


@pytest.fixture
def run(project: Project) -> str:
    make_run(project, id="aaaaaaaa", tag="first", age_s=100)
    make_run(project, id="bbbbbbbb", tag="second", age_s=50)
    return "aaaaaaaa"


@pytest.mark.row("A17")
def test_a_note_is_added_found_and_kept_with_those_before(assay: Assay, run: str) -> None:
    assert assay("edit", run, "--note", "looks good").out == "noted: aaaaaaaa first\n"
    assay("edit", run, "--note", "but overfits")

    assert [line.split()[1] for line in assay("ls", "--grep", "good").lines[1:]] == ["first"]
    assert assay("ls", "--grep", "nothing like it").out == "No run is like that.\n"
    shown = assay("edit", run).out
    assert "  looks good\n" in shown and "  but overfits\n" in shown
    assert assay("edit", "second").out == "bbbbbbbb second: no labels\n"


def test_labels_are_put_on_and_taken_off(assay: Assay, run: str) -> None:
    put_on = assay("edit", run, "--label", "good", "--label", "paper")
    assert put_on.out == "aaaaaaaa first: good, paper\n"
    assert [line.split()[1] for line in assay("ls", "label = paper").lines[1:]] == ["first"]
    assert assay("edit", run, "--unlabel", "paper").out == "aaaaaaaa first: good\n"

    wrong = assay("edit", run, "--unlabel", "god")
    assert wrong.code == 2 and "did you mean `good`?" in wrong.err


def test_without_a_run_the_last_one_is_edited_all_at_once(assay: Assay, run: str) -> None:
    assert assay("edit", "--note", "slow", "--label", "good", "--tag", "third").lines == [
        "noted: bbbbbbbb second",
        "bbbbbbbb second: good",
        "bbbbbbbb: second -> third",
    ]
    assert assay("edit").lines[0] == "bbbbbbbb third: good"


def test_several_runs_have_labels_and_notes_but_no_title_in_common(assay: Assay, run: str) -> None:
    assert len(assay("edit", "age > 1s", "--label", "both").lines) == 2
    refused = assay("edit", "age > 1s", "--tag", "same")
    assert refused.code == 2 and "A title is for one run, not 2." in refused.err
    assert "There is no run `aaab`." in assay("edit", "aaab", "--note", "x").err


@pytest.mark.row("C55")
def test_a_title_can_be_changed_and_found(assay: Assay, run: str) -> None:
    assert assay("edit", run, "--tag", "new title").out == "aaaaaaaa: first -> new title\n"

    assert "new title" in assay("ls", "tag ~ title").out
    assert assay("show", "new title").code == 0


@pytest.mark.row("C55")
def test_an_archived_run_is_listed_on_request(assay: Assay, run: str) -> None:
    assert assay("edit", run, "--archive").out == "archived: aaaaaaaa first\n"
    assert "first" not in assay("ls").out
    assert "first" in assay("ls", "--archived").out

    assert assay("edit", run, "--unarchive").out == "shown again: aaaaaaaa first\n"
    assert "first" in assay("ls").out


@pytest.mark.row("C55")
def test_a_removed_run_comes_back_until_it_is_cleaned_away(
    assay: Assay, project: Project, run: str
) -> None:
    assert assay("rm", "last", "last").out.startswith("removed: bbbbbbbb second")
    assert "second" not in assay("ls").out
    assert assay("rm", "--undo", "bbb").out == "brought back: bbbbbbbb\n"
    assay("rm", "first")

    planned = assay("gc", "--dry-run").out
    assert "would be deleted: " in planned and "would be freed" in planned
    assert "deleted: " in assay("gc").out
    assert assay("gc").out == "There is nothing to clean away.\n"
    wrong = assay("rm", "--undo", "first")
    assert (
        wrong.code == 2
        and "No removed run is called `first`." in wrong.err
        and "fix:" not in wrong.err
    )


def test_a_run_that_trains_is_not_removed(assay: Assay, project: Project) -> None:
    hold_lease(make_run(project, tag="busy", ran_s=None))

    said = assay("rm", "busy")

    assert said.code == 2 and "is being written by process" in said.err


def test_the_index_is_made_anew(assay: Assay, project: Project, run: str) -> None:
    assert assay("gc", "--index").out.startswith("2 runs indexed in ")
