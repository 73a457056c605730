"""Settings of one launch, its result, and the task by which another OS process does it.

One process does a task for each rank of a run, for each of several runs, for a job of the queue,
for a replay and for a rehearsal: `python -m assay _task FILE`. `task_process` is its other side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Literal

from assay.config import dump, open_config
from assay.config.freeze import origins_of, with_origins
from assay.config.loading import Config
from assay.config.settings import Settings
from assay.config.tree import Table
from assay.core.devices import device_names
from assay.core.errors import AssayError, InputError, PeerError, RankError, RecordError
from assay.core.facts import EndStatus
from assay.core.job import failure_of
from assay.core.regular_file import read_bytes
from assay.core.signals import Obeyed
from assay.formats.json_codec import dataclass_from, parse_json, write_atomic, write_json
from assay.formats.run_file import Code
from assay.formats.task_report import TaskReport
from assay.query.run import RunView
from assay.record.ending import ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Settings of one launch, from the command line; kept in `run.json`, never in the config.

    `nproc` processes on each of `nnodes` machines.

    `device`: one, or a list such as `cuda:0,1` that several runs take in turn; None: the
    accelerator if there is one. `stop_at`: the step at which the run is left although it is planned
    longer, as by a signal if `is_interrupted`. `traced_from`: the step from which every step is
    traced at the full level, whatever the config says. `sweep` is the id that the runs of one
    sweep share, `point` the number of this one among them, where the config does not say it. `code`
    is the snapshot that this process runs, where it is not that of the project as it is now.
    """

    device: str | None = None
    desc: str = ""
    debug: bool = False
    no_file: bool = False
    quiet: bool = False
    max_steps: int | None = None
    weights_from: str = ""
    nproc: int | None = None
    max_restarts: int = 0
    nnodes: int = 1
    node_rank: int | None = None
    rendezvous: str = ""
    ranks_folder: str = ""
    after: str = ""  # why this process was started again, which nobody typed
    stop_at: int | None = None
    is_interrupted: bool = False
    traced_from: int | None = None
    sweep: str = ""
    point: str = ""
    command: tuple[str, ...] = ()
    code: Mapping[str, Any] = field(default_factory=dict)

    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices; InputError for text that names none."""
        return device_names(self.device) if self.device is not None else ()

    def frozen_code(self) -> Code | None:
        """Return the snapshot that this process runs; None for that of the project as it is now."""
        return dataclass_from(Code, dict(self.code)) if self.code else None

    def to_record(self) -> dict[str, Any]:
        """Return plain data for the launch metadata of a run."""
        always = {"device": self.device or "auto", "debug": self.debug, "no_file": self.no_file}
        unless_default = {
            "max_steps": self.max_steps,
            "from": self.weights_from or None,
            "nproc": self.nproc,
            "sweep": self.sweep or None,
            "point": self.point or None,
            "nnodes": self.nnodes if self.nnodes > 1 else None,
            "max_restarts": self.max_restarts or None,
        }
        return {
            **always,
            **{key: value for key, value in unless_default.items() if value is not None},
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunResult:
    """End of a run.

    `record_dir` is None with `no_file`; `exception` is the error of a run that failed; `value` has
    its metrics.

    "crashed" is the end of a run whose OS process died without a result. `test`: how the test that
    followed it ended, when one was asked for. `is_first`: not of the processes of a run that leave
    it to another one to record and to tell. `signal` was heard meanwhile, 0 for none: whoever has
    more to do ends, even if this run came to its own end. `note` is for the person: what could not
    be kept, what was tested. `reason` says why the run ended.
    """

    record_dir: Path | None
    config: Config | None
    status: EndStatus | Literal["crashed"]
    value: Mapping[str, float] = field(default_factory=dict)
    exception: BaseException | None = None
    exit_code: int = 0
    id: str = ""
    step: int = 0
    test: RunResult | None = None
    is_first: bool = True
    signal: int = 0
    note: str = ""
    reason: str = ""

    @property
    def run(self) -> RunView:
        """The record of the run. InputError for one that left none."""
        if self.record_dir is None:
            raise InputError("This run left no record.", fix="leave out no_file=True")
        return RunView(self.record_dir)

    def __repr__(self) -> str:
        values = [f"{name} {value:.4g}" for name, value in self.value.items()]
        error = "" if self.exception is None else str(self.exception).strip().split("\n")[0]
        words = [self.id, self.status, f"step {self.step}", *values, error]
        return f"<RunResult {', '.join(filter(None, words))}>"

    def _repr_html_(self) -> str:
        return (
            self.run._repr_html_()
            if self.record_dir is not None
            else f"<pre>{escape(repr(self))}</pre>"
        )


TASK_COMMAND = "_task"
"""Not for people: hidden command that does the task in a file."""

TASK_NAME = "task.json"
_MAX_TASK_BYTES = 64 << 20

TaskKind = Literal["rank", "job", "replay", "rehearsal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTask:
    """Task of an OS process: a final config to train or to rehearse, or a run to resume.

    `origins` are those of the config's nodes in the files of the user. `launcher` is the id of the
    process that wrote the task. `resumed` is the run to resume, "" for a new one. `options` are
    further arguments of the function that does it. `tells`: the process prints how it ended; with
    "advice", how the run may go on, too.
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
        )

    @classmethod
    def read(cls, file: Path) -> ProcessTask:
        """Read a task. InputError for a file that holds none."""
        try:
            return dataclass_from(cls, parse_json(read_bytes(file, _MAX_TASK_BYTES)))
        except (OSError, ValueError, RecordError) as error:
            raise InputError(f"There is no task to do: {error}", where=str(file)) from error

    def write(self, file: Path, *, durable: bool = False) -> None:
        write_json(file, self, durable=durable)

    def read_launch(self) -> Launch:
        """Return the launch as it was given."""
        return Launch(**{**self.launch, "command": tuple(self.launch["command"])})

    def read_config(self, file: Path) -> Config:
        """Return the config as it was given; `file` is one of this process's to write it to."""
        write_atomic(file, self.config.encode("utf-8"), durable=False)
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
