"""Launch of a run in several OS processes, and the result of all of them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.check_division import check_division
from assay.compose.describe_standstill import describe_standstill
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.rank_folder import (
    SECONDS_TO_OBEY,
    SECONDS_TO_TELL,
    Deaths,
    EndOrder,
    RankFolder,
    tell_heard,
    text,
)
from assay.compose.run_record import secrets_of
from assay.config import dump, open_config
from assay.config.loading import Config
from assay.config.origins import origins_of, with_origins
from assay.config.settings import Settings
from assay.config.tree import Table, get_at
from assay.config.typed_sections import sections_of
from assay.core.directory import make_directory, open_directory
from assay.core.errors import AssayError, InputError, PeerError, RankError
from assay.core.schema import parse_duration_s
from assay.core.sections import ParallelSection, SplitSection
from assay.core.signals import Obeyed, Signals, answered, obeyed
from assay.query.find import find
from assay.store.layout import RunFolder

if TYPE_CHECKING:
    from assay.compose.run_scope import RunScope
    from assay.engine.parallel.launcher import RankExit
    from assay.engine.parallel.watchdog import Standstill

TASK = "task.json"
ECHO_S = 1.0
"""A scheduler may signal a rank itself, too, and the launcher a moment later passes the same on."""

SECONDS_TO_SHARE = 10.0
"""Seconds that a network disk may take to show a new file to another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """Task that every rank reads: a final config, and the run to resume, if there is one.

    `origins` are those of the config's nodes in the files of the user. `options` are further
    arguments of the function that does it.
    """

    launch: Mapping[str, Any]
    config: str
    origins: Mapping[str, Any]
    path: str
    files: Mapping[str, str]
    launcher: int
    user_dirs: Sequence[str]
    settings: str
    variant: str
    point: str
    resumed: str = ""
    checkpoint: str = ""
    options: Mapping[str, Any]


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
    return _spread(task_of(config, launch, parent=parent), asked_processes(config, launch), config)


def spread_resume(
    config: Config, launch: Launch, record: Path, checkpoint: str, **options: Any
) -> RunResult:
    """Resume a run on as many ranks as its config asks for."""
    task = replace(
        task_of(config, launch, **options), resumed=str(record.resolve()), checkpoint=checkpoint
    )
    return _spread(task, asked_processes(config, launch), config)


def task_of(config: Config, launch: Launch, **options: Any) -> RankTask:
    """Write a config down for another process of this machine."""
    return RankTask(
        launch={**asdict(launch), "command": list(launch.command)},
        config=dump(config.root),
        origins=origins_of(config.root),
        path=str(config.path.resolve()) if config.path is not None else "",
        files=dict(config.files),
        launcher=os.getpid(),
        user_dirs=[str(path.resolve()) for path in config.user_dirs],
        settings=str(config.settings.start.resolve()),
        variant=config.variant,
        point=config.point,
        options=options,
    )


def _spread(task: RankTask, count: int, config: Config) -> RunResult:
    """Launch the ranks of this machine under a watchdog, wait for them, and read their reports."""
    from assay.engine.parallel.launcher import JOB_PREFIX, launch_ranks
    from assay.engine.parallel.nodes import nodes_of
    from assay.engine.parallel.watchdog import RankWatchdog

    nodes = nodes_of(*(task.launch[name] for name in ("nnodes", "node_rank", "rendezvous")))
    folder = Path(tempfile.mkdtemp(prefix=JOB_PREFIX))
    heard: list[tuple[int, float]] = []

    def hear(_signals: Signals, number: int) -> None:
        if not heard:
            tell_heard(folder, number)
        heard.append((number, time.monotonic()))

    try:
        (folder / TASK).write_text(json.dumps(asdict(task)), encoding="utf-8")
        sys.stdout.flush()
        with answered(hear), RankWatchdog(*_watchdog_checks(folder, heard, timeout_of(config))):
            deaths = launch_ranks(
                ["-m", "assay", "_rank", str(folder)],
                count // nodes.count,
                folder=folder,
                max_restarts=int(task.launch["max_restarts"]),
                nodes=nodes,
            )
        signal = heard[0][0] if heard else 0
        return _read_result(folder, count // nodes.count, config, deaths, signal)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _watchdog_checks(
    folder: Path, heard: list[tuple[int, float]], timeout: str
) -> tuple[Callable[[], object], ...]:
    """Return the checks of the launcher's watchdog, over the ranks that were started last."""
    from assay.engine.parallel.watchdog import StalledRanks, SuspendedRanks, describe_suspension

    def order(found: Standstill) -> None:
        cause = describe_standstill(found, timeout=timeout)
        _newest(folder).order(EndOrder(cause=cause, signal=found.signal))

    def fail_suspended(rank: int, pid: int) -> None:
        _newest(folder).tell_failed(rank, describe_suspension(rank, pid))

    return (
        _PassOn(lambda: _newest(folder).pids(), heard),
        Deaths(lambda: _newest(folder)),
        SuspendedRanks(lambda: _newest(folder).pids(), fail_suspended),
        StalledRanks(
            lambda: _newest(folder).watched(),
            order,
            timeout_s=parse_duration_s(timeout),
            heard=heard,
            departed=lambda: _newest(folder).departed(),
        ),
    )


def _read_result(
    folder: Path, local_count: int, config: Config, deaths: Sequence[RankExit], signal: int
) -> RunResult:
    """Return the result of the run from the reports of its ranks, and keep their output."""
    newest = _newest(folder)
    told = newest.told()
    first = told.get(0, {})
    place = first.get("folder") or text(folder / "folder")
    record = Path(place) if place else None
    least = min(newest.ranks(), default=0)
    if record is not None and not first.get("id"):
        # Rank 0 is gone without a word, or on another machine.
        view = find(str(record))[0]
        step = max((each.step or 0 for each in view.checkpoints), default=0)
        first = {**first, "id": view.id, "step": step}
    if record is not None:
        _keep_output(folder, RunFolder(record), least, local_count, config)
    if least and told:  # rank 0 of another machine reports there
        first = {**told[min(told)], "id": first.get("id", ""), "step": first.get("step", 0)}
    return RunResult(
        record_dir=record,
        config=config,
        value=first.get("value", {}),
        id=first.get("id", ""),
        step=first.get("step", 0),
        reason=first.get("reason", ""),
        is_first=least == 0,
        **_outcome(newest, first, deaths, signal),
    )


def _keep_output(
    folder: Path, record: RunFolder, least: int, local_count: int, config: Config
) -> None:
    """Append the output of every rank but the machine's first to its file in the record."""
    from assay.engine.parallel.launcher import read_output

    for local in range(1, local_count):
        kept = record.ranks / f"{least + local}.txt"
        make_directory(kept.parent)
        with open_directory(kept.parent) as ranks:
            descriptor = ranks.open(kept.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(secrets_of(config).clean(read_output(folder, local)))


def _outcome(
    ranks: RankFolder, first: Mapping[str, Any], deaths: Sequence[RankExit], number: int
) -> dict[str, Any]:
    """Return the end of the run as arguments of a RunResult.

    `first` is the report of rank 0; `number` is the signal of the launcher, 0 for none.

    A run that came to its own end is finished, whatever signal came late; after a signal nothing
    else is a failure, but a rank that hung is told.
    """
    number = number or (0 if ranks.error() else ranks.signal())
    if first.get("status") == "finished" and not ranks.error():
        note = first.get("note", "")
        return {
            "status": "finished",
            "signal": number,
            "note": note,
            "exit_code": first.get("exit_code", 0),
        }
    if number:
        order = ranks.ordered()
        hung = RankError(order.cause) if order is not None else None
        return {"status": "stopped", "exception": hung, "exit_code": 128 + number, "signal": number}
    cause = _cause(ranks.told(), ranks.error(), deaths)
    if cause is not None:
        # Rank 0 may have obeyed the SIGTERM by which torch ends the ranks that are left.
        code = first.get("exit_code", 1) if first.get("status") == "failed" else 1
        return {"status": "failed", "exception": cause, "exit_code": code or 1}
    return {"status": first.get("status", "failed"), "exit_code": first.get("exit_code", 1)}


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


def folder_of_attempt(folder: Path, number: int) -> RankFolder:
    """Return the folder of the ranks that were started together, for the time `number`."""
    return RankFolder(folder / f"ranks-{number}", launcher=folder)


def _newest(folder: Path) -> RankFolder:
    numbers = [int(each.name.partition("-")[2]) for each in folder.glob("ranks-*")]
    return folder_of_attempt(folder, max(numbers, default=0))


def _cause(
    told: Mapping[int, Mapping[str, Any]], own: str, deaths: Sequence[RankExit]
) -> AssayError | None:
    """Return the first error of a rank; those that follow from it are left out."""
    if own:
        return RankError(own)
    silent = [death for death in deaths if death.rank not in told]
    if silent:
        death = silent[0]
        return RankError(f"Rank {death.rank} (pid {death.pid}) {death.how}.")
    others = [each for each in told.values() if each["error"]]
    return RankError(others[0]["error"]) if others else None


def end_facts(result: RunResult, rank: int) -> dict[str, Any]:
    """Return what a rank tells of its end."""
    is_failed = result.status == "failed" and result.exception is not None
    return {
        "status": result.status,
        "value": dict(result.value),
        "exit_code": result.exit_code,
        "note": result.note,
        "reason": result.reason,
        "id": result.id,
        "step": result.step,
        "folder": str(result.record_dir or ""),
        "signal": signal_of(result),
        "error": said(result.exception, rank) if is_failed and result.exception is not None else "",
        "follows": isinstance(result.exception, PeerError | RankError),
    }


def signal_of(result: RunResult) -> int:
    """Return the signal that ended a run, 0 where it came to its own end or failed."""
    return max(0, result.exit_code - 128) if result.status == "stopped" else 0


def config_of(task: RankTask, folder: Path, rank: int) -> Config:
    """Read the config of a task; `folder` is for a file of this rank's."""
    file = folder / f"config-{rank}.toml"
    file.write_text(task.config, encoding="utf-8")
    config = open_config(file)
    root = with_origins(config.root, task.origins)
    assert isinstance(root, Table)
    return replace(
        config,
        root=root,
        path=Path(task.path) if task.path else None,
        files=dict(task.files),
        user_dirs=tuple(Path(path) for path in task.user_dirs),
        settings=Settings(Path(task.settings)),
        variant=task.variant,
        point=task.point,
    )


def said(error: BaseException, rank: int) -> str:
    """Return the error of a rank as text: the error first, then its traceback."""
    from assay.record.ending import ending

    where = f"On rank {rank}: " if rank else ""
    if isinstance(error, AssayError):
        return where + "\n  ".join([str(error), *getattr(error, "__notes__", ())])
    head = f"{type(error).__name__}: {error}"
    before, _, after = ending(error)[2].rpartition(f"\n{head}")
    return f"{where}{head}\n{before}{after}".rstrip()


def cause_of(error: BaseException, ranks: RankFolder | None) -> BaseException:
    """Return the error of another rank if `error` only says that it ended; else `error`."""
    if ranks is None:
        return error
    if isinstance(error, Obeyed) and not ranks.heard():
        # Torch's launcher ends with SIGTERM the ranks that are left when one has failed.
        cause = ranks.ended_by(patience_s=SECONDS_TO_TELL)
        return RankError(cause) if cause else error
    if not isinstance(error, PeerError):
        return error
    if ranks.ordered() is not None:
        # The other rank obeyed an order. The thread that obeys it here ends the record with its
        # cause, and then this process.
        time.sleep(SECONDS_TO_OBEY)
    until = time.monotonic() + SECONDS_TO_TELL
    while time.monotonic() < until:
        if cause := ranks.error():
            return RankError(cause)
        if number := ranks.signal():
            return obeyed(number)
        time.sleep(0.02)
    return RankError(cause) if (cause := ranks.ended_by()) else error


def is_ending(ranks: RankFolder | None) -> bool:
    """Return True if another rank of this run has failed or is gone."""
    return ranks is not None and bool(ranks.ended_by())


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
