"""Batches pinned ahead by a thread: in order, errors in place, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from assay.engine.data import ahead
from assay.engine.data.ahead import pinned_ahead


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning needs a device; that a batch went through it shows by 100 more."""
    monkeypatch.setattr(ahead, "pin", lambda batch: batch + 100)


def batches(count: int) -> Iterator[torch.Tensor]:
    yield from torch.arange(count)


def test_batches_come_pinned_and_in_order() -> None:
    assert [int(batch) for batch in pinned_ahead(batches(20))] == list(range(100, 120))


def test_an_error_comes_after_the_batches_before_it() -> None:
    def broken() -> Iterator[torch.Tensor]:
        yield from batches(2)
        raise OSError("no disk")

    iterator = pinned_ahead(broken())

    assert [int(next(iterator)), int(next(iterator))] == [100, 101]
    with pytest.raises(OSError, match="no disk"):
        next(iterator)


def test_who_stops_early_leaves_no_thread() -> None:
    iterator = pinned_ahead(batches(1000))
    next(iterator)

    iterator.close()

    assert not any(thread.name == "assay-pin" for thread in threading.enumerate())


def test_it_is_done_ahead_but_not_far() -> None:
    made: list[int] = []

    def counted() -> Iterator[torch.Tensor]:
        for i in range(100):
            made.append(i)
            yield torch.tensor(i)

    iterator = pinned_ahead(counted())
    next(iterator)
    iterator.close()

    assert len(made) <= 5
