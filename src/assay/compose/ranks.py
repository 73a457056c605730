"""Run in several OS processes: how many, who looks after them, and the result of all of them."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.launch import (
    TASK_NAME,
    Launch,
    ProcessTask,
    RunResult,
    report_of,
    task_arguments,
)
from assay.compose.run_record import secrets_of
from assay.config.loading import Config
from assay.config.standard_keys import sections_of
from assay.config.tree import Leaf, Table, get_at
from assay.core.errors import AssayError, InputError, RankError
from assay.core.sections import ParallelSection, SplitSection
from assay.formats.run_file import Attempt
from assay.formats.task_report import TaskReport
from assay.query.find import find
from assay.query.run import RunView
from assay.record.ending import ending
from assay.store.layout import RunFolder

if TYPE_CHECKING:
    from assay.compose.run_scope import RunScope
    from assay.engine.parallel.rank_folder import RankExit, RankFolder
    from assay.record.rank_output import RankOutput

ECHO_S = 1.0
"""A scheduler may signal a rank itself, too, and the launcher a moment later passes the same on."""


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


def processes(attempt: Attempt) -> int | None:
    """Return the number of ranks that shared each batch, None for one process."""
    world = str(attempt.environment.get("variables", {}).get("WORLD_SIZE", ""))
    given = attempt.launch.get("nproc")
    return int(given) if given else int(world) if world.isdecimal() and int(world) > 1 else None


def launch_as_before(view: RunView, config: Config, launch: Launch) -> Launch:
    """Return a launch on the ranks and the device that the run had, where nothing else is said.

    Other ranks or another kind of device add up in another order: the bits would be others.
    """
    from assay.engine.parallel.process_group import world

    if not view.file.attempts:
        return launch
    before = view.file.newest.launch
    if launch.device is None and before.get("device") == "cpu":
        launch = replace(launch, device="cpu")
    is_alone = launch.nnodes == before.get("nnodes", 1) == world().count == 1
    if launch.nproc is None and is_alone and not parallel_of(config).axes:
        launch = replace(launch, nproc=processes(view.file.newest))
    return launch


def is_spread(config: Config, launch: Launch) -> bool:
    """Return True if this process has to launch the ranks.

    InputError when another launcher has started a number that the config does not ask for.
    """
    from assay.engine.numerics.precision import gather_dtype
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
    gather_dtype(sections_of(config.root))
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


def check_division(config: Config) -> None:
    """InputError when the model cannot be divided or split as [parallel] says, with the arithmetic.

    Only a model that is a class and takes plain values is looked at, without memory for its
    weights; of any other the processes find out themselves.
    """
    parallel = sections_of(config.root).parallel
    size = parallel.tensor or 1
    if size == 1 and (parallel.pipeline or 1) == 1:
        return
    from assay.engine.parallel.layout import Layout
    from assay.engine.parallel.pipeline_stages import split_model
    from assay.engine.parallel.tensor_parallel import check_plan, tensor_plan_of

    model = _outline(config)
    layout = Layout.of(parallel)
    if not hasattr(model, "named_modules"):
        return
    if size > 1:
        check_plan(model, tensor_plan_of(model, parallel.tensor_plan), size)
    if layout.pipeline > 1:
        split_model(model, layout.stage_count, layout.split)


def _outline(config: Config) -> Any:
    """Return the model on the meta device, None where building it may do more than that."""
    from assay.build import Context, build, resolve, user_code
    from assay.engine.loop.device import without_memory

    node = get_at(config.root, ("model",))
    if not isinstance(node, Table) or node.target is None:
        return None
    leaves = [item for key, item in node.items.items() if key != "type"]
    if not all(
        isinstance(leaf, Leaf) and not str(leaf.value).startswith(("@", "$")) for leaf in leaves
    ):
        return None
    dirs, trusted = config.user_dirs, config.settings.trusted
    with user_code(dirs):
        context = Context()
        try:
            if not isinstance(resolve(str(node.target), user_dirs=dirs, trusted=trusted), type):
                return None
            with context.use(), without_memory():
                return build(
                    node,
                    context,
                    root=config.root,
                    path=("model",),
                    user_dirs=dirs,
                    trusted=trusted,
                )
        except Exception:  # what the model raises is told by the processes that need it
            return None
        finally:
            context.close()


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
    from assay.engine.parallel.launcher import launch_watched
    from assay.engine.parallel.nodes import nodes_of
    from assay.engine.parallel.rank_folder import JOB_PREFIX

    nodes = nodes_of(launch.nnodes, launch.node_rank, launch.rendezvous)
    count = asked_processes(config, launch) // nodes.count
    folder = Path(tempfile.mkdtemp(prefix=JOB_PREFIX))
    output = _KeptOutput(folder, count, config)
    try:
        task.write(folder / TASK_NAME)
        sys.stdout.flush()
        deaths, signal = launch_watched(
            task_arguments(folder / TASK_NAME),
            count,
            folder=folder,
            look=output.follow,
            max_restarts=launch.max_restarts,
            nodes=nodes,
            timeout=parallel_of(config).timeout,
        )
        return read_result(folder, config, deaths, signal)
    finally:
        output.close()
        shutil.rmtree(folder, ignore_errors=True)


def tell_folder(launch: Launch, scope: RunScope, record: Path | None) -> None:
    """Write the place of the record for the launcher, and for ranks started after these.

    Collective.
    """
    place = str(record or "")
    if scope.ranks is not None:
        place = scope.ranks.all_gather_world(place)[0]
    if place:
        (Path(launch.ranks_folder).parent / "folder").write_text(place, encoding="utf-8")


class _KeptOutput:
    """Output of every rank but the machine's first, kept in the record while the run goes on."""

    def __init__(self, folder: Path, local_count: int, config: Config) -> None:
        self._folder = folder
        self._local_count = local_count
        self._secrets = secrets_of(config)
        self._outputs: dict[int, RankOutput] = {}

    def follow(self, *, is_over: bool = False) -> None:
        """Keep what was printed since the last call, once all ranks have begun or the run is over.

        A file that cannot be written stops nothing.
        """
        from assay.engine.parallel.rank_folder import newest_ranks, output_files, read_if_there
        from assay.record.rank_output import RankOutput

        ranks, place = newest_ranks(self._folder).ranks(), read_if_there(self._folder / "folder")
        if not place or not (is_over or len(ranks) == self._local_count):
            return
        for local in range(1, self._local_count):
            with contextlib.suppress(OSError):
                if local not in self._outputs:
                    kept = RunFolder(Path(place)).ranks / f"{min(ranks, default=0) + local}.txt"
                    self._outputs[local] = RankOutput(kept, self._secrets)
                self._outputs[local].follow(output_files(self._folder, local))

    def close(self) -> None:
        """Keep the rest, after the last rank has ended."""
        self.follow(is_over=True)
        for output in self._outputs.values():
            with contextlib.suppress(OSError):
                output.close()


def read_result(folder: Path, config: Config, deaths: Sequence[RankExit], signal: int) -> RunResult:
    """Return the result of the run from the reports of its ranks."""
    from assay.engine.parallel.rank_folder import newest_ranks, read_if_there

    newest = newest_ranks(folder)
    reports = newest.reports()
    first = reports.get(0, TaskReport())
    place = first.record_dir or read_if_there(folder / "folder")
    record = Path(place) if place else None
    least = min(newest.ranks(), default=0)
    if record is not None and not first.run:
        # Rank 0 is gone without a word, or on another machine.
        view = find(str(record))[0]
        step = max((each.step or 0 for each in view.checkpoints), default=0)
        first = replace(first, run=view.id, step=step)
    if least and reports:  # rank 0 of another machine reports there
        first = replace(reports[min(reports)], run=first.run, step=first.step)
    return RunResult(
        record_dir=record,
        config=config,
        value=first.value,
        id=first.run,
        step=first.step,
        reason=first.end_reason,
        is_first=least == 0,
        **outcome_of(newest, first, deaths, signal),
    )


def outcome_of(
    ranks: RankFolder, first: TaskReport, deaths: Sequence[RankExit], number: int
) -> dict[str, Any]:
    """Return the end of the run as arguments of a RunResult.

    `first` is the report of rank 0; `number` is the signal of the launcher, 0 for none.

    A run that came to its own end is finished, whatever signal came late; after a signal nothing
    else is a failure, but a rank that hung is told.
    """
    number = number or (0 if ranks.error() else ranks.signal())
    if first.status == "finished" and not ranks.error():
        return {
            "status": "finished",
            "signal": number,
            "note": first.note,
            "exit_code": first.exit_code,
        }
    if number:
        order = ranks.given_order()
        hung = RankError(order.cause) if order is not None else None
        return {"status": "stopped", "exception": hung, "exit_code": 128 + number, "signal": number}
    cause = _first_cause(ranks.reports(), ranks.error(), deaths)
    if cause is not None:
        # Others ended because one had failed; or by the SIGTERM with which torch ends those left.
        failed = [each for each in (first, *ranks.reports().values()) if each.status == "failed"]
        failed.sort(key=lambda each: (each.follows, each.ended_s))
        is_mistake = bool(failed) and failed[0].exit_code == InputError.exit_code
        code = InputError.exit_code if is_mistake else RankError.exit_code
        return {"status": "failed", "exception": cause, "exit_code": code}
    if not first.status:
        return {"status": "failed", "exit_code": 1}
    return {"status": first.status, "exit_code": first.exit_code}


def _first_cause(
    reports: Mapping[int, TaskReport], own: str, deaths: Sequence[RankExit]
) -> AssayError | None:
    """Return the first error of a rank; those that follow from it are left out."""
    if own:
        return RankError(own)
    silent = [death for death in deaths if death.rank not in reports]
    if silent:
        death = silent[0]
        return RankError(f"Rank {death.rank} (pid {death.pid}) {death.how}.")
    following = [report.error for report in reports.values() if report.error]
    return RankError(following[0]) if following else None


def rank_report(result: RunResult, rank: int) -> TaskReport:
    """Return the report of a rank: its error as it is printed for a person."""
    report = report_of(result)
    if report.status != "failed" or result.exception is None:
        return replace(report, error="")
    return replace(report, error=_rank_error(result.exception, rank))


def _rank_error(error: BaseException, rank: int) -> str:
    """Return the error of a rank as text: the error first, then its traceback."""
    where = f"On rank {rank}: " if rank else ""
    if isinstance(error, AssayError):
        return where + "\n  ".join([str(error), *getattr(error, "__notes__", ())])
    head = f"{type(error).__name__}: {error}"
    before, _, after = ending(error)[2].rpartition(f"\n{head}")
    return f"{where}{head}\n{before}{after}".rstrip()
