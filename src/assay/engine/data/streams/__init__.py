"""Stages of streams: `chain([SequenceWrapper(rows), Shuffle(), Batch(8)])`.

Each is made alone and put over a stream by the chain. Where it says nothing else, it gives what
comes, in the order in which it comes, and goes on from any position at once.
"""

from assay.engine.data.streams.blocks import Batch, Bucket, Shuffle
from assay.engine.data.streams.items import (
    Filter,
    FlatMap,
    Length,
    Map,
    Prefetch,
    SplitByWorker,
    Take,
)
from assay.engine.data.streams.joined import Concat, Mix
from assay.engine.data.streams.stream import Pass, Stream, StreamStage

__all__ = [
    "Batch",
    "Bucket",
    "Concat",
    "Filter",
    "FlatMap",
    "Length",
    "Map",
    "Mix",
    "Pass",
    "Prefetch",
    "Shuffle",
    "SplitByWorker",
    "Stream",
    "StreamStage",
    "Take",
]
