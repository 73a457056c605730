"""Several processes of one run, started and watched by torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from assay.core.errors import InputError
from assay.core.signals import is_crash
from assay.engine.parallel.nodes import Nodes

OWN_JOBS = "assay-ranks-"
"""How torch's launcher calls what is started here."""

STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Set for the launcher: else a second attempt finds addresses of the processes of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that did not end by itself as it should."""

    rank: int
    pid: int
    how: str


def start(
    arguments: Sequence[str], count: int, *, folder: Path, max_restarts: int = 0, nodes: Nodes | None = None
) -> list[Death]:
    """Run `python ARGUMENTS` in `count` processes on this machine, one of `nodes`, and return when all have ended.

    It returns who died here, the first one first. All are ended when one dies, and started again up to `max_restarts`
    times; then it is about the last of these times.
    What ranks other than 0 print goes to files under `folder`. Signals to this process stay with the caller.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    nodes = nodes or Nodes()
    elsewhere = {rank: Std.ALL for rank in range(1, count)}
    config = LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=count,
        max_restarts=max_restarts,
        rdzv_backend="c10d",
        rdzv_endpoint=nodes.rendezvous,
        rdzv_configs={"is_host": nodes.rank == 0} if nodes.count > 1 else {},
        monitor_interval=0.1,
        run_id=f"{OWN_JOBS}{nodes.rendezvous}" if nodes.count > 1 else folder.name,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=elsewhere),
    )
    # What torch would log about the end of a process is told by who called this.
    logger = logging.getLogger("torch.distributed.elastic")
    level, before = logger.level, os.environ.get(STORE_VARIABLE)
    logger.setLevel(logging.CRITICAL)
    os.environ[STORE_VARIABLE] = "1"
    try:
        _in_a_thread(partial(elastic_launch(config, sys.executable), *arguments))
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        return [Death(rank=rank, pid=each.pid, how=how_ended(each.exitcode)) for rank, each in failures]
    except (RendezvousConnectionError, RendezvousTimeoutError) as error:
        raise InputError(
            f"The {nodes.count} machines have not met at {nodes.rendezvous}: {error}",
            fix="Is the command running on each of them, with its own --node-rank? Can they reach that port?",
        ) from error
    finally:
        logger.setLevel(level)
        if before is None:
            del os.environ[STORE_VARIABLE]
        else:
            os.environ[STORE_VARIABLE] = before
    return []


def output_of(folder: Path, rank: int) -> str:
    """What a process printed to `folder`."""
    files = sorted(folder.glob(f"*/attempt_*/{rank}/std*.log"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def how_ended(code: int) -> str:
    """Say how a process ended that said nothing, from its exit code; a signal is a negative one."""
    if code >= 0:
        return f"ended with exit code {code}, without a word"
    name = signal.Signals(-code).name
    return f"crashed ({name})" if is_crash(-code) else f"was killed by {name}"


def _in_a_thread(launch: Callable[[], object]) -> None:
    """Call torch's launcher outside of the main thread, where it would take over the signals; raises what it raises."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            launch()
        except BaseException as error:  # raised in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=call, name="assay-launcher")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
