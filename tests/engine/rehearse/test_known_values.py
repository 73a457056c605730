"""Values of fake tensors: what follows from the batch and from constants is known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from assay.engine.optim.losses import read_now
from assay.engine.rehearse.fake import Fakes, is_fake, is_unfakeable
from assay.engine.rehearse.known_values import Values
from assay.engine.rehearse.observer import Observer

LENGTHS = torch.tensor([3, 1, 2])
MASK = torch.tensor([[True, False, True], [False, False, True]])


@pytest.fixture
def values() -> Iterator[Values]:
    """Values in use: tensors made in the test are fake."""
    found = Values(Fakes())
    with found.fakes.use(), Observer(found):
        yield found


def unknown(*shape: int) -> Tensor:
    return torch.empty(*shape, 20_000)[..., 0]


def test_a_batch_that_is_only_declared_has_no_values(values: Values) -> None:
    declared = values.give(torch.empty(4, 3, device="meta"))

    assert is_fake(declared) and values.of(declared) is None
    assert values.of(declared * 2) is None


def test_what_follows_from_labels_is_known(values: Values) -> None:
    lengths = values.give(LENGTHS)

    mask = torch.arange(4).unsqueeze(0) < lengths.unsqueeze(1)

    assert is_fake(mask) and mask.shape == (3, 4)
    assert mask.sum().item() == 6 and int(lengths.max()) == 3
    assert mask.nonzero().shape == (6, 2)
    assert lengths.tolist() == [3, 1, 2]
    assert torch.unique(lengths).shape == (3,)
    assert torch.repeat_interleave(lengths).shape == (6,)


def test_a_known_mask_gives_known_shapes_of_what_is_unknown(values: Values) -> None:
    mask = values.give(MASK)
    hidden = unknown(2, 3)

    assert hidden[mask].shape == (3,)
    assert hidden.masked_select(mask).shape == (3,)
    assert torch.empty(2, 3, 30_000)[mask].shape == (3, 30_000)


def test_what_depends_on_a_weight_is_not_known(values: Values) -> None:
    hidden = unknown(3)

    for read in (hidden.sum().item, (hidden > 0).nonzero, lambda: bool(hidden.any())):
        with pytest.raises(Exception) as caught:
            read()
        assert is_unfakeable(caught.value)


def test_a_value_that_is_written_over_is_forgotten_also_in_its_views(values: Values) -> None:
    known = torch.zeros(4)
    view = known[:2]
    assert view.sum().item() == 0

    known[1:].copy_(unknown(3))

    for tensor in (known, view):
        with pytest.raises(Exception) as caught:
            tensor.sum().item()
        assert is_unfakeable(caught.value)


def test_a_value_that_is_written_by_known_ones_stays_known(values: Values) -> None:
    known = torch.zeros(4, dtype=torch.int64)
    known[1:3] = 5
    known.add_(torch.ones(4, dtype=torch.int64))

    assert known.tolist() == [1, 6, 6, 1]


def test_rates_that_a_constructor_reads_are_known(values: Values) -> None:
    assert [rate.item() for rate in torch.linspace(0, 1, 3)] == [0.0, 0.5, 1.0]


def test_a_number_that_assay_reads_itself_is_one_with_which_training_goes_on(
    values: Values,
) -> None:
    loss = unknown(1)[0]

    assert read_now(loss) == 1.0
    assert values.guessed == 1
