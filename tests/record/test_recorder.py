"""One run from its first line to its seal, with real folders and real processes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import fields
from pathlib import Path

import pytest

from assay.core.errors import InputError, LeaseError, RecordError
from assay.core.facts import Changed, Ended, Evaluated, Started, Warned
from assay.formats import lease as leases
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.formats.run_file import Best
from assay.query.run import RunView
from assay.record import recorder as recorder_module
from assay.record import recorder_thread
from assay.record.attempt import AttemptSpec
from assay.record.ending import ending
from assay.record.opening import start_attempt, start_run
from assay.record.recorder import RunRecorder
from assay.store import authorship
from assay.store.artifacts import artifacts
from assay.store.blobs import FileBlobs
from assay.store.code_trees import code_blobs, read_tree
from assay.store.known_projects import known_projects
from assay.store.layout import Project, RunFolder, open_project, run_folders
from assay.store.series import read_series


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return open_project(tmp_path / "project", create=True)


def begin(project: Project, **given: object) -> RunRecorder:
    names = {each.name for each in fields(AttemptSpec)}
    spec = {"keep_code": False, **{name: given.pop(name) for name in names & given.keys()}}
    return start_run(project, AttemptSpec(**spec), **given)  # type: ignore[arg-type]


def only_run(project: Project) -> RunFolder:
    (folder,) = run_folders(project)
    return folder


def test_config_and_environment_are_on_disk_before_the_first_step(project: Project) -> None:
    with begin(
        project,
        tag="Größe / 2",
        desc="A baseline.\n\nWith two paragraphs.",
        config_toml="lr = 0.1\n",
        config_files={"digits.toml": "# mine\nlr = 0.1"},
        config_hash="ab" * 32,
        seeds={"python": 1},
        devices=["cpu"],
        launch={"nproc": 1},
        command=["assay", "run", "digits.toml"],
    ) as run:
        folder = only_run(project)
        written = run_file.read(folder.path)

        assert folder == run.folder
        assert folder.config_toml.read_text() == "lr = 0.1\n"
        assert (folder.config_dir / "digits.toml").read_text() == "# mine\nlr = 0.1"
        assert folder.readme.read_text().startswith(
            "# Größe / 2\n\nA baseline.\n\nWith two paragraphs.\n"
        )
        assert (written.status, written.sealed, written.id) == ("running", False, run.id)
        newest = written.newest
        assert newest.number == 1
        assert newest.environment["python"] == ".".join(map(str, sys.version_info[:3]))
        assert newest.environment["packages"]["pytest"] == pytest.__version__
        assert (newest.pid, newest.seeds, newest.devices) == (os.getpid(), {"python": 1}, ("cpu",))
        assert newest.command == ("assay", "run", "digits.toml")
        assert leases.read(folder.path) is not None
        assert [each.fact for each in read_events(folder.events)] == [Started(attempt=1)]


def test_the_folder_is_for_its_owner_only_and_its_name_tells_time_id_and_tag(
    project: Project,
) -> None:
    with begin(project, tag="MNIST cnn!") as run:
        assert stat.S_IMODE(run.folder.path.stat().st_mode) == 0o700
        assert run.folder.path.name.endswith(f"-{run.id}-mnist-cnn")
        assert run.folder.id == run.id


def test_a_finished_run_is_sealed_summed_up_and_free(project: Project) -> None:
    with begin(project, tag="t") as run:
        for step in range(1, 4):
            run.log({"loss": 1 / step}, step)
        run.set_best(Best(metric="loss", mode="min", value=1 / 3, step=3))

    written = run_file.read(run.folder.path)
    assert (written.status, written.sealed) == ("finished", True)
    assert RunView(run.folder).summaries["loss"].last == 1 / 3
    assert written.newest.to_step == 3
    assert written.newest.ended_ns is not None
    assert leases.read(run.folder.path) is None
    assert [each.fact for each in read_events(run.folder.events)][-1] == Ended(
        status="finished", step=3
    )
    page = run.folder.readme.read_text()
    assert "| status | finished |" in page
    assert "| best | loss = 0.333333 at step 3 |" in page


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ZeroDivisionError("boom\nand more"), "failed", "ZeroDivisionError: boom"),
        (KeyboardInterrupt(), "stopped", "SIGINT"),
        (SystemExit(0), "finished", ""),
        (SystemExit(3), "failed", "SystemExit: 3"),
    ],
)
def test_how_the_block_ends_is_how_the_run_ends(
    project: Project, error: BaseException, status: str, reason: str
) -> None:
    with pytest.raises(type(error)), begin(project) as run:
        run.log({"a": 1.0}, 5)
        raise error

    written = run_file.read(run.folder.path)
    assert (written.status, written.newest.status, written.newest.reason) == (
        status,
        status,
        reason,
    )
    (end,) = [each.fact for each in read_events(run.folder.events) if isinstance(each.fact, Ended)]
    assert (end.status, end.step, end.reason) == (status, 5, reason)
    assert ("boom" in end.traceback) == isinstance(error, ZeroDivisionError)


def test_finish_is_done_once_and_a_told_end_is_not_told_again(project: Project) -> None:
    run = begin(project)
    run.tell(Ended(status="stopped", step=8, reason="signal"))

    run.finish("stopped")
    run.finish("failed", "late")

    ends = [each.fact for each in read_events(run.folder.events) if isinstance(each.fact, Ended)]
    assert ends == [Ended(status="stopped", step=8, reason="signal")]
    newest = run_file.read(run.folder.path).newest
    assert (newest.status, newest.reason, newest.to_step) == ("stopped", "signal", 8)


def test_after_the_end_every_call_is_refused(project: Project) -> None:
    run = begin(project)
    run.finish()

    for call in (
        lambda: run.log({"a": 1.0}, 1),
        lambda: run.tell(Warned(message="x")),
        lambda: run.rewind(1),
        lambda: run.artifact(b"x", "x"),
        lambda: run.set_best(None),
    ):
        with pytest.raises(RecordError, match="has ended"):
            call()


def test_two_runs_in_one_process_do_not_mix(project: Project) -> None:
    with begin(project, tag="one") as one, begin(project, tag="two") as two:
        one.log({"a": 1.0}, 1)
        two.log({"a": 2.0}, 1)
        one.logger.warning("about one")
        two.logger.warning("about two")
        logging.getLogger("assay").warning("about all")
        one.artifact(b"1", "x")

    assert read_series(one.folder.metrics)["a"].values.tolist() == [1.0]
    assert read_series(two.folder.metrics)["a"].values.tolist() == [2.0]
    assert [line.split("  ")[-1] for line in one.folder.log.read_text().splitlines()] == [
        "about one",
        "about all",
    ]
    assert [line.split("  ")[-1] for line in two.folder.log.read_text().splitlines()] == [
        "about two",
        "about all",
    ]
    assert len(artifacts(one.folder)) == 1
    assert artifacts(two.folder) == ()


def test_the_root_logger_is_never_touched_and_ours_is_left_as_it_was(project: Project) -> None:
    before = (list(logging.getLogger().handlers), logging.getLogger().level)
    ours = logging.getLogger("assay")
    level = ours.level

    with begin(project):
        assert (list(logging.getLogger().handlers), logging.getLogger().level) == before
        ours.info("noted")

    assert re.search(
        r"INFO    \[\w+\] test_recorder\.py:\d+  noted\n", only_run(project).log.read_text()
    )
    assert ours.handlers == []
    assert ours.level == level


def test_artifacts_are_kept_by_content_whatever_their_name(
    project: Project, tmp_path: Path
) -> None:
    picture = tmp_path / "confusion.png"
    picture.write_bytes(b"png")
    names = ["a/b\n../c", "x" * 10_000, "‮evil"]
    with begin(project) as run:
        digest = run.artifact(picture)
        for name in names:
            assert run.artifact(b"png", name) == digest
        run.artifact(b"png", names[0])

    kept = artifacts(run.folder)
    assert [each.name for each in kept] == ["confusion.png", names[1], names[2], names[0]]
    assert FileBlobs(run.folder.artifacts).get(digest) == b"png"
    assert len(list(FileBlobs(run.folder.artifacts).digests())) == 1


def test_an_artifact_that_is_not_there_and_bytes_without_a_name_are_one_clear_error(
    project: Project,
) -> None:
    with begin(project) as run:
        with pytest.raises(InputError, match="cannot be read"):
            run.artifact("nowhere.png")
        with pytest.raises(InputError, match="need a name"):
            run.artifact(b"x")


def test_a_named_pipe_is_no_artifact_and_is_not_waited_for(
    project: Project, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with begin(project) as run, pytest.raises(InputError, match="a named pipe, not a file"):
        run.artifact(pipe)


def test_config_files_stay_inside_the_folder_whatever_they_are_called(project: Project) -> None:
    files = {"../../evil.toml": "a", "/etc/passwd": "b", "..": "c", "a\nb": "d", "x" * 5000: "e"}

    with begin(project, config_files=files) as run:
        kept = {path.read_text() for path in run.folder.config_dir.iterdir()}

    assert kept == set(files.values())
    assert not (project.root / "evil.toml").exists()


def test_two_config_files_of_one_name_keep_the_folders_that_tell_them_apart(
    project: Project,
) -> None:
    files = {
        "main.py": "0",
        "configs/a/train.py": "1",
        str(project.root / "common" / "train.py"): "2",
        "Other.py": "3",
    }
    files["configs/b/../b/train.py"] = "4"

    with begin(project, config_files=files) as run:
        folder = run.folder.config_dir
        kept = {
            str(path.relative_to(folder)): path.read_text()
            for path in folder.rglob("*")
            if path.is_file()
        }

    assert {name.rpartition("/")[2] for name in kept} == {"main.py", "Other.py", "train.py"}
    assert kept.keys() >= {"main.py", "Other.py"}
    assert {tuple(name.split("/")[-2:]): text for name, text in kept.items() if "/" in name} == {
        ("a", "train.py"): "1",
        ("common", "train.py"): "2",
        ("b", "train.py"): "4",
    }


def test_two_imported_configs_of_one_name_lie_side_by_side(project: Project) -> None:
    files = {"train.py": "0", "parts/train.py": "1"}

    with begin(project, config_files=files) as run:
        assert (run.folder.config_dir / "train.py").read_text() == "0"
        assert (run.folder.config_dir / "parts" / "train.py").read_text() == "1"


def test_the_project_becomes_known(project: Project) -> None:
    with begin(project), begin(project):
        pass

    assert known_projects() == [project.root]


# --------------------------------------------------------------------------------------------------------------- resume


def test_a_resumed_run_goes_on_in_the_same_folder(project: Project) -> None:
    with begin(project, config_toml="lr = 1\n", config_hash="one", seeds={"s": 1}) as run:
        for step in range(1, 11):
            run.log({"a": float(step)}, step)

    with start_attempt(
        run.folder,
        AttemptSpec(config_toml="lr = 2\n", config_hash="two", keep_code=False),
        from_step=6,
        checkpoint="step-6",
        changed=[Changed(what="lr", step=6, before="1", after="2")],
    ) as again:
        assert run_file.read(run.folder.path).status == "running"
        assert not run_file.read(run.folder.path).sealed
        again.log({"a": 70.0}, 7)

    written = run_file.read(run.folder.path)
    assert (again.id, written.status, written.sealed) == (run.id, "finished", True)
    assert [a.number for a in written.attempts] == [1, 2]
    second = written.newest
    assert (second.from_step, second.to_step, second.changed, second.config_hash) == (
        6,
        7,
        ("lr",),
        "two",
    )
    assert second.seeds == {"s": 1}
    assert read_series(run.folder.metrics)["a"].steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(read_series(run.folder.metrics, branches=True)["a"].steps) == [
        *range(1, 8),
        *range(7, 11),
    ]
    facts = [each.fact for each in read_events(run.folder.events)]
    begin_of_second = facts.index(Started(attempt=2, step=6, checkpoint="step-6"))
    assert facts[begin_of_second + 1] == Changed(what="lr", step=6, before="1", after="2")
    assert run.folder.config_toml.read_text() == "lr = 2\n"
    assert (run.folder.config_dir / "before-attempt-2" / "config.toml").read_text() == "lr = 1\n"


@pytest.mark.parametrize("set_s", [-8 * 3600, 8 * 3600])
def test_a_run_lasts_as_long_as_it_ran_though_the_wall_clock_is_set(
    project: Project, monkeypatch: pytest.MonkeyPatch, set_s: int
) -> None:
    run = start_run(project, AttemptSpec())
    real = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: real() + set_s * 10**9)
        run.finish()

    written = run_file.read(run.folder.path)
    ended_ns = written.newest.ended_ns
    assert ended_ns is not None and abs(ended_ns - real() - set_s * 10**9) < 3600 * 10**9
    assert 0 < written.seconds < 3600
    assert 0 < RunView(run.folder.path).duration_s < 3600


@pytest.mark.parametrize("set_s", [-8 * 3600, 8 * 3600])
def test_a_killed_attempt_lasted_as_long_as_it_ran_though_the_wall_clock_was_set(
    project: Project, set_s: int
) -> None:
    code = f"""
import os, time
import assay
from assay.formats import lease

with assay.start(project={str(project.root)!r}) as run:
    folder, real = run.folder.path, time.time_ns
    time.time_ns = lambda: real() + {set_s} * 10**9
    while abs((held := lease.read(folder)).beat_ns - held.steady_ns) < 3600 * 10**9:
        time.sleep(0.05)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    (path,) = project.runs_dir.iterdir()
    killed = RunView(path)
    assert killed.status == "killed"
    assert 0 < killed.duration_s < 3600

    again = start_attempt(killed.folder, AttemptSpec(), from_step=0, project=project)
    again.finish()

    run = RunView(path)
    first, second = run.file.attempts
    assert first.ended_ns is None and first.seconds is not None
    assert 0 < run.seconds_of(first) < 3600
    assert run.duration_s == first.seconds + second.duration_s


def test_the_lease_is_renewed_though_the_monotonic_clock_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [10_000.0]
    synced = threading.Semaphore(0)
    beats: list[bool] = []
    monkeypatch.setattr(recorder_thread.time, "monotonic", lambda: now_s[0])

    def renew(is_due: bool) -> bool:
        beats.append(is_due)
        synced.release()
        return True

    monkeypatch.setattr(recorder_thread, "SYNC_S", 0.001)
    thread = recorder_thread.RecorderThread("clock", sync=lambda: True, renew=renew)
    thread.start()
    try:
        assert synced.acquire(timeout=60)
        assert not any(beats)
        seen, now_s[0] = len(beats), 5.0
        for _ in range(seen + 2):  # one more may have begun before
            assert synced.acquire(timeout=60)
    finally:
        thread.stop()
        thread.join()
    assert any(beats), "a beat is due at once"


def test_what_the_user_wrote_into_the_readme_survives_every_ending(project: Project) -> None:
    with begin(project, tag="t", desc="mine") as run:
        page = run.folder.readme.read_bytes()
        run.folder.readme.write_bytes(b"\xff before\r\n" + page + b"after it\r\n")
    with start_attempt(run.folder, AttemptSpec(keep_code=False), from_step=0):
        pass

    text = run.folder.readme.read_bytes()
    assert text.startswith(b"\xff before\r\n# t\n\nmine\n\n")
    assert text.endswith(b"\nafter it\r\n")
    assert b"| attempts | 2 |" in text


def test_a_readme_without_our_markers_is_all_the_users(project: Project) -> None:
    with begin(project) as run:
        run.folder.readme.write_text("mine alone")

    assert run.folder.readme.read_text() == "mine alone"


def test_a_run_that_is_being_written_is_not_resumed(project: Project) -> None:
    with begin(project) as run:
        with pytest.raises(LeaseError, match="is being written by"):
            start_attempt(run.folder, from_step=0)
        run.log({"a": 1.0}, 1)

    assert len(run_file.read(run.folder.path).attempts) == 1


def test_a_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in this folder"):
        start_attempt(RunFolder(tmp_path), from_step=0)


def test_who_was_taken_over_writes_nothing_any_more(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_thread, "SYNC_S", 0.01)
    monkeypatch.setattr(leases, "BEAT_S", 0.0)
    old = begin(project)
    old.log({"a": 1.0}, 1)

    with start_attempt(
        old.folder, AttemptSpec(keep_code=False), from_step=1, take_over=True
    ) as new:
        old._worker.thread.join(60)
        assert not old._worker.thread.is_alive()
        with pytest.raises(RecordError, match="taken over"):
            old.log({"a": 2.0}, 2)
        with pytest.raises(RecordError, match="taken over"):
            old.tell(Warned(message="x"))
        old.finish("failed")
        new.log({"a": 3.0}, 2)
        assert leases.read(old.folder.path) is not None

    assert run_file.read(old.folder.path).status == "finished"
    assert read_series(old.folder.metrics)["a"].values.tolist() == [1.0, 3.0]
    assert "Nothing is recorded any more" in caplog.text


# ------------------------------------------------------------------------------------------------------------ processes


def run_script(text: str, *arguments: object, stdin: bool = False) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


START = """
import sys, os, time
from pathlib import Path
from assay.store.layout import open_project, RunFolder
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_attempt, start_run
"""


FORGOTTEN = "import assay, sys\nrun = assay.start(project=sys.argv[1])\n"


def test_a_forgotten_run_of_a_script_is_finished_when_python_ends(project: Project) -> None:
    script = run_script(FORGOTTEN + "run.log({'a': 1.0}, 1)", project.root)
    _, errors = script.communicate(timeout=60)

    assert (script.returncode, errors) == (0, "")
    written = run_file.read(only_run(project).path)
    assert (written.status, written.sealed) == ("finished", True)


@pytest.mark.parametrize(
    ("last_line", "status", "reason"),
    [
        ("1 / 0", "failed", "ZeroDivisionError: division by zero"),
        ("import signal; signal.raise_signal(signal.SIGTERM)", "stopped", "SIGTERM"),
        ("import signal; signal.raise_signal(signal.SIGINT)", "stopped", "SIGINT"),
    ],
)
def test_a_forgotten_run_of_a_script_that_is_ended_says_by_what(
    last_line: str, status: str, reason: str, project: Project
) -> None:
    run_script(FORGOTTEN + last_line, project.root).communicate(timeout=60)

    newest = run_file.read(only_run(project).path).newest
    assert (newest.status, newest.reason) == (status, reason)


def test_a_recorder_that_nobody_finished_never_says_that_its_run_finished(project: Project) -> None:
    """Only a script ends with Python; a run of a config without an end was interrupted."""
    script = run_script(
        START + "run = start_run(open_project(Path(sys.argv[1])), AttemptSpec(keep_code=False))",
        project.root,
    )
    script.communicate(timeout=60)

    assert run_file.read(only_run(project).path).status == "running"
    assert RunView(only_run(project)).status == "killed"


def test_a_killed_run_leaves_all_its_points_and_can_be_resumed(project: Project) -> None:
    script = run_script(
        START
        + "run = start_run(open_project(Path(sys.argv[1])), AttemptSpec(keep_code=False))\n"
        + "for step in range(1, 10_001): run.log({'loss': step / 2}, step)\n"
        + "print('ready', flush=True); sys.stdin.read()",
        project.root,
    )
    with script:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        script.send_signal(signal.SIGKILL)
        script.wait()
    folder = only_run(project)
    lease = leases.read(folder.path)
    assert lease is not None
    assert leases.liveness(lease) == "dead"
    assert run_file.read(folder.path).status == "running"
    assert read_series(folder.metrics)["loss"].values.tolist() == [
        step / 2 for step in range(1, 10_001)
    ]

    with start_attempt(folder, AttemptSpec(keep_code=False), from_step=9_000) as run:
        run.log({"loss": 0.0}, 9_001)

    assert read_series(folder.metrics)["loss"].steps.tolist() == list(range(1, 9_002))
    first, second = run_file.read(folder.path).attempts
    assert (first.status, first.ended_ns, second.status) == ("running", None, "finished")


def test_of_processes_that_race_for_a_dead_run_exactly_one_gets_it(project: Project) -> None:
    dead = run_script(
        START
        + "start_run(open_project(Path(sys.argv[1])), AttemptSpec(keep_code=False)); os._exit(0)",
        project.root,
    )
    dead.communicate(timeout=60)
    folder = only_run(project)
    racer = START + (
        "from assay.core.errors import LeaseError\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n"
        "    run = start_attempt(RunFolder(Path(sys.argv[1])), AttemptSpec(keep_code=False), from_step=0)\n"
        "except LeaseError: print('refused', flush=True)\n"
        "else: print('got it', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    racers = [run_script(racer, folder.path) for _ in range(3)]
    for process in racers:
        assert process.stdout is not None
        process.stdout.readline()

    for process in racers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.readline().strip() for process in racers if process.stdout is not None]
    for process in racers:
        process.communicate("end\n", timeout=60)

    assert sorted(said) == ["got it", "refused", "refused"]
    assert len(run_file.read(folder.path).attempts) == 2


def test_a_forked_child_neither_writes_nor_ends_its_parents_run(project: Project) -> None:
    run = begin(project)
    run.log({"a": 1.0}, 1)

    child = os.fork()
    if child == 0:
        refused = 0
        for call in (
            lambda: run.log({"a": 2.0}, 2),
            lambda: run.tell(Warned(message="x")),
            lambda: run.rewind(0),
        ):
            try:
                call()
            except RecordError:
                refused += 1
        logging.getLogger("assay").warning("from the child")
        run.finish("failed")
        os._exit(refused)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 3
    assert run_file.read(run.folder.path).status == "running"
    run.log({"a": 3.0}, 2)
    run.finish()
    assert read_series(run.folder.metrics)["a"].values.tolist() == [1.0, 3.0]
    assert not run.folder.log.exists()


def test_the_run_is_said_to_be_alive_while_it_is_open_and_its_thread_ends_with_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_thread, "SYNC_S", 0.01)
    monkeypatch.setattr(leases, "BEAT_S", 0.02)
    with begin(project) as run:
        first = leases.read(run.folder.path)
        assert first is not None
        deadline = time.monotonic() + 100
        while (now := leases.read(run.folder.path)) is None or now.beat_ns <= first.beat_ns:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert run._worker.thread in threading.enumerate()
        assert run._worker.thread.daemon

    assert run._worker.thread not in threading.enumerate()


def test_a_lease_that_cannot_be_read_for_a_while_ends_no_recording(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_thread, "SYNC_S", 0.01)
    monkeypatch.setattr(leases, "BEAT_S", 0.0)
    with begin(project) as run:
        run.folder.lease.write_bytes(b"{ torn")
        deadline = time.monotonic() + 100
        while leases.read(run.folder.path) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.log({"a": 1.0}, 1)

    assert run_file.read(run.folder.path).status == "finished"


# --------------------------------------------------------------------------------------------------- what can go wrong


def test_a_place_where_nothing_can_be_written_is_one_clear_error(tmp_path: Path) -> None:
    project = open_project(tmp_path, create=True)
    (tmp_path / "runs").write_text("a file")

    with pytest.raises(InputError) as caught:
        begin(project)

    assert (
        caught.value.what == "The folder of the run cannot be made: something else is in its place."
    )
    assert str(tmp_path / "runs") in caught.value.where


@pytest.mark.skipif(os.geteuid() != 0, reason="to become somebody else takes root")
def test_a_folder_that_may_not_be_written_is_one_clear_error(tmp_path: Path) -> None:
    project = open_project(tmp_path, create=True)
    project.runs_dir.mkdir()
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)

    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            begin(project)
        except InputError as error:
            os._exit(7 if "no permission" in error.what and "ASSAY_RUNS_DIR" in error.fix else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 7
    assert list(project.runs_dir.iterdir()) == []


def test_a_run_that_cannot_begin_leaves_no_folder_behind(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_file, "write", full)

    with pytest.raises(RecordError, match="The run cannot be recorded: the disk is full"):
        begin(project)

    assert run_folders(project) == []


@pytest.mark.parametrize("harm", ["deleted", "moved", "emptied"])
@pytest.mark.parametrize("noticed", [True, False])
def test_the_folder_of_a_run_that_is_deleted_or_moved_is_made_again_and_the_end_tells(
    project: Project, monkeypatch: pytest.MonkeyPatch, harm: str, noticed: bool
) -> None:
    monkeypatch.setattr(recorder_thread, "SYNC_S", 0.01 if noticed else 1000.0)
    run = begin(project, config_toml="lr = 0.1\n")
    run.log({"loss": 0.5}, 1)
    path = run.folder.path
    match harm:
        case "deleted":
            shutil.rmtree(path)
        case "moved":
            path.rename(project.root / "elsewhere")
        case "emptied":
            for each in path.rglob("*"):
                if each.is_file():
                    each.unlink()
    for _ in range(1000 if noticed else 0):
        if run.lacks:
            break
        time.sleep(0.01)
    run.log({"loss": 0.25}, 2)
    run.finish()

    ended = run_file.read(path)
    assert (ended.status, ended.newest.reason) == (
        "finished",
        "not kept: what was in its folder before that was deleted or moved",
    )
    assert read_series(run.folder.metrics)["loss"].values.tolist() == [0.5, 0.25]
    assert run.folder.config_toml.read_text() == "lr = 0.1\n"
    assert leases.read(path) is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert "was made again" in run.folder.log.read_text()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a disk takes root")
def test_a_run_whose_disk_is_full_has_room_for_its_end(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        run = begin(open_project(disk, create=True))
        run.log({"loss": 0.5}, 1)
        with contextlib.suppress(OSError), open(disk / "filler", "wb") as filler:
            while True:
                filler.write(bytes(4096))
                filler.flush()
        for step in range(2, 60_000):
            run.log({"loss": 0.5}, step)
        run.finish()

        ended = run_file.read(run.folder.path)
        assert (ended.status, ended.newest.status) == ("finished", "finished")
        assert ended.newest.reason.startswith("not kept: ")
        assert re.search(r"\d+ points, of steps \d+ to 59999$", ended.newest.reason)
        assert [path.name for path in run.folder.path.glob(".*")] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_vanishes_is_told_in_one_line_when_the_run_ends(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(project)
    shutil.rmtree(project.runs_dir)
    run.tell(Evaluated(split="valid", step=1, metrics={"acc": 1.0}))  # stops no training
    caplog.clear()

    run.finish()
    run.finish()

    (line,) = caplog.messages
    assert (
        line == f"The folder of this run is gone. Nothing is recorded any more. ({run.folder.path})"
    )
    assert not run.folder.path.exists()
    with pytest.raises(RecordError, match="The folder of this run is gone"):
        run.log({"loss": 1.0}, 1)


def test_events_that_cannot_be_written_stop_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(project)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "append_line", full)
        run.tell(Evaluated(split="valid", step=1, metrics={"acc": 1.0}))
    run.finish()

    assert "An event could not be written" in run.folder.log.read_text()
    assert [type(each.fact) for each in read_events(run.folder.events)] == [Started, Ended]


def test_lost_points_are_told_in_the_record_itself(project: Project) -> None:
    with begin(project) as run:
        run._metrics._on_problem("7 points were lost, of steps 1 to 7.")

    assert Warned(message="7 points were lost, of steps 1 to 7.") in [
        each.fact for each in read_events(run.folder.events)
    ]
    assert "7 points were lost" in run.folder.log.read_text()


def test_a_secret_known_only_at_the_end_leaves_the_whole_record_which_stays_this_users(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "train.py").write_text('X = "come-later-7788"\n', encoding="utf-8")
    spec = AttemptSpec(
        command=("t.py",),
        config_toml='note = "come-later-7788"\nx = 112233445566\n',
        config_files={"a.toml": 'note = "come-later-7788"\n'},
        launch={"note": "come-later-7788"},
    )
    with start_run(project, spec, desc="of come-later-7788") as run:
        run.log({"loss/come-later-7788": 1.0, "loss": 2.0}, 1)
        run.tell(Evaluated(split="valid", step=1, metrics={"come-later-7788": 1.0}))
        run.set_value("come-later-7788", ["come-later-7788"])
        monkeypatch.setenv("LATER_PASSWORD", "come-later-7788")
        monkeypatch.setenv("LATER_PIN_PASSWORD", "112233445566")

    kept = [*run.folder.path.rglob("*"), *(project.root / ".assay").rglob("*")]
    assert [p for p in kept if p.is_file() and b"come-later-7788" in p.read_bytes()] == []
    view = RunView(run.folder)
    assert authorship.is_own(run.folder, view.file) and view.damages == ()
    assert set(view.summaries) == {"loss", "loss/<redacted>"}
    assert view.config_text == 'note = "<redacted>"\nx = 112233445566\n'
    tree = read_tree(code_blobs(project), view.code.snapshot)
    assert code_blobs(project).get(tree["train.py"].digest) == b'X = "<redacted>"\n'


def test_a_secret_known_in_a_later_attempt_leaves_the_code_of_those_before(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "train.py").write_text('X = "come-later-7788"\n', encoding="utf-8")
    with start_run(project, AttemptSpec(command=("t.py",))) as run:
        run.log({"loss": 1.0}, 1)
    with start_attempt(run.folder, AttemptSpec(command=("t.py",)), from_step=1):
        monkeypatch.setenv("LATER_PASSWORD", "come-later-7788")

    kept = [*run.folder.path.rglob("*"), *(project.root / ".assay").rglob("*")]
    assert [p for p in kept if p.is_file() and b"come-later-7788" in p.read_bytes()] == []
    view = RunView(run.folder)
    assert len(view.file.attempts) == 2 and view.damages == ()
    assert authorship.is_own(run.folder, view.file)


def test_code_that_another_run_needs_stays_when_a_later_run_knows_its_secret(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "train.py").write_text('X = "come-later-7788"\n', encoding="utf-8")
    with start_run(project, AttemptSpec(command=("t.py",))) as first:
        pass
    with start_run(project, AttemptSpec(command=("t.py",))) as second:
        monkeypatch.setenv("LATER_PASSWORD", "come-later-7788")

    blobs = code_blobs(project)
    before, after = (RunView(run.folder).code.snapshot for run in (first, second))
    assert before != after
    assert blobs.get(read_tree(blobs, before)["train.py"].digest) == b'X = "come-later-7788"\n'


def test_a_torn_last_event_does_not_spoil_the_next_one(project: Project) -> None:
    with begin(project) as run:
        with open(run.folder.events, "ab") as file:
            file.write(b'{"fact":"war')
        run.tell(Warned(message="whole"))

    assert [type(each.fact) for each in read_events(run.folder.events)] == [Started, Warned, Ended]


@pytest.mark.parametrize("error", [None, SystemExit(), SystemExit(0)])
def test_a_normal_end_is_finished(error: BaseException | None) -> None:
    assert ending(error) == ("finished", "", "")


def test_run_json_is_plain_json_that_other_programs_read(project: Project) -> None:
    with begin(project, tag="t") as run:
        run.set_value("answer", {"x": [1, 2], "far": float("inf")})

    data = json.loads(
        run.folder.run_json.read_text(),
        parse_constant=lambda text: pytest.fail(f"{text} is no JSON"),
    )
    assert data["values"] == {"answer": {"x": [1, 2], "far": "inf"}}


WRITES_ON = """
import sys
import time
from pathlib import Path
from assay.core.errors import RecordError
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import open_project
run = start_run(open_project(Path(sys.argv[1]), create=True), AttemptSpec(keep_code=False))
step = 0
try:
    while True:
        step += 1
        run.log({"a": 1.0, "b": 2.0}, step)
        if step % 100 == 0:
            time.sleep(0.001)
        if step == 1000:
            print("ready", flush=True)
except RecordError as error:
    print(error.what)
"""


def test_whoever_is_taken_over_lets_go_before_a_point_of_the_other_is_written(
    project: Project,
) -> None:
    living = run_script(WRITES_ON, project.root)
    assert living.stdout is not None
    assert living.stdout.readline() == "ready\n"
    folder = only_run(project)

    with start_attempt(folder, AttemptSpec(keep_code=False), from_step=500, take_over=True) as run:
        for step in range(501, 60_501):
            run.log({"a": 3.0, "b": step / 2}, step)
    said, _ = living.communicate(timeout=100)

    assert said == "The lease of this run was taken over by another process.\n"
    found = read_series(folder.metrics)
    on_curve = found["b"].branches == 0
    assert found["b"].steps[on_curve].tolist() == list(range(1, 60_501))
    assert found["b"].values[on_curve].tolist() == [2.0] * 500 + [
        step / 2 for step in range(501, 60_501)
    ]
