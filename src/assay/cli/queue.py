"""`assay queue`."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from assay.cli.completion import complete_jobs
from assay.cli.terminal import echo, paint, use_color
from assay.core.errors import InputError
from assay.core.formatting import duration
from assay.core.job import Job
from assay.core.terminal import elide, visible
from assay.formats.lease import process_start
from assay.store.job_journal import JobJournal
from assay.store.layout import refusal
from assay.store.queue_files import append_to_log, dispatcher_pid, job_folder, job_log

_STYLES = {
    "running": "blue",
    "stalled": "red",
    "finished": "green",
    "failed": "red",
    "cancelled": "yellow",
}
_LAST = 20
_TITLE = 48
_FOLLOW_S = 0.2
_WORK_LOG = "dispatcher.log"


@click.group(
    name="queue",
    help="""Queue runs on this machine's devices: each has its device to itself, and what follows a
    failed one goes on. `assay run CONFIG --queue` puts them in line, `assay queue work` starts
    them.""",
)
def command() -> None:
    pass


def print_jobs(journal: JobJournal, jobs: Sequence[int]) -> None:
    """Print the numbers and titles of jobs, and how to start the dispatcher if none is at work."""
    for job in jobs:
        echo(f"job {job}  {elide(visible(journal.job(job).spec.title), _TITLE)}")
    _hint_dispatcher(journal)


@command.command(name="ls", help="List running jobs, the first that wait, and the last that ended.")
@click.option("--all", "shows_all", is_flag=True, help="List all that wait or have ended.")
def ls(shows_all: bool) -> int:
    with JobJournal() as journal:
        counts = journal.counts()
        held = journal.held_jobs()
        most = -1 if shows_all else _LAST
        ended = journal.jobs(("finished", "failed", "cancelled"), last=most)
        shown = [*ended, *journal.jobs(("running",)), *journal.line(first=most)]
        color = use_color(sys.stdout)
        for job in shown:
            echo(_line(job, is_held=job.id in held, color=color))
        total = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        echo(total or "The queue is empty.")
        if journal.is_paused:
            echo("paused: no job starts until `assay queue pause --undo`")
        _hint_dispatcher(journal)
    return 0


def _line(job: Job, *, is_held: bool, color: bool) -> str:
    """Return one line on a job: id, state, devices, time, title, and why it failed."""
    status = job.status
    is_stalled = status.state == "running" and bool(status.reason)
    state = "held" if is_held else "stalled" if is_stalled else status.state
    took = "" if status.duration_s is None else duration(status.duration_s)
    place = ",".join(status.devices)
    cause = f"{status.failure}: {status.reason}" if status.failure else status.reason
    padded = paint(f"{state:<9}", _STYLES.get(state, ""), on=color)
    title = elide(visible(job.spec.title), _TITLE)
    text = f"{job.id:>5}  {padded}  {place:<8}  {took:>8}  {status.run:<4}  {title}"
    return f"{text}  {visible(cause)}".rstrip()


@command.command(name="rm", help="Cancel jobs. A running one gets SIGTERM, and saves a checkpoint.")
@click.argument("jobs", type=int, nargs=-1, shell_complete=complete_jobs, required=True)
def rm(jobs: tuple[int, ...]) -> int:
    with JobJournal() as journal:
        journal.request_cancel(jobs)
        _hint_dispatcher(journal)
    return 0


@command.command(
    name="pause", help="Start no job any more, or none of those named. Running ones go on."
)
@click.argument("jobs", type=int, nargs=-1, shell_complete=complete_jobs)
@click.option("--undo", is_flag=True, help="Start jobs again.")
def pause(jobs: tuple[int, ...], undo: bool) -> int:
    with JobJournal() as journal:
        if jobs:
            journal.hold(jobs, held=not undo)
        else:
            journal.pause(paused=not undo)
        if undo:
            _hint_dispatcher(journal)
    return 0


@command.command(name="logs", help="Print what a job has printed; -f to follow it.")
@click.argument("job", type=int, shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Print what comes until the job ends.")
def logs(job: int, follow: bool) -> int:
    from assay.jobs.job_folder import LogReader

    with JobJournal() as journal:
        journal.job(job)
        reader = LogReader(job_log(job_folder(journal.folder, job)))
        while True:
            is_last = not follow or journal.job(job).status.is_ended
            echo(reader.read(is_last=is_last), end="")
            sys.stdout.flush()
            if is_last:
                return 0
            time.sleep(_FOLLOW_S)


@command.command(
    name="work",
    help="""Start queued jobs on free devices until Ctrl-C or SIGTERM; running jobs go on without
    it, and the next `assay queue work` looks after them. One at a time for a machine.""",
)
@click.option("--until-empty", is_flag=True, help="End when no job is left.")
@click.option("--detach", is_flag=True, help="In the background; it survives the logout.")
@click.option("--stop", is_flag=True, help="End the one in the background.")
def work(until_empty: bool, detach: bool, stop: bool) -> int:
    with JobJournal() as journal:
        if stop:
            return _stop_dispatcher(journal)
        if detach:
            return _detach(journal.folder, until_empty=until_empty)
        from assay.jobs.dispatcher import Dispatcher

        logging.basicConfig(
            format="%(asctime)s  %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
            level=logging.INFO,
            stream=sys.stderr,
            force=True,
        )
        Dispatcher(journal).run(until_empty=until_empty)
    return 0


def _detach(folder: Path, *, until_empty: bool) -> int:
    """Start the dispatcher in a session of its own, which no logout ends."""
    if dispatcher_pid(folder):
        raise InputError("A dispatcher is at work for this queue already.", where=str(folder))
    words = [sys.executable, "-m", "assay", "queue", "work"]
    try:
        opened = append_to_log(folder / _WORK_LOG)
    except OSError as error:
        raise refusal(error, folder / _WORK_LOG, "The dispatcher cannot write its log") from error
    with open(opened, "ab") as log:
        process = subprocess.Popen(
            [*words, *(["--until-empty"] if until_empty else [])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _wait_for(lambda: bool(dispatcher_pid(folder)) or process.poll() is not None)
    if process.poll():
        raise InputError("The dispatcher did not start.", where=str(folder / _WORK_LOG))
    echo(f"at work: process {process.pid}, log in {folder / _WORK_LOG}", err=True)
    return 0


def _stop_dispatcher(journal: JobJournal) -> int:
    pid = dispatcher_pid(journal.folder)
    if not pid:
        echo("No dispatcher is at work.", err=True)
        return 0
    started = process_start(pid)
    os.kill(pid, signal.SIGTERM)
    _wait_for(lambda: process_start(pid) != started)
    return 0


def _wait_for(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)


def _hint_dispatcher(journal: JobJournal) -> None:
    """Print how to start the dispatcher, if something waits for it."""
    counts = journal.counts()
    waits = counts.get("waiting", 0) + counts.get("running", 0)
    if waits and not dispatcher_pid(journal.folder):
        echo("No dispatcher is at work: start one with `assay queue work --detach`.", err=True)
