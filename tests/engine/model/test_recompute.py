"""Recomputed activations give equal gradients, draws and statistics, and take less memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine import Loader
from assay.engine.model.compiling import recompute
from assay.engine.model.modules import blocks_of
from engine.toys import engine, hard_net, points, same_bits, supervised, weights_of


class Block(nn.Module):
    """What makes recomputing hard: dropout and running statistics."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.norm, self.drop = (
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.Dropout(0.3),
        )

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x + scale * self.drop(torch.tanh(self.norm(self.up(x))))  # type: ignore[no-any-return]


class Deep(nn.Module):
    def __init__(self, width: int = 4, depth: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)  # type: ignore[no-any-return]


def trained(model: nn.Module, which: Any, **given: Any) -> dict[str, Any]:
    recompute(model, which)
    engine(supervised(model, **given), Loader(points(24), batch_size=8, accumulate=2)).run()
    return weights_of(model)


@pytest.mark.row("E35")
@pytest.mark.parametrize("which", [True, "blocks", ["blocks.0", "blocks.2"], ["*"], "head"])
def test_weights_and_statistics_are_the_same_bits(which: Any) -> None:
    assert same_bits(trained(Deep(), which), trained(Deep(), False))
    assert same_bits(trained(hard_net(), True), trained(hard_net(), False))


@pytest.mark.row("E35")
def test_what_is_kept_for_backward_is_less() -> None:
    def kept_bytes(which: Any) -> int:
        model, kept = Deep(width=16, depth=6), []

        def pack(tensor: Tensor) -> Tensor:
            kept.append(tensor.untyped_storage().nbytes())
            return tensor

        recompute(model, which)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(torch.randn(64, 16)).sum()
        inside = sum(kept)
        loss.backward()
        return inside

    assert kept_bytes(True) < 0.5 * kept_bytes(False)


def test_it_is_told_what_is_recomputed_and_names_of_weights_stay() -> None:
    model = Deep()
    names = list(model.state_dict())

    assert recompute(model, True) == ["blocks.0", "blocks.1", "blocks.2"]
    assert list(model.state_dict()) == names
    assert recompute(Deep(), False) == []


def test_in_evaluation_nothing_is_computed_twice() -> None:
    calls = []
    model = Deep()
    model.blocks[0].up.register_forward_hook(lambda *_: calls.append(1))
    recompute(model, True)

    model.eval()(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():
        model.train()(torch.ones(2, 4))
    assert len(calls) == 2
    model(torch.ones(2, 4)).sum().backward()
    assert len(calls) == 4


def test_a_copy_recomputes_itself_and_not_the_first() -> None:
    model = Deep()
    recompute(model, True)
    other = copy.deepcopy(model)
    nn.init.zeros_(other.blocks[0].up.weight)

    other(torch.ones(2, 4)).sum().backward()

    assert all(weight.grad is None for weight in model.parameters())
    assert other.blocks[0].up.weight.grad is not None


def test_a_pattern_that_fits_no_module_is_an_error() -> None:
    with pytest.raises(InputError, match="no module of the model is called 'block\\.0'") as caught:
        recompute(Deep(), ["block.0"])

    assert caught.value.fix == "did you mean `blocks.0`?"


def test_blocks_are_the_outermost_that_are_repeated() -> None:
    inner = nn.Sequential(Deep(), Deep())

    assert list(blocks_of(Deep())) == ["blocks.0", "blocks.1", "blocks.2"]
    assert list(blocks_of(inner)) == ["0", "1"]
    assert list(blocks_of(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)))) == ["0", "2"]
    assert list(blocks_of(nn.Linear(1, 1))) == [""]
