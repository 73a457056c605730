"""Dispatcher of the queue: devices, ends of jobs, and what it survives."""

from __future__ import annotations

import os
import platform
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from assay.core.errors import AssayError, InputError, RecordError
from assay.core.job import QUEUE_JOB, Job, JobSpec
from assay.core.processes import members_of
from assay.formats import run_file
from assay.formats.lease import process_start
from assay.jobs.devices import FakeDevices, choose_slots
from assay.jobs.dispatcher import Dispatcher
from assay.jobs.job_folder import JobFolder, LogReader
from assay.jobs.job_process import is_alive, is_job_suspended, start_forked
from assay.query.catalog import open_catalog
from assay.store.device_leases import LeaseHolder, holder_of
from assay.store.job_journal import JobJournal
from assay.store.queue_files import LOCK_NAME, dispatcher_pid, hold_lock
from run_folders import make_project, make_run

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
WORK = """
import sys
from pathlib import Path
from assay.jobs.devices import FakeDevices
from assay.jobs.dispatcher import Dispatcher
from assay.store.job_journal import JobJournal
Dispatcher(JobJournal(Path(sys.argv[1])), FakeDevices("8"), grace_s=60.0).run(until_empty=True)
"""
"""A dispatcher in an OS process of its own, on eight devices that exist in name only."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JobJournal]:
    with JobJournal(tmp_path / "queue") as opened:
        yield opened


def shell(text: str, **fields: object) -> JobSpec:
    """A job that runs a line of shell."""
    environment = {"PATH": os.environ["PATH"]}
    return JobSpec(command=("sh", "-c", text), cwd="/", environment=environment, **fields)  # type: ignore[arg-type]


def dispatched(journal: JobJournal, *specs: JobSpec, devices: str = "2") -> list[Job]:
    """The jobs after a dispatcher has run them all."""
    ids = journal.submit(specs)
    Dispatcher(journal, FakeDevices(devices), grace_s=60.0).run(until_empty=True)
    return [journal.job(each) for each in ids]


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def dispatcher(journal: JobJournal) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.Popen([sys.executable, "-c", WORK, str(journal.folder)], env=environment)


def test_an_exit_code_a_signal_and_a_time_limit_are_told_apart_and_the_rest_runs(
    journal: JobJournal,
) -> None:
    good, three, killed, stopped, missing = dispatched(
        journal,
        shell("exit 0"),
        shell("exit 3"),
        shell("kill -KILL $$"),
        shell("kill -STOP $$; exit 0", time_limit_s=0.2),
        JobSpec(command=("no-such-program",), cwd="/", environment={}),
    )

    assert good.status.state == "finished"
    assert (three.status.failure, three.status.reason) == ("exception", "exit code 3")
    assert (killed.status.failure, killed.status.reason) == ("killed", "killed by SIGKILL")
    assert stopped.status.failure == "killed"
    assert stopped.status.reason == "time limit of 0.2 s; killed by SIGTERM"
    assert missing.status.reason == "no-such-program: No such file or directory"
    assert journal.leases() == []


def test_a_job_lasts_as_long_as_it_ran_though_the_wall_clock_is_set(
    journal: JobJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = time.time_ns, time.monotonic_ns()

    def hasty() -> int:
        return real() + 10**7 * (time.monotonic_ns() - begun)

    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", hasty)
        (ended,) = dispatched(journal, shell("exit 0"))
        (running,) = journal.submit([shell("exit 0")])
        assert journal.claim(running, lambda leases: []) is not None

    assert ended.status.ended_ns - ended.status.started_ns > 3600 * 10**9
    for status in (ended.status, journal.job(running).status):
        assert status.duration_s is not None and 0 < status.duration_s < 3600


@pytest.mark.parametrize("names_root", [True, False])
@pytest.mark.parametrize("end", ["kill -9 $$", "kill -TERM $$", "exit 3"])
def test_a_job_that_ends_without_a_word_names_the_run_that_it_began(
    journal: JobJournal, tmp_path: Path, end: str, names_root: bool
) -> None:
    project = make_project(tmp_path / "project")
    runs: dict[int, str] = {}
    for number in (1, 2, 3):
        started_ns = time.time_ns() + number * 3600 * 10**9 * (1 if number < 3 else -1)
        folder = make_run(project, tag=f"job {number}")
        run = run_file.read(folder)
        launch = {"job": f"{QUEUE_JOB}{platform.node()}:{number}"}
        attempt = replace(run.attempts[0], launch=launch, started_ns=started_ns)
        run_file.write(folder, replace(run, attempts=(attempt,)))
        runs[number] = run.id
    spec = shell(end, project=str(project.root)) if names_root else shell(end)
    spec = replace(spec, cwd=str(project.root))

    jobs = dispatched(journal, spec, replace(spec, command=("true",)), spec)

    assert [job.status.run for job in jobs] == [runs[1], runs[2], ""], (
        "the third is of a queue that was deleted"
    )


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_job_that_is_a_script_names_the_run_that_it_recorded(
    journal: JobJournal, tmp_path: Path, end: str
) -> None:
    project = make_project(tmp_path / "project")
    make_run(project, tag="of nobody")
    (tmp_path / "project" / "old.py").write_text(
        f"import os, sys, assay\nwith assay.start(tag='old'):\n    {end}\n"
    )
    spec = replace(
        shell("", project=str(project.root)),
        command=(sys.executable, "old.py"),
        cwd=str(project.root),
        environment={**os.environ, "PYTHONPATH": SOURCE},
    )

    (job,) = dispatched(journal, spec)

    assert job.status.run
    (of_job,) = (row for row in open_catalog(project).all_rows() if row.id == job.status.run)
    assert of_job.tag == "old"


def test_a_job_that_ignores_sigterm_is_killed_when_the_grace_time_is_over(
    journal: JobJournal, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    deaf = f"trap '' TERM; touch {ready}; while :; do sleep 1; done"
    (job,) = journal.submit([shell(deaf)])

    def cancel() -> None:
        until(ready.exists)
        with JobJournal(journal.folder) as other:
            other.request_cancel([job])

    thread = threading.Thread(target=cancel)
    thread.start()
    Dispatcher(journal, FakeDevices("1"), grace_s=0.2).run(until_empty=True)
    thread.join()

    status = journal.job(job).status
    assert status.state == "cancelled"
    assert "SIGKILL" in status.reason


def test_a_job_that_is_suspended_in_the_midst_of_a_vfork_is_suspended(tmp_path: Path) -> None:
    """Its parent sleeps uninterruptibly until the child, which is stopped, runs its program."""
    fifo, folder = tmp_path / "fifo", JobFolder(tmp_path)
    os.mkfifo(fifo)
    opened = f"[(os.POSIX_SPAWN_OPEN, 0, {str(fifo)!r}, os.O_RDONLY, 0)]"
    spawn = f"import os; os.posix_spawn('/bin/true', ['true'], {{}}, file_actions={opened})"
    command = [sys.executable, "-S", "-c", spawn]
    process = start_forked(command, "/", dict(os.environ), folder.log, folder.exit_file(1))
    process.open_gate()
    group = process.holder.pid
    try:
        until(lambda: len(members_of(group)) == 3)
        os.killpg(group, signal.SIGSTOP)
        until(lambda: is_job_suspended(process.holder))
        assert "D" in members_of(group).values()
    finally:
        os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)


def test_a_suspended_job_is_told_at_once_and_moves_again(journal: JobJournal) -> None:
    # With "exec" the shell forks nothing: supervisor and command are two from the first moment.
    (job,) = journal.submit([shell("exec sleep 600")])
    work = dispatcher(journal)
    try:
        until(lambda: (found := journal.running()) and len(members_of(found[0].holder.pid)) == 2)
        holder = journal.running()[0].holder
        os.killpg(holder.pid, signal.SIGSTOP)
        os.kill(holder.pid, signal.SIGCONT)  # its supervisor

        until(lambda: journal.job(job).status.reason)

        status = journal.job(job).status
        assert status.state == "running"
        assert status.reason == "stalled: suspended (SIGSTOP)"

        os.killpg(holder.pid, signal.SIGCONT)
        until(lambda: not journal.job(job).status.reason)
    finally:
        journal.request_cancel([job])
        assert work.wait(60) == 0


def test_a_job_that_stands_still_for_too_long_is_ended_as_a_hang_and_tried_again(
    journal: JobJournal, tmp_path: Path
) -> None:
    once = f"mkdir {tmp_path}/first && kill -STOP $$; exit 0"

    ended, again = dispatched(
        journal,
        shell("kill -STOP $$; exit 0", hang_limit_s=0.1),
        shell(once, hang_limit_s=0.1, max_attempts=2),
    )

    assert (ended.status.state, ended.status.failure) == ("failed", "hang")
    assert ended.status.reason == "no step for 0.1 s; killed by SIGTERM"
    assert (again.status.state, again.status.attempt) == ("finished", 2)


def test_a_job_that_was_killed_is_tried_again_and_one_that_failed_by_itself_is_not(
    journal: JobJournal, tmp_path: Path
) -> None:
    once = f"mkdir {tmp_path}/first && kill -KILL $$; exit 0"

    killed, failed = dispatched(
        journal, shell(once, max_attempts=3), shell("exit 1", max_attempts=3)
    )

    assert (killed.status.state, killed.status.attempt) == ("finished", 2)
    assert (failed.status.state, failed.status.attempt) == ("failed", 1)


def test_jobs_start_by_priority_then_in_line(journal: JobJournal, tmp_path: Path) -> None:
    order = tmp_path / "order"
    journal.submit([shell(f"echo first >> {order}"), shell(f"echo second >> {order}")])

    dispatched(journal, shell(f"echo urgent >> {order}", priority=5), devices="1")

    assert order.read_text().split() == ["urgent", "first", "second"]


def test_a_free_device_gets_its_job_however_many_wait_for_another_one(
    journal: JobJournal, tmp_path: Path
) -> None:
    """The jobs of the other device would wait for ever: somebody else has it."""
    journal.submit([shell("exit 1", device="cuda:0") for _ in range(200)])
    (last,) = journal.submit([shell(f"touch {tmp_path}/begun", device="cuda:1")])
    spec = shell("", device="cuda:0")
    slots = journal.take(partial(choose_slots, spec, FakeDevices("2").devices()), holder_of(1))
    assert slots is not None

    dispatcher = Dispatcher(journal, FakeDevices("2"))
    dispatcher.round()
    while journal.job(last).status.state != "finished":
        dispatcher.round()

    assert (tmp_path / "begun").exists()
    assert journal.counts() == {"waiting": 200, "finished": 1}


def test_a_cancelled_job_gets_sigterm_and_what_it_left_behind_is_killed(
    journal: JobJournal, tmp_path: Path
) -> None:
    ready, said = tmp_path / "ready", tmp_path / "said"
    text = f"trap 'echo saved > {said}; exit 0' TERM; sleep 600 & echo $! > {ready}; wait"
    running, waiting = journal.submit([shell(text), shell("exit 0")])

    def cancel() -> None:
        until(lambda: ready.exists() and ready.read_text().strip())
        with JobJournal(journal.folder) as other:
            other.request_cancel([running, waiting])

    thread = threading.Thread(target=cancel)
    work = dispatcher(journal)
    thread.start()
    assert work.wait(60) == 0
    thread.join()

    assert said.read_text() == "saved\n"
    assert journal.job(waiting).status.state in ("cancelled", "finished")
    until(lambda: process_start(int(ready.read_text())) is None)
    assert journal.leases() == []


def test_a_paused_queue_and_a_held_job_start_nothing(journal: JobJournal) -> None:
    (held,) = journal.submit([shell("exit 0")])
    journal.hold([held], held=True)
    (free,) = dispatched(journal, shell("exit 0"))
    assert journal.job(held).status.state == "waiting"
    assert free.status.state == "finished"

    journal.hold([held], held=False)
    journal.pause(paused=True)
    dispatched(journal)
    assert journal.job(held).status.state == "waiting"

    journal.pause(paused=False)
    dispatched(journal)
    assert journal.job(held).status.state == "finished"


def test_a_second_dispatcher_is_refused(journal: JobJournal) -> None:
    with (
        hold_lock(journal.folder / LOCK_NAME, ""),
        pytest.raises(InputError, match="at work for this queue already"),
    ):
        Dispatcher(journal, FakeDevices("1")).run(until_empty=True)


def test_running_jobs_of_another_boot_were_killed_with_the_machine(
    journal: JobJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their pids may be those of anybody by now: nobody gets a signal."""
    (job,) = journal.submit([shell("exit 0")])
    assert journal.claim(job, lambda leases: []) is not None
    living = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        mine = holder_of(living.pid)
        journal.begin(job, LeaseHolder(mine.pid, mine.process_start, "host/another boot/"))

        dispatched(journal)

        status = journal.job(job).status
        assert (status.failure, status.reason) == ("killed", "the machine was restarted")
        assert living.poll() is None
    finally:
        living.kill()
        living.wait()


def test_a_pid_that_was_given_to_another_process_is_not_the_holder() -> None:
    mine = holder_of(os.getpid())
    assert is_alive(mine)
    assert not is_alive(mine._replace(process_start="1"))


def test_a_command_whose_dispatcher_died_before_the_journal_knew_it_never_runs(
    journal: JobJournal, tmp_path: Path
) -> None:
    folder = JobFolder.of(journal.folder, 1).make()
    process = start_forked(
        ["touch", str(tmp_path / "ran")], "/", dict(os.environ), folder.log, folder.exit_file(1)
    )
    os.close(process._gate)  # what the kernel does for a dispatcher that is killed
    os.waitpid(process.holder.pid, 0)
    assert not (tmp_path / "ran").exists()

    (job,) = journal.submit([shell("exit 0")])
    assert journal.claim(job, lambda leases: []) is not None
    journal.begin(job, process.holder)
    dispatched(journal)
    assert (journal.job(job).status.state, journal.job(job).status.attempt) == ("finished", 1)


JOB = """
echo run >> {folder}/starts-$1
exec 9>> "{folder}/lock of $ASSAY_JOB_DEVICES"
flock -n 9 || echo "$1 on $ASSAY_JOB_DEVICES" >> {folder}/overlaps
sleep 0.$2
touch {folder}/done-$1
"""
"""Holds a lock of its device, in all its processes: the kernel says whether two overlap."""


@pytest.mark.thorough
@pytest.mark.slow
def test_no_device_is_held_twice_or_leaked_though_jobs_and_dispatchers_are_killed_at_random(
    journal: JobJournal, tmp_path: Path
) -> None:
    chance = random.Random(16)
    script = tmp_path / "job.sh"
    script.write_text(JOB.format(folder=tmp_path))
    environment = {"PATH": os.environ["PATH"]}
    ids = journal.submit(
        JobSpec(
            command=("sh", str(script), str(i), f"{chance.randint(5, 30):02}"),
            cwd="/",
            environment=environment,
        )
        for i in range(1, 201)
    )

    work, dispatchers, killed = dispatcher(journal), 1, set[int]()
    deadline = time.monotonic() + 300
    while work.poll() is None and time.monotonic() < deadline:
        time.sleep(chance.uniform(0.02, 0.1))
        running = journal.running()
        holders = [lease.slot[:2] for lease in journal.leases()]
        assert len(holders) == len(set(holders)) <= 8
        if running and chance.random() < 0.4:
            victim = chance.choice(running)
            killed.add(victim.job.id)
            kill_part(victim.holder, chance)
        if dispatchers < 12 and chance.random() < 0.1:
            work.kill()
            work.wait()
            work, dispatchers = dispatcher(journal), dispatchers + 1

    assert work.wait(60) == 0
    assert not (tmp_path / "overlaps").exists()
    assert dispatchers > 3 and len(killed) > 10
    assert journal.leases() == []
    for job in map(journal.job, ids):
        starts = (
            (tmp_path / f"starts-{job.id}").read_text().splitlines()
            if (tmp_path / f"starts-{job.id}").exists()
            else []
        )
        assert len(starts) <= 1, job
        if job.status.state == "finished":
            assert (tmp_path / f"done-{job.id}").exists(), job
        else:
            assert job.status.failure == "killed" and job.id in killed, job


def kill_part(holder: LeaseHolder, chance: random.Random) -> None:
    """Kill the supervisor of a job, or all of its processes."""
    if not holder.pid or process_start(holder.pid) != holder.process_start:
        return
    try:
        if chance.random() < 0.5:
            os.kill(holder.pid, signal.SIGKILL)
        else:
            os.killpg(holder.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# ------------------------------------------------------------------------------ what was planted


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


Plant = Callable[[Path, Path], None]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A file of the user that nothing of the queue may change."""
    path = tmp_path / "outside"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


@pytest.mark.parametrize("plant", [link, pipe, folder])
def test_a_log_that_is_no_file_ends_its_job_and_no_other(
    journal: JobJournal, outside: Path, plant: Plant
) -> None:
    log = JobFolder.of(journal.folder, 1).make().log
    plant(log, outside)

    bad, good = dispatched(journal, shell("echo printed"), shell("echo printed"))

    kind = {link: "a link", pipe: "a named pipe", folder: "a folder"}[plant]
    assert (bad.status.state, bad.status.failure) == ("failed", "config")
    assert bad.status.reason == f"its folder cannot be written: {log}: it is {kind}, not a file"
    assert good.status.state == "finished"
    assert journal.leases() == []
    with pytest.raises(RecordError, match=f"cannot be read: it is {kind}"):
        LogReader(log).read()


def test_a_folder_of_a_job_that_is_a_link_ends_the_job(journal: JobJournal, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (journal.folder / "jobs").mkdir()
    (journal.folder / "jobs" / "1").symlink_to(tmp_path / "elsewhere")

    bad, good = dispatched(journal, shell("echo printed"), shell("echo printed"))

    assert "it is a link, not a folder" in bad.status.reason
    assert good.status.state == "finished"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("plant", [link, pipe])
def test_how_a_job_ended_is_written_past_what_lies_in_the_place_of_the_file(
    journal: JobJournal, outside: Path, plant: Plant
) -> None:
    plants = "ln -s" if plant is link else "mkfifo"
    source = str(outside) if plant is link else ""
    (job,) = dispatched(
        journal,
        shell(
            f"cd {journal.folder}/jobs/1; for end in '' .new; do"
            f" {plants} {source} exit-1-$PPID.json$end; done; exit 3"
        ),
    )

    assert (job.status.failure, job.status.reason) == ("exception", "exit code 3")


@pytest.mark.parametrize("plant", [link, pipe, folder])
def test_a_lock_that_is_no_file_is_one_clear_error_and_nothing_waits_for_it(
    journal: JobJournal, outside: Path, plant: Plant
) -> None:
    plant(journal.folder / LOCK_NAME, outside)

    with pytest.raises(AssayError, match="The lock cannot be taken: "):
        Dispatcher(journal, FakeDevices("1")).run(until_empty=True)
    with pytest.raises(RecordError, match="The lock of the queue cannot be read: "):
        dispatcher_pid(journal.folder)


def test_a_queue_that_other_users_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue").chmod(0o777)

    with pytest.raises(InputError, match="can be written by every user"):
        JobJournal(tmp_path / "queue")

    assert list((tmp_path / "queue").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_queue_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    os.chown(tmp_path / "queue", 65534, -1)

    with pytest.raises(InputError, match="belongs to another user, whose jobs would run as yours"):
        JobJournal(tmp_path / "queue")
