"""Lease: one writer a record; the dead are replaced, the living are not, the silent are spared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from assay.core.errors import LeaseError
from assay.formats import lease
from assay.formats.json_codec import write_json

Holder = subprocess.Popen[str]
Start = Callable[[Path, int], Holder]

HOLD = """
import sys
import threading
from pathlib import Path
from assay.formats import lease
from assay.core.errors import LeaseError
print("ready", flush=True)
sys.stdin.readline()
try:
    mine = lease.acquire(Path(sys.argv[1]), int(sys.argv[2]))
    print("held", mine.nonce, flush=True)
except LeaseError as error:
    print("refused", error.what, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starter of processes that take the lease when told to; all are killed at the end."""
    started: list[Holder] = []

    def begin(folder: Path, attempt: int) -> Holder:
        command = [sys.executable, "-c", HOLD, str(folder), str(attempt)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert said(process) == "ready"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def said(process: Holder) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: Holder) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def elsewhere(folder: Path, *, silent_s: float) -> lease.Lease:
    """A lease that a process of another host last touched so long ago."""
    own = lease.mine(1)
    other = replace(
        own, host="node3", place="node3/boot/pid", beat_ns=own.beat_ns - int(silent_s * 1e9)
    )
    write_json(folder / lease.FILE_NAME, other)
    return other


def test_the_holder_is_written_down_and_alive(tmp_path: Path) -> None:
    held = lease.acquire(tmp_path, 3)

    assert lease.read(tmp_path) == held
    assert (held.pid, held.attempt) == (os.getpid(), 3)
    assert lease.liveness(held) == "alive"
    assert str(os.getpid()) in lease.describe(held)


def test_a_lease_of_the_living_is_refused_and_says_whose_it_is(
    tmp_path: Path, start: Start
) -> None:
    holder = start(tmp_path, 1)
    go(holder)
    assert said(holder).startswith("held")

    with pytest.raises(LeaseError, match=f"process {holder.pid} on ") as caught:
        lease.acquire(tmp_path, 2)

    assert "--take-over" in caught.value.fix


def test_a_killed_holder_is_dead_at_once_and_replaced(tmp_path: Path, start: Start) -> None:
    holder = start(tmp_path, 1)
    go(holder)
    assert said(holder).startswith("held")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()

    old = lease.read(tmp_path)
    assert old is not None
    assert lease.liveness(old) == "dead"
    assert lease.acquire(tmp_path, 2).attempt == 2
    assert os.listdir(tmp_path) == [lease.FILE_NAME]


def test_a_zombie_is_dead(tmp_path: Path, start: Start) -> None:
    holder = start(tmp_path, 1)
    go(holder)
    assert said(holder).startswith("held")
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)

    old = lease.read(tmp_path)

    assert old is not None
    assert lease.liveness(old) == "dead"


def test_another_process_with_the_same_number_is_not_the_holder(tmp_path: Path) -> None:
    reused = replace(lease.mine(1), process_start="1")

    assert lease.liveness(reused) == "dead"


@pytest.mark.slow
@pytest.mark.parametrize("left_behind", ["nothing", "a dead lease"])
def test_of_processes_that_try_at_once_exactly_one_holds(
    tmp_path: Path, start: Start, left_behind: str
) -> None:
    for attempt in range(8):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if left_behind == "a dead lease":
            write_json(folder / lease.FILE_NAME, replace(lease.mine(1), process_start="1"))
        racers = [start(folder, 2), start(folder, 3)]

        for racer in racers:
            go(racer)
        answers = sorted(said(racer) for racer in racers)

        held = lease.read(folder)
        assert held is not None
        assert answers[0] == f"held {held.nonce}"
        assert answers[1].startswith("refused ")
        assert os.listdir(folder) == [lease.FILE_NAME]


def test_one_who_decided_long_ago_does_not_bury_a_fresh_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = replace(lease.mine(1), process_start="1")
    write_json(tmp_path / lease.FILE_NAME, dead)
    fresh: list[lease.Lease] = []

    def meanwhile(folder: Path, old: lease.Lease, *, take_over: bool) -> None:
        """The other one goes from end to end just after we have read the dead lease."""
        monkeypatch.undo()
        fresh.append(lease.acquire(folder, 2))

    monkeypatch.setattr(lease, "_refuse_if_alive", meanwhile)
    with pytest.raises(LeaseError, match="Another process has just taken this run"):
        lease.acquire(tmp_path, 3)

    assert lease.read(tmp_path) == fresh[0]
    assert os.listdir(tmp_path) == [lease.FILE_NAME]


def test_the_silence_of_another_host_is_unknown_and_never_death(tmp_path: Path) -> None:
    other = elsewhere(tmp_path, silent_s=0)

    def after(seconds: float) -> str:
        return lease.liveness(other, now_ns=other.beat_ns + int(seconds * 1e9))

    assert [after(s) for s in (0, 59.9, 60, 1e6)] == ["alive", "alive", "unknown", "unknown"]


def test_a_beat_in_the_future_keeps_nobody_alive_whose_file_is_old(tmp_path: Path) -> None:
    other = elsewhere(tmp_path, silent_s=-1e9)
    now_ns = time.time_ns()

    def written(seconds_ago: float) -> str:
        return lease.liveness(other, written_ns=now_ns - int(seconds_ago * 1e9), now_ns=now_ns)

    assert [written(s) for s in (0, 59, 61, -61)] == ["alive", "alive", "unknown", "unknown"]


def test_another_host_that_beats_is_refused_and_one_silent_for_long_is_replaced(
    tmp_path: Path,
) -> None:
    elsewhere(tmp_path, silent_s=30)
    with pytest.raises(LeaseError, match="on node3"):
        lease.acquire(tmp_path, 2)

    elsewhere(tmp_path, silent_s=3600)
    assert lease.acquire(tmp_path, 2).attempt == 2


def test_take_over_replaces_the_living_who_then_notices(tmp_path: Path) -> None:
    first = lease.acquire(tmp_path, 1)

    second = lease.acquire(tmp_path, 2, take_over=True)

    assert lease.read(tmp_path) == second
    with pytest.raises(LeaseError, match="taken over"):
        lease.beat(tmp_path, first, first.steady_ns)
    lease.release(tmp_path, first)
    assert lease.read(tmp_path) == second


def test_a_beat_says_the_same_with_a_later_time(tmp_path: Path) -> None:
    held = lease.acquire(tmp_path, 1)

    later = lease.beat(tmp_path, held, held.steady_ns + 5)

    assert later.beat_ns > held.beat_ns
    assert later.steady_ns == held.steady_ns + 5
    assert replace(later, beat_ns=held.beat_ns, steady_ns=held.steady_ns) == held
    assert lease.read(tmp_path) == later


def test_a_released_lease_is_gone_and_cannot_beat(tmp_path: Path) -> None:
    held = lease.acquire(tmp_path, 1)
    lease.release(tmp_path, held)

    assert os.listdir(tmp_path) == []
    with pytest.raises(LeaseError):
        lease.beat(tmp_path, held, held.steady_ns)
    lease.release(tmp_path, held)


def test_a_lease_cut_off_by_a_power_failure_does_not_lock_a_run_for_ever(tmp_path: Path) -> None:
    path = tmp_path / lease.FILE_NAME
    path.touch()
    assert lease.read(tmp_path) is None
    with pytest.raises(LeaseError):
        lease.acquire(tmp_path, 2)

    long_ago = path.stat().st_mtime - lease.SILENT_S - 1
    os.utime(path, (long_ago, long_ago))

    assert lease.acquire(tmp_path, 2) == lease.read(tmp_path)


def test_a_lease_of_a_newer_format_that_still_beats_is_refused(tmp_path: Path) -> None:
    (tmp_path / lease.FILE_NAME).write_text('{"format": 2}')

    with pytest.raises(LeaseError):
        lease.acquire(tmp_path, 2)


def test_a_process_that_is_not_there_has_no_start(start: Start, tmp_path: Path) -> None:
    gone = start(tmp_path, 1)
    assert lease.process_start(gone.pid) not in (None, "")
    gone.kill()
    gone.wait()

    assert lease.process_start(gone.pid) is None


def test_a_beat_on_its_way_does_not_write_over_the_one_who_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lease.acquire(tmp_path, 1)
    taken: list[lease.Lease] = []
    pwrite = os.pwrite

    def meanwhile(descriptor: int, data: bytes, offset: int) -> int:
        """The other one takes over between the look of the first and its beat."""
        taken.append(lease.acquire(tmp_path, 2, take_over=True))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", meanwhile)
    lease.beat(tmp_path, first, first.steady_ns)
    monkeypatch.undo()

    assert lease.read(tmp_path) == taken[0]
    lease.check(tmp_path, taken[0])
    with pytest.raises(LeaseError, match="taken over"):
        lease.check(tmp_path, first)


def test_giving_back_a_lease_does_not_take_it_from_the_one_who_has_just_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lease.acquire(tmp_path, 1)
    taken: list[lease.Lease] = []
    bury = lease._bury

    def meanwhile(path: Path, old: lease.Lease | None) -> None:
        monkeypatch.undo()
        taken.append(lease.acquire(tmp_path, 2, take_over=True))
        bury(path, old)

    monkeypatch.setattr(lease, "_bury", meanwhile)
    lease.release(tmp_path, first)

    assert lease.read(tmp_path) == taken[0]
    assert os.listdir(tmp_path) == [lease.FILE_NAME]


def test_a_reader_finds_a_whole_lease_at_any_moment_of_a_holder_that_beats(tmp_path: Path) -> None:
    held = lease.acquire(tmp_path, 1)
    over = threading.Event()

    def keep_beating() -> None:
        now = held
        while not over.is_set():
            now = lease.beat(tmp_path, now, now.steady_ns)

    holder = threading.Thread(target=keep_beating)
    holder.start()
    found = [lease.read(tmp_path) for _ in range(2000)]
    over.set()
    holder.join()

    assert {each.nonce if each else None for each in found} == {held.nonce}
