"""OS processes of jobs: a process group each, behind a gate, that any dispatcher can judge."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import RecordError
from assay.core.processes import kill_group, members_of
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import dataclass_from
from assay.formats.lease import process_start, this_place
from assay.jobs import supervise
from assay.store.device_leases import LeaseHolder, holder_of
from assay.store.queue_files import append_to_log

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """End of a command: its exit code, or the signal that killed it; `error` if there is none.

    `not_begun`: whoever started the supervisor died before the command could begin.
    """

    exit_code: int | None = None
    signal: int = 0
    ended_ns: int = 0
    ended_boot_ns: int = 0
    error: str = ""
    not_begun: bool = False


@dataclass(slots=True)
class GatedProcess:
    """Supervisor that has been started and waits for `open_gate` before it runs its command.

    When this process dies before, or calls `give_up`, the command never runs.
    """

    holder: LeaseHolder
    _gate: int

    def open_gate(self) -> None:
        try:
            os.write(self._gate, supervise.GO)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Close the gate; without effect on a command that has begun."""
        os.close(self._gate)


def start_forked(
    command: Sequence[str], cwd: str, environment: Mapping[str, str], log: Path, exit_file: Path
) -> GatedProcess:
    """Fork a supervisor; for OS processes without threads, as it takes a millisecond.

    OSError when the log is a link, or no file.
    """
    out = append_to_log(log)
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        os.close(out)
        return GatedProcess(holder_of(pid), write)
    code = supervise.NOT_BEGUN
    try:
        os.setsid()
        _redirect(read, out)
        os.environ.clear()
        os.environ.update(environment)
        code = supervise.supervise(0, str(exit_file), cwd, list(command))
    finally:
        os._exit(code)  # nothing of the dispatcher may run in its copy


def _redirect(gate: int, out: int) -> None:
    """Leave the child the gate as its standard input, the log as its output, and nothing else."""
    os.dup2(gate, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.closerange(3, 65_536)  # the dispatcher's lock is among them


def is_alive(holder: LeaseHolder) -> bool:
    """Return True if the holder lives, or, when it was killed, any process of its group.

    A group's id is not given to a new process while the group has members.
    """
    if holder.place != this_place() or not holder.pid:
        return False
    start = process_start(holder.pid)
    if start is not None:
        return start == holder.process_start
    return bool(members_of(holder.pid))


def is_supervised(holder: LeaseHolder) -> bool:
    """Return True if the supervisor itself lives, which writes the end of the job."""
    is_here = holder.place == this_place() and bool(holder.pid)
    return is_here and process_start(holder.pid) == holder.process_start


def read_end(exit_file: Path, holder: LeaseHolder) -> ProcessEnd | None:
    """Return how the command of a supervisor ended; None while there is no word of it."""
    path = exit_file.with_name(f"{exit_file.name}-{holder.pid}.json")
    try:
        return dataclass_from(ProcessEnd, json.loads(read_bytes(path, _MOST_BYTES)))
    except (OSError, ValueError, RecordError):
        return None


def is_job_suspended(holder: LeaseHolder) -> bool:
    """Return True if every living process of the group but the supervisor is stopped (SIGSTOP)."""
    if holder.place != this_place():
        return False
    states = {state for pid, state in members_of(holder.pid).items() if pid != holder.pid}
    # "D": a parent whose vfork was caught halfway waits for its stopped child, and is never "T".
    return "T" in states and states <= {"T", "D"}


def send_signal(holder: LeaseHolder, number: signal.Signals) -> None:
    """Send a signal to all processes of a job; nothing if they are gone, or are others by now."""
    if holder.pid and is_alive(holder):
        kill_group(holder.pid, number)


@contextlib.contextmanager
def ends_of(holders: Sequence[LeaseHolder]) -> Iterator[Callable[[float], bool]]:
    """Give a function that waits for the end of any holder, and returns whether one ended.

    A pidfd is that of one process for ever, be it a child or not. Where there are none (macOS)
    the function sleeps.
    """
    poller = select.poll()
    descriptors = []
    if hasattr(os, "pidfd_open"):
        for holder in holders:
            with contextlib.suppress(OSError):
                descriptors.append(os.pidfd_open(holder.pid))
                poller.register(descriptors[-1], select.POLLIN)
    try:
        yield lambda seconds: bool(poller.poll(seconds * 1000))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
