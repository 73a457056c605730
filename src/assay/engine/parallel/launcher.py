"""Launch of the ranks of one machine, by torch's elastic launcher."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from assay.core.errors import InputError
from assay.core.processes import kill
from assay.core.signals import Signals, answering
from assay.engine.parallel.nodes import Nodes
from assay.engine.parallel.rank_folder import (
    JOB_PREFIX,
    DeathReports,
    RankExit,
    RankFolder,
    describe_death,
    newest_ranks,
    pass_on_heard,
)
from assay.engine.parallel.standstill import standstill_checks
from assay.engine.parallel.watchdog import RankWatchdog

STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Variable set for a launcher that restarts: else a second attempt finds stale addresses.

Without it the ranks meet at the launcher's own port. With it a free port is chosen for rank 0,
which another program may take before rank 0 does.
"""


def launch_ranks(
    arguments: Sequence[str],
    count: int,
    *,
    folder: Path,
    max_restarts: int = 0,
    nodes: Nodes | None = None,
) -> list[RankExit]:
    """Run `python ARGUMENTS` as `count` ranks on this machine, and return when all have ended.

    Returns the ranks that died here, the first one first. All are ended when one dies, and started
    again up to `max_restarts` times; the result is about the last attempt. Output of ranks other
    than 0 goes to files under `folder`. Signals to this process stay with the caller.
    """
    nodes = nodes or Nodes()
    config = _launch_config(nodes, count, folder, max_restarts)
    try:
        # The caller reports which rank ended, and why.
        with _store_variable("1" if max_restarts else "0"), _silent("torch.distributed.elastic"):
            _in_a_thread(partial(elastic_launch(config, sys.executable), *arguments))
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        return [
            RankExit(rank=rank, pid=each.pid, how=describe_death(each.exitcode))
            for rank, each in failures
        ]
    except (RendezvousConnectionError, RendezvousTimeoutError) as error:
        raise InputError(
            f"The {nodes.count} machines have not met at {nodes.rendezvous}: {error}",
            fix="Is the command running on each of them, with its own --node-rank? Can they reach"
            " that port?",
        ) from error
    return []


def launch_watched(
    arguments: Sequence[str],
    count: int,
    *,
    folder: Path,
    timeout: str,
    look: Callable[[], object],
    **how: Any,
) -> tuple[list[RankExit], int]:
    """Launch ranks under a watchdog; return those that died, and the first signal, 0 for none.

    Signals to this process are passed on to the ranks. The watchdog calls `look` as well, several
    times a second. `how` are arguments of `launch_ranks`.
    """
    heard: list[tuple[int, float]] = []

    def ranks() -> RankFolder:
        return newest_ranks(folder)

    def hear(_signals: Signals, number: int) -> None:
        if not heard:
            pass_on_heard(folder, number)
        heard.append((number, time.monotonic()))

    checks = (
        _PassOn(lambda: ranks().pids(), heard),
        DeathReports(ranks),
        *standstill_checks(
            ranks, timeout=timeout, heard=heard, departed=lambda: ranks().first_departure()
        ),
        look,
    )
    with answering(hear), RankWatchdog(*checks):
        deaths = launch_ranks(arguments, count, folder=folder, **how)
    return deaths, heard[0][0] if heard else 0


class _PassOn:
    """Check that forwards each signal heard by this process to every rank that can answer it."""

    def __init__(
        self, pids: Callable[[], Mapping[int, int]], heard: Sequence[tuple[int, float]]
    ) -> None:
        self.pids = pids
        self.heard = heard
        self._sent: dict[int, int] = {}

    def __call__(self) -> None:
        for pid in self.pids().values() if self.heard else ():
            for number, _ in self.heard[self._sent.get(pid, 0) :]:
                kill(pid, number)
            self._sent[pid] = len(self.heard)


def _launch_config(nodes: Nodes, count: int, folder: Path, max_restarts: int) -> LaunchConfig:
    """Return the settings of torchrun: ranks other than 0 print into files of `folder`."""
    are_several = nodes.count > 1
    redirects = {rank: Std.ALL for rank in range(1, count)}
    return LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=count,
        max_restarts=max_restarts,
        rdzv_backend="c10d",
        rdzv_endpoint=nodes.rendezvous,
        rdzv_configs={"is_host": nodes.rank == 0} if are_several else {},
        monitor_interval=0.1,
        run_id=f"{JOB_PREFIX}{nodes.rendezvous}" if are_several else folder.name,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=redirects),
    )


@contextlib.contextmanager
def _store_variable(value: str) -> Iterator[None]:
    """Set STORE_VARIABLE, which the ranks inherit; put its old value back at the end."""
    before = os.environ.get(STORE_VARIABLE)
    os.environ[STORE_VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[STORE_VARIABLE]
        else:
            os.environ[STORE_VARIABLE] = before


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Silence a logger and all below it; torch gives each of its own a level."""
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


def _in_a_thread(launch: Callable[[], object]) -> None:
    """Call torch's launcher outside of the main thread, where it would replace the signal handlers.

    Raises the exception of the launcher.
    """
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
