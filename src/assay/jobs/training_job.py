"""Training job: a config frozen at submission, and the OS process that trains it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from assay.compose.launch_ranks import RankTask, config_of, task_of
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.run_many import attempt
from assay.compose.training import resume
from assay.config.loading import Config
from assay.config.typed_sections import sections_of
from assay.core import parent_death
from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import AssayError
from assay.core.job import ATTEMPT_VARIABLE, JobSpec
from assay.core.json_codec import to_plain, write_json
from assay.core.signals import Terminated
from assay.jobs.devices import TORCH_DEVICES_VARIABLE
from assay.jobs.failure import failure_of
from assay.jobs.frozen_code import FrozenCode
from assay.jobs.job_folder import FOLDER_VARIABLE, JobFolder, JobResult
from assay.jobs.supervise import PARENT_VARIABLE
from assay.query.diff import written
from assay.record.ending import ending

TRAIN_COMMAND = "_job"
UNTOLD = "--untold"
"""Behind the command: the end of the run is not printed."""
_LEFT_OUT = ("ASSAY_JOB", "LS_COLORS", "_")
_TASKS = "tasks"


def training_spec(
    config: Config,
    launch: Launch,
    frozen: FrozenCode,
    queue: Path,
    *,
    then_test: bool = False,
    parent: str = "",
    **placed: Any,
) -> JobSpec:
    """Write a config down for a job, with the code that it will run; return the job to submit.

    `parent` is the run whose config this is. `placed` are fields of JobSpec: device, priority,
    after, limits.
    """
    moved = replace(config, user_dirs=tuple(frozen.moved(path) for path in config.user_dirs))
    launch = replace(launch, code=to_plain(frozen.code))
    task = task_of(moved, launch, then_test=then_test, parent=parent)
    tasks = queue / _TASKS
    make_directory(tasks, PRIVATE)
    path = tasks / f"{os.urandom(8).hex()}.json"
    write_json(path, asdict(task))
    return JobSpec(
        command=(sys.executable, "-m", "assay", TRAIN_COMMAND, str(path)),
        cwd=os.getcwd(),
        environment=frozen.variables(_environment()),
        title=title_of(config),
        config=str(config.path or ""),
        project=str(frozen.root),
        code=frozen.code.snapshot,
        **placed,
    )


def title_of(config: Config) -> str:
    """Return a short name of a config: its tag or file, its variant, and the point of its sweep."""
    file = config.path.name if config.path is not None else ""
    assigned = "  ".join(f"{key}={written(node)}" for key, node in config.assigned)
    tag = sections_of(config.root).tag
    return "  ".join(filter(None, [tag or file, config.variant, assigned]))


def work(task_file: str) -> RunResult:
    """Train the config of a task as the job that this OS process is, and leave the result."""
    if parent := os.environ.pop(PARENT_VARIABLE, ""):
        parent_death.end_with(int(parent))
    folder = JobFolder(Path(os.environ[FOLDER_VARIABLE]))
    task = RankTask(**json.loads(Path(task_file).read_text(encoding="utf-8")))
    config = config_of(task, folder.path, 0)
    launch = _launch(task.launch)
    if task.resumed:
        result = resume(task.resumed, (), launch)
    else:
        result = attempt(config, launch, records_all=bool(launch.sweep), **task.options)
    _leave(folder, result)
    return result


def _launch(written: Mapping[str, Any]) -> Launch:
    device = os.environ.get(TORCH_DEVICES_VARIABLE) or written["device"]
    return Launch(**{**written, "command": tuple(written["command"]), "device": device})


def _leave(folder: JobFolder, result: RunResult) -> None:
    """Write what the dispatcher and the person who waits want to know of a run."""
    folder.write_result(int(os.environ.get(ATTEMPT_VARIABLE, 1)), _result(result))


def _result(result: RunResult) -> JobResult:
    left = JobResult(
        run=result.id,
        record_dir=str(result.record_dir or ""),
        status=result.status if result.status != "crashed" else "failed",
        exit_code=result.exit_code,
        value=dict(result.value),
        step=result.step,
        end_reason=result.reason,
        note=result.note,
        test=_result(result.test) if result.test is not None else None,
    )
    error = result.exception
    if error is None or isinstance(error, KeyboardInterrupt | Terminated):
        return left
    return replace(
        left,
        failure=failure_of(error),
        reason=_reason(error),
        error="\n  ".join([_text(error), *getattr(error, "__notes__", ())]),
        error_type=type(error).__name__,
        traceback="" if isinstance(error, AssayError) else ending(error)[2],
    )


def _text(error: BaseException) -> str:
    """Return the text of an error, with the type of a foreign one."""
    return str(error) if isinstance(error, AssayError) else f"{type(error).__name__}: {error}"


def _reason(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return _text(error).strip().split("\n", 1)[0]


def _environment() -> dict[str, str]:
    """Return the variables of the submitting shell, without those of a job it may itself be."""
    return {
        name: value
        for name, value in os.environ.items()
        if not any(name == left or name.startswith(f"{left}_") for left in _LEFT_OUT)
    } | {"PYTHONUNBUFFERED": "1"}
