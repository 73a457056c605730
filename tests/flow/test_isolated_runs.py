"""Runs in OS processes of their own: order, crashes, devices, and the command."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import assay as house
from assay.core.job import JobSpec
from assay.formats import run_file
from assay.jobs.devices import choose_slots
from assay.jobs.isolated_process import CrashError, IsolatedRunError
from assay.store.device_leases import holder_of
from assay.store.job_journal import JobJournal
from flow.conftest import wait_for
from warm_python import Begin

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("forking")]

HELD = """
import fcntl, os, pathlib, time
import net

class Net(net.Net):
    def __init__(self, width):
        device = os.environ.get("ASSAY_JOB_DEVICES", "none")
        place = pathlib.Path(os.environ["HELD"])
        self_lock = open(place / device, "a")
        fcntl.flock(self_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if somebody else has it
        with open(place / "devices.txt", "a") as log:
            log.write(f"{device} {os.getpid()}\\n")
        time.sleep(float(width) / 16)
        super().__init__(8)
        self.__dict__["kept"] = self_lock
"""


@pytest.fixture
def three(toy: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three configs; the first takes longest, the second dies of a segmentation fault."""
    held = toy / "held"
    held.mkdir()
    (toy / "held_net.py").write_text(HELD)
    (toy / "crash.py").write_text(
        "import ctypes\nimport net\n\nclass Net(net.Net):\n    def __init__(self, width):\n"
        "        ctypes.string_at(0)\n"
    )
    text = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 2")
    for name, module, width in (("a", "held_net", 32), ("b", "crash", 8), ("c", "held_net", 1)):
        changed = text.replace("net.Net", f"{module}.Net").replace("width = 8", f"width = {width}")
        (toy / f"{name}.toml").write_text(changed)
    monkeypatch.chdir(toy)
    monkeypatch.setenv("HELD", str(held))
    monkeypatch.setenv("PYTHONPATH", str(Path(house.__file__).parents[1]))
    monkeypatch.setenv("ASSAY_FAKE_DEVICES", "2")
    return ["a.toml", "b.toml", "c.toml"]


@pytest.mark.row("A42", "A43")
def test_many_runs_have_processes_of_their_own_and_a_segmentation_fault_is_a_result(
    three: list[str], toy: Path
) -> None:
    first, crashed, last = house.run(three, device=[0, 1], check=False)

    assert [first.status, crashed.status, last.status] == ["finished", "crashed", "finished"]
    assert isinstance(crashed.exception, CrashError)
    assert crashed.exception.signal == signal.SIGSEGV
    assert "killed by SIGSEGV" in str(crashed.exception)
    assert first.record_dir is not None and last.record_dir is not None
    one, other = (run_file.read(each.record_dir).newest for each in (first, last))  # type: ignore[arg-type]
    assert len({one.pid, other.pid, os.getpid()}) == 3
    assert first.value.keys() == last.value.keys() and "valid/acc" in first.value
    with JobJournal() as journal:
        assert journal.leases() == []


@pytest.mark.row("A43")
def test_one_run_is_in_this_process_unless_it_is_to_be_isolated(
    three: list[str], toy: Path
) -> None:
    pids = []
    for isolate in (None, True):
        result = house.run(toy / "toy.toml", isolate=isolate, device="cpu")
        assert result.status == "finished" and result.record_dir is not None
        pids.append(run_file.read(result.record_dir).newest.pid)
    assert pids[0] == os.getpid() != pids[1]


@pytest.mark.row("A44")
def test_a_busy_device_is_left_alone_and_three_runs_take_the_other_in_turn(
    three: list[str], toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_FAKE_DEVICES", "cuda:0=70/80,cuda:1=0/80")

    results = house.run(["c.toml", "a.toml", "c.toml"], isolate=True)

    assert [each.status for each in results] == ["finished"] * 3
    used = [line.split()[0] for line in (toy / "held/devices.txt").read_text().splitlines()]
    assert used == ["cuda:1"] * 3


def launch(folder: Path, into: Any) -> None:
    os.chdir(folder)
    results = house.run(["c.toml", "a.toml"], device=[0, 1])
    into.put([each.status for each in results])


@pytest.mark.row("A45")
def test_two_launchers_at_once_never_have_the_same_device(three: list[str], toy: Path) -> None:
    """Each run locks the file of its device, and fails if somebody else has it."""
    context = multiprocessing.get_context("spawn")
    into = context.SimpleQueue()
    launchers = [context.Process(target=launch, args=(toy, into)) for _ in range(2)]
    for each in launchers:
        each.start()
    for each in launchers:
        each.join()
    assert [into.get() for _ in launchers] == [["finished", "finished"]] * 2
    assert len((toy / "held/devices.txt").read_text().splitlines()) == 4


def test_after_a_failure_the_command_starts_no_more_runs_if_it_is_told_so(
    assay, three: list[str], toy: Path
) -> None:
    given = ("b.toml", "c.toml", "--isolate", "--stop-at-first")
    ran = assay("run", *given, ASSAY_FAKE_DEVICES="1")

    assert ran.returncode == 1
    assert "killed by SIGSEGV" in ran.stderr
    assert not (toy / "held/devices.txt").exists()


def test_an_error_of_an_isolated_run_comes_back_with_its_class(three: list[str], toy: Path) -> None:
    (toy / "bad.toml").write_text((toy / "toy.toml").read_text().replace("lr = 1e-2", "lr = -1.0"))

    result = house.run("bad.toml", isolate=True, check=False)

    assert result.status == "failed"
    assert isinstance(result.exception, IsolatedRunError)
    assert "`optimizer.lr` is -1.0; a learning rate is finite" in str(result.exception)


def test_runs_on_the_cpu_do_not_wait_for_another_command(
    assay, three: list[str], toy: Path
) -> None:
    with JobJournal() as journal:
        spec = JobSpec(command=(), cwd="", device="cpu", per_device=1)
        slots = journal.take(partial(choose_slots, spec, []), holder_of(os.getpid()))
        assert slots is not None

    ran = assay("run", "c.toml", "a.toml", "--device", "cpu", "--jobs", "1", "--no-wait")

    assert ran.returncode == 0, ran.stderr
    assert "waiting" not in ran.stderr


def test_who_holds_the_device_is_named_by_its_run_and_no_wait_ends(
    assay, begun: Begin, three: list[str], toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_FAKE_DEVICES", "1")
    holder = begun("run", "toy.toml", "train.epochs=100000", "--isolate")
    try:
        wait_for(lambda: list(toy.glob("runs/*/lease.json")))
        (run,) = (toy / "runs").iterdir()

        ran = assay("run", "c.toml", "--isolate", "--no-wait")

        assert ran.returncode == 2
        assert f"cuda:0 by the run {run_file.read(run).id} of {toy}" in " ".join(ran.stderr.split())
        assert "--no-isolate" in ran.stderr
    finally:
        holder.terminate()
        holder.communicate()
