"""Errors of torch about a lost connection, wherever in a step they come from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from assay.core.errors import PeerError
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.distributed_group import DistributedGroup
from engine.toys import engine


@pytest.fixture
def lone_group() -> Iterator[DistributedGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DistributedGroup()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed"),
        RuntimeError("NCCL communicator was aborted on rank 1"),
        dist.DistBackendError("the work of rank 1 failed"),
    ],
    ids=["gloo", "nccl", "backend"],
)
def test_a_lost_connection_in_a_collective_of_torch_itself_is_told_as_the_end_of_another_process(
    error: Exception, lone_group: DistributedGroup
) -> None:
    runs = engine()
    join_data_parallel(runs, lone_group)

    @runs.on("backward_end")
    def lose() -> None:
        raise error

    with pytest.raises(PeerError, match="Another process of this run ended") as told:
        runs.run()

    assert told.value.__cause__ is error


def test_another_error_of_a_step_stays_what_it_is(lone_group: DistributedGroup) -> None:
    runs = engine()
    join_data_parallel(runs, lone_group)
    runs.on("backward_end")(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        runs.run()
