"""Ends of a run of several ranks, when one of them hangs, is signalled, or dies."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import psutil
import pytest

from assay.core.facts import Ended
from assay.formats import run_file
from assay.formats.event_log import read_events
from flow.conftest import Assay, wait_for
from flow.test_train import last_digest, only_run
from warm_python import Begin

pytestmark = pytest.mark.slow

ODD = """\
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    '''One rank does something odd in its n-th forward pass of training.'''

    def __init__(self, width):
        super().__init__()
        self.build()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
        self.passes = 0

    def forward(self, x):
        if self.training:
            time.sleep(float(os.environ.get("SLOW", 0)))
            self.passes += 1
            if self.passes == int(os.environ["AT"]) and os.environ.get("RANK") == os.environ.get("ODD_RANK", "1"):
                getattr(self, os.environ["ODD"])()
        return self.layers(x)

    def build(self):
        with open(f"rank-{os.environ.get('RANK')}.pid", "w") as file:
            file.write(str(os.getpid()))
        if os.environ["ODD"] != "never_build":
            return
        if os.environ.get("RANK") == "0":
            store = dist.TCPStore("localhost", 0, is_master=True)
            open("blocked", "w").close()
            store.wait(["never"], timedelta(hours=1))  # C++, which no signal interrupts
        open("building", "w").close()
        time.sleep(1000)

    def hang(self):
        open("hanging", "w").close()
        time.sleep(1000)

    def join_alone(self):
        dist.all_reduce(torch.ones(3), group=self.group)

    def exit(self):
        os._exit(3)

    def crash(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self):
        raise SystemExit(0)
"""


@pytest.fixture
def odd(toy: Path) -> Path:
    """The toy project with a model that misbehaves on one rank, when variables say so."""
    (toy / "odd.py").write_text(ODD)
    text = (toy / "toy.toml").read_text().replace("net.Net", "odd.Net")
    (toy / "toy.toml").write_text(text)
    return toy


def ranks_of(folder: Path) -> dict[int, psutil.Process]:
    """The processes of two ranks in whose model something is odd."""
    return {
        rank: psutil.Process(int((folder / f"rank-{rank}.pid").read_text())) for rank in range(2)
    }


# ---------------------------------------------------------------------------------------------------------------- hangs


@pytest.mark.thorough
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_hangs_in_forward_is_named_with_its_stack_and_ends_the_run_within_the_limit(
    rank: str, cold_assay: Assay, odd: Path
) -> None:
    hung = cold_assay(
        "run",
        "toy.toml",
        "parallel.data=2",
        "parallel.timeout=8 s",
        ODD="hang",
        AT="6",
        ODD_RANK=rank,
    )

    assert hung.returncode == 1
    assert re.search(
        rf"error: Rank {rank} \(pid \d+\) has stood still for \d+ s in step 6\.", hung.stderr
    )
    assert "\n  [parallel] timeout is 8 s: all ranks were ended.\n" in hung.stderr
    assert f"rank {rank} stands at:\n" in hung.stderr
    assert re.search(r'odd.py", line \d+, in hang\n      time.sleep\(1000\)\n', hung.stderr)
    assert re.search(
        rf"\n  rank {1 - int(rank)} waits at distributed_group.py, line \d+, in ", hung.stderr
    )
    file = run_file.read(only_run(odd))
    assert file.status == "failed"
    assert re.match(rf"RankError: Rank {rank} \(pid \d+\) has stood still for ", file.newest.reason)
    assert f"resume with: assay resume {file.id}" in hung.stderr
    facts = [timed.fact for timed in read_events(only_run(odd) / "events.jsonl")]
    assert [fact.status for fact in facts if isinstance(fact, Ended)] == ["failed"]


@pytest.mark.thorough
def test_a_collective_that_one_rank_joins_alone_is_told_with_the_places_of_all(
    assay: Assay, odd: Path
) -> None:
    (odd / "odd.py").write_text(
        (odd / "odd.py")
        .read_text()
        .replace("self.passes = 0", "self.passes = 0\n        self.group = dist.new_group()")
    )

    stuck = assay(
        "run", "toy.toml", "parallel.data=2", "parallel.timeout=8 s", ODD="join_alone", AT="6"
    )

    assert stuck.returncode == 1
    assert "error: The ranks have waited for each other for " in stuck.stderr
    assert "in step 6: not all of them join one collective." in stuck.stderr
    assert re.search(r'odd.py", line \d+, in join_alone\n      dist.all_reduce', stuck.stderr)
    assert "rank 0 stands at:" in stuck.stderr and "rank 1 stands at:" in stuck.stderr
    assert run_file.read(only_run(odd)).status == "failed"


@pytest.mark.thorough
def test_ctrl_c_in_a_hang_ends_the_run_with_the_cause(begun: Begin, odd: Path) -> None:
    running = begun("run", "toy.toml", "--nproc", "2", ODD="hang", AT="6")
    wait_for((odd / "hanging").exists)
    ranks = ranks_of(odd)

    running.send_signal(signal.SIGINT)
    told = running.communicate(timeout=60)[1]

    assert running.returncode == 130, told
    assert "SIGINT: stopping after this step" in told
    assert re.search(r"error: Rank 1 \(pid \d+\) has stood still for \d+ s in step 6\.", told)
    assert re.search(r'odd.py", line \d+, in hang', told)
    assert not any(each.is_running() for each in ranks.values())
    file = run_file.read(only_run(odd))
    assert file.status == "stopped"
    assert re.match(r"SIGINT: Rank 1 \(pid \d+\) has stood still", file.newest.reason)


@pytest.mark.thorough
def test_a_hang_of_a_run_that_may_be_restarted_is_gone_over(assay: Assay, odd: Path) -> None:
    source = (odd / "odd.py").read_text()
    (odd / "odd.py").write_text(
        source.replace("and os.environ", 'and not os.path.exists("hanging") and os.environ')
    )

    restarted = assay(
        *("run", "toy.toml", "--nproc", "2", "--max-restarts", "1", "parallel.timeout=8 s"),
        ODD="hang",
        AT="6",
    )

    assert restarted.returncode == 0, restarted.stderr
    assert "restart 1: " in restarted.stderr and "stood still" in restarted.stderr
    assert [each.status for each in run_file.read(only_run(odd)).attempts] == ["failed", "finished"]


@pytest.mark.thorough
def test_a_loader_worker_that_hangs_on_any_rank_leaves_a_checkpoint_of_the_last_step(
    assay: Assay, toy: Path
) -> None:
    points = (toy / "points.py").read_text()
    at = 'int(os.environ.get("DIE_AT", 0))'
    (toy / "points.py").write_text(
        points.replace(at, f'{at} * (os.environ.get("RANK") == os.environ.get("DIE_ON"))')
    )
    given = ["run", "toy.toml", "--nproc", "2", "data.train.workers=2", "data.train.timeout=5 s"]
    given.append("checkpoint.every=11 steps")
    assert assay(*given).returncode == 0
    run = only_run(toy)
    expected = last_digest(run)
    run.rename(toy.parent / "reference")

    for rank in ("0", "1"):
        hung = assay(*given, DIE_ON=rank, DIE_AT="62", DIE_BY="SIGSTOP")

        assert hung.returncode == 1
        assert re.search(r"loader worker \d of data\.train \(pid \d+\) has been at", hung.stderr)
        run = only_run(toy)
        steps = [int(each.name.removeprefix("step-")) for each in run.glob("checkpoints/step-*")]
        assert max(steps) % 11 and max(steps) % 8, "of the last step, not of a period or an epoch"
        assert assay("resume", "last", "--nproc", "2").returncode == 0
        assert run_file.read(run).newest.from_step == max(steps)
        assert last_digest(run) == expected
        run.rename(toy.parent / f"hung-{rank}")


# -------------------------------------------------------------------------------------------------------------- signals


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "rank"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_a_signal_to_any_one_rank_stops_all_of_them_after_the_step(
    number: signal.Signals, rank: int, begun: Begin, odd: Path
) -> None:
    running = begun(
        "run", "toy.toml", "--nproc", "2", "train.epochs=400", ODD="hang", AT="0", SLOW="0.05"
    )
    wait_for(lambda: list(odd.glob("runs/*/checkpoints/step-*")))

    ranks_of(odd)[rank].send_signal(number)
    told = running.communicate(timeout=100)[1]

    assert running.returncode == 128 + number, told
    file = run_file.read(only_run(odd))
    assert (file.status, file.newest.reason) == ("stopped", number.name)
    assert (only_run(odd) / "checkpoints" / f"step-{file.newest.to_step:09d}").exists()
    assert f"resume with: assay resume {file.id}" in told


@pytest.mark.thorough
def test_a_signal_that_a_scheduler_sends_to_all_processes_counts_once(
    begun: Begin, odd: Path
) -> None:
    running = begun(
        "run", "toy.toml", "--nproc", "2", "train.epochs=400", ODD="hang", AT="0", SLOW="0.2"
    )
    wait_for(lambda: list(odd.glob("runs/*/checkpoints/step-*")))

    for each in (*ranks_of(odd).values(), running):
        each.send_signal(signal.SIGTERM)
    told = running.communicate(timeout=100)[1]

    assert running.returncode == 143, told
    file = run_file.read(only_run(odd))
    assert (file.status, file.newest.reason) == ("stopped", "SIGTERM")
    assert (only_run(odd) / "checkpoints" / f"step-{file.newest.to_step:09d}").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("to_launcher", [True, False])
def test_a_rank_that_is_blocked_in_c_before_its_record_stands_ends_with_the_others(
    to_launcher: bool, begun: Begin, odd: Path
) -> None:
    running = begun("run", "toy.toml", "--nproc", "2", ODD="never_build", AT="0")
    wait_for(lambda: (odd / "blocked").exists() and (odd / "building").exists())
    ranks = ranks_of(odd)

    if to_launcher:
        running.send_signal(signal.SIGTERM)
    ranks[1].send_signal(signal.SIGINT)
    told = running.communicate(timeout=60)[1]

    assert running.returncode == (143 if to_launcher else 130), told
    assert not any(each.is_running() for each in ranks.values())
    assert not list(odd.glob("runs/*/run.json"))


# --------------------------------------------------------------------------------------------------------------- deaths


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("odd_thing", "how"),
    [
        ("exit", r"os\._exit\(3\): code of the run ended its process at step \d+"),
        ("crash", r"Rank 1 \(pid \d+\) crashed \(SIGSEGV\)\."),
    ],
)
def test_a_rank_that_ends_in_a_way_of_its_own_was_not_killed(
    odd_thing: str, how: str, assay: Assay, odd: Path
) -> None:
    ended = assay("run", "toy.toml", "--nproc", "2", ODD=odd_thing, AT="6")

    assert ended.returncode == 1
    assert re.search(f"error: .*{how}", ended.stderr), ended.stderr
    reason = run_file.read(only_run(odd)).newest.reason
    assert re.fullmatch(f"RankError: {how}", reason)


def test_a_run_whose_code_calls_sys_exit_has_failed(assay: Assay, odd: Path) -> None:
    left = assay("run", "toy.toml", ODD="leave", AT="6", RANK="1")

    assert left.returncode == 1
    file = run_file.read(only_run(odd))
    assert (file.status, file.newest.reason) == (
        "failed",
        "SystemExit: code of the run called sys.exit()",
    )
