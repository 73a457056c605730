"""Every criterion of torch adds up over micro-batches, ranks and evaluation as over one batch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.nn.modules import loss

from engine.parallel.launching import answers, close, script
from warm_python import Run

SCRIPT = Path(__file__).with_name("criteria.py")
criteria = script("parallel_criteria", SCRIPT)

pytestmark = pytest.mark.filterwarnings(
    "ignore:reduction. 'mean' divides the total loss:UserWarning"
)


@cache
def whole(name: str) -> Any:
    """What comes of batches that are not divided."""
    return json.loads(json.dumps(criteria.trained(name)))


def test_every_criterion_of_torch_is_tried() -> None:
    known = {each for each in dir(nn) if each in loss.__all__} | {"AdaptiveLogSoftmaxWithLoss"}

    assert {name.partition(" ")[0] for name in criteria.CASES} == known


@pytest.mark.parametrize("name", criteria.CASES)
def test_micro_batches_and_batches_of_an_evaluation_count_as_one_large_batch(name: str) -> None:
    close(criteria.trained(name, micro=4), whole(name))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, warm: Run) -> list[Any]:
    return answers(SCRIPT, tmp_path_factory.mktemp("criteria"), 2, warm=warm)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", criteria.CASES)
def test_two_ranks_count_as_one_process(name: str, ranks: list[Any]) -> None:
    for found in ranks:
        close(found[name], whole(name))
