"""Processes that somebody has started find out by the environment which of them they are."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from assay.core.errors import InputError
from assay.engine.parallel.nodes import Nodes, nodes_of
from assay.engine.parallel.process_group import World, device_of_rank, world
from engine.parallel.launching import answers
from warm_python import Run

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "here",
    "MASTER_PORT": "29500",
}
BATCH = {
    "SLURM_JOB_ID": "12",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
SRUN = {
    **BATCH,
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


def test_torchrun_and_srun_tell_a_process_its_place() -> None:
    assert world(TORCHRUN) == World(rank=3, count=4, local_rank=1, local_count=2)
    assert world({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}).restarts == 2
    assert world(SRUN) == World(
        rank=3, count=4, local_rank=1, local_count=2, address="tcp://gpu07:10084"
    )
    assert world({**SRUN, **TORCHRUN}) == world(TORCHRUN)


@pytest.mark.parametrize("variables", [{}, BATCH, {**SRUN, "SLURM_STEP_NUM_TASKS": "1"}])
def test_a_process_that_nobody_started_others_with_is_alone(variables: dict[str, str]) -> None:
    assert world(variables) == World()


def test_a_port_of_nought_is_refused_instead_of_waited_at() -> None:
    with pytest.raises(InputError, match=r"their port is 0.*\n.*--standalone"):
        world({**TORCHRUN, "MASTER_PORT": "0"})


def test_machines_are_told_by_hand_or_by_srun() -> None:
    assert nodes_of(1) == Nodes()
    assert nodes_of(2, 1, "gpu07:29500", {}) == Nodes(count=2, rank=1, rendezvous="gpu07:29500")
    assert nodes_of(2, variables=SRUN) == Nodes(count=2, rank=1, rendezvous="gpu07:10084")
    for given in ((2, None, "gpu07:29500"), (2, 0, ""), (2, 2, "gpu07:29500"), (2, 0, "gpu07:0")):
        with pytest.raises(InputError):
            nodes_of(*given, variables={})


MEETING = """
import json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from assay.engine.parallel.process_group import Layout
from assay.engine.parallel.process_group import process_group, world

folder, rank, ranks = sys.argv[1:]
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
sums = []
for run in range(3):
    with process_group(world(), torch.device("cpu"), Layout(data=2)):
        number = torch.tensor([float(run)])
        dist.all_reduce(number)
        sums.append(number.item())
    if int(rank) == run % 2:
        time.sleep(0.3)  # the other rank comes to the next meeting first
(Path(folder) / f"{rank}.json").write_text(json.dumps(sums))
"""


@pytest.mark.slow
@pytest.mark.parametrize("keeper", ["the launcher", "rank 0"])
def test_two_processes_that_train_several_times_meet_again_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Run, keeper: str
) -> None:
    script = tmp_path / "meeting.py"
    script.write_text(MEETING, encoding="utf-8")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    if keeper == "the launcher":  # as torchrun does it
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        port = store.port
    else:
        port = free_port()
    monkeypatch.setenv("MASTER_PORT", str(port))

    assert answers(script, tmp_path, 2, warm=warm) == [[0.0, 2.0, 4.0], [0.0, 2.0, 4.0]]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(("visible", "device"), [(4, "cuda:2"), (1, "cuda:0")])
def test_a_process_of_srun_takes_its_own_gpu_or_the_one_that_it_is_shown(
    visible: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    here = World(rank=2, count=4, local_rank=2, local_count=4, address="tcp://first:29500")

    assert device_of_rank("cuda", here) == device
    if visible == 1:
        with pytest.raises(InputError, match="Process 2 of this machine has no GPU"):
            device_of_rank("cuda", replace(here, address=""))
