"""Fingerprints of tensors: no change that people make by accident is missed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from assay.engine.trace.fingerprint import fingerprint, fold, read_fingerprints

ALGORITHMS: dict[str, Callable[[Tensor], int | Tensor]] = {"crc32": fingerprint, "fold64": fold}


def one_ulp(x: Tensor) -> None:
    x.view(torch.int32)[17] ^= 1


def two_sign_flips(x: Tensor) -> None:
    x[3:5] *= -1


def two_values_swapped(x: Tensor) -> None:
    x[[10, 20]] = x[[20, 10]]


def two_equal_changes(x: Tensor) -> None:
    x.view(torch.int32)[[7, 8]] ^= 1 << 20


def all_negated(x: Tensor) -> None:
    x.neg_()


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize(
    "change",
    [one_ulp, two_sign_flips, two_values_swapped, two_equal_changes, all_negated],
    ids=lambda each: each.__name__,
)
def test_a_change_of_bits_changes_the_fingerprint(
    kind: str, change: Callable[[Tensor], None]
) -> None:
    draw = torch.Generator().manual_seed(0)
    marks = set()
    for _ in range(50):
        before = torch.randn(1000, generator=draw)
        after = before.clone()
        change(after)
        first, second, again = read_fingerprints(
            [ALGORITHMS[kind](each) for each in (before, after, before.clone())]
        )
        assert first == again != second
        marks |= {first, second}
    assert len(marks) == 100


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_equal_pairs_do_not_cancel(kind: str) -> None:
    take = ALGORITHMS[kind]

    assert (
        len(
            set(
                read_fingerprints(
                    [take(torch.zeros(4)), take(torch.ones(4)), take(torch.full((4,), 2.0))]
                )
            )
        )
        == 3
    )


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.uint8, torch.bool, torch.complex64, torch.float64]
)
def test_every_dtype_and_length_has_a_fingerprint(dtype: torch.dtype) -> None:
    for size in (0, 1, 3, 5):
        tensor = torch.ones(size).to(dtype)
        assert read_fingerprints([fingerprint(tensor)]) == read_fingerprints(
            [fingerprint(tensor.clone())]
        )
        assert read_fingerprints([fold(tensor)]) == read_fingerprints([fold(tensor.clone())])


def test_a_view_has_the_fingerprint_of_its_copy_and_a_sparse_tensor_that_of_its_parts() -> None:
    whole = torch.randn(6, 6)
    sparse = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse()
    moved = torch.tensor([[2.0, 0.0], [0.0, 3.0]]).to_sparse()

    assert fingerprint(whole.t()[1:, ::2]) == fingerprint(whole.t()[1:, ::2].clone())
    assert fingerprint(sparse) != fingerprint(moved)


def test_a_large_tensor_is_folded_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1000)
    whole = read_fingerprints([fold(tensor)])

    monkeypatch.setattr("assay.engine.trace.fingerprint._BLOCK", 64)

    assert read_fingerprints([fold(tensor)]) == whole
