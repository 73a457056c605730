"""Writer of `metrics.bin`: rows survive the death of the process as soon as `log` returns.

On a local disk a frame is one copy into a memory map over an extent whose blocks are allocated
beforehand, so that a full disk is an error when the file grows and never a SIGBUS. Elsewhere it is
one write call. The extent that comes next is made while the present one fills, by whoever calls
`prepare`: growing then costs a log call next to nothing.

Somebody else may cut off, replace or delete the file meanwhile. The writer goes on in what is left
of it, or makes it again out of what it holds open.
"""

from __future__ import annotations

import contextlib
import mmap
import operator
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from zlib import crc32

from assay.core import frames, metrics_file
from assay.core.directory import open_directory
from assay.core.errors import RecordError
from assay.core.frames import TICK_NS, Damage, Extent
from assay.core.json_codec import write_atomic
from assay.core.metrics_file import KeySet
from assay.record.bus_error import guard
from assay.record.recordable import numbers_of, whole_step
from assay.store.layout import refusal
from assay.store.mounts import is_network

if sys.platform != "win32":
    import fcntl

EXTENT_BYTES = 1 << 18
MAX_EXTENT_BYTES = 1 << 21
BUSY_NS = 2_000_000_000
"""An extent that fills within this time is busy: the next is twice as long, and made at once."""
RETRY_NS = 1_000_000_000
HOLD_S = 5.0
MAX_ROW_NAMES = 16_384
"""A row of more names is written as several: a frame has an end, and so has a chunk."""

_HAS_ENDED = "The run has ended: nothing can be logged to it any more."
_POPULATE_WRITE = 23
_MAX_TICK = 0xFFFFFFFF
# What the fast path of `log` may meet; the slow path finds out which, and says it.
_NOT_FAST = (
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    OSError,
    Warning,
    struct.error,
)

Write = Callable[[bytes], object]


class MetricsWriter:
    """Writer of one `metrics.bin`, for any thread of this process; not for a forked one.

    When there is no room, points are dropped and counted, growing is tried again at most once a
    second, and `on_problem` is told twice: when it begins, and what was lost when it is over.
    `on_lost` is told in a few words what the file lacks for good.
    """

    def __init__(
        self,
        path: Path,
        attempt: int = 1,
        *,
        on_problem: Callable[[str], None] = lambda message: None,
        on_lost: Callable[[str], None] = lambda what: None,
        on_grown: Callable[[], None] = lambda: None,
        preallocate: bool | None = None,
    ) -> None:
        self.path = path
        self.attempt = attempt
        self.lost_points = 0
        self._on_problem = on_problem
        self._on_lost = on_lost
        self._on_grown = on_grown
        self._lock = threading.RLock()
        self._growing = threading.Lock()  # held after `_lock`, never before it
        self._spare: _MappedExtent | None = None
        self._extent_bytes = EXTENT_BYTES
        self._keys: dict[
            tuple[str, ...], tuple[int, bytes]
        ] = {}  # id and frames of every key set of the file
        self._sets: dict[
            tuple[str, ...], tuple[Callable[..., bytes], int, int]
        ] = {}  # those of this extent
        self._slow_sets = dict(
            self._sets
        )  # the same for `_live`: names that came with a tensor that has a graph
        self._live: set[tuple[str, ...]] = set()
        self._axes: set[str] = set()
        self._out: tuple[Write, int] = (_no_room, 0)
        self._closed = ""
        self._map: mmap.mmap | None = None
        self._synced: object = None
        self._next_id = 0
        self._columns = 0
        self._sequence = 0
        self._zero_ns = self._base_ns = 0
        self._room_again_ns = 0
        self._gap: tuple[int, int, int] | None = None
        self._is_spoilt = False
        if preallocate is None:
            preallocate = hasattr(os, "posix_fallocate") and not is_network(path)
        self._preallocate = preallocate
        try:
            with open_directory(path.parent, follow=True) as folder:
                self._fd = folder.open(path.name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise refusal(error, path, "The metrics cannot be written") from error
        try:
            self._hold()
            self._end = self._repair()
        except OSError as error:
            os.close(self._fd)
            raise refusal(error, path, "The metrics cannot be written") from error
        except BaseException:  # raised again, Ctrl-C included: only the descriptor must not leak
            os.close(self._fd)
            raise
        try:
            self._grow(0)
        except OSError as error:
            self._run_out(error)
        _WRITERS.add(self)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values of several metrics at one step; RecordError names what is no number."""
        try:
            # The set before the map: a set that is known was defined in this extent or in an
            # earlier one.
            pack, words, set_id = self._sets[tuple(values)]
            write, zero_ns = self._out
            body = pack(words, set_id, step, (monotonic_ns() - zero_ns) >> 14, *values.values())
            write(crc32(body).to_bytes(4, "little") + body)
        except _NOT_FAST:
            self._log_slowly(values, step)

    def axis(self, name: str) -> None:
        """From now on `name` is the x axis of the metrics that are logged together with it."""
        with self._lock:
            self._refuse_if_closed()
            self._axes.add(name)
            for names in [
                each for each in self._keys if name in each
            ]:  # defined anew when next logged
                del self._keys[names]
                self._sets.pop(names, None)
                self._slow_sets.pop(names, None)

    def rewind(self, step: int) -> None:
        """The run goes on from `step`: points logged before at greater steps leave the curve."""
        frame = metrics_file.pack_rewind(operator.index(step), self.attempt)
        with self._lock:
            self._refuse_if_closed()
            try:
                self._put(frame)
            except OSError as error:
                self._run_out(error)

    def prepare(self) -> None:
        """Make the next extent in the background, so that growing waits for no disk."""
        with (
            self._growing,
            contextlib.suppress(OSError),
        ):  # no room: growing will find out, and say it
            if self._map is None or self._closed or self._spare is not None:
                return
            if self._extent_bytes > EXTENT_BYTES or 2 * self._map.tell() > len(self._map):
                self._spare = _mapped(self._fd, self._end, self._extent_bytes, need=0)

    def check(self) -> None:
        """Notice and mend a file that was cut off, replaced or deleted. For a background thread."""
        with self._lock:
            if self._closed or self._is_whole():
                return
            self._on_spoilt()
            try:
                self._grow(0)
            except OSError as error:
                self._run_out(error)

    def sync(self) -> None:
        """Sync new data to disk. Power loss takes only what came after."""
        with self._lock:
            if self._closed:
                return
            position = (self._map, self._map.tell()) if self._map is not None else self._end
            if position == self._synced:
                return
            self._synced = position
            descriptor = os.dup(self._fd)
        try:
            # Not mmap.flush: that one keeps the interpreter's lock while the disk works.
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def close(self, *, durable: bool = True) -> None:
        """Stop writing, once; all data is on disk on return if `durable`."""
        if durable:
            self.sync()
        with self._lock:
            if self._closed:
                return
            self._give_up(_HAS_ENDED)
            self._report_gap()

    def abandon(self, reason: str) -> None:
        """Refuse everything from now on, for `reason`: somebody else writes the file."""
        with self._lock:
            if not self._closed:
                self._give_up(reason)

    def abandon_in_child(self) -> None:
        """Refuse to write in a forked process, which shares the map but not its position."""
        self._lock = threading.RLock()  # the old ones may be held by a thread that is not here
        self._growing = threading.Lock()
        if not self._closed:
            self._give_up(
                f"This run is written by process {os.getppid()}; a process forked from it cannot "
                "log to it."
            )

    def _give_up(self, reason: str) -> None:
        self._closed = reason
        self._out = (_no_room, 0)
        with self._growing:
            if self._spare is not None:
                self._spare.map.close()
            if self._map is not None:
                self._map.close()
            os.close(self._fd)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            fix = "log before its end, or begin a new run" if self._closed is _HAS_ENDED else ""
            raise RecordError(self._closed, where=str(self.path), fix=fix)

    # -------------------------------------------------------------------------------- the slow path

    def _log_slowly(self, values: Mapping[str, float], step: int) -> None:
        step = whole_step(step)
        numbers = list(numbers_of(values).items())
        # On the fast path torch warns of a live loss: a set of names that came with one does not
        # take it.
        is_live = any(getattr(value, "requires_grad", False) for value in values.values())
        with self._lock:
            self._refuse_if_closed()
            for i in range(0, len(numbers), MAX_ROW_NAMES):
                part = tuple(name for name, _ in numbers[i : i + MAX_ROW_NAMES])
                if is_live and part not in self._live:
                    self._live.add(part)
                    self._sets.pop(part, None)
                try:
                    self._put_row(
                        part, [number for _, number in numbers[i : i + MAX_ROW_NAMES]], step
                    )
                except OSError as error:
                    self._run_out(error)
                    self._lose(len(part), step)

    def _put_row(self, names: tuple[str, ...], numbers: list[float], step: int) -> None:
        wide = not 0 <= step <= metrics_file.MAX_STEP
        while True:  # another thread may fill what was grown before we come to use it
            pack, words, set_id = (
                self._sets.get(names) or self._slow_sets.get(names) or self._define(names)
            )
            write, zero_ns = self._out
            tick = (monotonic_ns() - zero_ns) >> 14
            if wide:
                frame = metrics_file.pack_wide(
                    set_id, step, self._base_ns + tick * TICK_NS, numbers
                )
            elif tick <= _MAX_TICK:
                body = pack(words, set_id, step, tick, *numbers)
                frame = crc32(body).to_bytes(4, "little") + body
            else:
                self._grow(words * 8)  # the clock of this extent has run out
                continue
            try:
                write(frame)
                return
            except ValueError:
                self._grow(len(self._keys[names][1]) + len(frame))

    def _put(self, frame: bytes) -> None:
        while True:
            try:
                self._out[0](frame)
                return
            except ValueError:
                self._grow(len(frame))

    def _define(self, names: tuple[str, ...]) -> tuple[Callable[..., bytes], int, int]:
        """Write the key set into this extent, twice: damage to one extent costs no other."""
        set_id, frames_of_keys = self._keys.get(names) or self._number_keys(names, self._next_id)
        row_bytes = 8 * metrics_file.values_words(len(names))
        while True:
            if (
                self._map is not None
                and len(self._map) - self._map.tell() < len(frames_of_keys) + row_bytes
            ):
                self._grow(len(frames_of_keys) + row_bytes)
            try:
                self._out[0](frames_of_keys)
                break
            except ValueError:
                self._grow(len(frames_of_keys) + row_bytes)
        entry = (
            metrics_file.values_struct(len(names)).pack,
            metrics_file.values_words(len(names)),
            set_id,
        )
        sets = self._slow_sets if names in self._live else self._sets
        sets[names] = entry
        return entry

    def _number_keys(self, names: tuple[str, ...], set_id: int) -> tuple[int, bytes]:
        if set_id > metrics_file.MAX_SET_ID:
            raise RecordError(
                f"There are more than {metrics_file.MAX_SET_ID} different sets of metrics that "
                "were logged together.",
                where=str(self.path),
                fix=(
                    "Log the same metrics in the same order every time; a changing part belongs "
                    "into the value."
                ),
            )
        metrics_file.check_columns(self._columns + len(names), where=str(self.path))
        self._columns += len(names)
        self._next_id = set_id + 1
        axis = next((i for i, name in enumerate(names) if name in self._axes), None)
        self._keys[names] = numbered = (
            set_id,
            2 * metrics_file.pack_keys(KeySet(set_id, names, axis)),
        )
        return numbered

    # -------------------------------------------------------------------------------------- extents

    def _grow(self, need: int) -> None:
        """Begin an extent that holds a frame of `need` bytes. OSError when there is no room."""
        now = monotonic_ns()
        if now < self._room_again_ns:
            raise BlockingIOError
        if self._is_spoilt:
            self._mend()
        # Never before what was said already, though the clock on the wall be set back: times order
        # the rows.
        passed = self._base_ns + (now - self._zero_ns if self._zero_ns else TICK_NS)
        base_ns = max(time.time_ns(), passed) // TICK_NS * TICK_NS
        if self._preallocate:
            self._begin_mapped(need, base_ns, now)
        else:
            self._append(self._extent(base_ns, end=0))
            self._sets, self._slow_sets = {}, {}
            self._out = (self._append, now)
        self._base_ns, self._zero_ns = base_ns, now
        self._sequence += 1
        self._room_again_ns = 0
        self._report_gap()
        self._on_grown()

    def _begin_mapped(self, need: int, base_ns: int, zero_ns: int) -> None:
        if zero_ns - self._zero_ns < BUSY_NS and self._map is not None:
            self._extent_bytes = min(2 * self._extent_bytes, MAX_EXTENT_BYTES)
        with self._growing:
            fresh, self._spare = self._spare, None
            if fresh is None or not fresh.holds(need):
                if fresh is not None:
                    fresh.map.close()
                fresh = _mapped(self._fd, self._end, EXTENT_BYTES, need)
            guard(fresh.map, self._on_spoilt)
            fresh.map.write(self._extent(base_ns, end=fresh.end))
            # The old map is not closed: another thread may be about to write into what is left of
            # it, and it may.
            self._sets, self._slow_sets = {}, {}
            self._map, self._end = fresh.map, fresh.end
        self._out = (fresh.map.write, zero_ns) if not self._is_spoilt else (_no_room, zero_ns)

    def _extent(self, base_ns: int, *, end: int) -> bytes:
        return frames.pack_extent(
            metrics_file.FORM,
            sequence=self._sequence,
            attempt=self.attempt,
            base_ns=base_ns,
            end=end,
        )

    def _append(self, frame: bytes) -> None:
        with self._lock:
            self._refuse_if_closed()
            if os.pwrite(self._fd, frame, self._end) != len(frame):
                raise OSError("there was no room for a whole frame")
            self._end += len(frame)

    def _run_out(self, error: OSError) -> None:
        """There is no room: let every call come here until there is some again."""
        if isinstance(error, BlockingIOError):
            return
        self._out = (_no_room, self._zero_ns)
        self._room_again_ns = monotonic_ns() + RETRY_NS
        if self._gap is None:
            self._gap = (0, 0, 0)
            self._on_problem(
                f"Metrics cannot be written ({error.strerror or error}). The run goes on without "
                "them."
            )

    def _lose(self, count: int, step: int) -> None:
        self.lost_points += count
        lost, first, last = self._gap or (0, 0, 0)
        self._gap = (
            lost + count,
            min(first, step) if lost else step,
            max(last, step) if lost else step,
        )

    def _report_gap(self) -> None:
        if self._gap is None:
            return
        (lost, first, last), self._gap = self._gap, None
        where = f"step {first}" if first == last else f"steps {first} to {last}"
        again = "" if self._closed else "Metrics are written again. "
        if lost:
            points = "point was" if lost == 1 else "points were"
            self._on_problem(f"{again}{lost} {points} lost, of {where}.")
            self._on_lost(f"{lost} {points.split()[0]}, of {where}")

    # --------------------------------------------------------------------------------------- repair

    def _is_whole(self) -> bool:
        """Return whether the file is still the one that is written, and as long as it was made."""
        mine = os.fstat(self._fd)
        with contextlib.suppress(OSError):
            return os.path.samestat(os.lstat(self.path), mine) and mine.st_size >= self._end
        return False

    def _on_spoilt(self) -> None:
        """Route every call to `_grow`, which mends. Also called from a signal, within a write."""
        self._is_spoilt = True
        self._out = (_no_room, self._zero_ns)
        self._on_grown()

    def _mend(self) -> None:
        """Continue in what is left of the file; OSError when nothing can be written there."""
        size = os.fstat(self._fd).st_size
        lost = self._end - size if size < self._end else 0
        with self._growing:
            self._spare = self._map = None  # not closed: another thread may be about to write
            self._bring_back()
            self._keys.clear()
            self._columns = 0
            try:
                self._end = self._repair()
            except RecordError:  # it is a file of another kind by now
                self._keys.clear()
                self._end = self._set_aside(_read(self._fd, size))
        self._is_spoilt = False
        told = "points of before are lost" if lost else "no point is lost"
        done = "cut off" if lost else "deleted or replaced"
        if lost:
            self._on_lost(f"points of {self.path.name}, which was cut off")
        self._on_problem(
            f"{self.path.name} was {done} by somebody else while the run wrote it: {told}."
        )

    def _bring_back(self) -> None:
        """Make the file again from the open one when it was deleted or replaced."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(self.path), os.fstat(self._fd)):
                return
        temporary = f".{self.path.name}.{os.urandom(6).hex()}.tmp"
        with open_directory(self.path.parent, follow=True) as folder:
            descriptor = folder.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                offset = 0
                while part := os.pread(self._fd, EXTENT_BYTES, offset):
                    offset += os.pwrite(descriptor, part, offset)
                folder.move(temporary, folder, self.path.name)
                os.dup2(descriptor, self._fd, inheritable=False)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.remove(temporary)
                raise
            finally:
                os.close(descriptor)
        self._hold()

    def _hold(self) -> None:
        """Lock the file; an earlier writer gets a moment to notice that it is over."""
        if sys.platform == "win32":
            return
        until = time.monotonic() + HOLD_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    fix = "Stop it (a process that is suspended cannot let go), then try again."
                    raise RecordError(
                        "Another process still writes the metrics.", where=str(self.path), fix=fix
                    ) from None
                time.sleep(0.02)
            except OSError:  # a disk that knows no locks: the lease has to do
                return

    def _repair(self) -> int:
        """Cut the file where an extent may begin, return the offset, and lose nothing readable."""
        size = os.fstat(self._fd).st_size
        if size == 0:
            return self._begin_file()
        data = _read(self._fd, size)
        if len(data) < frames.FILE_HEAD_BYTES or not any(data):
            os.ftruncate(self._fd, 0)
            return self._begin_file()
        if frames.check_file_head(data, metrics_file.FORM, where=str(self.path)) is not None:
            self._begin_file()
        extent, good, damages = _structure(data)
        self._learn(data)
        if extent is None:
            return self._set_aside(data)
        self._sequence = (extent.sequence + 1) & 0xFFFFFFFF
        tail = damages[-1] if damages and damages[-1].torn else None
        self._tell_damage(damages if tail is None else damages[:-1])
        if not extent.end:
            os.ftruncate(self._fd, good)
            return good
        # What a damaged or hostile head claims is not allocated.
        end = extent.end if extent.end <= size + MAX_EXTENT_BYTES else size + -size % 8
        if tail is not None and tail.offset < end:
            os.pwrite(self._fd, bytes(min(end, size) - tail.offset), tail.offset)
        os.ftruncate(
            self._fd, end
        )  # shorter: filled up with zeros; longer: an extent that never began
        return end

    def _tell_damage(self, damages: Sequence[Damage]) -> None:
        if damages:
            size = sum(each.end - each.offset for each in damages)
            places = f"{len(damages)} places" if len(damages) > 1 else f"byte {damages[0].offset}"
            self._on_problem(
                f"The metrics so far are damaged at {places}: {size} bytes cannot be read."
            )

    def _begin_file(self) -> int:
        os.pwrite(self._fd, frames.file_head(metrics_file.FORM), 0)
        return frames.FILE_HEAD_BYTES

    def _set_aside(self, data: bytes) -> int:
        if any(data[frames.FILE_HEAD_BYTES :]):
            aside = self.path.with_name(f"metrics.damaged-{self.attempt}.bin")
            write_atomic(aside, data)
            self._on_problem(f"The metrics so far cannot be read; they were moved to {aside.name}.")
        os.ftruncate(self._fd, 0)
        return self._begin_file()

    def _learn(self, data: bytes) -> None:
        """The numbers of the key sets that the file has, and the latest time in it."""
        from assay.store.series import read_contents  # only where a run goes on

        blocks = read_contents(data).blocks
        self._base_ns = max((max(block.times_ns) for block in blocks), default=0)
        for keys in sorted((block.keys for block in blocks), key=lambda each: each.id):
            if keys.axis is not None:
                self._axes.add(keys.names[keys.axis])
            self._number_keys(keys.names, keys.id)
        # Also those of sets whose definition is damaged: a number is never given to another set.
        self._next_id = max([self._next_id, *(each + 1 for each in metrics_file.set_ids(data))])


@dataclass(frozen=True, slots=True)
class _MappedExtent:
    """Memory map at the beginning of an extent, and the file offset at which the extent ends."""

    map: mmap.mmap
    end: int

    def holds(self, need: int) -> bool:
        """Return whether a frame of `need` bytes fits and leaves a part of the extent free."""
        return len(self.map) - self.map.tell() >= frames.EXTENT_HEAD_BYTES + max(
            need, mmap.PAGESIZE // 2
        )


def _mapped(descriptor: int, start: int, size: int, need: int) -> _MappedExtent:
    """Allocate and map an extent of about `size` bytes from `start`; OSError without room."""
    end = (start // size + 1) * size
    while end - start < frames.EXTENT_HEAD_BYTES + max(need, mmap.PAGESIZE // 2):
        end += size
    os.posix_fallocate(descriptor, start, end - start)
    # Written once as a whole, its pages are in memory, many at a time: a fault in each page costs
    # ten times that.
    os.pwrite(descriptor, bytes(end - start), start)
    # A map begins at a multiple of the granularity, an extent at any word: behind the head or a
    # compacted part.
    offset = start - start % mmap.ALLOCATIONGRANULARITY
    fresh = mmap.mmap(descriptor, end - offset, offset=offset)
    if sys.platform == "linux":
        with contextlib.suppress(
            OSError
        ):  # a kernel before 5.14: each page is looked up when it is first written to
            fresh.madvise(_POPULATE_WRITE)
    fresh.seek(start - offset)
    return _MappedExtent(fresh, end)


def _structure(data: bytes) -> tuple[Extent | None, int, list[Damage]]:
    """The last extent, the end of the last intact frame, and what is damaged."""
    extent: Extent | None = None
    damages: list[Damage] = []
    good = frames.FILE_HEAD_BYTES
    for item in metrics_file.frame_groups(data):
        match item:
            case Extent():
                extent, good = item, item.offset + frames.EXTENT_HEAD_BYTES
            case Damage():
                damages.append(item)
            case frames.FrameGroup():
                good = item.offset + len(item.data)
    return extent, good, damages


def _read(descriptor: int, size: int) -> bytes:
    parts, offset = [], 0
    while offset < size:
        part = os.pread(descriptor, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _sync(descriptor: int) -> None:
    with contextlib.suppress(
        OSError
    ):  # a disk that cannot sync (or is full) must not stop a training
        getattr(os, "fdatasync", os.fsync)(descriptor)


def _no_room(frame: bytes) -> None:
    raise ValueError("no room")


_WRITERS: weakref.WeakSet[MetricsWriter] = weakref.WeakSet()


def _abandon_all() -> None:
    for writer in list(_WRITERS):
        writer.abandon_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
