"""A run in several processes: one record, the update of one process, and an end for all when one of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

import assay as assay_package
from assay.core import run_file
from assay.store.series import read_series
from flow.conftest import SRC
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow

SHY = """\
import os
import signal

import points


class Shy(points.Points):
    '''One rank dies, fails or is slow at a sample of its own.'''

    def __getitem__(self, i):
        item = super().__getitem__(i)
        if self.noisy and os.environ.get("RANK", "0") == "1":
            print("rank 1 loads", i)
            if self.loaded == int(os.environ.get("KILL_AT", 0)):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.loaded == int(os.environ.get("STOP_AT", 0)):
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.loaded == int(os.environ.get("FAIL_AT", 0)):
                raise ValueError("a bad sample")
        return item
"""
PLAIN = """\
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 2))
"""


@pytest.fixture(autouse=True)
def shy(toy: Path) -> None:
    (toy / "shy.py").write_text(SHY)
    (toy / "plain.py").write_text(PLAIN)
    config = (toy / "toy.toml").read_text().replace('points.Points", split = 0', 'shy.Shy", split = 0')
    (toy / "toy.toml").write_text(config)


@pytest.mark.row("A80", "B16", "E48")
def test_two_processes_train_what_one_does_with_one_record_and_one_log(assay, toy: Path) -> None:
    exact = ["model.type=plain.Net", "optimizer.type=torch.optim.SGD", "optimizer.lr=0.5"]
    alone = assay("run", "toy.toml", *exact, "train.accumulate=2")
    assert alone.returncode == 0, alone.stderr
    one = only_run(toy)
    one.rename(toy.parent / "one")

    shared = assay("run", "toy.toml", *exact, "--nproc", "2")

    assert shared.returncode == 0, shared.stderr
    assert "mesh: data 2 = 2 processes" in shared.stderr
    assert "a step has 8 = 2 ranks x 1 accumulate x 4" in shared.stderr
    two = only_run(toy)
    assert "rank 1 loads" in (two / "ranks" / "1.txt").read_text()
    assert "rank 1 loads" not in shared.stdout + shared.stderr
    curves = [read_series(run / "metrics.bin") for run in (toy.parent / "one", two)]
    for name in ("train/loss", "train/grad_norm", "valid/loss", "valid/acc"):
        assert list(curves[1][name].steps) == list(curves[0][name].steps)
        assert list(curves[1][name].values) == pytest.approx(list(curves[0][name].values), abs=1e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(toy)
        models = [assay_package.load_model(str(run), "latest") for run in (toy.parent / "one", two)]
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6, rtol=0)


@pytest.mark.row("B21")
def test_the_checkpoint_of_two_processes_loads_into_the_plain_model(assay, toy: Path) -> None:
    from safetensors.torch import load_file

    assert assay("run", "toy.toml", "--nproc", "2", "--max-steps", "3").returncode == 0
    run = only_run(toy)
    file = next(iter(sorted((run / "checkpoints").glob("step-*/model*.safetensors"))))
    sys.path.insert(0, str(toy))
    try:
        import net  # type: ignore[import-not-found]

        net.Net(8).load_state_dict(load_file(file), strict=True)
    finally:
        sys.path.remove(str(toy))
        sys.modules.pop("net", None)


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    """The digest of the run that nobody disturbs, once somebody has needed it."""
    return []


@pytest.fixture
def whole(undisturbed: list[str], assay, toy: Path) -> str:
    if not undisturbed:
        assert assay("run", "toy.toml", "--nproc", "2").returncode == 0
        undisturbed.append(last_digest(only_run(toy)))
        only_run(toy).rename(toy.parent / "reference")
    return undisturbed[0]


def test_a_run_whose_second_process_was_killed_ends_soon_and_resumes_to_the_same_bits(
    assay, toy: Path, whole: str
) -> None:
    killed = assay("run", "toy.toml", "--nproc", "2", KILL_AT="50")

    assert killed.returncode == 1
    assert "killed" in killed.stderr and "ank 1" in killed.stderr
    assert killed.stderr.count("error:") == 1
    run = only_run(toy)
    assert run_file.read(run).status == "failed"
    resumed = assay("resume", "last", "--nproc", "2")
    assert resumed.returncode == 0, resumed.stderr
    assert last_digest(run) == whole
    assert list(read_series(run / "metrics.bin")["train/loss"].steps) == list(range(1, 33))


def test_a_run_whose_processes_are_killed_again_and_again_goes_on_by_itself_to_the_same_bits(
    assay, toy: Path, whole: str
) -> None:
    # Counted from the start of each process: of 32 steps the first has 12 behind it when it dies, the next 12 more.
    restarted = assay("run", "toy.toml", "--nproc", "2", "--max-restarts", "2", KILL_AT="50")

    assert restarted.returncode == 0, restarted.stderr
    assert "restart 1: Rank 1 (pid" in restarted.stderr
    assert "stopping after this step" not in restarted.stderr
    file = run_file.read(only_run(toy))
    assert [attempt.status for attempt in file.attempts] == ["failed", "failed", "finished"]
    assert "Rank 1" in file.attempts[0].reason
    assert last_digest(only_run(toy)) == whole
    assert list(read_series(only_run(toy) / "metrics.bin")["train/loss"].steps) == list(range(1, 33))


def test_a_process_that_is_stopped_for_long_ends_the_run_with_that_as_the_cause(assay, toy: Path) -> None:
    stopped = assay("run", "toy.toml", "--nproc", "2", STOP_AT="50")

    assert stopped.returncode == 1
    assert stopped.stderr.count("error:") == 1
    assert "was stopped for 5 s (SIGSTOP), and was ended" in stopped.stderr
    assert "go on with: assay resume" in stopped.stderr
    file = run_file.read(only_run(toy))
    assert (file.status, file.newest.reason.partition(" (pid")[0]) == ("failed", "RankError: Rank 1")


@pytest.mark.parametrize("count", ["1", "4"])
def test_a_run_of_two_processes_goes_on_in_another_number_of_them(assay, toy: Path, count: str) -> None:
    assert assay("run", "toy.toml", "--nproc", "2", KILL_AT="50").returncode == 1

    resumed = assay("resume", "last", "--nproc", count)

    assert resumed.returncode == 0, resumed.stderr
    run = only_run(toy)
    assert list(read_series(run / "metrics.bin")["train/loss"].steps) == list(range(1, 33))
    file = run_file.read(run)
    assert (file.status, len(file.attempts)) == ("finished", 2)
    assert len({attempt.config_hash for attempt in file.attempts}) == 1


def test_what_one_process_raises_is_told_once_and_first(assay, toy: Path) -> None:
    failed = assay("run", "toy.toml", "--nproc", "2", FAIL_AT="50")

    assert failed.returncode == 1
    assert "On rank 1" in failed.stderr
    assert "ValueError: a bad sample" in failed.stderr
    assert "shy.py" in failed.stderr
    assert "Another process" not in failed.stderr
    file = run_file.read(only_run(toy))
    assert file.status == "failed"
    assert "a bad sample" in file.newest.reason


@pytest.mark.row("B17", "E47")
def test_what_cannot_be_divided_is_refused_before_anything_starts(assay, toy: Path) -> None:
    uneven = assay("run", "toy.toml", "--nproc", "3")
    assert uneven.returncode == 2
    assert "A batch of 8 cannot be split evenly on 3 ranks" in uneven.stderr
    other = assay("run", "toy.toml", "--nproc", "8", "parallel.data=4")
    assert other.returncode == 2
    assert "--nproc 8 is not 4 data = 4" in other.stderr
    assert not (toy / "runs").exists()


def test_processes_that_were_started_by_torchrun_join(assay, toy: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]

    joined = subprocess.run(
        [*command, "-m", "assay", "run", "toy.toml", "--max-steps", "4"],
        cwd=toy,
        env={**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert joined.returncode == 0, joined.stderr
    run = only_run(toy)
    assert list(read_series(run / "metrics.bin")["train/loss"].steps) == [1, 2, 3, 4]


def test_a_signal_to_the_run_stops_all_processes_after_one_step_with_a_checkpoint(assay, toy: Path) -> None:
    assert assay("run", "toy.toml", "--nproc", "2", "train.epochs=20").returncode == 0
    whole = last_digest(only_run(toy))
    only_run(toy).rename(toy.parent / "reference")
    running = _begun(toy, "run", "toy.toml", "--nproc", "2", "train.epochs=20")
    _wait_for(lambda: list(toy.glob("runs/*/checkpoints/step-*")))
    workers = psutil.Process(running.pid).children(recursive=True)

    running.send_signal(signal.SIGTERM)
    told = running.communicate(timeout=60)[1]

    assert running.returncode == 143, told
    assert not any(each.is_running() for each in workers)
    assert run_file.read(only_run(toy)).status == "stopped"
    assert assay("resume", "last", "--nproc", "2").returncode == 0
    assert last_digest(only_run(toy)) == whole


def test_processes_whose_parent_was_killed_stop_by_themselves_and_are_saved(toy: Path) -> None:
    running = _begun(toy, "run", "toy.toml", "--nproc", "2", "train.epochs=400")
    _wait_for(lambda: list(toy.glob("runs/*/checkpoints/step-*")))
    workers = psutil.Process(running.pid).children(recursive=True)

    running.kill()
    running.communicate()
    psutil.wait_procs(workers, timeout=60)

    assert not any(each.is_running() for each in workers)
    assert run_file.read(only_run(toy)).status == "stopped"


def _begun(toy: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "assay", *arguments],
        cwd=toy,
        env={**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for(happened: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and not happened():
        time.sleep(0.05)
