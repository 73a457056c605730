"""The precision of a forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.core.errors import InputError
from assay.engine.numerics.precision import CHOICES, in_precision, matmul_precision

CPU = torch.device("cpu")


def test_full_precision_costs_nothing() -> None:
    forward = nn.Linear(2, 2).forward

    assert in_precision("fp32", CPU, forward) is forward


@pytest.mark.row("E34")
def test_bf16_is_used_inside_and_nowhere_else() -> None:
    linear = nn.Linear(2, 2)

    def forward(inputs: torch.Tensor, *, twice: bool) -> torch.Tensor:
        """Said once."""
        out: torch.Tensor = linear(inputs)
        return out * 2 if twice else out

    half = in_precision("bf16", CPU, forward)

    assert half(torch.ones(1, 2), twice=True).dtype is torch.bfloat16
    assert linear(torch.ones(1, 2)).dtype is torch.float32
    assert linear.weight.dtype is torch.float32
    assert half.__doc__ == "Said once."


def test_gradients_of_a_bf16_forward_are_those_of_full_precision_weights() -> None:
    linear = nn.Linear(2, 1)

    in_precision("bf16", CPU, linear.forward)(torch.ones(1, 2)).sum().backward()

    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype is torch.float32


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_can_be_chosen(name: str) -> None:
    assert in_precision(name, CPU, torch.sin)(torch.zeros(1)).tolist() == [0.0]


def test_another_precision_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="no precision 'fp4'") as caught:
        in_precision("fp4", CPU, torch.sin)

    assert "fp32, tf32, bf16, fp16" in caught.value.fix


@pytest.mark.row("E34")
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_evaluation_keeps_its_own_precision(name: str) -> None:
    forward, inputs = nn.Linear(2, 2).forward, torch.ones(1, 2)
    trained = in_precision(name, CPU, forward)

    with torch.no_grad():
        assert torch.equal(trained(inputs), forward(inputs))
        asked = in_precision("fp32", CPU, forward, evaluate=name)(inputs)
    assert asked.dtype is trained(inputs).dtype is not torch.float32


def test_products_are_in_tf32_only_inside_and_only_if_asked() -> None:
    def allowed() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = allowed()
    with matmul_precision("tf32"):
        assert allowed() == (True, True)
        with matmul_precision("fp32"):
            assert allowed() == (False, False)
        assert allowed() == (True, True)
    assert allowed() == before

    with pytest.raises(InputError, match="no precision 'tf23'"), matmul_precision("tf23"):
        pass
