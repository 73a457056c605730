"""What a program prints, with real processes, pipes and terminals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from assay.store.layout import Project, open_project, run_folders

SRC = Path(__file__).resolve().parents[2] / "src"
BEGIN = """
import os, signal, subprocess, sys, time
from pathlib import Path
import assay

def kept(text):
    while not any(file.read_text().endswith(text) for file in Path("runs").glob("*/output.txt")):
        time.sleep(0.01)
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return open_project(tmp_path, create=True)


def python(text: str, project: Project, **pipes: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + text],
        cwd=project.root,
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "PYTHONUNBUFFERED": "",
        },  # unbuffered, a line is several writes
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes},  # type: ignore[arg-type]
    )


def output(project: Project, *, of: int = -1) -> str:
    return run_folders(project)[of].output.read_text(encoding="utf-8")


def settled(project: Project, end: str) -> str:
    """Wait until the output ends with `end`, and return it.

    After a kill the rest is on its way for a moment.
    """
    until = time.monotonic() + 100
    while not (text := output(project)).endswith(end) and time.monotonic() < until:
        time.sleep(0.02)
    return text


def test_all_that_is_printed_is_shown_and_kept_children_and_c_code_included(
    project: Project,
) -> None:
    script = python(
        """
with assay.start() as run:
    print("python", flush=True)
    subprocess.run(["echo", "child"])
    os.write(1, b"below python\\n")
print("after the run")
""",
        project,
    )
    out, errors = script.communicate(timeout=60)

    assert (out, errors) == ("python\nchild\nbelow python\nafter the run\n", "")
    assert output(project) == "python\nchild\nbelow python\n"


def test_what_is_printed_after_the_folder_has_vanished_is_shown_all_the_same(
    project: Project,
) -> None:
    script = python(
        """
import shutil
run = assay.start()
shutil.rmtree(run.folder.path.parent)
print("still here", flush=True)
raise ValueError("and this")
""",
        project,
    )
    out, errors = script.communicate(timeout=60)

    assert (script.returncode, out) == (1, "still here\n")
    assert "ValueError: and this" in errors
    assert errors.count("Traceback") == 1
    assert errors.splitlines()[-1].startswith(
        "The folder of this run is gone. Nothing is recorded any more. ("
    )


def test_the_two_ways_out_stay_apart_on_the_console_and_come_together_in_the_file(
    project: Project,
) -> None:
    script = python(
        """
with assay.start() as run:
    for i in range(3):
        print("out", i, flush=True)
        kept(f"out {i}\\n")
        print("err", i, file=sys.stderr)
        kept(f"err {i}\\n")
""",
        project,
    )
    out, errors = script.communicate(timeout=60)

    assert out == "out 0\nout 1\nout 2\n"
    assert errors == "err 0\nerr 1\nerr 2\n"
    assert output(project) == "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n"


def test_the_end_of_a_run_does_not_wait_for_a_helper_that_has_not_begun(
    project: Project,
) -> None:
    script = python(
        """
import assay.record.capture as capture
capture.DRAIN_S = 600.0
capture._PROGRAM = "import sys; sys.stdin.read()"
run = assay.start()
print("in the run")
print("key hf_" + "a1B2" * 8, file=sys.stderr)
run.finish()
print("after it", flush=True)
""",
        project,
    )
    out, errors = script.communicate(timeout=60)

    assert (script.returncode, out) == (0, "in the run\nafter it\n")
    assert errors == "key hf_" + "a1B2" * 8 + "\n"
    assert sorted(output(project).splitlines()) == ["in the run", "key <redacted>"]


def test_a_helper_that_begins_after_the_run_hears_a_child_of_it(project: Project) -> None:
    script = python(
        """
import assay.record.capture as capture
wait = "import os, time\\nwhile not os.path.exists('go'): time.sleep(0.01)\\n"
capture._PROGRAM = wait + capture._PROGRAM
with assay.start():
    late = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); print('late')"],
                            stdin=subprocess.PIPE)
    print("early")
kept("early\\n")
Path("go").touch()
late.communicate()
""",
        project,
    )
    out, _ = script.communicate(timeout=60)

    assert settled(project, "late\n") == "early\nlate\n"
    assert out == "early\nlate\n"


def test_the_last_words_of_a_killed_program_are_kept(project: Project) -> None:
    script = python(
        """
run = assay.start()
print("x" * 30_000, flush=True)
os.write(2, b"last words")
os.kill(os.getpid(), signal.SIGKILL)
""",
        project,
        stderr=subprocess.STDOUT,
    )
    out, _ = script.communicate(timeout=60)

    assert script.returncode == -signal.SIGKILL
    assert out == "x" * 30_000 + "\nlast words"
    assert settled(project, "last words") == out


def test_a_traceback_that_ends_the_program_is_kept(project: Project) -> None:
    script = python("run = assay.start()\n1 / 0", project)
    script.communicate(timeout=60)

    assert output(project).endswith("ZeroDivisionError: division by zero\n")


def test_of_a_bar_drawn_again_and_again_the_file_has_the_last_state(project: Project) -> None:
    script = python(
        """
with assay.start() as run:
    print("begin", file=sys.stderr)
    for i in range(101):
        sys.stderr.write(f"\\r{i:3}%|{'█' * (i // 10):<10}| {i}/100")
    sys.stderr.write("\\n")
""",
        project,
    )
    _, errors = script.communicate(timeout=60)

    assert output(project) == "begin\n100%|██████████| 100/100\n"
    assert errors.count("%|") == 101


def on_terminal(text: str, project: Project) -> str:
    """What a program prints that believes to be on a terminal of 40 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
    script = python(text, project, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # that is how a terminal says that nobody is there any more
        while select.select([master], [], [], 60)[0]:
            seen += os.read(master, 1 << 16)
    os.close(master)
    assert script.wait(60) == 0
    return seen.decode()


def test_on_a_terminal_the_program_still_sees_a_terminal_of_the_same_size(project: Project) -> None:
    seen = on_terminal(
        """
with assay.start() as run:
    print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1).columns)
    print("to stderr", file=sys.stderr)
    print("again")
""",
        project,
    )

    assert seen == "True True 40\r\nto stderr\r\nagain\r\n"
    assert output(project) == "True True 40\nto stderr\nagain\n"


def test_of_two_runs_at_once_the_first_keeps_the_output_and_runs_in_turn_keep_their_own(
    project: Project,
) -> None:
    script = python(
        """
one, two = assay.start(tag="one"), assay.start(tag="two")
print("of both")
one.finish()
two.finish()
with assay.start(tag="three"):
    print("of three")
""",
        project,
    )
    out, _ = script.communicate(timeout=60)

    kept = {folder.path.name.rsplit("-", 1)[1]: folder for folder in run_folders(project)}
    assert out == "of both\nof three\n"
    assert kept["one"].output.read_text() == "of both\n"
    assert not kept["two"].output.exists()
    assert kept["three"].output.read_text() == "of three\n"


def test_when_the_helper_is_killed_the_program_goes_on_and_prints(project: Project) -> None:
    script = python(
        """
import assay.record.capture as capture
with assay.start() as run:
    print("before", flush=True)
    kept("before\\n")
    os.kill(capture._active._pump.pid, signal.SIGKILL)
    for i in range(2000):
        print("line", i, "x" * 100, flush=True)
print("end")
""",
        project,
    )
    out, errors = script.communicate(timeout=60)

    assert (script.returncode, errors) == (0, "")
    lines = out.splitlines()
    assert (lines[0], lines[-1]) == ("before", "end")
    assert sorted(int(line.split()[1]) for line in lines if line.startswith("line")) == list(
        range(2000)
    )


def test_a_reader_that_has_seen_enough_ends_nothing(project: Project) -> None:
    script = python(
        """
with assay.start() as run:
    for i in range(20_000):
        print("line", i)
    run.log({"a": 1.0}, 1)
""",
        project,
    )
    assert script.stdout is not None
    script.stdout.readline()
    script.stdout.close()
    assert script.stderr is not None
    errors = script.stderr.read()
    script.stderr.close()

    assert (script.wait(60), errors) == (0, "")
    assert output(project).endswith("line 19999\n")


def test_secrets_of_the_environment_are_shown_and_not_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted0123456789")
    script = python(
        """
with assay.start() as run:
    print("key", os.environ["MY_API_KEY"])
    print("hf_" + "a1B2" * 8)
""",
        project,
    )
    out, _ = script.communicate(timeout=60)

    assert "planted0123456789" in out
    assert output(project) == "key <redacted>\n<redacted>\n"


def test_a_run_that_goes_on_adds_to_its_output(project: Project) -> None:
    script = python(
        """
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_attempt
run = assay.start()
print("first", end="")
run.finish()
with start_attempt(run.folder, AttemptSpec(keep_code=False, keep_output=True), from_step=0):
    print("second")
""",
        project,
    )
    script.communicate(timeout=60)

    assert output(project) == "first\nsecond\n"


def test_a_child_that_outlives_the_run_does_not_hold_it_up_and_is_heard(project: Project) -> None:
    script = python(
        """
with assay.start():
    late = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); print('late')"],
                            stdin=subprocess.PIPE)
    print("early")
late.communicate()
""",
        project,
    )
    script.communicate(timeout=60)

    assert settled(project, "late\n") == "early\nlate\n"


def test_under_pytest_and_when_asked_not_to_nothing_is_captured(project: Project) -> None:
    import assay

    with assay.start(project=project) as run:
        pass
    assert run.folder is not None
    assert not run.folder.output.exists()

    python("with assay.start(keep_output=False): print('x')", project).communicate(timeout=60)
    assert not any(folder.output.exists() for folder in run_folders(project))
