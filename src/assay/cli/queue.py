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
from typing import TYPE_CHECKING, Any

import click

from assay.cli.completion import (
    complete_config,
    complete_jobs,
    complete_run_and_keys,
)
from assay.cli.launch import split_arguments
from assay.cli.one_config import names_and_overrides, variants_option
from assay.cli.permission import permission, say, trust_option
from assay.cli.seeds import METAVAR, parse_seeds
from assay.cli.terminal import echo, echo_json, paint, use_color
from assay.core.errors import InputError
from assay.core.formatting import duration
from assay.core.ids import new_run_id
from assay.core.job import FAILURES, TRANSIENT, Job
from assay.core.terminal import elide, visible
from assay.formats.lease import process_start
from assay.store.job_journal import JobJournal
from assay.store.layout import refusal
from assay.store.queue_files import append_to_log, dispatcher_pid, job_folder, job_log

if TYPE_CHECKING:
    from assay.config import Config

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


_JOB_OPTIONS = (
    click.option(
        "--device", default="auto", help="auto, cpu, or devices to choose from: cuda:0,1."
    ),
    click.option(
        "--per-device",
        type=click.IntRange(min=1),
        metavar="N",
        help="Let up to N jobs share a device.",
    ),
    click.option("--priority", type=int, default=0, help="Higher ones start earlier."),
    click.option(
        "--attempts",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="Try up to N times; a run that has a checkpoint resumes from it.",
    ),
    click.option(
        "--retry",
        default=",".join(TRANSIENT),
        metavar="CLASSES",
        help="Failures after which it is tried again, from " + ", ".join(FAILURES) + ".",
    ),
    click.option("--time-limit", metavar="HOURS", type=float, help="Stop it after so many hours."),
    click.option(
        "--hang-limit",
        metavar="MINUTES",
        type=click.FloatRange(min=0),
        help="End it when it has stood still for so long; left out: only tell.",
    ),
    click.option("--desc", default="", help="What these runs are for."),
    click.option(
        "--max-steps", type=click.IntRange(min=1), metavar="N", help="Stop after N steps."
    ),
    click.option("--then-test", is_flag=True, help="Test each run when it has finished."),
    click.option("--no-rehearse", is_flag=True, help="Check the config, but try no step of it."),
)


def _job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that puts jobs in line."""
    for option in reversed(_JOB_OPTIONS):
        command = option(command)
    return command


@click.group(
    name="queue",
    help="""Queue runs on this machine's devices: each has its device to itself, and what follows a
    failed one goes on. `assay queue work` starts them.""",
)
def command() -> None:
    pass


@command.command(
    name="add",
    help="""Check and rehearse a config, freeze it with its code, and put it in line. Variants,
    points of a sweep and seeds are jobs of their own.""",
    context_settings={"ignore_unknown_options": True},
)
@names_and_overrides("CONFIG...", complete_config)
@variants_option("A variant of the file, or all.")
@click.option(
    "--seeds",
    type=parse_seeds,
    metavar=METAVAR,
    help="Queue each N times, with the seed of the config and those that follow it, or these.",
)
@click.option("--user-dir", "user_dirs", type=click.Path(), multiple=True, help="Your modules.")
@trust_option
@_job_options
def add(
    arguments: tuple[str, ...],
    variants: tuple[str, ...],
    seeds: int | tuple[int, ...] | None,
    user_dirs: tuple[str, ...],
    trust: bool,
    **options: Any,
) -> int:
    files, overrides = split_arguments(arguments)
    if not files:
        raise InputError(
            "`assay queue add` needs a config file.", fix="assay queue add digits.toml"
        )
    configs = _expand(files, overrides, variants, seeds, user_dirs or None, trust)
    with JobJournal() as journal:
        _print_jobs(journal, _submit(journal, configs, **options))
    return 0


@command.command(
    name="rerun",
    help="""Put the configs of runs in line again, as new runs, with the code of the working tree.
    KEY=VALUE changes a key: assay queue rerun last optimizer.lr=0.01""",
    context_settings={"ignore_unknown_options": True},
)
@names_and_overrides("RUN...", complete_run_and_keys)
@_job_options
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print the numbers of the jobs as JSON.")
def rerun(arguments: tuple[str, ...], trust: bool, as_json: bool, **options: Any) -> int:
    from assay.compose.training import config_of_run
    from assay.query.find import find_run
    from assay.query.rerun import ranks_refusal

    names, overrides = split_arguments(arguments)
    if not names:
        raise InputError("`assay queue rerun` needs a run.", fix="assay queue rerun last")
    runs = [find_run(name) for name in names]
    for why in filter(None, map(ranks_refusal, runs)):
        raise InputError(why)
    configs = [
        config_of_run(name, overrides, use="train it again", trust=permission(trust), tell=say)
        for name in names
    ]
    parents = [run.id for run in runs]
    with JobJournal() as journal:
        jobs = _submit(journal, configs, parents=parents, **options)
        if as_json:
            echo_json({"jobs": jobs})
        else:
            _print_jobs(journal, jobs)
    return 0


def _submit(
    journal: JobJournal,
    configs: Sequence[Config],
    *,
    parents: Sequence[str] = (),
    no_rehearse: bool,
    then_test: bool,
    desc: str,
    max_steps: int | None,
    **placed: Any,
) -> list[int]:
    from assay.compose import Launch
    from assay.jobs.submit import submit_configs

    launch = Launch(
        device=None,
        desc=desc,
        quiet=True,
        max_steps=max_steps,
        sweep=new_run_id() if len(configs) > 1 and not parents else "",
        command=("assay", *sys.argv[1:]),
    )
    return submit_configs(
        journal,
        configs,
        launch,
        is_rehearsed=not no_rehearse,
        then_test=then_test,
        parents=parents,
        tell=lambda line: echo(line, err=True),
        **_place_fields(**placed),
    )


def _print_jobs(journal: JobJournal, jobs: Sequence[int]) -> None:
    for job in jobs:
        echo(f"job {job}  {elide(visible(journal.job(job).spec.title), _TITLE)}")
    hint_dispatcher(journal)


def _place_fields(
    *,
    device: str,
    per_device: int | None,
    priority: int,
    attempts: int,
    retry: str,
    time_limit: float | None,
    hang_limit: float | None,
) -> dict[str, Any]:
    """Return the fields of JobSpec that the options give; InputError for a class of no failure."""
    classes = tuple(word.strip() for word in retry.split(",") if word.strip())
    for word in classes:
        if word not in FAILURES:
            raise InputError(
                f"`--retry` knows no failure `{word}`.", fix=f"it is one of {', '.join(FAILURES)}"
            )
    return {
        "device": device,
        "per_device": per_device or 0,
        "priority": priority,
        "max_attempts": attempts,
        "retry": classes,
        "time_limit_s": time_limit * 3600 if time_limit is not None else None,
        "hang_limit_s": hang_limit * 60 if hang_limit is not None else None,
    }


def _expand(
    files: Sequence[str],
    overrides: Sequence[str],
    variants: Sequence[str],
    seeds: int | tuple[int, ...] | None,
    user_dir: Sequence[str] | None,
    trust: bool,
) -> list[Config]:
    """Return the configs of all files, variants, points and seeds."""
    from assay.compose import open_given
    from assay.config import expand
    from assay.config.standard_keys import sections_of

    made: list[Config] = []
    how: dict[str, Any] = {"user_dir": user_dir, "trust": permission(trust), "tell": say}
    for file in files:
        opened = open_given(file, overrides, **how)
        if seeds is None:
            made += expand(opened, variants)
            continue
        first = sections_of(opened.root).seed
        for seed in range(first, first + seeds) if isinstance(seeds, int) else seeds:
            again = open_given(file, [*overrides, f"seed={seed}"], **how)
            made += expand(again, variants)
    return made


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
            echo("paused: no job starts until `assay queue resume`")
        hint_dispatcher(journal)
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
        hint_dispatcher(journal)
    return 0


@command.command(
    name="pause", help="Start no job any more, or none of those named. Running ones go on."
)
@click.argument("jobs", type=int, nargs=-1, shell_complete=complete_jobs)
def pause(jobs: tuple[int, ...]) -> int:
    with JobJournal() as journal:
        _pause(journal, jobs, paused=True)
    return 0


@command.command(name="resume", help="Start jobs again after `pause`.")
@click.argument("jobs", type=int, nargs=-1, shell_complete=complete_jobs)
def resume(jobs: tuple[int, ...]) -> int:
    with JobJournal() as journal:
        _pause(journal, jobs, paused=False)
        hint_dispatcher(journal)
    return 0


def _pause(journal: JobJournal, jobs: Sequence[int], *, paused: bool) -> None:
    if jobs:
        journal.hold(jobs, held=paused)
    else:
        journal.pause(paused=paused)


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


def hint_dispatcher(journal: JobJournal) -> None:
    """Print how to start the dispatcher, if something waits for it."""
    counts = journal.counts()
    waits = counts.get("waiting", 0) + counts.get("running", 0)
    if waits and not dispatcher_pid(journal.folder):
        echo("No dispatcher is at work: start one with `assay queue work --detach`.", err=True)
