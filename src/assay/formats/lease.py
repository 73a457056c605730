"""Format of `lease.json`, version 1: the right of one OS process to write a record.

On the same host (same boot, same pid namespace) the process id together with the process's start
time decides whether its holder lives; beats are for every other host, whose silence is never
called a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from assay.core.directory import create_file
from assay.core.errors import LeaseError, RecordError
from assay.core.regular_file import open_regular
from assay.formats.json_codec import dumps, read_json

FORMAT = 1
FILE_NAME = "lease.json"
BEAT_S = 10.0
BEAT_NS = 10_000_000_000
CHECK_S = 1.0
SILENT_S = 60.0
SILENT_NS = 60_000_000_000
MAX_BYTES = 1 << 16

_TAKEN_OVER = "The lease of this run was taken over by another process."

Liveness = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Holder of a record. `place` names host, boot and pid namespace.

    `process_start` tells two processes of one pid apart. `beat_ns` is the wall clock at the last
    beat; `steady_ns` is what it would be had nobody set it since the first one, and had it stood
    still while the machine was suspended. 0 in leases of before.
    """

    format: int = FORMAT
    host: str
    place: str
    pid: int
    process_start: str
    attempt: int
    nonce: str
    beat_ns: int
    steady_ns: int = 0

    def ran_until_ns(self, now_ns: int, most_ns: int | None = None) -> int:
        """Return the time `now_ns` of the wall clock as `steady_ns` counts it.

        It is at most `most_ns` after the last beat: a process that lives beats.
        """
        after_ns = max(0, now_ns - self.beat_ns)
        if most_ns is not None:
            after_ns = min(after_ns, most_ns)
        return self.steady_ns + after_ns


def mine(attempt: int) -> Lease:
    """Return a lease for the calling process."""
    pid = os.getpid()
    now_ns = time.time_ns()
    return Lease(
        host=platform.node(),
        place=this_place(),
        pid=pid,
        process_start=process_start(pid) or "",
        attempt=attempt,
        nonce=os.urandom(8).hex(),
        beat_ns=now_ns,
        steady_ns=now_ns,
    )


def acquire(folder: Path, attempt: int, *, take_over: bool = False) -> Lease:
    """Take the lease of a run folder for this process; LeaseError when somebody alive may hold it.

    Of two processes that try at once exactly one succeeds: the file is created exclusively, and a
    dead one is first moved aside, which only one of them can do. A living one that is taken over
    notices within `CHECK_S`.
    """
    path = folder / FILE_NAME
    lease = mine(attempt)
    old = read(folder)
    if old is not None:
        _refuse_if_alive(folder, old, take_over=take_over)
        _bury(path, old)
    elif _silent_s(path) > SILENT_S or take_over:
        _bury(path, None)  # unreadable since long: cut off by a power failure
    _put(path, lease)
    return lease


def beat(folder: Path, lease: Lease, steady_ns: int) -> Lease:
    """Renew the lease. Raises LeaseError when another process has taken it over."""
    fresh = replace(lease, beat_ns=time.time_ns(), steady_ns=steady_ns)
    before, after = (dumps(each).encode() for each in (lease, fresh))
    with _open(folder, os.O_RDWR) as descriptor:
        text = os.read(descriptor, MAX_BYTES)
        # One that is there and cannot be read is nobody else's: that is tried again, not given up.
        if _is_of_another(text, lease):
            raise LeaseError(_TAKEN_OVER, where=str(folder))
        # In its place and not in a new file: what takes over meanwhile moves this one away, and is
        # not written over.
        # Only digits change, so that a reader finds a whole lease at any moment.
        if len(before) == len(after):
            os.pwrite(descriptor, after, 0)
    return fresh


def check(folder: Path, lease: Lease) -> None:
    """Raise LeaseError when another process holds the lease."""
    with _open(folder, os.O_RDONLY) as descriptor:
        if _is_of_another(os.read(descriptor, MAX_BYTES), lease):
            raise LeaseError(_TAKEN_OVER, where=str(folder))


def release(folder: Path, lease: Lease) -> None:
    """Give the lease back if it is still ours."""
    now = read(folder)
    if now is not None and now.nonce == lease.nonce:
        with contextlib.suppress(LeaseError):  # taken over between the two lines
            _bury(folder / FILE_NAME, lease)


def read(folder: Path) -> Lease | None:
    """Return the lease of a run folder, or None.

    An unreadable lease counts as none: a beat rewrites it.
    """
    return _read(folder / FILE_NAME)


def _read(path: Path) -> Lease | None:
    try:
        return read_json(path, Lease, version=FORMAT, limit=MAX_BYTES)
    except (FileNotFoundError, RecordError):
        return None


def written_ns(folder: Path) -> int:
    """Return when the disk says that the lease was last written; 0 without a lease."""
    try:
        return os.lstat(folder / FILE_NAME).st_mtime_ns
    except OSError:
        return 0


def liveness(lease: Lease, *, written_ns: int = 0, now_ns: int | None = None) -> Liveness:
    """Return whether the holder lives.

    On another host: alive while it beats, then unknown, never dead.

    A beat in the future is that of a clock ahead of ours, or made up: then `written_ns` decides,
    the time at which the disk says that the record was last written.
    """
    if lease.place == this_place():
        return "alive" if process_start(lease.pid) == lease.process_start != "" else "dead"
    now_ns = time.time_ns() if now_ns is None else now_ns
    heard_ns = lease.beat_ns if lease.beat_ns <= now_ns + SILENT_NS else written_ns
    return "alive" if abs(now_ns - heard_ns) < SILENT_NS else "unknown"


@cache
def this_place() -> str:
    """Return host, boot and pid namespace: a process id means something only within them."""
    return "/".join((platform.node(), _boot_id(), _pid_namespace()))


def process_start(pid: int) -> str | None:
    """Return the start time of a process, as text to compare; None without one, or for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return _process_start_by_ps(pid)
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")


def _process_start_by_ps(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return None  # there is /proc, so the process is gone
    import subprocess  # only where there is no /proc

    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _put(path: Path, lease: Lease) -> None:
    """Put a lease where none is, whole from the first moment. LeaseError when there is one."""
    text = (dumps(lease) + "\n").encode()
    whole = path.with_name(f".lease-{lease.nonce}.new")
    try:
        _write_new(whole, text)
        try:
            os.link(whole, path)
        except FileExistsError:
            raise
        except OSError:  # a disk without links
            _write_new(path, text)
    except FileExistsError:
        raise LeaseError(
            "Another process has just taken this run.", where=str(path.parent)
        ) from None
    finally:
        whole.unlink(missing_ok=True)


def _write_new(path: Path, text: bytes) -> None:
    with os.fdopen(create_file(path), "wb") as file:
        file.write(text)


@contextlib.contextmanager
def _open(folder: Path, flags: int) -> Iterator[int]:
    """Open the lease's file, and try again while it is moved aside for a moment."""
    for tries_left in (3, 2, 1, 0):
        try:
            descriptor = open_regular(folder / FILE_NAME, flags)
            break
        except FileNotFoundError:
            if not tries_left:
                what = _TAKEN_OVER if folder.is_dir() else "The folder of this run is gone."
                raise LeaseError(what, where=str(folder)) from None
            time.sleep(0.01)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_of_another(text: bytes, lease: Lease) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and data.get("nonce") != lease.nonce


def _silent_s(path: Path) -> float:
    """Since when the file was not written; 0 when there is none."""
    written = written_ns(path.parent)
    return (time.time_ns() - written) / 1e9 if written else 0.0


def _bury(path: Path, old: Lease | None) -> None:
    """Remove the dead lease `old` (None: an unreadable one), never a fresh one in its place."""
    grave = path.with_name(f".lease-{os.urandom(8).hex()}.dead")
    try:
        os.rename(path, grave)
    except FileNotFoundError:
        return
    buried = _read(grave)
    if (buried and buried.nonce) == (old and old.nonce):
        grave.unlink(missing_ok=True)
        return
    # Somebody was quicker from end to end and what was moved is the new lease: put it back.
    with contextlib.suppress(OSError):
        os.link(grave, path)
    grave.unlink(missing_ok=True)
    raise LeaseError("Another process has just taken this run.", where=str(path.parent))


def _refuse_if_alive(folder: Path, old: Lease, *, take_over: bool) -> None:
    state = liveness(old, written_ns=written_ns(folder))
    if state == "dead" or take_over:
        return
    who = f"process {old.pid} on {old.host}"
    if state == "alive":
        raise LeaseError(
            f"This run is being written by {who}.",
            where=str(folder),
            fix="Stop it first, or use --take-over.",
        )
    # Silent for over a minute on another host: design says dead for the purpose of taking the
    # lease.


def describe(lease: Lease) -> str:
    """Return the holder for messages: `process 4711 on node3`."""
    return f"process {lease.pid} on {lease.host}"
