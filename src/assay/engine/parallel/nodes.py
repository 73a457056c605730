"""Machines of one run: their number, the rank of this one, the rendezvous, the shared folder."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.core.directory import make_directory
from assay.core.errors import InputError
from assay.engine.parallel.distributed_group import DistributedGroup

SECONDS_TO_SHARE = 10.0
"""Seconds that a network disk may take to show a new file to another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Machines of a run: `count`, `rank` of this one, `rendezvous` as HOST:PORT on machine 0."""

    count: int = 1
    rank: int = 0
    rendezvous: str = "localhost:0"


def nodes_of(
    count: int,
    rank: int | None = None,
    rendezvous: str = "",
    variables: Mapping[str, str] | None = None,
) -> Nodes:
    """Return the machines of a run; arguments left out are read from srun's variables.

    InputError for values that are missing or impossible.

    >>> slurm = {"SLURM_STEP_NODELIST": "node[07-08]", "SLURM_NODEID": "1"}
    >>> slurm |= {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}
    >>> nodes_of(2, variables=slurm)
    Nodes(count=2, rank=1, rendezvous='node07:10084')
    """
    if count == 1:
        return Nodes()
    variables = os.environ if variables is None else variables
    if "SLURM_STEP_NODELIST" in variables:
        rank = int(variables["SLURM_NODEID"]) if rank is None else rank
        rendezvous = (
            rendezvous or f"{first_host(variables['SLURM_STEP_NODELIST'])}:{port_of(variables)}"
        )
    if rank is None or not rendezvous:
        fix = (
            "Say on each which one it is, and where they meet: --node-rank 0 --rendezvous"
            " HOST:29500"
        )
        raise InputError(f"{count} machines cannot find each other.", fix=fix)
    if rank >= count:
        raise InputError(f"There is no machine {rank} of {count}: they are counted from 0.")
    if not re.fullmatch(r".+:[1-9]\d*", rendezvous):
        raise InputError(
            f"`{rendezvous}` is no HOST:PORT.", fix="Name machine 0 and a port that is free there."
        )
    return Nodes(count=count, rank=rank, rendezvous=rendezvous)


def first_host(nodes: str) -> str:
    """Return the first host of a node list as Slurm writes it.

    >>> first_host("rack[1-2]node[07,09-12],login")
    'rack1node07'
    """
    first = re.match(r"(?:[^,\[]|\[[^]]*\])+", nodes)
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0]) if first else ""


def port_of(variables: Mapping[str, str]) -> int:
    """Return a port that two Slurm steps are unlikely to share."""
    return 10_000 + (7 * int(variables["SLURM_JOB_ID"]) + int(variables["SLURM_STEP_ID"])) % 20_000


def check_shared(ranks: DistributedGroup | None, folder: Path) -> None:
    """Raise InputError when other ranks cannot read a file that rank 0 writes in `folder`.

    Collective.
    """
    if ranks is None:
        return
    nonce = folder / f".shared-{secrets.token_hex(8)}"
    if ranks.is_first:
        make_directory(nonce.parent)
        nonce.write_text("", encoding="utf-8")
    name = ranks.all_gather_world(nonce.name)[0]
    until = time.monotonic() + SECONDS_TO_SHARE
    while not (folder / name).exists() and time.monotonic() < until:
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            os.listdir(folder)  # a disk of the network looks again
    seen = ranks.all_gather_world((socket.gethostname(), str(folder), (folder / name).exists()))
    if ranks.is_first:
        nonce.unlink(missing_ok=True)
    for rank, (host, theirs, has_seen) in enumerate(seen):
        if not has_seen:
            raise InputError(
                f"The run folder is not on a shared file system: rank {rank} does not see what"
                " rank 0 writes there.",
                where=f"{theirs} on {host}; rank 0: {seen[0][1]} on {seen[0][0]}",
                fix="Put the project, or ASSAY_RUNS_DIR, where all machines see it under the same"
                " path.",
            )
