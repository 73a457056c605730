"""Ends that say little: a terminal that closes, and code that ends its own process."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest

from assay.query.run import RunView
from assay.store.layout import open_project, run_folders

pytestmark = pytest.mark.slow

EXITS = """\
import os
import time

import points


class Exits(points.Points):
    '''The process is ended by its own code, or each sample takes its time.'''

    def __getitem__(self, i):
        time.sleep(float(os.environ.get("SLOW", 0)))
        item = super().__getitem__(i)
        if self.noisy and self.loaded == 30 and "EXIT" in os.environ:
            os._exit(int(os.environ["EXIT"]))
        return item
"""


@pytest.fixture
def exits(toy: Path) -> Path:
    (toy / "exits.py").write_text(EXITS)
    config = (
        (toy / "toy.toml")
        .read_text()
        .replace('"points.Points", split = 0', '"exits.Exits", split = 0')
    )
    (toy / "toy.toml").write_text(config)
    return toy


def view_of(project: Path) -> RunView:
    (folder,) = run_folders(open_project(project))
    return RunView(folder)


@pytest.mark.parametrize("code", [0, 7])
def test_code_that_ends_the_process_of_its_run_fails_it_and_is_named(
    code: int, assay, exits: Path
) -> None:
    done = assay("run", "toy.toml", "--device", "cpu", EXIT=str(code))

    assert done.returncode == (code or 1)
    assert f"error: os._exit({code}): code of the run ended its process at step 3" in done.stderr
    view = view_of(exits)
    assert view.status == "failed" and view.reason.startswith(f"os._exit({code}): code of the run")
    assert assay("resume", "last").returncode == 0


def test_children_that_a_run_forks_end_as_ever(assay, exits: Path) -> None:
    done = assay("run", "toy.toml", "--device", "cpu", "data.train.workers=2", "train.epochs=1")

    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_one_rank_that_ends_its_process_fails_the_run_and_is_named(assay, exits: Path) -> None:
    done = assay("run", "toy.toml", "--device", "cpu", "--nproc", "2", EXIT="0")

    assert done.returncode == 1
    assert "os._exit(0): code of the run ended its process" in done.stderr
    assert view_of(exits).status == "failed"


def test_a_terminal_that_closes_stops_a_run_which_saves_and_can_be_resumed(
    assay, exits: Path
) -> None:
    """The kernel sends SIGHUP, and nothing can be printed any more."""
    src = Path(__file__).resolve().parents[2] / "src"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(exits)
        os.environ |= {"SLOW": "0.02", "PYTHONPATH": str(src)}
        words = ["-m", "assay", "run", "toy.toml", "--device", "cpu", "checkpoint.every=1 epoch"]
        os.execv(sys.executable, [sys.executable, *words])
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        with_run = run_folders(open_project(exits)) if (exits / ".assay").exists() else []
        if with_run and RunView(with_run[0]).last_step >= 2:
            break
        time.sleep(0.05)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)

    view = view_of(exits)
    assert (view.status, view.reason) == ("stopped", "SIGHUP")
    assert view.checkpoints[-1].step == view.last_step
    assert os.waitstatus_to_exitcode(status) in (128 + signal.SIGHUP, -signal.SIGHUP)
    assert assay("resume", "last").returncode == 0
