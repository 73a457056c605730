"""Launch of a run in several OS processes, and the result of all of them."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.check_division import check_division
from assay.compose.describe_standstill import describe_standstill
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.other_process import TASK_NAME, ProcessTask, task_arguments
from assay.compose.rank_ends import read_result
from assay.config.loading import Config
from assay.config.tree import get_at
from assay.config.typed_sections import sections_of
from assay.core.directory import make_directory
from assay.core.errors import InputError
from assay.core.schema import parse_duration_s
from assay.core.sections import ParallelSection, SplitSection
from assay.core.signals import Signals, answered

if TYPE_CHECKING:
    from assay.compose.run_scope import RunScope
    from assay.engine.parallel.watchdog import Standstill

ECHO_S = 1.0
"""A scheduler may signal a rank itself, too, and the launcher a moment later passes the same on."""

SECONDS_TO_SHARE = 10.0
"""Seconds that a network disk may take to show a new file to another machine."""


def asked_processes(config: Config, launch: Launch) -> int:
    """Return the number of processes of a run.

    InputError where [parallel] and the command line do not agree.
    """
    node, axes = get_at(config.root, ("parallel",)), parallel_of(config).axes
    product = math.prod(axes.values())
    asked = (
        f"--nnodes {launch.nnodes} x --nproc {launch.nproc}"
        if launch.nnodes > 1
        else f"--nproc {launch.nproc}"
    )
    if launch.nproc is None:
        if product % launch.nnodes:
            fix = "Give --nproc, how many there are on each; or change [parallel]."
            raise InputError(
                f"{product} processes cannot be split evenly on {launch.nnodes} machines.", fix=fix
            )
        return product
    count = launch.nproc * launch.nnodes
    if not axes or count == product:
        return count
    sizes = " x ".join(f"{size} {name}" for name, size in axes.items())
    each = (
        f"Give --nproc {product // launch.nnodes}, or leave it out"
        if product % launch.nnodes == 0
        else "Change it"
    )
    raise InputError(
        f"{asked} is not {sizes} = {product}.",
        where=str(node.origin) if node is not None else "",
        fix=f"{each}; or change [parallel].",
    )


def is_spread(config: Config, launch: Launch) -> bool:
    """Return True if this process has to launch the ranks.

    InputError when another launcher has started a number that the config does not ask for.
    """
    from assay.engine.parallel.process_group import world

    count, here = asked_processes(config, launch), world()
    if here.count > 1 and (launch.nnodes == 1 or launch.ranks_folder):
        if launch.max_restarts and not launch.ranks_folder:
            fix = (
                "Give it to torchrun; or start one process on each machine, and --nproc and"
                " --nnodes."
            )
            raise InputError(
                "--max-restarts is for processes that assay starts; these have been started.",
                fix=fix,
            )
        is_asked = launch.nproc is not None or parallel_of(config).axes
        if is_asked and count != here.count:
            raise InputError(
                f"{here.count} processes were started, and the config asks for {count}.",
                fix=f"torchrun --nproc-per-node {count}, or parallel.data={here.count}.",
            )
        return False
    check_split(config, data_parallel_size(config, count))
    check_division(config)
    return (count > 1 or launch.max_restarts > 0) and not launch.ranks_folder


def parallel_of(config: Config) -> ParallelSection:
    """Return the section [parallel] of a config."""
    return sections_of(config.root).parallel


def data_parallel_size(config: Config, count: int) -> int:
    """Return how many of `count` processes have different samples."""
    parallel = parallel_of(config)
    return count // ((parallel.tensor or 1) * (parallel.pipeline or 1))


def check_split(config: Config, count: int) -> None:
    """Raise InputError when the batch cannot be divided among so many processes."""
    from assay.engine.data.batch_size import batch_size
    from assay.engine.parallel.layout import Layout

    sections = sections_of(config.root)
    layout = Layout.of(sections.parallel)
    split = sections.data.get("train", SplitSection())
    whole, micro = split.batch_size, split.micro_batch_size
    if (count > 1 or layout.pipeline > 1) and isinstance(whole, int):
        accumulate = sections.train.accumulate
        sizes = batch_size(whole, micro=micro, accumulate=accumulate, ranks=count)
        layout.check_micro_batches(sizes.accumulate, arithmetic=str(sizes))


def spread_config(config: Config, launch: Launch, *, parent: str = "") -> RunResult:
    """Train `config` on as many ranks as it asks for."""
    return _spread(ProcessTask.of("rank", config, launch, parent=parent), config, launch)


def spread_resume(
    config: Config, launch: Launch, record: Path, checkpoint: str, **options: Any
) -> RunResult:
    """Resume a run on as many ranks as its config asks for."""
    task = ProcessTask.of("rank", config, launch, **options)
    task = replace(task, resumed=str(record.resolve()), checkpoint=checkpoint)
    return _spread(task, config, launch)


def _spread(task: ProcessTask, config: Config, launch: Launch) -> RunResult:
    """Launch the ranks of this machine under a watchdog, wait for them, and read their reports."""
    from assay.engine.parallel.launcher import launch_ranks
    from assay.engine.parallel.nodes import nodes_of
    from assay.engine.parallel.rank_exit import JOB_PREFIX
    from assay.engine.parallel.rank_folder import pass_on_heard
    from assay.engine.parallel.watchdog import RankWatchdog

    nodes = nodes_of(launch.nnodes, launch.node_rank, launch.rendezvous)
    count = asked_processes(config, launch) // nodes.count
    folder = Path(tempfile.mkdtemp(prefix=JOB_PREFIX))
    heard: list[tuple[int, float]] = []

    def hear(_signals: Signals, number: int) -> None:
        if not heard:
            pass_on_heard(folder, number)
        heard.append((number, time.monotonic()))

    try:
        task.write(folder / TASK_NAME)
        sys.stdout.flush()
        with answered(hear), RankWatchdog(*_watchdog_checks(folder, heard, timeout_of(config))):
            deaths = launch_ranks(
                task_arguments(folder / TASK_NAME),
                count,
                folder=folder,
                max_restarts=launch.max_restarts,
                nodes=nodes,
            )
        signal = heard[0][0] if heard else 0
        return read_result(folder, count, config, deaths, signal)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _watchdog_checks(
    folder: Path, heard: list[tuple[int, float]], timeout: str
) -> tuple[Callable[[], object], ...]:
    """Return the checks of the launcher's watchdog, over the ranks that were started last."""
    from assay.engine.parallel.rank_folder import DeathReports, EndOrder, newest_ranks
    from assay.engine.parallel.watchdog import StalledRanks, SuspendedRanks, describe_suspension

    def order(found: Standstill) -> None:
        cause = describe_standstill(found, timeout=timeout)
        newest_ranks(folder).order(EndOrder(cause=cause, signal=found.signal))

    def fail_suspended(rank: int, pid: int) -> None:
        newest_ranks(folder).report_failure(rank, describe_suspension(rank, pid))

    return (
        _PassOn(lambda: newest_ranks(folder).pids(), heard),
        DeathReports(lambda: newest_ranks(folder)),
        SuspendedRanks(lambda: newest_ranks(folder).pids(), fail_suspended),
        StalledRanks(
            lambda: newest_ranks(folder).watched(),
            order,
            timeout_s=parse_duration_s(timeout),
            heard=heard,
            departed=lambda: newest_ranks(folder).departed(),
        ),
    )


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
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._sent[pid] = len(self.heard)


def timeout_of(config: Config) -> str:
    """Return how long a rank may get no further."""
    return parallel_of(config).timeout


def tell_folder(launch: Launch, scope: RunScope, record: Path | None) -> None:
    """Write the place of the record for the launcher, and for ranks started after these.

    Collective.
    """
    place = str(record or "")
    if scope.ranks is not None:
        place = scope.ranks.all_gather_world(place)[0]
    if place:
        (Path(launch.ranks_folder).parent / "folder").write_text(place, encoding="utf-8")


def check_shared(scope: RunScope, folder: Path) -> None:
    """Raise InputError when other ranks cannot read a file that rank 0 writes in `folder`.

    Collective.
    """
    if scope.ranks is None:
        return
    nonce = folder / f".shared-{secrets.token_hex(8)}"
    if scope.is_first:
        make_directory(nonce.parent)
        nonce.write_text("", encoding="utf-8")
    name = scope.ranks.all_gather_world(nonce.name)[0]
    until = time.monotonic() + SECONDS_TO_SHARE
    while not (folder / name).exists() and time.monotonic() < until:
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            os.listdir(folder)  # a disk of the network looks again
    seen = scope.ranks.all_gather_world(
        (socket.gethostname(), str(folder), (folder / name).exists())
    )
    if scope.is_first:
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
