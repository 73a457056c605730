"""events.jsonl and edits.jsonl: every line that can be read is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.core.facts import Changed, Ended, Evaluated, RunFact, Saved, Started, Warned
from assay.formats.event_log import (
    Edit,
    Timed,
    edit_line,
    event_line,
    read_edits,
    read_events,
    read_lines,
)

INT = st.integers(0, 2**53)
TEXT = st.text(max_size=20)
FLOAT = st.floats(allow_nan=False)
run_facts = st.one_of(
    st.builds(Started, attempt=INT, step=INT, checkpoint=TEXT),
    st.builds(
        Evaluated,
        split=TEXT,
        step=INT,
        metrics=st.dictionaries(TEXT, FLOAT, max_size=3),
        seconds=FLOAT,
    ),
    st.builds(
        Saved,
        name=TEXT,
        kind=st.sampled_from(["checkpoint", "keypoint", "best", "model"]),
        step=INT,
        best=st.booleans(),
    ),
    st.builds(Changed, what=TEXT, step=INT, before=TEXT, after=TEXT),
    st.builds(Warned, message=TEXT, step=st.none() | INT),
    st.builds(
        Ended,
        status=st.sampled_from(["finished", "failed", "stopped"]),
        step=INT,
        reason=TEXT,
        traceback=TEXT,
    ),
)
edits = st.builds(
    Edit,
    what=st.sampled_from(["note", "label", "tag", "link", "value", "verdict"]),
    new=st.none() | TEXT | st.lists(TEXT, max_size=2),
    old=st.none() | TEXT,
    key=TEXT,
    who=TEXT,
    at_ns=INT,
)
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@same_folder
@given(facts=st.lists(st.tuples(INT, run_facts), max_size=5))
def test_what_was_told_is_read_in_order(tmp_path: Path, facts: list[tuple[int, RunFact]]) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(
        "".join(event_line(fact, at_ns) + "\n" for at_ns, fact in facts), encoding="utf-8"
    )

    assert list(read_events(path)) == [Timed(at_ns=at_ns, fact=fact) for at_ns, fact in facts]


@same_folder
@given(made=st.lists(edits, max_size=5))
def test_edits_are_read_in_order_and_may_take_something_away(
    tmp_path: Path, made: list[Edit]
) -> None:
    path = tmp_path / "edits.jsonl"
    path.write_text("".join(edit_line(edit) + "\n" for edit in made), encoding="utf-8")

    assert list(read_edits(path)) == made


def test_a_line_names_its_kind_its_version_and_its_time() -> None:
    assert json.loads(event_line(Started(attempt=1), 7)) == {
        "fact": "started",
        "v": 1,
        "at_ns": 7,
        "attempt": 1,
        "step": 0,
        "checkpoint": "",
    }


def test_a_last_line_cut_anywhere_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = event_line(Started(attempt=1), 1).encode() + b"\n"
    last = event_line(Ended(status="failed", step=3, reason="größer als Null"), 2).encode()

    for cut in range(1, len(last)):
        path.write_bytes(first + last[:cut])
        assert [timed.fact for timed in read_events(path)] == [Started(attempt=1)]
        assert read_lines(path).unreadable == 1


def test_a_last_line_that_lacks_only_its_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(event_line(Warned(message="hot"), 1))

    assert [timed.fact for timed in read_events(path)] == [Warned(message="hot")]


@pytest.mark.parametrize(
    "line",
    [
        '{"fact":"teleported","v":2,"at_ns":1}',
        '{"fact":"started","v":1,"at_ns":1}',
        '{"fact":"started","v":1,"at_ns":1,"attempt":"one"}',
        '{"fact":"started","v":1,"at_ns":null,"attempt":1}',
        '{"fact":"started","v":1,"at_ns":Infinity,"attempt":1}',
        '{"fact":["started"],"attempt":1}',
        "[1, 2]",
        "half a li",
        "\0\0\0\0",
        "[" * 100_000,
        "",
    ],
)
def test_a_line_that_says_nothing_we_know_is_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events.jsonl"
    good = event_line(Saved(name="step-000000001", kind="best", step=1), 5)
    path.write_text(f"{line}\n{good}\n")

    assert [timed.fact for timed in read_events(path)] == [
        Saved(name="step-000000001", kind="best", step=1)
    ]


def test_a_line_of_a_newer_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"fact":"warned","v":9,"at_ns":3,"message":"hot","degrees":90}\n')

    assert list(read_events(path)) == [Timed(at_ns=3, fact=Warned(message="hot"))]


def test_an_edit_of_another_kind_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "edits.jsonl"
    path.write_text(
        '{"fact":"edit","v":2,"what":"colour","new":"red"}\n'
        + edit_line(Edit(what="tag", new="b"))
        + "\n"
    )

    assert list(read_edits(path)) == [Edit(what="tag", new="b")]


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "none")) == []
    assert list(read_edits(tmp_path / "none")) == []
