"""Parts of a run that the training loop, and everything which serves it, work on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from assay.core.ports import Recorder
from assay.engine.data.source import Source
from assay.engine.loop.bounds import Bounds
from assay.engine.loop.bus import Bus
from assay.engine.loop.epoch import EpochTimes
from assay.engine.loop.process import Process
from assay.engine.loop.state import State
from assay.engine.metrics.means import LoggedMeans
from assay.engine.numerics.buffers import Buffers
from assay.engine.numerics.seed import StepRandomness
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.parallel.pipeline import Pipeline


class RunParts:
    """One of each: no part is copied from object to object, so that each can be replaced.

    `modules` are model, criterion and the other modules of the process, `buffers` theirs before the
    step, `kept` the objects whose state a checkpoint keeps besides handlers, process and data.
    """

    process: Process
    source: Source
    state: State
    device: torch.device
    bounds: Bounds
    bus: Bus
    recorder: Recorder
    ranks: DataParallelGroup
    pipeline: Pipeline | None
    logged: LoggedMeans
    randomness: StepRandomness
    modules: Mapping[str, nn.Module]
    buffers: Buffers
    times: EpochTimes
    kept: list[Any]
