"""Training under another default dtype of torch: float64, float16's scaler, deferred numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from assay.engine.loop.engine import Engine
from assay.engine.loop.process import Supervised
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep

STEPS = 4


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    points = torch.rand(STEPS, 8, 3, generator=draw)
    return [(x, x.sum(1, keepdim=True)) for x in points]


def model() -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(3, 1)


def trained_by_hand(clip_norm: float | None, *, fused: bool) -> torch.Tensor:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=fused)
    for x, y in batches():
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimizer.step()
    return net.weight.detach()


@pytest.mark.parametrize("non_finite", ["stop", "skip", "ignore"])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("kind", [OptimizerStep, ScaledOptimizerStep])
def test_a_run_in_float64_trains_as_a_loop_by_hand_does(
    kind: type[OptimizerStep], deferred: bool, clip_norm: float | None, non_finite: Any
) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=deferred)
    step = kind(optimizer, clip_norm=clip_norm, non_finite=non_finite)

    Engine(
        Supervised(net, F.mse_loss, backward=step), batches(), steps=STEPS, deferred=deferred
    ).run()

    torch.testing.assert_close(
        net.weight.detach(), trained_by_hand(clip_norm, fused=deferred), rtol=1e-9, atol=1e-12
    )
