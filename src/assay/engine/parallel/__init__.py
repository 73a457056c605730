"""Parallel training: one model, several OS processes (ranks), one object for each axis.

1. `process_group`   how a rank finds the others, and its place on each axis of the mesh
2. `distributed_group`, `data`   the data axis: collectives, and the engine that uses them
3. `sharding`, `tensor_parallel`   weights divided among ranks
4. `pipeline_stages`, `pipeline`   a model split into stages, and the path of its micro-batches
5. `join`   the model and engine of one rank, joined with the others on each axis
6. `launcher`, `rank_folder`   ranks started on this machine, their reports and ends
7. `watchdog`, `standstill`   ranks that are ended once one of them hangs, and the words for it
"""

from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.parallel.data import data_parallel
from assay.engine.parallel.distributed_group import DistributedGroup

__all__ = ["DataParallelGroup", "DistributedGroup", "data_parallel"]
