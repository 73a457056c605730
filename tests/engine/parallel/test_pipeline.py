"""Two processes with half of a model each do what one process does, and one checkpoint fits both."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.errors import InputError
from assay.engine import Backward

SCRIPT = Path(__file__).with_name("pipeline_cases.py")
spec = importlib.util.spec_from_file_location("pipeline_cases", SCRIPT)
assert spec is not None and spec.loader is not None
cases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cases)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the first and the last process of a pipeline gave in every case, all in one launch."""
    folder = tmp_path_factory.mktemp("pipeline")
    command = [sys.executable, str(SCRIPT), str(folder)]
    running = [
        subprocess.Popen([*command, str(rank), "2"], stderr=subprocess.PIPE, text=True, errors="replace")
        for rank in range(2)
    ]
    try:
        told = [each.communicate(timeout=100)[1] for each in running]
    finally:
        for each in running:
            each.kill()
    if any(each.returncode for each in running):
        pytest.exit("\n".join(told), 1)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def alone(name: str) -> Any:
    return json.loads(json.dumps(getattr(cases, name)()))


def close(found: Any, expected: Any) -> None:
    """Equal, numbers within rounding in double precision."""
    match expected:
        case float():
            assert found == pytest.approx(expected, rel=1e-10, abs=1e-10)
        case dict():
            assert found.keys() == expected.keys()
            for key in expected:
                close(found[key], expected[key])
        case list():
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                close(one, other)
        case _:
            assert found == expected


@pytest.mark.slow
@pytest.mark.row("E50")
@pytest.mark.parametrize("name", [case.__name__ for case in cases.SAME])
def test_a_pipeline_trains_records_and_keeps_what_one_process_does(name: str, pipeline: list[Any]) -> None:
    first, last = (each[name] for each in pipeline)

    close(first, alone(name))
    assert last["points"] == first["points"]
    assert last["counts"] == first["counts"]


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_on_one_stage_stops_all_with_their_weights_as_before(pipeline: list[Any]) -> None:
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
    assert found["whole"] != alone("resumed")["whole"]  # it draws other numbers than one process does


@pytest.mark.slow
def test_an_evaluation_through_a_pipeline_is_that_of_one_process_on_every_stage(pipeline: list[Any]) -> None:
    expected = alone("evaluated")

    for found in pipeline:
        close(found["evaluated"], expected)
    assert expected["samples"] == [21]


@pytest.mark.slow
def test_a_process_that_calls_its_model_twice_says_so_and_the_other_stage_does_not_wait(pipeline: list[Any]) -> None:
    first, last = (each["twice"] for each in pipeline)

    assert "Twice calls its model a second time" in last
    assert first.startswith("PeerError: Another stage of the pipeline ended")


def test_sums_by_name_are_refused_by_who_hands_his_loss_on() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    backward = Backward(torch.optim.SGD([weight]))
    backward.hand_on = [].append
    backward.begin([1, 1])

    with pytest.raises(InputError, match=r"which a pipeline cannot differentiate one after another"):
        backward({"one": (weight.sum(), 2)})
