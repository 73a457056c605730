"""Two ranks with half of a model each do what one process does, and share its checkpoints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.errors import InputError
from assay.engine import OptimizerStep
from engine.parallel.launching import answers, close, script
from warm_python import Run

SCRIPT = Path(__file__).with_name("pipeline_cases.py")
cases = script("pipeline_cases", SCRIPT)
NORM = re.compile("(grad|weight)_norm/")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, warm: Run) -> list[dict[str, Any]]:
    """What the first and the last process of a pipeline gave in every case, all in one launch."""
    return answers(SCRIPT, tmp_path_factory.mktemp("pipeline"), 2, warm=warm)


def alone(name: str) -> Any:
    return json.loads(json.dumps(getattr(cases, name)()))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.row("E50")
@pytest.mark.parametrize("name", [case.__name__ for case in cases.SAME])
def test_a_pipeline_trains_records_and_keeps_what_one_process_does(
    name: str, pipeline: list[Any]
) -> None:
    first, last = (each[name] for each in pipeline)

    close(first, alone(name))
    assert last["points"] == [point for point in first["points"] if not NORM.match(point[0])]
    assert last["counts"] == first["counts"]


def test_what_is_watched_in_a_pipeline_is_the_whole_model_once() -> None:
    found = alone("watched")

    assert {name for name, _, _ in found["points"] if NORM.match(name)} == {
        f"{kind}/{module}"
        for kind in ("grad_norm", "weight_norm")
        for module in ("inward", "outward", "blocks.0.0", "blocks.1.0", "blocks.2.0")
    }
    names = {"blocks.0.0", "blocks.1.0", "blocks.2.0", "outward"}
    assert found["kept"].keys() == {
        "probe/step-000000001.safetensors",
        "probe/step-000000003.safetensors",
    }
    assert {
        at.partition("#")[0].partition("<")[0]
        for at in found["kept"]["probe/step-000000001.safetensors"]
    } == names
    assert alone("scaled")["scaler"] == {"scale": 2.0**15, "since": 4, "overflows": 1}


@pytest.mark.slow
def test_each_stage_writes_and_reads_its_own_weights_and_sends_none_of_them(
    pipeline: list[Any],
) -> None:
    first, last = (each["saved"] for each in pipeline)

    for each in (first, last):
        assert each["is whole"] and each["goes on"]
        assert each["read"] == each["own"]
        assert each["sent"] == [1]  # of the listener, whose state belongs to no weight
        assert each["logbook"] == [3.0, 3.0, 3.0]  # that of the first rank
        assert each["steps"] == [6, 6]
    assert first["written"] == first["own"]
    assert last["written"] == sorted({*last["own"]} - {"inward.weight"})  # the first has it too
    assert {*first["own"]} & {*last["own"]} == {"inward.weight"}


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_on_one_stage_stops_all_with_their_weights_as_before(
    pipeline: list[Any],
) -> None:
    first, last = (each["spoilt"] for each in pipeline)

    assert first.splitlines()[0] == alone("spoilt").splitlines()[0]
    assert first.splitlines()[1] == "  at:  gradients that are not finite: inward.bias"
    assert last.splitlines()[0] == first.splitlines()[0]


@pytest.mark.slow
@pytest.mark.row("E23")
def test_labels_are_on_the_last_stage_only_and_inputs_on_the_first(pipeline: list[Any]) -> None:
    first, last = (each["placed"] for each in pipeline)

    assert [first["seen"], last["seen"]] == [["x"], ["y"]]
    close({**first, "seen": ["x", "y"]}, alone("placed"))


@pytest.mark.slow
def test_a_pipeline_with_dropout_goes_on_to_the_same_bits(pipeline: list[Any]) -> None:
    found = pipeline[0]["resumed"]

    assert found["gone on"] == found["whole"]
    assert (
        found["whole"] != alone("resumed")["whole"]
    )  # it draws other numbers than one process does


@pytest.mark.slow
def test_a_teacher_with_the_names_of_the_model_and_a_criterion_go_on_as_the_last_stage_left_them(
    pipeline: list[Any],
) -> None:
    first, last = (each["taught"] for each in pipeline)

    close(first["points"], json.loads(json.dumps(cases.taught_alone())))
    for each in (first, last):
        assert each["model"][0] == each["model"][1]
    assert last["process"][0] == last["process"][1]
    assert last["criterion"][0] == last["criterion"][1] != 0


@pytest.mark.slow
def test_an_evaluation_through_a_pipeline_is_that_of_one_process_on_every_stage(
    pipeline: list[Any],
) -> None:
    expected = alone("evaluated")

    for found in pipeline:
        close(found["evaluated"], expected)
    assert expected["samples"] == [21]


@pytest.mark.slow
def test_a_process_that_calls_its_model_twice_says_so_and_the_other_stage_does_not_wait(
    pipeline: list[Any],
) -> None:
    first, last = (each["twice"] for each in pipeline)

    assert "Twice calls its model a second time" in last
    assert first.startswith("PeerError: Another stage of the pipeline ended")


def test_sums_by_name_are_refused_by_who_hands_his_loss_on() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    backward = OptimizerStep(torch.optim.SGD([weight]))
    backward.gradients.hand_on = [].append
    backward.begin([1, 1])

    with pytest.raises(
        InputError, match=r"which a pipeline cannot differentiate one after another"
    ):
        backward({"one": (weight.sum(), 2)})
