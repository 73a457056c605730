"""OS process of a task: it reads the task, trains, resumes or rehearses, and leaves a report."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from assay.compose.launch import Launch, ProcessTask, RunResult, report_of
from assay.compose.ranks import ECHO_S, rank_report
from assay.compose.rehearsal import RehearsalRequest, rehearse
from assay.compose.run_many import run_and_keep_error
from assay.compose.run_record import fail_record
from assay.compose.training import ResumeOptions, check_and_resume, resume, train
from assay.config.loading import Config
from assay.core import parent_death
from assay.core.job import (
    ATTEMPT_VARIABLE,
    FOLDER_VARIABLE,
    PARENT_VARIABLE,
    TORCH_DEVICES_VARIABLE,
)
from assay.core.ports import NullRecorder
from assay.core.signals import obeying
from assay.formats.task_report import report_file, write_report
from assay.query.find import find

if TYPE_CHECKING:
    from assay.engine.parallel.process_group import World


def do_task(file: Path) -> tuple[ProcessTask, RunResult]:
    """Do the task in a file and leave a report of its end; return both.

    Whatever is raised before a run begins is left to the caller, unless somebody waits for the
    report: a rank and a new run of a job report it.
    """
    task = ProcessTask.read(file)
    do = {
        "rank": _train_as_rank,
        "job": _train_as_job,
        "replay": _train_again,
        "rehearsal": _rehearse,
    }
    return task, do[task.kind](task, file.parent)


def _rehearse(task: ProcessTask, folder: Path) -> RunResult:
    """Rehearse the config, and leave what was found."""
    config, devices = task.read_config(_config_file(folder)), task.read_launch().devices()
    wanted = RehearsalRequest(device=devices[0] if devices else None, **task.options)
    result = RunResult(record_dir=None, config=config, status="finished")
    report = replace(report_of(result), rehearsal=rehearse(config, wanted))
    write_report(report_file(folder), report)
    return result


def _train_again(task: ProcessTask, folder: Path) -> RunResult:
    """Train a recorded config again, as the process of a replay."""
    config = task.read_config(_config_file(folder))
    result = _train(task, config, task.read_launch())
    write_report(report_file(folder), report_of(result))
    return result


def _train_as_job(task: ProcessTask, folder: Path) -> RunResult:
    """Train as the job that this OS process is, on the devices that it was given."""
    if parent := os.environ.pop(PARENT_VARIABLE, ""):
        parent_death.end_with(int(parent))
    folder = Path(os.environ[FOLDER_VARIABLE])
    launch = task.read_launch()
    launch = replace(launch, device=os.environ.get(TORCH_DEVICES_VARIABLE) or launch.device)
    config = task.read_config(_config_file(folder))
    if task.resumed:
        result = resume(task.resumed, (), launch)
    else:
        result = run_and_keep_error(config, launch, records_all=bool(launch.sweep), **task.options)
    number = int(os.environ.get(ATTEMPT_VARIABLE, 1))
    write_report(report_file(folder, number), report_of(result))
    return result


def _train_as_rank(task: ProcessTask, folder: Path) -> RunResult:
    """Train as one rank, and report to the launcher.

    The exit code is 0 also for a run that was stopped, so that no launcher ends the other ranks.
    """
    from assay.engine.parallel.process_group import world
    from assay.engine.parallel.rank_folder import folder_of_attempt, heard_signal, read_if_there
    from assay.engine.parallel.watchdog import LostParent, RankWatchdog

    here = world()
    if here.restarts and heard_signal(folder):
        # Torch's launcher takes an end after a signal for a failure.
        return RunResult(record_dir=None, config=None, status="stopped")
    with obeying(echo_s=ECHO_S) as signals:
        ranks = folder_of_attempt(folder, here.restarts)
        try:
            ranks.begin(here.rank)
            with RankWatchdog(LostParent(task.launcher)):
                config = task.read_config(_config_file(ranks.path, here.rank))
                launch = _launch_of_rank(task, folder, here)
                result = _train(task, config, launch, begun=read_if_there(folder / "folder"))
        except BaseException as error:  # the edge of the process: who started it tells the person
            with signals.holding():
                result = fail_record(NullRecorder(), None, error, step=0)
                ranks.report(here.rank, rank_report(result, here.rank))
        else:
            with signals.holding():
                ranks.report(here.rank, rank_report(result, here.rank))
    return replace(result, exit_code=1 if result.status == "failed" else 0)


def _launch_of_rank(task: ProcessTask, folder: Path, here: World) -> Launch:
    """Return the launch of one rank, with why it was started again, if it was."""
    from assay.engine.parallel.rank_folder import SECONDS_TO_TELL, folder_of_attempt

    launch = task.read_launch()
    after = launch.after
    if here.restarts:
        before = folder_of_attempt(folder, here.restarts - 1)
        after = f"restart {here.restarts}: {before.ended_by(patience_s=SECONDS_TO_TELL)}"
    elif (folder / "folder").exists():
        after = "restart: processes of another machine have ended"
    ranks_folder = str(folder_of_attempt(folder, here.restarts).path)
    return replace(launch, ranks_folder=ranks_folder, after=after)


def _train(task: ProcessTask, config: Config, launch: Launch, *, begun: str = "") -> RunResult:
    """Train the config, or resume the run of a task.

    `begun` is the record that ranks before a restart have begun; it is resumed.
    """
    if begun:
        view = find(begun)[0]
        if view.status == "finished":  # somebody failed while leaving
            step = view.file.newest.to_step
            return RunResult(
                record_dir=view.path, config=config, status="finished", id=view.id, step=step
            )
        options = ResumeOptions(verify=task.options.get("verify", True), force=True)
        return check_and_resume(view, "", config, launch, options)
    if task.resumed:
        view = find(task.resumed)[0]
        options = ResumeOptions(**task.options)
        return check_and_resume(view, task.checkpoint, config, launch, options)
    return train(config, launch, **task.options)


def _config_file(folder: Path, rank: int = 0) -> Path:
    """Return the file that this OS process writes its config to."""
    return folder / f"config-{rank}.toml"
