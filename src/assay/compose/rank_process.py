"""OS process of one rank: read the task, train or resume, report to the launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from assay.compose.checks import sound
from assay.compose.launch_ranks import ECHO_S, TASK, RankTask, config_of
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.rank_ends import end_facts
from assay.compose.rank_folder import SECONDS_TO_TELL, folder_of_attempt, heard_in, text
from assay.compose.resume_run import ResumeOptions, resume_run
from assay.compose.run_record import failed
from assay.compose.training import train
from assay.core.ports import NullRecorder
from assay.core.signals import obeying
from assay.query.find import find

if TYPE_CHECKING:
    from assay.engine.parallel.process_group import World


def work(place: str) -> int:
    """Train as one rank; return the exit code.

    It is 0 also for a run that was stopped, so that no launcher ends the other ranks.
    """
    from assay.engine.parallel.process_group import world
    from assay.engine.parallel.watchdog import LostParent, RankWatchdog

    folder = Path(place)
    here = world()
    if here.restarts and heard_in(folder):
        return 0  # torch's launcher takes an end after a signal for a failure
    with obeying(echo_s=ECHO_S) as signals:
        ranks = folder_of_attempt(folder, here.restarts)
        try:
            ranks.begin(here.rank)
            task = RankTask(**json.loads((folder / TASK).read_text(encoding="utf-8")))
            with RankWatchdog(LostParent(task.launcher)):
                result = _do(task, _launch(task, folder, here), here.rank, text(folder / "folder"))
        except BaseException as error:  # the edge of the process: who started it tells the person
            with signals.held():
                result = failed(NullRecorder(), None, error, step=0)
                ranks.tell(here.rank, end_facts(result, here.rank))
        else:
            with signals.held():
                ranks.tell(here.rank, end_facts(result, here.rank))
    return 1 if result.status == "failed" else 0


def _launch(task: RankTask, folder: Path, here: World) -> Launch:
    """Return the launch of one rank, with why it was started again, if it was."""
    given = {**task.launch, "command": tuple(task.launch["command"])}
    given["ranks_folder"] = str(folder_of_attempt(folder, here.restarts).path)
    if (folder / "folder").exists() and not here.restarts:
        given["after"] = "restart: processes of another machine have ended"
    if here.restarts:
        before = folder_of_attempt(folder, here.restarts - 1)
        cause = before.ended_by(patience_s=SECONDS_TO_TELL)
        given["after"] = f"restart {here.restarts}: {cause}"
    return Launch(**given)


def _do(task: RankTask, launch: Launch, rank: int, begun: str) -> RunResult:
    """Train or resume.

    `begun` is the record that ranks before a restart have begun; it is resumed.
    """
    config = config_of(task, Path(launch.ranks_folder), rank)
    if begun:
        view = find(begun)[0]
        if view.status == "finished":  # somebody failed while leaving
            return RunResult(
                record_dir=view.path,
                config=config,
                status="finished",
                id=view.id,
                step=view.file.newest.to_step,
            )
        options = ResumeOptions(verify=task.options.get("verify", True), force=True)
        return resume_run(view, "", sound(config), launch, options)
    if task.resumed:
        view = find(task.resumed)[0]
        options = ResumeOptions(**task.options)
        return resume_run(view, task.checkpoint, sound(config), launch, options)
    return train(config, launch, **task.options)
