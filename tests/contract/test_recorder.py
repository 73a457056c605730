"""What every recorder keeps to: the twins of core and the one that writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.core.facts import RunFact, Saved, Started, Warned
from assay.core.ports import MemoryRecorder, NullRecorder, Recorder
from assay.formats.event_log import read_events
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import open_project
from assay.store.series import read_series

Curve = list[tuple[int, float]]


class Subject:
    """A recorder with what it is to be asked afterwards; None for what forgets."""

    def __init__(
        self,
        recorder: Recorder,
        curve: Callable[[str], Curve] | None,
        facts: Callable[[], list[RunFact]] | None,
    ) -> None:
        self.recorder = recorder
        self.curve = curve
        self.facts = facts


@pytest.fixture(params=["null", "memory", "run"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "null":
        yield Subject(NullRecorder(), None, None)
    elif request.param == "memory":
        memory = MemoryRecorder()
        yield Subject(memory, memory.curve, lambda: memory.facts)
    else:
        with start_run(open_project(tmp_path, create=True), AttemptSpec(keep_code=False)) as run:

            def curve(name: str) -> Curve:
                found = read_series(run.folder.metrics).get(name)
                return (
                    []
                    if found is None
                    else list(zip(found.steps.tolist(), found.values.tolist(), strict=True))
                )

            def facts() -> list[RunFact]:
                return [each.fact for each in read_events(run.folder.events)][
                    1:
                ]  # without its own Started

            yield Subject(run, curve, facts)


# The null recorder keeps nothing, and need not check anything.
keepers = pytest.mark.parametrize("subject", ["memory", "run"], indirect=True)


def test_points_come_back_in_the_order_in_which_they_were_logged(subject: Subject) -> None:
    subject.recorder.log({"loss": 2.0, "acc": 0}, 1)
    subject.recorder.log({"loss": 1.0}, 2)
    subject.recorder.log({"acc": 1, "loss": 0.5}, step=3)

    if subject.curve is not None:
        assert subject.curve("loss") == [(1, 2.0), (2, 1.0), (3, 0.5)]
        assert subject.curve("acc") == [(1, 0.0), (3, 1.0)]
        assert subject.curve("other") == []


def test_a_rewind_takes_greater_steps_off_the_curve_and_nothing_else(subject: Subject) -> None:
    for step in range(1, 6):
        subject.recorder.log({"loss": float(step)}, step)

    subject.recorder.rewind(3)
    subject.recorder.log({"loss": 40.0}, 4)

    if subject.curve is not None:
        assert subject.curve("loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]


def test_facts_come_back_in_the_order_in_which_they_were_told(subject: Subject) -> None:
    told: list[RunFact] = [
        Warned(message="hot\nvery"),
        Saved(name="s", kind="best", step=3),
        Started(attempt=2),
    ]

    for fact in told:
        subject.recorder.tell(fact)

    if subject.facts is not None:
        assert subject.facts() == told


def test_bytes_are_kept_under_a_name(subject: Subject) -> None:
    digest = subject.recorder.artifact(b"abc", "probe/step-1.bin")

    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest == ("" if isinstance(subject.recorder, NullRecorder) else known)


@keepers
def test_a_value_that_is_no_number_is_left_out_and_a_warning_names_it(subject: Subject) -> None:
    subject.recorder.log({"good": 1.0, "bad": "1.0"}, 1)  # type: ignore[dict-item]

    assert subject.curve is not None and subject.facts is not None
    assert (subject.curve("good"), subject.curve("bad")) == ([(1, 1.0)], [])
    assert ["'bad'" in fact.message for fact in subject.facts() if isinstance(fact, Warned)] == [
        True
    ]


@keepers
def test_a_value_without_a_name_is_left_out_and_a_warning_says_so(subject: Subject) -> None:
    subject.recorder.log({"": 1.0, "good": 2.0}, 1)

    assert subject.curve is not None and subject.facts is not None
    assert (subject.curve("good"), subject.curve("")) == ([(1, 2.0)], [])
    assert [
        "name has 1 to" in fact.message for fact in subject.facts() if isinstance(fact, Warned)
    ] == [True]
