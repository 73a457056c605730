"""Training of a config in an OS process of its own, in a scratch project."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from assay.compose.checks import sound
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.resume_run import ResumeOptions, resume_run
from assay.compose.training import train
from assay.config import open_config
from assay.config.settings import Settings
from assay.query.run import RunView
from assay.store.layout import scan_runs

_SHOWN_LINES = 20
_TASK = "task.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """Task of the OS process: a config to train, or a run to resume if `resumed` is its folder.

    `launch` holds the fields of `Launch`; `threads` None keeps the number of the config.
    """

    config: str
    user_dirs: Sequence[str]
    settings: str
    threads: int | None
    launch: Mapping[str, Any]
    resumed: str = ""
    checkpoint: str = ""
    parent: str = ""


def train_in_process(
    task: TrainingTask, folder: Path, *, cwd: Path, variables: Mapping[str, str]
) -> str | None:
    """Train in an OS process; return its last lines when it failed, else None."""
    (folder / _TASK).write_text(json.dumps(asdict(task)), encoding="utf-8")
    said = folder / "said.txt"
    with said.open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "assay", "_replay", str(folder)],
            cwd=cwd,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode == 0:
        return None
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_SHOWN_LINES:])


def work(place: str) -> RunResult:
    """Train the task in the folder `place`."""
    task = TrainingTask(**json.loads((Path(place) / _TASK).read_text(encoding="utf-8")))
    changes = [f"threads={task.threads}"] if task.threads is not None else []
    config = replace(
        open_config(task.config, changes),
        user_dirs=tuple(Path(path) for path in task.user_dirs),
        settings=Settings(Path(task.settings)),
    )
    launch = Launch(**task.launch)
    if not task.resumed:
        return train(config, launch, parent=task.parent)
    view = RunView(Path(task.resumed))
    return resume_run(view, task.checkpoint, sound(config), launch, ResumeOptions())


def only_run(runs_dir: Path) -> RunView | None:
    """Return the run of a folder of runs that has at most one."""
    return next((RunView(Path(entry.path)) for entry in scan_runs(runs_dir)), None)
