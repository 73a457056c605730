"""Choice of the part that updates, when a process has its own and a config has settings for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from assay.core.errors import InputError
from assay.engine import MultiOptimizerStep, OptimizerStep, Supervised, WarmupCosine
from assay.engine.loop.styles.adapt import as_process
from assay.engine.optim.optimizer_step_base import OptimizerStepBase
from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep
from engine.toys import net

SCHEDULE = WarmupCosine(warmup_steps=2)


def made(
    given: Callable[[Any], OptimizerStepBase],
    own: Callable[[Any], OptimizerStepBase] = OptimizerStep,
) -> tuple[Any, Any]:
    """A process with a part of its own, given another one of the same optimizer; and that part."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    part = given(optimizer)
    return as_process(Supervised(model, nn.MSELoss(), backward=own(optimizer)), backward=part), part


class OwnKind(OptimizerStep):
    """A part of the user's."""


@pytest.mark.parametrize(
    "given",
    [
        lambda optimizer: OptimizerStep(optimizer, clip_norm=0.5),
        lambda optimizer: OptimizerStep(optimizer, schedule=SCHEDULE),
        lambda optimizer: OptimizerStep(optimizer, non_finite="skip"),
        lambda optimizer: OptimizerStep(optimizer, weights={"a": 2.0}),
        ScaledOptimizerStep,
        OwnKind,
        lambda optimizer: OptimizerStep(optimizer),
    ],
    ids=["clip_norm", "schedule", "non_finite", "weights", "fp16", "another kind", "nothing"],
)
def test_a_plain_part_of_a_process_gives_way_to_that_of_the_config(
    given: Callable[[Any], OptimizerStepBase],
) -> None:
    process, part = made(given)

    assert process.backward is part


def test_so_does_one_of_several_optimizers() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    optimizers = {name: torch.optim.SGD(model[name].parameters(), lr=0.1) for name in model}
    process = Supervised(
        model,
        None,
        backward=MultiOptimizerStep(
            {name: OptimizerStep(each) for name, each in optimizers.items()}
        ),
    )
    given = MultiOptimizerStep(
        {name: OptimizerStep(each, clip_norm=1.0) for name, each in optimizers.items()},
        every={"a": 2},
    )

    assert as_process(process, backward=given).backward is given


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        (
            lambda optimizer: OptimizerStep(optimizer, clip_norm=0.5, non_finite="skip"),
            "clip_norm, non_finite",
        ),
        (lambda optimizer: OptimizerStep(optimizer, schedule=SCHEDULE), r"\[schedule\]"),
        (lambda optimizer: OptimizerStep(optimizer, weights={"a": 2.0}), r"\[backward.weights\]"),
        (ScaledOptimizerStep, 'precision = "fp16"'),
        (OwnKind, r"\[backward\] OwnKind"),
    ],
)
def test_settings_that_a_part_with_settings_of_its_own_would_lose_are_refused(
    given: Any, lost: str
) -> None:
    with pytest.raises(
        InputError, match=f"Supervised makes its own OptimizerStep, which knows nothing of {lost}"
    ) as caught:
        made(given, lambda optimizer: OptimizerStep(optimizer, clip_norm=0.1))

    assert "take an argument `backward`" in caught.value.fix


def test_a_part_with_settings_stays_where_the_config_has_none_or_the_same() -> None:
    for given in (OptimizerStep, lambda optimizer: OptimizerStep(optimizer, clip_norm=0.1)):
        process, part = made(given, lambda optimizer: OptimizerStep(optimizer, clip_norm=0.1))
        assert process.backward is not part and process.backward.clip_norm == 0.1


def test_an_optimizer_of_its_own_beside_that_of_the_config_is_refused() -> None:
    model = net()
    process = Supervised(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))

    with pytest.raises(InputError, match="makes an optimizer of its own"):
        as_process(process, backward=OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.2)))
