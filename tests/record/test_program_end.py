"""Ends of a program: the record says how each of them was."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from assay.query.run import RunView
from assay.script import start
from assay.store.layout import open_project, run_folders

SCRIPT = """
import argparse, atexit, faulthandler, multiprocessing, os, signal, sys, threading
from assay.script import start

how = sys.argv[2]

def fail():
    raise ValueError("no data")

def in_thread():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()

def begin():
    return start(tag=how, project=sys.argv[1], keep_output=False)

def child(what):
    begin()
    if what == "exit":
        sys.exit(3)
    if what == "caught":
        try:
            sys.exit(3)
        except SystemExit:
            pass
    if what == "error":
        fail()

if __name__ == "__main__":
    if how.startswith("child"):
        target, method, what = child, *how.split()[1:]
        process = multiprocessing.get_context(method).Process(target=target, args=(what,))
        process.start()
        process.join()
    elif how == "with thread":
        with begin():
            in_thread()
    elif how == "with handled":
        try:
            fail()
        except ValueError:
            with begin():
                pass
    else:
        run = begin()
        if how == "fork":
            if os.fork():
                os.wait()
        elif how in ("thread", "thread, exit 0"):
            in_thread()
        elif how == "exit caught":
            try:
                sys.exit(3)
            except SystemExit:
                run.log({"loss": 0.5}, 1)
        elif how == "closed before":
            run.finish()
        elif how == "exit caught, nothing logged":
            try:
                sys.exit(3)
            except SystemExit:
                pass
        elif how == "exit in thread":
            thread = threading.Thread(target=sys.exit, args=(3,))
            thread.start()
            thread.join()
        elif how == "daemon thread":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        elif how == "nested":
            with begin():
                pass
            begin()
        elif how == "error printed before":
            sys.last_value = ValueError("of a debugger")
        elif how == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif how == "interrupt caught":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass
        elif how in ("own hook", "own hook that fails", "own hook that exits"):
            hooks = {"own hook": lambda *error: None, "own hook that exits": lambda *error: sys.exit(0)}
            sys.excepthook = hooks.get(how, lambda *error: 1 / 0)
            fail()
        elif how == "rich":
            import rich.traceback
            rich.traceback.install()
            fail()
        elif how == "own end":
            atexit.register(run.finish, "stopped", "enough")
        elif how == "own end, after":
            atexit.register(run.log, {"loss": 0.5}, 1)
        elif how == "faulthandler":
            faulthandler.enable()
            fail()
        elif how == "hard exit":
            os._exit(0)
        elif how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif how == "exec":
            os.execv(sys.executable, [sys.executable, "-c", "pass"])
        codes = {"exit 3": 3, "exit 0": 0, "exit": None, "exit text": "no data", "closed before": 3}
        if how in codes:
            sys.exit(codes[how])
        if how == "exit of site":
            exit(3)
        if how == "exit within":
            with open(os.devnull):
                try:
                    sys.exit(3)
                finally:
                    os.getpid()
        if how == "wrong arguments":
            argparse.ArgumentParser().parse_args(["--x"])
        if how == "thread, exit 0":
            sys.exit(0)
        if how == "raise 3":
            raise SystemExit(3)
        if how == "raise 0":
            raise SystemExit(0)
        if how == "raise":
            raise SystemExit
        if how == "raise within":
            with open(os.devnull):
                raise SystemExit(3)
        if how == "raise caught":
            try:
                raise SystemExit(3)
            except SystemExit:
                pass
        if how == "error":
            fail()
        if how == "error in main":
            def main():
                try:
                    sys.exit(3)
                except SystemExit:
                    fail()
            main()
"""

UNKNOWN = "stopped SystemExit, its code is unknown"
ENDS = {
    "returns": "finished",
    "exit": "finished",
    "exit 0": "finished",
    "exit 3": "failed SystemExit: 3",
    "exit text": "failed SystemExit: no data",
    "exit caught": "finished",
    "exit caught, nothing logged": "finished",
    "exit in thread": "finished",
    "exit of site": "failed SystemExit: 3",
    "exit within": "failed SystemExit: 3",
    "wrong arguments": "failed SystemExit: 2",
    "raise": UNKNOWN,
    "raise 0": UNKNOWN,
    "raise 3": UNKNOWN,
    "raise within": UNKNOWN,
    "raise caught": "finished",
    "daemon thread": "finished",
    "nested": "finished",
    "error printed before": "finished",
    "interrupt": "stopped SIGINT",
    "interrupt caught": "finished",
    "own hook": "failed ValueError: no data",
    "own hook that fails": "failed ValueError: no data",
    "own hook that exits": "failed ValueError: no data",
    "rich": "failed ValueError: no data",
    "own end": "stopped enough",
    "own end, after": "finished",
    "faulthandler": "failed ValueError: no data",
    "hard exit": "killed",
    "segfault": "killed",
    "exec": "killed",
    "error": "failed ValueError: no data",
    "error in main": "failed ValueError: no data",
    "thread": "failed in Thread-1 (fail): ValueError: no data",
    "thread, exit 0": "failed in Thread-1 (fail): ValueError: no data",
    "with thread": "failed in Thread-1 (fail): ValueError: no data",
    "with handled": "finished",
    "closed before": "finished",
    "fork": "finished",
    "child fork returns": "finished",
    "child fork exit": "failed SystemExit: 3",
    "child fork caught": "finished",
    "child spawn caught": "finished",
    "child forkserver exit": "failed SystemExit: 3",
    "child fork error": "failed ValueError: no data",
    "child forkserver returns": "finished",
    "child forkserver error": "failed ValueError: no data",
    "child spawn error": "failed ValueError: no data",
    "child spawn returns": "finished",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_record_says_how_its_program_ended(tmp_path: Path) -> None:
    script, project = tmp_path / "script.py", tmp_path / "project"
    script.write_text(SCRIPT)
    open_project(project, create=True)
    for some in range(0, len(ENDS), 4):
        running = [
            subprocess.Popen(
                [sys.executable, str(script), str(project), how], stderr=subprocess.DEVNULL
            )
            for how in list(ENDS)[some : some + 4]
        ]
        for process in running:
            process.wait()

    views = [RunView(folder) for folder in run_folders(open_project(project))]

    ends = {view.tag: f"{view.status} {view.file.newest.reason}".strip() for view in views}
    assert ends == ENDS
    assert all(view.file.sealed for view in views if view.status != "killed")


def test_a_program_is_left_as_it_was_when_its_last_run_ends(tmp_path: Path) -> None:
    before = sys.exit, threading.excepthook

    first = start(project=tmp_path)
    second = start(project=tmp_path)
    first.finish()
    assert sys.exit is not before[0]
    second.finish()

    assert (sys.exit, threading.excepthook) == before


def test_what_somebody_else_has_put_around_meanwhile_stays(tmp_path: Path) -> None:
    before = sys.exit
    run = start(project=tmp_path)
    ours = sys.exit

    def theirs(code: object = None) -> None:
        ours(code)  # type: ignore[arg-type]

    sys.exit = theirs  # type: ignore[assignment]
    try:
        run.finish()
        assert sys.exit is theirs
        with pytest.raises(SystemExit, match="3"):
            sys.exit(3)
    finally:
        sys.exit = before
