"""Task for another OS process of assay: written down here, done there, and reported back.

One process does it for each rank of a run, for each of several runs, for a job of the queue, for a
replay and for a rehearsal: `python -m assay _task FILE`. `do_task` is its other side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from assay.compose.launch_settings import Launch, RunResult
from assay.config import dump, open_config
from assay.config.freeze import origins_of, with_origins
from assay.config.loading import Config
from assay.config.settings import Settings
from assay.config.tree import Table
from assay.core.errors import AssayError, PeerError, RankError
from assay.core.failure import failure_of
from assay.core.json_codec import from_plain, parse_json, write_json
from assay.core.signals import Obeyed
from assay.core.task_report import TaskReport
from assay.record.ending import ending

TASK_COMMAND = "_task"
"""Not for people: hidden command that does the task in a file."""

TASK_NAME = "task.json"

TaskKind = Literal["rank", "job", "replay", "rehearsal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTask:
    """Task of an OS process: a final config to train or to rehearse, or a run to resume.

    `origins` are those of the config's nodes in the files of the user, `outside` is what a config
    in Python read. `launcher` is the id of the process that wrote the task. `resumed` is the run to
    resume, "" for a new one. `options` are further arguments of the function that does it.
    `tells`: the process prints how it ended; with "advice", how the run may go on, too.
    """

    kind: TaskKind
    launch: Mapping[str, Any]
    config: str
    origins: Mapping[str, Any]
    path: str
    files: Mapping[str, str]
    launcher: int
    user_dirs: tuple[str, ...]
    settings: str
    variant: str
    point: str
    resumed: str = ""
    checkpoint: str = ""
    options: Mapping[str, Any]
    outside: Mapping[str, Any] = field(default_factory=dict)
    tells: Literal["nothing", "end", "advice"] = "nothing"

    @classmethod
    def of(cls, kind: TaskKind, config: Config, launch: Launch, **options: Any) -> ProcessTask:
        """Return the task that is this config and launch."""
        return cls(
            kind=kind,
            launch=asdict(launch),
            config=dump(config.root),
            origins=origins_of(config.root),
            path=str(config.path.resolve()) if config.path is not None else "",
            files=dict(config.files),
            launcher=os.getpid(),
            user_dirs=tuple(str(path.resolve()) for path in config.user_dirs),
            settings=str(config.settings.start.resolve()),
            variant=config.variant,
            point=config.point,
            options=options,
            outside=dict(config.outside),
        )

    @classmethod
    def read(cls, file: Path) -> ProcessTask:
        return from_plain(cls, parse_json(file.read_bytes()))

    def write(self, file: Path, *, durable: bool = False) -> None:
        write_json(file, self, durable=durable)

    def read_launch(self) -> Launch:
        """Return the launch as it was given."""
        return Launch(**{**self.launch, "command": tuple(self.launch["command"])})

    def read_config(self, file: Path) -> Config:
        """Return the config as it was given; `file` is one of this process's to write it to."""
        file.write_text(self.config, encoding="utf-8")
        config = open_config(file)
        root = with_origins(config.root, self.origins)
        assert isinstance(root, Table)
        return replace(
            config,
            root=root,
            path=Path(self.path) if self.path else None,
            files=dict(self.files),
            user_dirs=tuple(Path(path) for path in self.user_dirs),
            settings=Settings(Path(self.settings)),
            variant=self.variant,
            point=self.point,
            outside=self.outside,
        )


def task_arguments(file: Path) -> list[str]:
    """Return the arguments of Python by which an OS process does the task in a file."""
    return ["-m", "assay", TASK_COMMAND, str(file)]


def run_task(task: ProcessTask, folder: Path, **how: Any) -> subprocess.CompletedProcess[Any]:
    """Do a task in an OS process, wait for its end, and return how it ended.

    Its report is in `folder`, if it left one. `how` are arguments of `subprocess.run`.
    """
    file = folder / TASK_NAME
    task.write(file)
    return subprocess.run([sys.executable, *task_arguments(file)], check=False, **how)


def report_of(result: RunResult) -> TaskReport:
    """Return the report of a result, for whoever waits for it in another OS process."""
    report = TaskReport(
        run=result.id,
        record_dir=str(result.record_dir or ""),
        status=result.status if result.status != "crashed" else "failed",
        exit_code=result.exit_code,
        value=dict(result.value),
        step=result.step,
        end_reason=result.reason,
        note=result.note,
        test=report_of(result.test) if result.test is not None else None,
        signal=max(0, result.exit_code - 128) if result.status == "stopped" else 0,
    )
    error = result.exception
    if error is None or isinstance(error, Obeyed):
        return report
    return replace(
        report,
        failure=failure_of(error),
        reason=_error_text(error).strip().split("\n", 1)[0],
        error="\n  ".join([_error_text(error), *getattr(error, "__notes__", ())]),
        error_type=type(error).__name__,
        traceback="" if isinstance(error, AssayError) else ending(error)[2],
        follows=isinstance(error, PeerError | RankError),
    )


def _error_text(error: BaseException) -> str:
    """Return the text of an error, with the type of a foreign one."""
    return str(error) if isinstance(error, AssayError) else f"{type(error).__name__}: {error}"
