"""Gradients that are sent in buckets: what cannot be sent is told, and nothing is sent twice."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.parallel.gradient_buckets import GradientBuckets


@pytest.fixture(autouse=True)
def lone_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def parameters(count: int) -> list[Tensor]:
    return [nn.Parameter(torch.ones(2)) for _ in range(count)]


def train(buckets: GradientBuckets, *losses: Tensor) -> None:
    """Make one window of a backward pass for each loss, all of them counted as the last one."""
    buckets.forget()
    buckets.open()
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    buckets.finish()


def test_a_gradient_that_no_rank_has_is_none_after_the_others_were_summed() -> None:
    first, unused, last = parameters(3)
    buckets = GradientBuckets([[last], [unused], [first]], None)

    for _ in range(2):
        train(buckets, (first * last).sum())

    assert unused.grad is None
    assert first.grad is not None and first.grad.tolist() == [2.0, 2.0]
    assert last.grad is not None and last.grad.tolist() == [2.0, 2.0]


def test_a_gradient_in_pieces_is_an_error_once_the_first_piece_was_sent() -> None:
    first, last = parameters(2)
    buckets = GradientBuckets([[last], [first]], None)
    train(buckets, (first * last).sum())

    with pytest.raises(InputError, match="use_reentrant=False"):
        train(buckets, last.sum(), last.sum())


def test_gradients_that_come_in_pieces_from_the_first_window_on_are_sent_when_all_are_there() -> (
    None
):
    first, last = parameters(2)
    buckets = GradientBuckets([[last], [first]], None)

    for _ in range(2):
        train(buckets, last.sum(), (first + last).sum())

    assert last.grad is not None and last.grad.tolist() == [4.0, 4.0]


def test_gradients_that_are_summed_in_half_precision_arrive_in_their_own_with_its_digits() -> None:
    (parameter,) = parameters(1)
    buckets = GradientBuckets([[parameter]], None, dtype=torch.bfloat16)

    train(buckets, parameter.sum() * 1.003)

    assert parameter.grad is not None and parameter.grad.dtype == torch.float32
    assert parameter.grad.tolist() == [1.0, 1.0]


def test_a_sparse_gradient_is_told_to_be_none_that_is_shared() -> None:
    table = nn.Embedding(3, 2, sparse=True)
    buckets = GradientBuckets([[table.weight]], None)

    with pytest.raises(InputError, match="Sparse gradients are not shared"):
        train(buckets, table(torch.tensor([1])).sum())


def test_buckets_that_are_closed_hear_of_no_backward_pass() -> None:
    (only,) = parameters(1)
    buckets = GradientBuckets([[only]], None)
    buckets.close()
    buckets.open()

    only.sum().backward()  # type: ignore[no-untyped-call]

    assert buckets._awaited == [{only}]


def test_a_parameter_keeps_no_hook_of_buckets_that_are_gone() -> None:
    (parameter,) = parameters(1)
    hooks = [len(hooks_of(parameter))]
    buckets = GradientBuckets([[parameter]], None)
    hooks.append(len(hooks_of(parameter)))

    del buckets
    gc.collect()

    assert [*hooks, len(hooks_of(parameter))] == [0, 1, 0]


def hooks_of(parameter: Tensor) -> Any:
    return getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
