"""Data parallelism: each rank trains on its share of every step, and all make the same update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from assay.core.errors import InputError
from assay.engine.data.loader import Loader
from assay.engine.data.source import Source
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.multi_optimizer_step import MultiOptimizerStep
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.parallel.distributed_group import BUCKET_BYTES, DistributedGroup

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class JoinedEngine(Protocol):
    """Attributes of an engine that an axis reads, or sets to take its part in each step."""

    process: Any
    state: Any
    source: Source
    ranks: DataParallelGroup
    pipeline: Any
    bus: Any


def data_parallel(
    engine: JoinedEngine, mesh: DeviceMesh, *, axis: str = "data", bucket_bytes: int = BUCKET_BYTES
) -> DataParallelGroup:
    """Make `engine` train its share along one axis of `mesh`; return the group of that axis.

    The engine's `Loader` has `rank` and `ranks` of that axis. Parameters and buffers of rank 0 are
    broadcast. The gradient of a step is that of the global batch for every kind of loss: means,
    (sum, weight) pairs, several by name. Losses and metrics are reduced over all ranks; buffers
    such as running statistics are those of rank 0. InputError for an engine that cannot share its
    steps.
    """
    return join_data_parallel(
        engine, DistributedGroup(mesh.get_group(axis), bucket_bytes=bucket_bytes)
    )


def join_data_parallel(engine: JoinedEngine, ranks: DataParallelGroup) -> DataParallelGroup:
    """Make `engine` train its share in a group that exists already; see `data_parallel`."""
    source, backward = _check_shareable(engine, ranks)
    is_one = not isinstance(backward, MultiOptimizerStep)
    for part in (backward,) if is_one else backward.by_name.values():
        part.ranks = ranks
    model = engine.process.model
    if ranks.sharding is None:
        ranks.broadcast_([*model.parameters(), *model.buffers()])
    else:
        source.fills = True
    engine.ranks = ranks
    engine.state.stop.is_shared = True
    return ranks


def _check_shareable(engine: JoinedEngine, ranks: DataParallelGroup) -> tuple[Loader, Any]:
    """Return loader and optimizer step of an engine; InputError if they cannot be shared."""
    process: Any = engine.process
    source = engine.source
    if not isinstance(source, Loader) or source is not engine.state.dataloader:
        kind = type(engine.state.dataloader).__name__
        raise InputError(
            f"data.train is a {kind}, which gives batches itself: they cannot be divided"
            f" among {ranks.size} ranks.",
            fix=(
                "Give a data set (__len__ and __getitem__) and batch_size, or train in one process."
            ),
        )
    if (source.rank, source.ranks) != (ranks.rank, ranks.size):
        raise InputError(
            f"The loader is rank {source.rank} of {source.ranks}; this process is rank"
            f" {ranks.rank} of {ranks.size}."
        )
    backward = getattr(process, "backward", None)
    if not isinstance(backward, OptimizerStep | MultiOptimizerStep) or hasattr(
        process, "has_updated"
    ):
        raise InputError(
            f"{type(process).__name__} makes its own updates, which other ranks know nothing of.",
            fix="Write a Process with forward_step, whose losses assay differentiates; or train in"
            " one process.",
        )
    if ranks.sharding is not None and isinstance(backward, MultiOptimizerStep):
        raise InputError(
            "Several optimizers do not go with [parallel] shard: the loss of each would have to"
            " leave the weights of the others alone.",
            fix="Use data in its place.",
        )
    return source, backward
