"""Stages of the data: the source, each pipe, one sample each."""

from __future__ import annotations

from typing import Any

import pytest

from assay.engine import Loader
from assay.engine.pipes import SequenceWrapper, StreamLoader, chain, itr, lst
from assay.engine.rehearse.stages import data_stages
from engine.toys import points


@pytest.mark.row("B01")
@pytest.mark.parametrize("is_stream", [False, True])
def test_each_pipe_of_a_chain_is_a_stage(*, is_stream: bool) -> None:
    kind: Any = itr if is_stream else lst
    named = kind.Map(lambda sample: {"x": sample[0] * 2, "y": sample[1]})
    pair = kind.Map(lambda sample: (sample["x"], sample["y"]))
    pipes = [SequenceWrapper(points(20)), named, pair]
    streamed = [*pipes, itr.Batch(8)]
    loader = StreamLoader(chain(streamed)) if is_stream else Loader(chain(pipes), batch_size=8)

    stages = list(data_stages(loader))

    gives = [stage.gives for stage in stages]
    at = gives.index("{x: float32 [4], y: float32 [2]}")
    assert gives[at + 1] == "(float32 [4], float32 [2])" and stages[0].name == "source"
