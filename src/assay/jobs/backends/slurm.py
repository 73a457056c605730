"""Backend of Slurm: job arrays by sbatch, states by squeue and sacct, ends by scancel."""

from __future__ import annotations

import math
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path

from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import AssayError, InputError
from assay.core.ids import id_of_folder
from assay.core.job import FailureClass, JobSpec, JobState, JobStatus, classify, describe_end
from assay.jobs.backends.job_script import choose_job

WARNING_S = 120
"""Seconds before the time limit at which a run is asked to save and is put back into the queue."""

_PATIENCE_S = 60
_TAIL_BYTES = 1 << 16
_SIGNALLED = 128  # a shell's exit code of a process that a signal ended, less the signal
_EXPORTED = "HOME,PATH,USER,LOGNAME,LANG"
_STATES: Mapping[str, JobState] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_FED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "COMPLETED": "finished",
    "CANCELLED": "cancelled",
}
"""States of Slurm. All others are failures."""
_FAILURES: Mapping[str, FailureClass] = {
    "OUT_OF_MEMORY": "out-of-memory",
    "PREEMPTED": "preempted",
    "TIMEOUT": "preempted",
    "DEADLINE": "preempted",
    "NODE_FAIL": "killed",
    "BOOT_FAIL": "killed",
}
_RECORD = re.compile(r"^record:\s+(\S.*)$", re.MULTILINE)

_SCRIPT = """\
#!/bin/bash
handle="${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
attempt="$((${{SLURM_RESTART_COUNT:-0}} + 1))"
{jobs}
again=0
trap 'again=1; kill -TERM "$child"' USR1
trap 'kill -TERM "$child"' TERM
"$@" &
child=$!
wait "$child"
code=$?
while kill -0 "$child" 2> /dev/null; do  # a signal ended the wait, not the job
  wait "$child"
  code=$?
done
echo "$attempt $code" > {folder}/".end-$handle"
mv {folder}/".end-$handle" {folder}/"end-$handle"
if [ "$again" -eq 1 ] && [ "$code" -eq 143 ]; then  # saved at the end of its time
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


class SlurmError(AssayError):
    """Refusal of a Slurm command, in its own words."""


class SlurmBackend:
    """Jobs of Slurm, each a task of a job array; a handle is `JOB_INDEX`.

    `folder` lies on a file system that all nodes see. It keeps the scripts, the output and the exit
    codes. Partition, account and the like come from Slurm's own variables (SBATCH_PARTITION, ...).

    A run is asked to save by SIGTERM before the time limit and put back into the queue; Slurm puts
    back jobs that were preempted or whose node failed. Both go on with the same run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def submit(self, specs: Sequence[JobSpec]) -> list[str]:
        """Submit jobs, as one array for each stretch of jobs that ask for the same resources."""
        handles: list[str] = []
        make_directory(self.folder, PRIVATE)
        for options, alike in groupby(specs, key=_options_of):
            handles += self._submit_array(list(alike), options)
        return handles

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the states of jobs. Slurm forgets a job; the exit code that it wrote stays."""
        known = {**self._ask_accounting(handles), **self._ask_controller(handles)}
        found = {handle: self._status(handle, known.get(handle)) for handle in handles}
        return {handle: status for handle, status in found.items() if status is not None}

    def cancel(self, handles: Sequence[str]) -> None:
        """End jobs; Slurm sends SIGTERM first, and SIGKILL after its KillWait."""
        alive = [handle for handle, row in self._ask_controller(handles).items() if row.is_alive]
        if alive:
            _call("scancel", *alive)

    def logs(self, handle: str) -> str:
        """Return what a job has printed, in all attempts."""
        try:
            return (self.folder / f"{_check_handle(handle)}.txt").read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _submit_array(self, specs: Sequence[JobSpec], options: Sequence[str]) -> list[str]:
        script = self.folder / f"{secrets.token_hex(6)}.sh"
        words = [
            *options,
            f"--job-name={_name_of(specs)}",
            f"--array=0-{len(specs) - 1}",
            f"--output={str(self.folder).replace('%', '%%')}/%A_%a.txt",
            "--open-mode=append",
            "--requeue",
            f"--signal=B:USR1@{WARNING_S}",
            f"--export={_EXPORTED}",
        ]
        text = _SCRIPT.format(
            jobs=choose_job(specs, "SLURM_ARRAY_TASK_ID"),
            folder=shlex.quote(str(self.folder)),
        )
        script.write_text(text, encoding="utf-8")
        job = _call("sbatch", "--parsable", *words, str(script)).strip().split(";")[0]
        return [f"{job}_{index}" for index in range(len(specs))]

    def _ask_controller(self, handles: Sequence[str]) -> dict[str, _Row]:
        """Return what the controller knows: jobs that wait, run, or ended a few minutes ago."""
        if not handles:
            return {}
        jobs = ",".join(sorted({_check_handle(handle).split("_")[0] for handle in handles}))
        try:
            said = _call("squeue", "-h", "-r", "-t", "all", "-j", jobs, "-o", "%i|%T|%V|%S|%e")
        except SlurmError as error:
            if "Invalid job id" in error.what:  # all of them are forgotten
                return {}
            raise
        return _rows(said, handles)

    def _ask_accounting(self, handles: Sequence[str]) -> dict[str, _Row]:
        """Return what the accounting knows, where a cluster has one."""
        if not handles:
            return {}
        fields = "--format=JobID,State,Submit,Start,End"
        try:
            said = _call("sacct", "-n", "-P", "-X", "--array", fields, "-j", ",".join(handles))
        except AssayError:  # it is disabled
            return {}
        return _rows(said, handles)

    def _status(self, handle: str, row: _Row | None) -> JobStatus | None:
        attempt, code = self._end(handle)
        if row is None and code is None:
            return None
        if row is not None and row.is_alive:
            return row.status(attempt=attempt + (row.state == "running"))
        if row is None:
            row = _Row("COMPLETED" if code == 0 else "FAILED")
        if row.state != "failed":
            return row.status(attempt=attempt, exit_code=code, run=self._run(handle))
        number = code - _SIGNALLED if code is not None and code > _SIGNALLED else 0
        code = None if number else code
        failure = _FAILURES.get(row.word) or classify(
            code, number, self.logs(handle)[-_TAIL_BYTES:]
        )
        reason = describe_end(code, number) if row.word == "FAILED" else row.word.lower()
        return row.status(
            attempt=attempt,
            exit_code=code,
            signal=number,
            failure=failure,
            reason=reason.replace("_", " "),
            run=self._run(handle),
        )

    def _end(self, handle: str) -> tuple[int, int | None]:
        """Return the last attempt that ended by itself, and its exit code; (0, None) for none."""
        try:
            attempt, code = (self.folder / f"end-{handle}").read_text(encoding="ascii").split()
        except (FileNotFoundError, ValueError):
            return 0, None
        return int(attempt), int(code)

    def _run(self, handle: str) -> str:
        """Return the id of the run that a job recorded, "" for none."""
        records = _RECORD.findall(self.logs(handle))
        return id_of_folder(Path(records[-1].strip()).name) or "" if records else ""


class _Row:
    """Line of squeue or sacct about one job."""

    def __init__(self, word: str, created: str = "", started: str = "", ended: str = "") -> None:
        self.word = word.split()[0].rstrip("+")  # as in "CANCELLED by 1000"
        self.state: JobState = _STATES.get(self.word, "failed")
        self._times = [_ns(each) for each in (created, started, ended)]

    @property
    def is_alive(self) -> bool:
        return self.state in ("waiting", "running")

    def status(
        self,
        *,
        attempt: int,
        exit_code: int | None = None,
        signal: int = 0,
        failure: FailureClass | None = None,
        reason: str = "",
        run: str = "",
    ) -> JobStatus:
        created_ns, started_ns, ended_ns = self._times
        return JobStatus(
            state=self.state,
            attempt=attempt,
            created_ns=created_ns,
            started_ns=0 if self.state == "waiting" else started_ns,
            ended_ns=0 if self.is_alive else ended_ns,
            exit_code=exit_code,
            signal=signal,
            failure=failure or "",
            reason=reason,
            run=run,
        )


def _options_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the options of sbatch for what a job asks for."""
    options = ["--ntasks=1"]
    if spec.device != "cpu":
        options.append(f"--gpus={spec.devices}")
    if spec.time_limit_s:
        options.append(f"--time={max(1, math.ceil(spec.time_limit_s / 60))}")
    if spec.priority < 0:
        options.append(f"--nice={-spec.priority}")
    return tuple(options)


def _name_of(specs: Sequence[JobSpec]) -> str:
    return re.sub(r"[^\w.-]+", "-", specs[0].title or specs[0].group or "assay")[:60]


def _rows(said: str, handles: Iterable[str]) -> dict[str, _Row]:
    wanted = set(handles)
    split = (line.split("|") for line in said.splitlines() if line.count("|") == 4)
    return {name: _Row(*rest) for name, *rest in split if name in wanted}


def _ns(text: str) -> int:
    """Return a time of Slurm, local and in whole seconds, as Unix nanoseconds; 0 for none."""
    try:
        return int(datetime.fromisoformat(text).timestamp()) * 10**9
    except ValueError:
        return 0


def _check_handle(handle: str) -> str:
    if not re.fullmatch(r"\d+_\d+", handle, re.ASCII):
        raise InputError(f"`{handle}` is no job of Slurm.", fix="handles look like 4711_0")
    return handle


def _call(program: str, *words: str) -> str:
    """Run a command of Slurm; SlurmError with its own words when it fails."""
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise InputError(
            f"There is no `{program}` here.", fix="run it on a node of a Slurm cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"`{program}` did not answer for {_PATIENCE_S} s.") from None
    if done.returncode:
        raise SlurmError(done.stderr.strip() or f"`{program}` ended with {done.returncode}.")
    return done.stdout
