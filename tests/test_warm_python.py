"""A command forked from a warm Python does the same as in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from warm_python import Run, WarmPythons, run, unbuffered

pytestmark = pytest.mark.slow

SCRIPT = """\
import atexit, json, os, random, signal, sys
loaded = [name in sys.modules for name in ("torch", "assay")]
import numpy

atexit.register(print, "the end")
said = {
    "folder": os.getcwd(), "arguments": sys.argv, "original": sys.orig_argv[1:], "name": __name__, "path": sys.path[0],
    "variable": os.environ.get("A"), "input": sys.stdin.read(), "writes": not sys.dont_write_bytecode,
}
own = {"pid": os.getpid(), "hash": hash("a"), "drawn": random.random(), "too": numpy.random.rand(), "loaded": loaded}
print(json.dumps([said, own]))
sys.stdout.flush()
print("oh", file=sys.stderr)
if sys.argv[1:] == ["die"]:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(3)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def variables(**more: str) -> dict[str, str]:
    source = Path(__file__).resolve().parent.parent / "src"
    return {**os.environ, "PYTHONPATH": str(source), **more}


def test_it_has_the_arguments_folder_variables_streams_and_end_of_any_other(
    warm: Run, script: Path
) -> None:
    given = variables(A="b c", PYTHONDONTWRITEBYTECODE="1")
    told = []

    for way in (run, warm):
        done = way(["script.py", "x"], folder=script, variables=given)
        first, last = done.stdout.splitlines()
        assert (done.returncode, done.stderr, last) == (3, "oh\n", "the end")
        told.append(json.loads(first))

    (cold_said, cold_own), (warm_said, warm_own) = told
    assert (
        warm_said == cold_said
        and warm_said["variable"] == "b c"
        and warm_said["folder"] == str(script)
    )
    assert cold_own["loaded"] == [False, False] and warm_own["loaded"] == [True, True]


def test_each_is_a_process_that_draws_numbers_of_its_own(warm: Run, script: Path) -> None:
    first, second = (
        json.loads(
            warm(["script.py"], folder=script, variables=variables()).stdout.splitlines()[0]
        )[1]
        for _ in "ab"
    )

    assert all(first[name] != second[name] for name in ("pid", "drawn", "too", "hash"))


def test_one_that_is_killed_says_so_and_what_it_had_said(warm: Run, script: Path) -> None:
    done = warm(["script.py", "die"], folder=script, variables=variables(), joined=True)

    assert done.returncode == -9
    assert done.stdout.endswith("oh\n") and "the end" not in done.stdout


def test_a_variable_that_is_read_at_the_start_gets_an_interpreter_of_its_own(
    warm: Run, script: Path
) -> None:
    done = warm(["script.py"], folder=script, variables=variables(OMP_NUM_THREADS="2"))

    assert json.loads(done.stdout.splitlines()[0])[1]["loaded"] == [False, False]


def test_a_text_is_run_as_python_does_it(warm: Run, script: Path) -> None:
    told = [
        way(["-c", SCRIPT, "x"], folder=script, variables=variables()).stdout for way in (run, warm)
    ]

    cold_said, warm_said = (json.loads(each.splitlines()[0])[0] for each in told)
    assert warm_said == cold_said and warm_said["arguments"] == ["-c", "x"]


@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('oh')",
        "import sys; sys.exit('oh')",
        "import sys; sys.exit(-1)",
        "raise KeyboardInterrupt",
        "import os, sys; sys.stdout.close()",
        "import threading, time; threading.Timer(0.2, print, ('the end',)).start()",
        "import weakref; a = type('A', (), {})(); weakref.finalize(a, print, 'the end')",
        "import multiprocessing as m; p = m.get_context('fork').Process(target=print, args='a'); p.start()",
    ],
)
def test_a_process_ends_as_that_of_any_other_interpreter(
    text: str, warm: Run, tmp_path: Path
) -> None:
    cold, warmed = (
        way(["-c", text], folder=tmp_path, variables=variables()) for way in (run, warm)
    )

    assert (warmed.returncode, warmed.stdout) == (cold.returncode, cold.stdout)
    assert warmed.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]


def test_a_module_is_run_as_python_does_it(warm: Run, script: Path) -> None:
    for way in (run, warm):
        done = way(["-m", "script", "x"], folder=script, variables=variables())
        said = json.loads(done.stdout.splitlines()[0])[0]
        assert said["name"] == "__main__" and said["path"] == str(script)
        assert said["arguments"] == [str(script / "script.py"), "x"]


STARTS = """\
import json, os, subprocess, sys

text = "import json, os, sys; print(json.dumps([os.getppid(), 'torch' in sys.modules, os.getsid(0), sys.path[:2]]))"
own = {**os.environ, "PYTHONPATH": f"/added{os.pathsep}{os.environ['PYTHONPATH']}"}
for how in ({}, {"start_new_session": True}):
    began = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, env=own, **how)
    told = json.loads(began.communicate()[0])
    print(told[0] == os.getpid(), told[1], told[2] == began.pid, told[3], began.returncode)
os.set_inheritable(os.open("kept.txt", os.O_WRONLY | os.O_CREAT), True)
pid = os.posix_spawnp(sys.executable, [sys.executable, "-c", "import sys; sys.exit(7)"], os.environ)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
read, write = os.pipe()
text = f"import os; os.write({write}, b'x'); os.kill(os.getpid(), 9)"
ended = subprocess.run([sys.executable, "-c", text], pass_fds=[write])
print(os.read(read, 9), ended.returncode)
sys.stdout.flush()
os.execvp(sys.executable, [sys.executable, "-c", "import sys; print(sys.argv)", "x"])
"""


def test_what_a_forked_process_starts_is_forked_and_its_child_as_any_other(
    warm: Run, tmp_path: Path
) -> None:
    cold, warmed = (
        way(["-c", STARTS], folder=tmp_path, variables=variables()) for way in (run, warm)
    )

    assert warmed.stderr == cold.stderr == ""
    assert warmed.stdout == cold.stdout.replace("True False", "True True")
    assert warmed.stdout.count("True True") == 2


def test_what_the_tests_themselves_start_is_forked_where_they_ask_for_it(forking: None) -> None:
    text = "import os, sys; print(os.getppid(), 'torch' in sys.modules)"

    told = [
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        for _ in "ab"
    ]

    assert [each.stdout for each in told] == [f"{os.getpid()} True\n"] * 2


@pytest.mark.parametrize("options", [("-u",), ("-P", "-u")], ids=" ".join)
def test_a_command_that_shall_not_buffer_is_forked_too(
    options: Sequence[str], warm: Run, tmp_path: Path
) -> None:
    text = "import sys; print(sys.stdout.write_through, sys.stderr.write_through, sys.argv)"

    cold, warmed = (
        way(
            [*options, "-c", f"{text}; print('torch' in sys.modules)", "x"],
            folder=tmp_path,
            variables=variables(),
        )
        for way in (run, warm)
    )

    assert cold.stdout == "True True ['-c', 'x']\nFalse\n"
    assert warmed.stdout == cold.stdout.replace("False", "True")


def test_what_is_not_buffered_is_said_at_once() -> None:
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as said, open(write, "w") as stream:
        unbuffered(stream).write("half a line")

        assert said.read(100) == b"half a line"


SPAWNS = """\
import multiprocessing

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    text = "import os, sys; print(os.getppid(), 'torch' in sys.modules)"
    process = context.Process(target=exec, args=(text,))
    process.start()
    process.join()
    print(multiprocessing.current_process().pid, process.exitcode)
"""


def test_a_process_that_multiprocessing_spawns_is_forked_too(warm: Run, tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(SPAWNS)

    cold, warmed = (
        way(["spawns.py"], folder=tmp_path, variables=variables()) for way in (run, warm)
    )

    for done, is_loaded in ((cold, False), (warmed, True)):
        first, second = (line.split() for line in done.stdout.splitlines())
        assert first == [second[0], str(is_loaded)] and second[1] == "0", done.stderr


def test_a_process_that_is_killed_leaves_no_spare(warm: WarmPythons, tmp_path: Path) -> None:
    text = "import sys, time; print('up', file=sys.stderr); time.sleep(100)"
    begun = warm.begin(["-c", text], folder=tmp_path, variables=variables(), reads="stderr")
    assert begun.stderr.readline() == "up\n"
    (spare,) = psutil.Process(begun.pid).children()

    begun.kill()
    begun.communicate()

    assert not psutil.wait_procs([spare], timeout=60)[1]
