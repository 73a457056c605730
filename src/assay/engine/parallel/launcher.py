"""Several processes of one run, started and watched by torch's elastic launcher."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from assay.core.errors import InputError
from assay.core.signals import is_crash
from assay.engine.parallel.nodes import Nodes

JOB_PREFIX = "assay-ranks-"
"""How torch's launcher calls what is started here."""

STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Set for a launcher that restarts: else a second attempt finds addresses of the processes of the first.

Without it the processes meet at the launcher's own port. With it a free port is chosen for rank 0, which another
program may take before rank 0 does.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """A process that did not end by itself as it should."""

    rank: int
    pid: int
    how: str


def launch_ranks(
    arguments: Sequence[str],
    count: int,
    *,
    folder: Path,
    max_restarts: int = 0,
    nodes: Nodes | None = None,
) -> list[RankExit]:
    """Run `python ARGUMENTS` in `count` processes on this machine, one of `nodes`, and return when
    all have ended.

    It returns who died here, the first one first. All are ended when one dies, and started again up
    to `max_restarts` times; then it is about the last of these times. What ranks other than 0 print
    goes to files under `folder`. Signals to this process stay with the caller.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import (
        RendezvousConnectionError,
        RendezvousTimeoutError,
    )
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
        run_id=f"{JOB_PREFIX}{nodes.rendezvous}" if nodes.count > 1 else folder.name,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=elsewhere),
    )
    before = os.environ.get(STORE_VARIABLE)
    os.environ[STORE_VARIABLE] = "1" if max_restarts else "0"
    try:
        with _silent("torch.distributed.elastic"):  # what ended is told by who called this
            _in_a_thread(partial(elastic_launch(config, sys.executable), *arguments))
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        return [
            RankExit(rank=rank, pid=each.pid, how=describe_exit(each.exitcode))
            for rank, each in failures
        ]
    except (RendezvousConnectionError, RendezvousTimeoutError) as error:
        raise InputError(
            f"The {nodes.count} machines have not met at {nodes.rendezvous}: {error}",
            fix="Is the command running on each of them, with its own --node-rank? Can they reach that port?",
        ) from error
    finally:
        if before is None:
            del os.environ[STORE_VARIABLE]
        else:
            os.environ[STORE_VARIABLE] = before
    return []


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Let a logger and all below it say nothing; torch gives each of its own a level."""
    names = [
        each
        for each in logging.root.manager.loggerDict
        if each == name or each.startswith(f"{name}.")
    ]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def read_output(folder: Path, rank: int) -> str:
    """What a process printed to `folder`."""
    files = sorted(folder.glob(f"*/attempt_*/{rank}/std*.log"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def describe_exit(code: int) -> str:
    """Say how a process ended that said nothing, from its exit code; a signal is a negative one."""
    if code >= 0:
        return f"ended with exit code {code}, without a word"
    name = signal.Signals(-code).name
    return f"crashed ({name})" if is_crash(-code) else f"was killed by {name}"


def _in_a_thread(launch: Callable[[], object]) -> None:
    """Call torch's launcher outside of the main thread, where it would take over the signals;
    raises what it raises."""
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
