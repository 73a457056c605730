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
    assert assay("note", run, "looks", "good").out == "noted: aaaaaaaa first\n"
    assay("note", run, "but overfits")

    assert [line.split()[1] for line in assay("ls", "--grep", "good").lines[1:]] == ["first"]
    assert assay("ls", "--grep", "nothing like it").out == "No run is like that.\n"
    shown = assay("note", run).out
    assert "  looks good\n" in shown and "  but overfits\n" in shown
    assert assay("note", "second").err == "The run bbbbbbbb has no notes.\n"


def test_labels_are_put_on_and_taken_off(assay: Assay, run: str) -> None:
    assert assay("label", run, "good", "paper").out == "aaaaaaaa first: good, paper\n"
    assert [line.split()[1] for line in assay("ls", "label = paper").lines[1:]] == ["first"]
    assert assay("label", run, "-d", "paper").out == "aaaaaaaa first: good\n"

    wrong = assay("label", run, "-d", "god")
    assert wrong.code == 2 and "did you mean `good`?" in wrong.err


def test_without_a_run_the_last_one_is_edited(assay: Assay, run: str) -> None:
    assert assay("note", "learns slowly").out == "noted: bbbbbbbb second\n"
    assert assay("note", "a = 1 is not enough").out == "noted: bbbbbbbb second\n"
    shown = assay("note").out
    assert "  learns slowly\n" in shown and "  a = 1 is not enough\n" in shown
    assert assay("tag", "third").out == "bbbbbbbb: second -> third\n"
    assay("label", "last", "good")
    assert assay("label").out == "bbbbbbbb third: good\n"
    assert assay("label", "-d", "good").out == "bbbbbbbb third: no labels\n"


def test_a_word_that_may_be_a_run_is_never_taken_for_a_text(assay: Assay, run: str) -> None:
    assert assay("note", "aaaa").err == "The run aaaaaaaa has no notes.\n"
    assert "There is no run `aaab`." in assay("note", "aaab").err
    assert assay("note", "tag = first").err == "The run aaaaaaaa has no notes.\n"
    assert "2 runs fulfil `age > 1s`" in assay("note", "age > 1s").err
    retitled = assay("tag", "last")
    assert (
        retitled.code == 2 and "`last` is the run bbbbbbbb.\n  fix: assay tag last" in retitled.err
    )
    assert 'fix: assay tag last "two words"' in assay("tag", "last", "two", "words").err
    labelled = assay("label", "good")
    assert labelled.code == 2 and "assay label last good puts that label" in labelled.err
    assert assay("label").out == "bbbbbbbb second: no labels\n"


@pytest.mark.row("C55")
def test_a_title_can_be_changed_and_found(assay: Assay, run: str) -> None:
    assert assay("tag", run, "new title").out == "aaaaaaaa: first -> new title\n"

    assert "new title" in assay("ls", "tag ~ title").out
    assert assay("show", "new title").code == 0


@pytest.mark.row("C55")
def test_an_archived_run_is_listed_on_request(assay: Assay, run: str) -> None:
    assert assay("archive", run).out == "archived: aaaaaaaa first\n"
    assert "first" not in assay("ls").out
    assert "first" in assay("ls", "--archived").out

    assert assay("archive", "--undo", run).out == "shown again: aaaaaaaa first\n"
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
    assert assay("reindex").out.startswith("2 runs indexed in ")
