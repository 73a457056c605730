"""Stages of streams, for a config or for Python: `chain([SequenceWrapper(rows), Shuffle(),
Batch(8)])`.

Each is made alone and put over a stream by the chain. Where it says nothing else, it gives what
comes, in the order in which it comes, and goes on from any position at once.
"""

from assay.engine.pipes.itr.ahead import Prefetch
from assay.engine.pipes.itr.batches import Batch, Bucket, Shuffle
from assay.engine.pipes.itr.items import Filter, FlatMap, Length, Map, Take
from assay.engine.pipes.itr.joined import Concat, Mix
from assay.engine.pipes.itr.shards import SplitByWorker
from assay.engine.pipes.itr.stage import Stage

__all__ = [
    "Batch",
    "Bucket",
    "Concat",
    "Filter",
    "FlatMap",
    "Length",
    "Map",
    "Mix",
    "Prefetch",
    "Shuffle",
    "SplitByWorker",
    "Stage",
    "Take",
]
