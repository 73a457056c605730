"""What the queue costs: dispatching of short jobs, and the list of many.

`overhead` is the time that a dispatcher needs for each of many jobs that do nothing, one at a time
on one device: claim, fork, journal, end; `overhead_p10` is the time from end to end that one job in
ten stays below, those which nothing else on the machine has interrupted. `cpu` is the CPU time of the dispatcher alone,
`supervisor_cpu` that of the process that it forks for a job, and of the job, which does nothing:
on a loaded machine the two together say what the clock cannot.
`jobs.status_s` is `assay queue ls` as a command, with a journal of 10,000 jobs, of which 9,000 have
ended; `status_cpu` is its CPU time, and `jobs.counts_ms` the question itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time

from figures import Figure, machine, options, show

from assay.core.job import JobSpec
from assay.jobs.devices import FakeDevices
from assay.jobs.dispatcher import Dispatcher
from assay.store.job_journal import QUEUE_DIR_VARIABLE, JobJournal


def short(count: int) -> list[JobSpec]:
    """Jobs that do nothing, with the environment of this process."""
    return [
        JobSpec(command=("true",), cwd="/", environment=dict(os.environ), title=f"job {i}")
        for i in range(count)
    ]


def children_s() -> float:
    """Return the CPU time of all child processes that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def dispatched(folder: Path, count: int) -> list[Figure]:
    with JobJournal(folder) as journal:
        journal.submit(short(count))
        wall, cpu, forked = perf_counter(), process_time(), children_s()
        Dispatcher(journal, FakeDevices("1")).run(until_empty=True)
        wall, cpu, forked = perf_counter() - wall, process_time() - cpu, children_s() - forked
        assert journal.counts() == {"finished": count}
        ends = [job.status.ended_ns for job in journal.jobs()]
    steps = sorted(after - before for before, after in pairwise(ends))
    return [
        Figure(name="jobs.overhead_ms", value=1000 * wall / count, unit="ms", at_most=20),
        Figure(name="jobs.overhead_p10_ms", value=steps[len(steps) // 10] / 1e6, unit="ms"),
        Figure(name="jobs.cpu_ms", value=1000 * cpu / count, unit="ms"),
        Figure(name="jobs.supervisor_cpu_ms", value=1000 * forked / count, unit="ms"),
    ]


def listed(folder: Path, count: int, rounds: int) -> list[Figure]:
    with JobJournal(folder) as journal:
        ids = journal.submit(short(count))
        journal.request_cancel(ids[: -count // 10])
        started = perf_counter()
        journal.counts()
        journal.jobs(("running",))
        counted = perf_counter() - started
    variables = {**os.environ, QUEUE_DIR_VARIABLE: str(folder)}
    times, cpu = [], children_s()
    for _ in range(rounds):
        started = perf_counter()
        subprocess.run(
            [sys.executable, "-m", "assay", "queue", "ls"],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        times.append(perf_counter() - started)
    return [
        Figure(name="jobs.status_s", value=sorted(times)[rounds // 2], unit="s", at_most=0.3),
        Figure(name="jobs.status_cpu_s", value=(children_s() - cpu) / rounds, unit="s"),
        Figure(name="jobs.counts_ms", value=1000 * counted, unit="ms"),
    ]


def main() -> None:
    asked = options("What the queue costs.")
    jobs, many, rounds = (20, 200, 1) if asked.quick else (200, 10_000, 9)
    with tempfile.TemporaryDirectory() as name:
        figures = [
            *dispatched(Path(name) / "short", jobs),
            *listed(Path(name) / "many", many, rounds),
        ]
    show("jobs: what the queue costs", figures, machine(), as_json=asked.as_json)


if __name__ == "__main__":
    main()
