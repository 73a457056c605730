"""Training job: a config frozen at submission, for the OS process that trains it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.compose.launch_settings import Launch
from assay.compose.other_process import ProcessTask, task_arguments
from assay.config.loading import Config
from assay.config.typed_sections import sections_of
from assay.core.directory import PRIVATE, make_directory
from assay.core.job import JobSpec
from assay.core.json_codec import to_plain
from assay.jobs.frozen_code import FrozenCode
from assay.query.diff import written

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
    task = ProcessTask.of("job", moved, launch, then_test=then_test, parent=parent)
    tasks = queue / _TASKS
    make_directory(tasks, PRIVATE)
    path = tasks / f"{os.urandom(8).hex()}.json"
    replace(task, tells="advice").write(path, durable=True)
    return JobSpec(
        command=(sys.executable, *task_arguments(path)),
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


def _environment() -> dict[str, str]:
    """Return the variables of the submitting shell, without those of a job it may itself be."""
    return {
        name: value
        for name, value in os.environ.items()
        if not any(name == left or name.startswith(f"{left}_") for left in _LEFT_OUT)
    } | {"PYTHONUNBUFFERED": "1"}
