"""Early stop: when it gives up, and that a run which goes on gives up at the same step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import InputError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import EarlyStop, Engine, Evaluate, Save, Saver
from assay.engine.checkpoint.folder import load_parts
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import engine, loader, same_bits, supervised


class Scripted:
    """A metric that says at each step what it was told to say."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values
        self.step = 0

    def reset(self) -> None: ...

    def update(self, output: Any) -> None: ...

    def value(self) -> float:
        return self.values[self.step - 1]


def watched(
    values: Sequence[float], stop: EarlyStop, *, folder: Path | None = None
) -> tuple[Engine, MemoryRecorder]:
    """Engine of one step an epoch, with an evaluation of two splits after each.

    With a folder, each epoch's state is saved.
    """
    metric, recorder = Scripted(values), MemoryRecorder()
    runs = engine(
        supervised(metrics={"acc": metric}), loader(8), epochs=len(values), recorder=recorder
    )

    @runs.on("eval_begin")
    def _(state: Any) -> None:
        metric.step = state.step if state.split == "valid" else 1

    runs.bus.extend(Evaluate({"other": loader(4), "valid": loader(4)}).handlers())
    if folder is not None:
        runs.bus.extend(Save(Saver(folder, keep=99)).handlers())
    runs.bus.extend(stop.handlers())
    return runs, recorder


@pytest.mark.parametrize(
    ("values", "given", "steps"),
    [
        ([1, 2, 3, 4], {"mode": "max", "patience": 1}, 4),
        ([1, 2, 2, 4], {"mode": "max", "patience": 1}, 3),
        ([3, 2, 1, 1, 1, 0], {"mode": "min", "patience": 2}, 5),
        ([3, 2, 2, 1, 2, 2, 0], {"mode": "min", "patience": 2}, 6),
        ([1, 1.05, 1.09, 5], {"mode": "max", "patience": 2, "min_delta": 0.1}, 3),
        ([1, 1.2, 1.4], {"mode": "max", "patience": 1, "min_delta": 0.1}, 3),
        ([1.0, 0.95, 0.89, 0.8], {"mode": "min", "patience": 2, "min_delta": 0.1}, 4),
        ([math.nan, math.nan, 3, 4], {"mode": "max", "patience": 2}, 2),
        ([1, math.nan, 2, math.nan, math.nan, 3], {"mode": "max", "patience": 2}, 5),
        ([-math.inf, 1, 1, 1], {"mode": "max", "patience": 1}, 3),
    ],
)
def test_it_stops_after_so_many_evaluations_without_a_better_one(
    values: list[float], given: dict[str, Any], steps: int
) -> None:
    runs, _ = watched(values, EarlyStop("valid/acc", **given))

    state = runs.run()

    assert state.step == steps
    assert bool(state.stop.reason) == (steps < len(values))


def test_the_reason_says_what_was_waited_for() -> None:
    runs, _ = watched([0.5, 0.25, 0.25], EarlyStop("valid/acc", "max", patience=2))

    state = runs.run()

    assert (
        state.stop.reason
        == "early stop: valid/acc was not better than 0.5 (step 1) in 2 evaluations"
        " (patience 2)"
    )


VALUES = [1.0, 3.0, 2.0, 2.5, 2.0, 2.0, 9.0]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_run_that_goes_on_stops_where_it_would_have_stopped(step: int, tmp_path: Path) -> None:
    whole, _ = watched(VALUES, EarlyStop("valid/acc", "max", patience=3), folder=tmp_path / "whole")
    whole.run()
    assert whole.state.step == 5

    resumed, recorder = watched(
        VALUES, EarlyStop("valid/acc", "max", patience=3), folder=tmp_path / "resumed"
    )
    restore(resumed, load_parts(tmp_path / "whole" / f"step-{step:09d}"))
    resumed.run()

    assert resumed.state.stop.reason == whole.state.stop.reason
    assert same_bits(capture_state(resumed), capture_state(whole))
    told = [fact.message for fact in recorder.facts if isinstance(fact, Warned)]
    assert not [message for message in told if "metric acc.step" not in message]  # it is scripted


def test_more_patience_lets_a_stopped_run_go_on(tmp_path: Path) -> None:
    whole, _ = watched(VALUES, EarlyStop("valid/acc", "max", patience=3), folder=tmp_path)
    whole.run()

    resumed, _ = watched(VALUES, EarlyStop("valid/acc", "max", patience=5))
    restore(resumed, load_parts(tmp_path / "step-000000005"))

    assert resumed.run().step == 7
    assert not resumed.state.stop.reason


def test_what_was_seen_of_another_metric_does_not_count(tmp_path: Path) -> None:
    whole, _ = watched(VALUES, EarlyStop("valid/acc", "max", patience=3), folder=tmp_path)
    whole.run()
    other = EarlyStop("valid/loss", "min", patience=3)
    resumed, _ = watched(VALUES, other)

    restore(resumed, load_parts(tmp_path / "step-000000005"))

    assert (other.best, other.waited) == (None, 0)


def test_a_checkpoint_without_its_state_is_told_and_one_with_too_much_as_well() -> None:
    plain, _ = watched(VALUES, EarlyStop("valid/acc", "max"))
    bare = engine()
    resumed, recorder = watched(VALUES, EarlyStop("valid/acc", "max"))
    other = engine(recorder=MemoryRecorder())

    restore(resumed, {**capture_state(bare)})
    restore(other, capture_state(plain))

    (fact,) = recorder.facts
    assert isinstance(fact, Warned) and "EarlyStop, which begins anew" in fact.message
    (fact,) = other.recorder.facts  # type: ignore[attr-defined]
    assert "EarlyStop, which listens no more" in fact.message


def test_two_of_them_are_kept_apart() -> None:
    runs, _ = watched(VALUES, EarlyStop("valid/acc", "max"))
    second = EarlyStop("valid/loss", "min")
    runs.bus.extend(second.handlers())

    parts = capture_state(runs)

    assert (parts["EarlyStop"]["metric"], parts["EarlyStop.2"]["metric"]) == (
        "valid/acc",
        "valid/loss",
    )
    parts["EarlyStop.2"]["waited"] = 2
    restore(runs, parts)
    assert second.waited == 2


def test_a_metric_that_is_not_given_is_named_with_its_neighbour() -> None:
    runs, _ = watched(VALUES, EarlyStop("valid/ac", "max"))

    with pytest.raises(InputError, match="did you mean `valid/acc`"):
        runs.run()


def test_a_split_that_is_never_evaluated_is_a_warning_at_the_end() -> None:
    runs, recorder = watched([1.0, 2.0], EarlyStop("vaild/acc", "max"))

    runs.run()

    assert [fact.message for fact in recorder.facts if isinstance(fact, Warned)] == [
        "EarlyStop watches 'vaild/acc', and no split of that name was evaluated."
    ]


@pytest.mark.parametrize(
    "given", [{"patience": 0}, {"min_delta": -1.0}, {"min_delta": math.nan}, {"mode": "best"}]
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(given))):
        EarlyStop("valid/acc", **{"mode": "max", **given})
