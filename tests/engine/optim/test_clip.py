"""Clipping by norm: the bits of torch's own, and hands off what is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.optim.clip import clip_norm_, clip_norm_on_device_

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def parameter_with(grad: Tensor | None) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(torch.zeros(1) if grad is None else grad))
    parameter.grad = None if grad is None else grad.clone()
    return parameter


def clipped(grads: list[Tensor | None], max_norm: float) -> tuple[float, list[Tensor | None]]:
    parameters = [parameter_with(grad) for grad in grads]
    norm = clip_norm_(parameters, max_norm)
    return norm, [parameter.grad for parameter in parameters]


def clipped_by_torch(
    grads: list[Tensor | None], max_norm: float
) -> tuple[float, list[Tensor | None]]:
    parameters = [parameter_with(grad) for grad in grads]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return float(norm), [parameter.grad for parameter in parameters]


def bits(grads: list[Tensor | None]) -> list[list[int] | None]:
    return [None if grad is None else grad.reshape(-1).view(torch.uint8).tolist() for grad in grads]


def assert_as_torch(grads: list[Tensor | None], max_norm: float) -> None:
    norm, ours = clipped(grads, max_norm)
    expected, theirs = clipped_by_torch(grads, max_norm)
    assert norm == expected
    assert bits(ours) == bits(theirs)


@given(
    st.lists(st.tuples(shapes, st.booleans()), min_size=1, max_size=6),
    st.sampled_from([*DTYPES, None]),
    st.one_of(st.floats(1e-4, 1e3), st.sampled_from([0.0, math.inf])),
    st.floats(-3, 2),  # above, the norm of 16 bits overflows
    st.integers(0, 1 << 32),
)
def test_gradients_are_clipped_to_the_bits_of_torch(
    parameters: list[tuple[tuple[int, ...], bool]],
    dtype: torch.dtype | None,
    max_norm: float,
    scale: float,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    grads: list[Tensor | None] = []
    for number, (shape, has_grad) in enumerate(parameters):
        grad = torch.randn(shape, generator=generator) * 10**scale
        grads.append(grad.to(dtype or DTYPES[number % 4]) if has_grad else None)

    assert_as_torch(grads, max_norm)


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_the_limit_itself_rounding_is_that_of_torch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    for limit in (
        (torch.rand(200, generator=generator, dtype=torch.float64) + 0.05).to(dtype).tolist()
    ):
        for below in (0.0, 0.98e-6, 1e-6, 1.02e-6, 1e-3):
            assert_as_torch([torch.tensor([limit - below], dtype=torch.float64).to(dtype)], limit)


def test_gradients_far_below_the_limit_stay_bit_for_bit() -> None:
    grads: list[Tensor | None] = [torch.tensor([3.0, 4.0])]

    norm, after = clipped(grads, 100.0)

    assert norm == 5.0
    assert bits(after) == bits(grads)


def test_gradients_above_the_limit_have_it_afterwards_in_the_same_memory() -> None:
    parameter = parameter_with(torch.tensor([30.0, 40.0]))
    grad = parameter.grad
    assert grad is not None

    assert clip_norm_([parameter], 1.0) == 50.0

    assert parameter.grad is grad
    assert grad.tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("other", [torch.float32, torch.float64])
def test_gradients_whose_norm_is_not_finite_stay_as_they_are(
    bad: float, other: torch.dtype
) -> None:
    grads: list[Tensor | None] = [torch.tensor([1.0, bad]), torch.tensor([2.0], dtype=other)]

    norm, after = clipped(grads, 0.1)

    assert not math.isfinite(norm)
    assert bits(after) == bits(grads)


def test_without_gradients_the_norm_is_nothing() -> None:
    assert clip_norm_([], 1.0) == 0.0
    assert clipped([None, None], 1.0) == (0.0, [None, None])


def test_parameters_may_come_from_a_generator_that_is_gone_through_once() -> None:
    parameters = [
        parameter_with(torch.tensor([3.0])),
        parameter_with(torch.tensor([4.0], dtype=torch.float64)),
    ]

    assert clip_norm_((parameter for parameter in parameters), 1.0) == 5.0

    assert [
        float(parameter.grad) for parameter in parameters if parameter.grad is not None
    ] == pytest.approx([0.6, 0.8])


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()

    with pytest.raises(InputError, match="Sparse gradients cannot be clipped"):
        clip_norm_(embedding.parameters(), 1.0)


@pytest.mark.parametrize("spoil", [1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("max_norm", [0.1, 2.0, 1e6])
@pytest.mark.parametrize("kinds", [[torch.float32, torch.float32], [torch.float32, torch.float64]])
def test_on_a_device_it_is_the_same_bits_without_a_number_being_read(
    spoil: float, max_norm: float, kinds: list[torch.dtype]
) -> None:
    def grads() -> list[torch.Tensor]:
        draw = torch.Generator().manual_seed(0)
        parameters = [torch.nn.Parameter(torch.zeros(5, dtype=kind)) for kind in kinds]
        for parameter in parameters:
            parameter.grad = torch.randn(5, generator=draw).to(parameter.dtype)
        assert parameters[0].grad is not None
        parameters[0].grad[2] *= spoil
        return list(parameters)

    one, other = grads(), grads()

    norm = clip_norm_on_device_(one, max_norm)

    assert str(float(norm)) == str(clip_norm_(other, max_norm))
    for first, second in zip(one, other, strict=True):
        assert first.grad is not None and second.grad is not None
        assert (
            first.grad.tolist()[:2] == second.grad.tolist()[:2]
            and first.grad.tolist()[3:] == second.grad.tolist()[3:]
        )
