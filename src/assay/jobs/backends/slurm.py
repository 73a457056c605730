"""Submission to Slurm: job arrays by sbatch."""

from __future__ import annotations

import math
import re
import secrets
import subprocess
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import AssayError, InputError
from assay.core.job import JobSpec
from assay.jobs.backends.job_script import choose_job

WARNING_S = 120
"""Seconds before the time limit at which a run is asked to save and is put back into the queue."""

_PATIENCE_S = 60
_EXPORTED = "HOME,PATH,USER,LOGNAME,LANG"
_SCRIPT = """\
#!/bin/bash
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
if [ "$again" -eq 1 ] && [ "$code" -eq 143 ]; then  # saved at the end of its time
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


class SlurmError(AssayError):
    """Refusal of a Slurm command, in its own words."""


def submit_to_slurm(specs: Sequence[JobSpec], folder: Path) -> list[str]:
    """Submit jobs, as one array for each stretch of jobs that ask for the same resources.

    Each is a task of an array; its handle is `JOB_INDEX`. `folder` lies on a file system that all
    nodes see, and keeps the scripts and the output. Partition, account and the like come from
    Slurm's own variables (SBATCH_PARTITION, ...).

    A run is asked to save by SIGTERM before the time limit and put back into the queue; Slurm puts
    back jobs that were preempted or whose node failed. Both go on with the same run.
    """
    handles: list[str] = []
    make_directory(folder, PRIVATE)
    for options, alike in groupby(specs, key=_options_of):
        handles += _submit_array(list(alike), options, folder)
    return handles


def _submit_array(specs: Sequence[JobSpec], options: Sequence[str], folder: Path) -> list[str]:
    script = folder / f"{secrets.token_hex(6)}.sh"
    words = [
        *options,
        f"--job-name={_name_of(specs)}",
        f"--array=0-{len(specs) - 1}",
        f"--output={str(folder).replace('%', '%%')}/%A_%a.txt",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{WARNING_S}",
        f"--export={_EXPORTED}",
    ]
    jobs = choose_job(specs, "SLURM_ARRAY_TASK_ID")
    script.write_text(_SCRIPT.format(jobs=jobs), encoding="utf-8")
    job = _call("sbatch", "--parsable", *words, str(script)).strip().split(";")[0]
    return [f"{job}_{index}" for index in range(len(specs))]


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
