"""Windows of micro-batches from anything that can be iterated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from assay.core.errors import InputError
from assay.engine import Engine
from assay.engine.data.adopt import as_source
from assay.engine.data.loader import Loader
from assay.engine.data.source import Replayed, Source, Window
from engine.toys import supervised


def batches_of(*sizes: int) -> list[torch.Tensor]:
    return [torch.full((size,), float(i)) for i, size in enumerate(sizes)]


def numbers(windows: Iterator[Window]) -> list[list[float]]:
    """The number of each batch, window by window."""
    return [[float(batch[0]) for batch in window.batches] for window in windows]


class Stream(IterableDataset[torch.Tensor]):
    """A stream whose length nobody knows."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(6.0))


def test_a_batch_is_a_window_of_its_own_unless_several_are_asked_for() -> None:
    first, second = Replayed(batches_of(4, 2)).windows(0, 0)

    assert (first.samples, first.sizes) == (4, None)
    assert (second.samples, second.sizes) == (2, None)
    assert torch.equal(second.batches[0], torch.ones(2))


def test_several_batches_make_a_window_with_the_size_of_each_and_the_last_may_be_short() -> None:
    source = Replayed(batches_of(4, 4, 2), accumulate=2)

    windows = list(source.windows(0, 0))

    assert [(window.samples, window.sizes) for window in windows] == [(8, [4, 4]), (2, [2])]
    assert source.steps_per_epoch == len(windows)


@given(st.integers(0, 20), st.integers(1, 5), st.integers(0, 25))
def test_going_on_in_the_middle_skips_the_windows_before(
    count: int, accumulate: int, start: int
) -> None:
    source = Replayed(batches_of(*[1] * count), accumulate=accumulate)

    assert numbers(source.windows(0, start)) == numbers(source.windows(0, 0))[start:]
    assert len(list(source.windows(0, 0))) == source.steps_per_epoch


def test_data_with_an_epoch_of_its_own_is_told_which_one_it_is() -> None:
    class PerEpoch:
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[torch.Tensor]:
            yield torch.full((1,), float(self.epoch))

    source = Replayed(PerEpoch())

    assert [numbers(source.windows(epoch, 0)) for epoch in (0, 5)] == [[[0.0]], [[5.0]]]


def test_what_can_be_gone_through_only_once_is_refused_for_a_second_epoch() -> None:
    source = Replayed(iter(batches_of(1, 1)))

    assert len(list(source.windows(0, 0))) == 2
    with pytest.raises(InputError, match="once only"):
        source.windows(1, 0)


@pytest.mark.parametrize(
    "data",
    [(batch for batch in batches_of(1)), DataLoader(Stream(), batch_size=2)],
    ids=["generator", "loader"],
)
def test_the_length_of_a_stream_is_unknown(data: Any) -> None:
    source = as_source(data)

    assert source.steps_per_epoch is None
    assert next(source.windows(0, 0)).samples in (1, 2)


def test_a_data_loader_of_torch_counts_its_batches() -> None:
    source = as_source(DataLoader(batches_of(*[1] * 5), batch_size=2), accumulate=2)

    assert source.steps_per_epoch == 2
    assert [window.samples for window in source.windows(0, 0)] == [4, 1]


def test_a_source_is_taken_as_it_is_and_says_how_exact_it_is() -> None:
    loader = Loader(torch.arange(4.0), batch_size=2)  # type: ignore[arg-type]

    assert as_source(loader) is loader
    assert isinstance(loader, Source)
    assert loader.exactness() == "exact (plan)"
    assert as_source([]).exactness() == "exact (a list)"


def test_how_many_batches_make_a_window_is_said_in_one_place() -> None:
    loader = Loader(torch.arange(4.0), batch_size=2)  # type: ignore[arg-type]

    with pytest.raises(InputError, match="belongs to the Loader"):
        as_source(loader, accumulate=2)
    with pytest.raises(InputError, match="accumulate is 0"):
        as_source([], accumulate=0)


def test_what_is_gone_through_again_is_told_with_what_it_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[int] = []

    class Slow:
        def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for number in range(5):
                seen.append(number)
                yield torch.randn(2, 4), torch.randn(2, 2)

    runs = Engine(supervised(), Slow())
    runs.state.step = runs.state.epoch_step = 3
    assert runs.source.exactness() == "not tried (replayed)"

    with caplog.at_level("WARNING", logger="assay"):
        runs.run()

    assert seen == [0, 1, 2, 3, 4] and runs.state.step == 5
    (record,) = caplog.records
    told = r"data\.train: the 3 steps of this epoch before were gone through again, in \d+\.\d s"
    assert re.fullmatch(told, record.getMessage())
