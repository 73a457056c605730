"""One run in several processes: what each of them is told, and what becomes of them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.division import check_division
from assay.compose.launch import Launch, RunResult
from assay.compose.records import secrets_of
from assay.config import dump, open_config
from assay.config.loading import Config
from assay.config.settings import Settings
from assay.config.tree import get_at, plain
from assay.core.directory import make_directory, open_directory
from assay.core.errors import AssayError, InputError
from assay.core.lease import process_start
from assay.core.schema import PARALLEL_AXES
from assay.query.find import find
from assay.store.layout import RunFolder

if TYPE_CHECKING:
    from assay.compose.house import House

TASK = "task.json"
SECONDS_TO_TELL = 1.0
"""How long one process waits for another, that ended, to have said why."""

SECONDS_TO_SHARE = 10.0
"""How long a disk of the network may take to show a file to another machine."""


class RankError(AssayError):
    """A process of the run failed, or was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What every process of a run does: a config that nothing changes any more; the run to go on with, if there is one.

    `options` are further arguments of the function that does it.
    """

    launch: Mapping[str, Any]
    config: str
    path: str
    files: Mapping[str, str]
    user_dirs: Sequence[str]
    settings: str
    variant: str
    point: str
    resumed: str = ""
    checkpoint: str = ""
    options: Mapping[str, Any]


def asked_processes(config: Config, launch: Launch) -> int:
    """How many processes a run is to have; InputError where [parallel] and what was typed do not agree."""
    node = get_at(config.root, ("parallel",))
    given = plain(node) if node is not None else {}
    axes = {name: int(given[name]) for name in PARALLEL_AXES if name in given}
    product = 1
    for size in axes.values():
        product *= size
    asked = f"--nnodes {launch.nnodes} x --nproc {launch.nproc}" if launch.nnodes > 1 else f"--nproc {launch.nproc}"
    if launch.nproc is None:
        if product % launch.nnodes:
            fix = "Give --nproc, how many there are on each; or change [parallel]."
            raise InputError(f"{product} processes cannot be split evenly on {launch.nnodes} machines.", fix=fix)
        return product
    count = launch.nproc * launch.nnodes
    if not axes or count == product:
        return count
    sizes = " x ".join(f"{size} {name}" for name, size in axes.items())
    each = f"Give --nproc {product // launch.nnodes}, or leave it out" if product % launch.nnodes == 0 else "Change it"
    raise InputError(
        f"{asked} is not {sizes} = {product}.",
        where=str(node.origin) if node is not None else "",
        fix=f"{each}; or change [parallel].",
    )


def is_spread(config: Config, launch: Launch) -> bool:
    """Whether this process has to start those that do the work. InputError when there are not as many as asked for."""
    from assay.engine.parallel.join import world

    count, here = asked_processes(config, launch), world()
    if here.count > 1 and (launch.nnodes == 1 or launch.ranks_folder):
        if launch.max_restarts and not launch.ranks_folder:
            fix = "Give it to torchrun; or start one process on each machine, and --nproc and --nnodes."
            raise InputError("--max-restarts is for processes that assay starts; these have been started.", fix=fix)
        is_asked = launch.nproc is not None or get_at(config.root, ("parallel",)) is not None
        if is_asked and count != here.count:
            raise InputError(
                f"{here.count} processes were started, and the config asks for {count}.",
                fix=f"torchrun --nproc-per-node {count}, or parallel.data={here.count}.",
            )
        return False
    check_split(config, sharers(config, count))
    check_division(config)
    return (count > 1 or launch.max_restarts > 0) and not launch.ranks_folder


def sharers(config: Config, count: int) -> int:
    """How many of `count` processes have different samples."""
    node = get_at(config.root, ("parallel",))
    given = plain(node) if node is not None else {}
    return count // (int(given.get("tensor", 1)) * int(given.get("pipeline", 1)))


def check_split(config: Config, count: int) -> None:
    """InputError when the batch cannot be divided among so many processes, with the arithmetic."""
    from assay.engine.batch_size import batch_size
    from assay.engine.parallel.layout import Layout

    parallel = get_at(config.root, ("parallel",))
    layout = Layout.of(plain(parallel) if parallel is not None else {})
    node = get_at(config.root, ("data", "train"))
    settings = plain(node) if node is not None else {}
    train = get_at(config.root, ("train",))
    whole, micro = settings.get("batch_size"), settings.get("micro_batch_size")
    if (count > 1 or layout.pipeline > 1) and isinstance(whole, int):
        accumulate = (plain(train) if train is not None else {}).get("accumulate")
        sizes = batch_size(whole, micro=micro, accumulate=accumulate, ranks=count)
        layout.check_micro_batches(sizes.accumulate, arithmetic=str(sizes))


def spread_config(config: Config, launch: Launch, *, parent: str = "") -> RunResult:
    """Train `config` in the processes that it asks for."""
    return _spread(task_of(config, launch, parent=parent), asked_processes(config, launch), config)


def spread_resume(config: Config, launch: Launch, record: Path, checkpoint: str, **options: Any) -> RunResult:
    """Go on with a run in the processes that its config asks for."""
    task = replace(task_of(config, launch, **options), resumed=str(record.resolve()), checkpoint=checkpoint)
    return _spread(task, asked_processes(config, launch), config)


def task_of(config: Config, launch: Launch, **options: Any) -> Task:
    """Write a config down for another process of this machine."""
    return Task(
        launch={**asdict(launch), "command": list(launch.command)},
        config=dump(config.root),
        path=str(config.path.resolve()) if config.path is not None else "",
        files=dict(config.files),
        user_dirs=[str(path.resolve()) for path in config.user_dirs],
        settings=str(config.settings.start.resolve()),
        variant=config.variant,
        point=config.point,
        options=options,
    )


def _spread(task: Task, count: int, config: Config) -> RunResult:
    from assay.engine.parallel.nodes import nodes_of
    from assay.engine.parallel.start import OWN_JOBS, output_of, start
    from assay.engine.parallel.watch import Watch

    nodes = nodes_of(*(task.launch[name] for name in ("nnodes", "node_rank", "rendezvous")))
    folder = Path(tempfile.mkdtemp(prefix=OWN_JOBS))
    try:
        (folder / TASK).write_text(json.dumps(asdict(task)), encoding="utf-8")
        sys.stdout.flush()
        with Watch(lambda: _pids(_newest(folder)), lambda rank, pid: _tell_stopped(_newest(folder), rank, pid)):
            deaths = start(
                ["-m", "assay", "_rank", str(folder)],
                count // nodes.count,
                folder=folder,
                max_restarts=int(task.launch["max_restarts"]),
                nodes=nodes,
            )
        told = _told(_newest(folder))
        first = told.get(0, {})
        place = first.get("folder") or _text(folder / "folder")
        record = Path(place) if place else None
        least = min(_ranks(_newest(folder)), default=0)
        if record is not None and not first.get("id"):  # rank 0 is gone without a word, or on another machine
            view = find(str(record))[0]
            first = {**first, "id": view.id, "step": max((each.step or 0 for each in view.checkpoints), default=0)}
        if record is not None:
            for local in range(1, count // nodes.count):
                kept = RunFolder(record).ranks / f"{least + local}.txt"
                make_directory(kept.parent)
                with open_directory(kept.parent) as ranks:
                    descriptor = ranks.open(kept.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                with open(descriptor, "a", encoding="utf-8") as file:
                    file.write(secrets_of(config).clean(output_of(folder, local)))
        cause = _cause(told, deaths)
        if least and told:  # rank 0 of another machine tells more
            first = {**told[min(told)], "id": first.get("id", ""), "step": first.get("step", 0)}
        return RunResult(
            record_dir=record,
            config=config,
            status="failed" if cause is not None else first.get("status", "failed"),
            value=first.get("value", {}),
            exception=cause,
            exit_code=first.get("exit_code", 1) or 1 if cause is not None else first.get("exit_code", 1),
            id=first.get("id", ""),
            step=first.get("step", 0),
            is_first=least == 0,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _attempt(folder: Path, number: int) -> Path:
    """Where the processes that were started together, for the time `number`, say what they do."""
    return folder / f"ranks-{number}"


def _newest(folder: Path) -> Path:
    numbers = [int(each.name.partition("-")[2]) for each in folder.glob("ranks-*")]
    return _attempt(folder, max(numbers, default=0))


def _ranks(attempt: Path) -> dict[int, int]:
    """The processes of this machine that have begun, by rank; 0 for one that is just about to."""
    return {int(file.name.partition("-")[2]): int(_text(file) or 0) for file in attempt.glob("pid-*")}


def _pids(attempt: Path) -> dict[int, int]:
    """Those that have not said yet how they ended."""
    return {rank: pid for rank, pid in _ranks(attempt).items() if pid and not (attempt / f"ended-{rank}.json").exists()}


def _cause(told: Mapping[int, Mapping[str, Any]], deaths: Sequence[Any]) -> AssayError | None:
    """The first thing that went wrong, and what followed from it left out."""
    own = _own(told)
    if own:
        return RankError(own)
    silent = [death for death in deaths if death.rank not in told]
    if silent:
        death = silent[0]
        return RankError(f"Rank {death.rank} (pid {death.pid}) {death.how}.")
    others = [each for each in told.values() if each["error"]]
    return RankError(others[0]["error"]) if others else None


def _own(told: Mapping[int, Mapping[str, Any]]) -> str:
    """The first error that did not follow from that of another process."""
    own = [each for each in told.values() if each["error"] and not each["follows"]]
    return str(min(own, key=lambda each: each["time"])["error"]) if own else ""


def _told(attempt: Path) -> dict[int, dict[str, Any]]:
    found = {}
    for file in attempt.glob("ended-*.json"):
        found[int(file.stem.partition("-")[2])] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _tell(attempt: Path, rank: int, told: Mapping[str, Any]) -> None:
    file = attempt / f"ended-{rank}.json"
    file.with_suffix(".new").write_text(json.dumps({**told, "time": time.time()}), encoding="utf-8")
    file.with_suffix(".new").replace(file)


def _tell_stopped(attempt: Path, rank: int, pid: int) -> None:
    """For a process that cannot say any more what became of it."""
    from assay.engine.parallel.watch import was_stopped

    _tell(attempt, rank, {"status": "failed", "error": was_stopped(rank, pid), "follows": False})


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def work(place: str) -> int:
    """What each process does; the exit code is 0 also for a run that was stopped, as nobody has to end the others."""
    from assay.engine.parallel.join import world
    from assay.engine.parallel.ranks import PeerError
    from assay.engine.parallel.watch import Watch

    folder, here = Path(place), world()
    attempt = _attempt(folder, here.restarts)
    attempt.mkdir(exist_ok=True)
    (attempt / f"ended-{here.rank}.json").unlink(missing_ok=True)  # only one of several machines counts a restart
    (attempt / f"pid-{here.rank}").write_text(str(os.getpid()), encoding="utf-8")
    task = Task(**json.loads((folder / TASK).read_text(encoding="utf-8")))
    given = {**task.launch, "command": tuple(task.launch["command"]), "ranks_folder": str(attempt)}
    begun = _text(folder / "folder")
    if begun and not here.restarts:
        given["after"] = "restart: processes of another machine have ended"
    if here.restarts:
        given["after"] = f"restart {here.restarts}: {_ended_by(_attempt(folder, here.restarts - 1))}"
    with Watch(parent=os.getppid()):
        try:
            result = _do(task, config_of(task, attempt, here.rank), Launch(**given), begun)
        except Exception as error:  # the edge of the process: who started it tells the person
            code = getattr(error, "exit_code", 1)
            result = RunResult(record_dir=None, config=None, status="failed", exception=error, exit_code=code)
    told = {
        "status": result.status,
        "value": dict(result.value),
        "exit_code": result.exit_code,
        "id": result.id,
        "step": result.step,
        "folder": str(result.record_dir or ""),
        "error": "" if result.exception is None else said(result.exception, here.rank),
        "follows": isinstance(result.exception, PeerError | RankError),
    }
    _tell(attempt, here.rank, told)
    return 1 if result.status == "failed" else 0


def _do(task: Task, config: Config, launch: Launch, begun: str) -> RunResult:
    """Train, or go on. `begun` is the record that processes before these have begun, which then is gone on with."""
    from assay.compose.checks import sound
    from assay.compose.training import go_on, train

    if begun:
        view = find(begun)[0]
        if view.status == "finished":  # somebody failed while leaving
            return RunResult(
                record_dir=view.path, config=config, status="finished", id=view.id, step=view.file.newest.to_step
            )
        verify = task.options.get("verify", True)
        return go_on(view, "", sound(config), launch, take_over=False, verify=verify, force=True)
    if task.resumed:
        return go_on(find(task.resumed)[0], task.checkpoint, sound(config), launch, **task.options)
    return train(config, launch, **task.options)


def config_of(task: Task, folder: Path, rank: int) -> Config:
    """Read the config of a task; `folder` is for a file of this rank's."""
    file = folder / f"config-{rank}.toml"
    file.write_text(task.config, encoding="utf-8")
    return replace(
        open_config(file),
        path=Path(task.path) if task.path else None,
        files=dict(task.files),
        user_dirs=tuple(Path(path) for path in task.user_dirs),
        settings=Settings(Path(task.settings)),
        variant=task.variant,
        point=task.point,
    )


def said(error: BaseException, rank: int) -> str:
    """What a process failed with, as a person reads it: the error first, then where it came from."""
    from assay.record.recorder import ending

    where = f"On rank {rank}: " if rank else ""
    if isinstance(error, AssayError):
        return where + "\n  ".join([str(error), *getattr(error, "__notes__", ())])
    head = f"{type(error).__name__}: {error}"
    before, _, after = ending(error)[2].rpartition(f"\n{head}")
    return f"{where}{head}\n{before}{after}".rstrip()


def cause_of(error: BaseException, launch: Launch, house: House) -> BaseException:
    """What ended another process, when `error` is only that it ended; else the error itself."""
    from assay.engine.parallel.ranks import PeerError

    if not isinstance(error, PeerError):
        return error
    until = time.monotonic() + SECONDS_TO_TELL
    while time.monotonic() < until:
        said = _ended_by(Path(launch.ranks_folder)) if launch.ranks_folder else _seen(house)
        if said:
            return RankError(said)
        time.sleep(0.02)
    return error


def is_ending(launch: Launch) -> bool:
    """Whether another process of this run has failed or is gone."""
    return bool(launch.ranks_folder and _ended_by(Path(launch.ranks_folder)))


def _ended_by(attempt: Path) -> str:
    """What ended processes that say under `attempt` what they do: the first error, or who is gone without a word."""
    told = _told(attempt)
    if own := _own(told):
        return own
    gone = {rank: pid for rank, pid in _pids(attempt).items() if process_start(pid) is None}
    return next((f"Rank {rank} (pid {pid}) was killed." for rank, pid in gone.items()), "")


def _seen(house: House) -> str:
    """The same of processes of this machine that somebody else has started."""
    if house.watch is None or house.watch.said:
        return house.watch.said if house.watch is not None else ""
    gone = {rank: pid for rank, pid in house.watch.pids().items() if process_start(pid) is None}
    return next((f"Rank {rank} (pid {pid}) has ended, or was killed." for rank, pid in gone.items()), "")


def tell_folder(launch: Launch, house: House, record: Path | None) -> None:
    """Where the record is, for who started these processes, and for those that may go on after them. Collective."""
    place = str(record or "")
    if house.ranks is not None:
        place = house.ranks.gather_from_everyone(place)[0]
    if place:
        (Path(launch.ranks_folder).parent / "folder").write_text(place, encoding="utf-8")


def check_shared(house: House, folder: Path) -> None:
    """InputError when what rank 0 writes in `folder` cannot be read by all others: it has to be on a shared disk."""
    if house.ranks is None:
        return
    nonce = folder / f".shared-{secrets.token_hex(8)}"
    if house.is_first:
        make_directory(nonce.parent)
        nonce.write_text("", encoding="utf-8")
    name = house.ranks.gather_from_everyone(nonce.name)[0]
    until = time.monotonic() + SECONDS_TO_SHARE
    while not (folder / name).exists() and time.monotonic() < until:
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            os.listdir(folder)  # a disk of the network looks again
    seen = house.ranks.gather_from_everyone((socket.gethostname(), str(folder), (folder / name).exists()))
    if house.is_first:
        nonce.unlink(missing_ok=True)
    for rank, (host, theirs, has_seen) in enumerate(seen):
        if not has_seen:
            raise InputError(
                f"The run folder is not on a shared file system: rank {rank} does not see what rank 0 writes there.",
                where=f"{theirs} on {host}; rank 0: {seen[0][1]} on {seen[0][0]}",
                fix="Put the project, or ASSAY_RUNS_DIR, where all machines see it under the same path.",
            )
