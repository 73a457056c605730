"""Samples to batches, and samples that no batch can hold."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from assay.core.errors import InputError
from assay.engine import Loader
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.data.streams.blocks import Batch
from assay.engine.data.streams.stream import as_stream

BAD = 3


@dataclass
class Pair:
    x: torch.Tensor
    y: Any


class Samples:
    """Six samples, of which the fourth is `bad`."""

    def __init__(self, good: Any, bad: Any) -> None:
        self.good, self.bad = good, bad

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.bad if index == BAD else self.good

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))


X = torch.ones(2)
HOLES: dict[str, tuple[Any, Any, str]] = {
    "a sample": (X, None, "is None"),
    "a target": ((X, 1), (X, None), "has None at [1]"),
    "an input": ((X, 1), (None, 1), "has None at [0]"),
    "a field": ({"x": X, "y": 1}, {"x": X, "y": None}, "has None at ['y']"),
    "a part": ({"x": [X, X]}, {"x": [X, None]}, "has None at ['x'][1]"),
    "a dataclass": (Pair(X, 1), Pair(X, None), "has None at ['y']"),
    "a namespace": (SimpleNamespace(x=X), SimpleNamespace(x=None), "has None at ['x']"),
}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("hole", HOLES)
def test_a_sample_that_is_none_or_holds_one_is_named(hole: str, workers: int) -> None:
    good, bad, said = HOLES[hole]
    loader = Loader(Samples(good, bad), batch_size=6, workers=workers, shuffle=False)

    with pytest.raises(InputError) as caught:
        list(loader)

    loader.close()
    assert f"The sample {BAD} of data.train {said}: no batch can hold it." in str(caught.value)


@pytest.mark.parametrize("hole", HOLES)
def test_a_none_in_a_stream_is_named_as_well(hole: str) -> None:
    good, bad, said = HOLES[hole]
    stream = Batch(6).over(as_stream(Samples(good, bad)))

    with pytest.raises(InputError) as caught:
        list(StreamLoader(stream))

    assert f"A sample of the stream {said}" in str(caught.value)


def test_a_collate_that_leaves_none_out_is_not_asked_about_it() -> None:
    loader = Loader(
        Samples(X, None),
        batch_size=6,
        collate=lambda samples: torch.stack([each for each in samples if each is not None]),
    )

    (batch,) = loader

    assert batch.shape == (5, 2)


def test_another_mistake_in_a_batch_keeps_its_own_error() -> None:
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(Loader(Samples(X, torch.ones(3)), batch_size=6))
