"""One run in several processes: what each of them is told, and what becomes of them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from assay.compose.launch import Launch, RunResult
from assay.config import dump, open_config
from assay.config.load import Config
from assay.config.settings import Settings
from assay.config.tree import get_at, plain
from assay.core.errors import AssayError, InputError
from assay.core.lease import process_start
from assay.core.schema import PARALLEL_AXES
from assay.query.find import find
from assay.store.layout import RunFolder

TASK = "task.json"
SECONDS_TO_TELL = 1.0
"""How long one process waits for another, that ended, to have said why."""


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
    """How many processes a run is to have; InputError where [parallel] and `--nproc` do not agree."""
    node = get_at(config.root, ("parallel",))
    given = plain(node) if node is not None else {}
    axes = {name: int(given[name]) for name in PARALLEL_AXES if name in given}
    product = 1
    for size in axes.values():
        product *= size
    if launch.nproc is None or not axes or launch.nproc == product:
        return launch.nproc or product
    sizes = " x ".join(f"{size} {name}" for name, size in axes.items())
    raise InputError(
        f"--nproc {launch.nproc} is not {sizes} = {product}.",
        where=str(node.origin) if node is not None else "",
        fix=f"Give --nproc {product}, or leave it out; or change [parallel].",
    )


def is_spread(config: Config, launch: Launch) -> bool:
    """Whether this process has to start those that do the work. InputError when there are not as many as asked for."""
    from assay.engine.parallel.join import world

    count, here = asked_processes(config, launch), world()
    if here.count > 1:
        is_asked = launch.nproc is not None or get_at(config.root, ("parallel",)) is not None
        if is_asked and count != here.count:
            raise InputError(
                f"{here.count} processes were started, and the config asks for {count}.",
                fix=f"torchrun --nproc-per-node {count}, or parallel.data={here.count}.",
            )
        return False
    check_split(config, sharers(config, count))
    return count > 1


def sharers(config: Config, count: int) -> int:
    """How many of `count` processes have different samples."""
    node = get_at(config.root, ("parallel",))
    given = plain(node) if node is not None else {}
    return count // (int(given.get("tensor", 1)) * int(given.get("pipeline", 1)))


def check_split(config: Config, count: int) -> None:
    """InputError when the batch cannot be divided among so many processes, with the arithmetic."""
    from assay.engine.batch_size import batch_size

    node = get_at(config.root, ("data", "train"))
    settings = plain(node) if node is not None else {}
    train = get_at(config.root, ("train",))
    whole, micro = settings.get("batch_size"), settings.get("micro_batch_size")
    if count > 1 and isinstance(whole, int):
        accumulate = (plain(train) if train is not None else {}).get("accumulate")
        batch_size(whole, micro=micro, accumulate=accumulate, ranks=count)


def refuse_joined(what: str) -> None:
    """InputError where other processes were started for the same run: each would decide for itself."""
    from assay.engine.parallel.join import world

    if world().count > 1:
        raise InputError(f"{what} is decided by one process, and several were started.", fix="Give --nproc instead.")


def spread_config(config: Config, launch: Launch, *, parent: str = "") -> RunResult:
    """Train `config` in the processes that it asks for."""
    return _spread(_task(config, launch, parent=parent), asked_processes(config, launch), config)


def spread_resume(config: Config, launch: Launch, record: Path, checkpoint: str, **options: Any) -> RunResult:
    """Go on with a run in the processes that its config asks for."""
    task = replace(_task(config, launch, **options), resumed=str(record.resolve()), checkpoint=checkpoint)
    return _spread(task, asked_processes(config, launch), config)


def _task(config: Config, launch: Launch, **options: Any) -> Task:
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
    from assay.engine.parallel.start import output_of, start

    folder = Path(tempfile.mkdtemp(prefix="assay-ranks-"))
    try:
        (folder / TASK).write_text(json.dumps(asdict(task)), encoding="utf-8")
        sys.stdout.flush()
        deaths = start(["-m", "assay", "_rank", str(folder)], count, folder=folder)
        told = _told(folder)
        first = told.get(0, {})
        place = first.get("folder") or _text(folder / "folder")
        record = Path(place) if place else None
        if record is not None:
            for rank in range(1, count):
                kept = RunFolder(record).ranks / f"{rank}.txt"
                kept.parent.mkdir(exist_ok=True)
                with kept.open("a", encoding="utf-8") as file:
                    file.write(output_of(folder, rank))
        cause = _cause(told, deaths)
        return RunResult(
            record_dir=record,
            config=config,
            status="failed" if cause is not None else first.get("status", "failed"),
            value=first.get("value", {}),
            exception=cause,
            exit_code=first.get("exit_code", 1) or 1 if cause is not None else first.get("exit_code", 1),
            id=first.get("id", ""),
            step=first.get("step", 0),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cause(told: Mapping[int, Mapping[str, Any]], deaths: Sequence[Any]) -> AssayError | None:
    """The first thing that went wrong, and what followed from it left out."""
    own = sorted((each for each in told.values() if each["error"] and not each["follows"]), key=lambda e: e["time"])
    if own:
        return RankError(own[0]["error"])
    silent = [death for death in deaths if death.rank not in told]
    if silent:
        death = silent[0]
        return RankError(f"Rank {death.rank} (pid {death.pid}) {death.how}.")
    others = [each for each in told.values() if each["error"]]
    return RankError(others[0]["error"]) if others else None


def _told(folder: Path) -> dict[int, dict[str, Any]]:
    found = {}
    for file in folder.glob("ended-*.json"):
        found[int(file.stem.partition("-")[2])] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def work(place: str) -> int:
    """What each process does; the exit code is 0 also for a run that was stopped, as nobody has to end the others."""
    from assay.compose.checks import sound
    from assay.compose.training import go_on, train
    from assay.engine.parallel.join import world
    from assay.engine.parallel.ranks import PeerError

    folder, here = Path(place), world()
    (folder / f"pid-{here.rank}").write_text(str(os.getpid()), encoding="utf-8")
    task = Task(**json.loads((folder / TASK).read_text(encoding="utf-8")))
    given = {**task.launch, "command": tuple(task.launch["command"]), "ranks_folder": place}
    launch = Launch(**given)
    try:
        config = _config(task, folder, here.rank)
        if task.resumed:
            result = go_on(find(task.resumed)[0], task.checkpoint, sound(config), launch, **task.options)
        else:
            result = train(config, launch, **task.options)
    except Exception as error:  # the edge of the process: who started it tells the person
        result = RunResult(
            record_dir=None, config=None, status="failed", exception=error, exit_code=getattr(error, "exit_code", 1)
        )
    told = {
        "status": result.status,
        "value": dict(result.value),
        "exit_code": result.exit_code,
        "id": result.id,
        "step": result.step,
        "folder": str(result.record_dir or ""),
        "error": "" if result.exception is None else said(result.exception, here.rank),
        "follows": isinstance(result.exception, PeerError | RankError),
        "time": time.time(),
    }
    file = folder / f"ended-{here.rank}.json"
    file.with_suffix(".new").write_text(json.dumps(told), encoding="utf-8")
    file.with_suffix(".new").replace(file)
    return 1 if result.status == "failed" else 0


def _config(task: Task, folder: Path, rank: int) -> Config:
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
    return f"{where}{type(error).__name__}: {error}\n{ending(error)[2]}".rstrip()


def cause_of(error: BaseException, launch: Launch) -> BaseException:
    """What ended another process, when `error` is only that it ended; else the error itself."""
    from assay.engine.parallel.ranks import PeerError

    if not isinstance(error, PeerError) or not launch.ranks_folder:
        return error
    folder, until = Path(launch.ranks_folder), time.monotonic() + SECONDS_TO_TELL
    while True:
        told = _told(folder)
        own = sorted((e for e in told.values() if e["error"] and not e["follows"]), key=lambda e: e["time"])
        if own:
            return RankError(own[0]["error"])
        gone = [file for file in folder.glob("pid-*") if process_start(int(file.read_text() or 0)) is None]
        if gone or time.monotonic() > until:
            break
        time.sleep(0.02)
    for file in gone:
        rank = int(file.name.partition("-")[2])
        if rank not in told:
            return RankError(f"Rank {rank} (pid {file.read_text()}) was killed.")
    return error


def tell_folder(launch: Launch, record: Path) -> None:
    """Where the record is, for who started this process."""
    (Path(launch.ranks_folder) / "folder").write_text(str(record), encoding="utf-8")
