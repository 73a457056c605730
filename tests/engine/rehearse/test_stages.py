"""Stages of the data: the source, each pipe, one sample each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from assay.engine import ByLength, Loader, chain
from assay.engine.data import map_style, streams
from assay.engine.data.map_style import SequenceWrapper
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.rehearse.stages import data_stages, without_workers
from engine.toys import points


@pytest.mark.row("B01")
@pytest.mark.parametrize("is_stream", [False, True])
def test_each_pipe_of_a_chain_is_a_stage(*, is_stream: bool) -> None:
    map_stage: Any = streams.Map if is_stream else map_style.MapSequence
    named = map_stage(lambda sample: {"x": sample[0] * 2, "y": sample[1]})
    pair = map_stage(lambda sample: (sample["x"], sample["y"]))
    pipes = [SequenceWrapper(points(20)), named, pair]
    streamed = [*pipes, streams.Batch(8)]
    loader = StreamLoader(chain(streamed)) if is_stream else Loader(chain(pipes), batch_size=8)

    stages = list(data_stages(loader))

    gives = [stage.gives for stage in stages]
    at = gives.index("{x: float32 [4], y: float32 [2]}")
    assert gives[at + 1] == "(float32 [4], float32 [2])" and stages[0].name == "source"


def test_a_rehearsal_meets_the_longest_samples_first_where_lengths_are_known() -> None:
    texts = [torch.ones(length) for length in (3, 9, 1, 7, 2, 8)]
    loader = Loader(
        SequenceWrapper(texts),
        batch_size=2,
        sampler=ByLength(np.array([len(text) for text in texts], dtype=np.uint8)),
        collate=lambda samples: sorted(len(sample) for sample in samples),
    )

    first = next(iter(without_workers(loader)))

    assert first == [8, 9] != next(iter(loader))
