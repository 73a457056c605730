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
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic_ns
from zlib import crc32

from assay.core.errors import RecordError
from assay.formats import frames, metrics_file, metrics_reader
from assay.formats.frames import TICK_NS
from assay.formats.metrics_file import KeySet
from assay.record.bus_error import guard
from assay.record.lost_points import LostPoints
from assay.record.mapped_extent import (
    EXTENT_BYTES,
    MAX_EXTENT_BYTES,
    MappedExtent,
    map_extent,
)
from assay.record.open_metrics import OpenMetrics
from assay.record.recordable import NO_STEP, numbers_of, whole_step
from assay.store.layout import refusal
from assay.store.mounts import is_network

BUSY_NS = 2_000_000_000
"""An extent that fills within this time is busy: the next is twice as long, and made at once."""
RETRY_NS = 1_000_000_000
STEP_NS = 500_000_000
"""A wall clock that differs by more was set, or the machine was suspended meanwhile."""
MAX_ROW_NAMES = 16_384
"""A row of more names is written as several: a frame has an end, and so has a chunk."""

_HAS_ENDED = "The run has ended: nothing can be logged to it any more."
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
_Packer = tuple[Callable[..., bytes], int, int]
"""Function that packs a row, its length in words, and the id of its key set."""


class MetricsWriter:
    """Writer of one `metrics.bin`, for any thread of this process; not for a forked one.

    When there is no room, points are dropped and counted, growing is tried again at most once a
    second, and `on_problem` is told twice: when it begins, and what was lost when it is over.
    `on_lost` is told in a few words what the file lacks for good. `clean_names` returns the names
    that are written in place of those that are logged, as many and all different.
    """

    def __init__(
        self,
        path: Path,
        attempt: int = 1,
        *,
        on_problem: Callable[[str], None] = lambda message: None,
        on_lost: Callable[[str], None] = lambda what: None,
        on_grown: Callable[[], None] = lambda: None,
        clean_names: Callable[[Sequence[str]], Sequence[str]] = list,
        preallocate: bool | None = None,
    ) -> None:
        self.path = path
        self.attempt = attempt
        self._on_problem = on_problem
        self._on_lost = on_lost
        self._on_grown = on_grown
        self._clean_names = clean_names
        self._lost = LostPoints(on_problem, on_lost)
        self._lock = threading.RLock()
        self._growing = threading.Lock()  # held after `_lock`, never before it
        self._closed = ""
        # Id and frames of every key set of the file, then the packers of those of this extent.
        self._keys: dict[tuple[str, ...], tuple[int, bytes]] = {}
        self._sets: dict[tuple[str, ...], _Packer] = {}
        # The same for `_live`: names that came with a tensor that has a graph.
        self._slow_sets: dict[tuple[str, ...], _Packer] = {}
        self._live: set[tuple[str, ...]] = set()
        self._axes: set[str] = set()
        self._next_id = 0
        self._columns = 0
        self._out: tuple[Write, int] = (_no_room, 0)
        self._map: mmap.mmap | None = None
        self._spare: MappedExtent | None = None
        self._extent_bytes = EXTENT_BYTES
        self._sequence = 0
        self._zero_ns = self._base_ns = 0
        self._room_again_ns = 0
        self._synced: object = None
        self._is_spoilt = False
        if preallocate is None:
            preallocate = hasattr(os, "posix_fallocate") and not is_network(path)
        self._preallocate = preallocate
        self._file = OpenMetrics(path, attempt, on_problem)
        self._end = self._repaired_end()
        try:
            self._grow(0)
        except OSError as error:
            self._run_out(error)
        _WRITERS.add(self)

    def _repaired_end(self) -> int:
        """Repair the end of the file and return it; the file is closed if that fails."""
        try:
            return self._repair()
        except OSError as error:
            self._file.close()
            raise refusal(error, self.path, "The metrics cannot be written") from error
        except BaseException:  # raised again, Ctrl-C included: only the descriptor must not leak
            self._file.close()
            raise

    @property
    def lost_points(self) -> int:
        """Number of points that could not be written so far."""
        return self._lost.total

    @property
    def is_long(self) -> bool:
        """Return whether the file has more than its first extent."""
        return self._end > EXTENT_BYTES

    def log(self, values: Mapping[str, float], step: int = NO_STEP) -> None:
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
            changed = [names for names in self._keys if name in names]
            for names in changed:  # defined anew when next logged
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
        # Without room nothing is prepared: growing will find out, and say it.
        with self._growing, contextlib.suppress(OSError):
            if self._map is None or self._closed or self._spare is not None:
                return
            if self._extent_bytes > EXTENT_BYTES or 2 * self._map.tell() > len(self._map):
                descriptor = self._file.descriptor
                self._spare = map_extent(descriptor, self._end, self._extent_bytes, need=0)

    def check(self) -> None:
        """Mend a file that was cut off, replaced or deleted; follow a wall clock that was set.

        For a background thread.
        """
        with self._lock:
            if self._closed:
                return
            is_whole = self._file.is_whole(self._end)
            if not is_whole:
                self._on_spoilt()
            try:
                if not is_whole or monotonic_ns() < self._zero_ns:
                    self._grow(0)
                else:
                    self._follow_clock()
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
            descriptor = os.dup(self._file.descriptor)
        try:
            # Not mmap.flush: that one keeps the interpreter's lock while the disk works.
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def close(self, *, durable: bool = True) -> None:
        """Stop writing, once; all data is on disk on return if `durable`.

        What was allocated ahead is given back.
        """
        if durable:
            self.sync()
        with self._lock:
            if self._closed:
                return
            end = self._written_end()
            self._give_up(_HAS_ENDED, cut_at=end)
            self._lost.end(is_closed=True)

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

    def _written_end(self) -> int:
        """Return the file offset behind the last frame; what was allocated ahead follows it."""
        if self._map is None:
            return self._end
        return self._end - len(self._map) + self._map.tell()

    def _give_up(self, reason: str, *, cut_at: int | None = None) -> None:
        self._closed = reason
        self._out = (_no_room, 0)
        with self._growing:
            if self._spare is not None:
                self._spare.map.close()
            if self._map is not None:
                self._map.close()
            if cut_at is not None:
                self._file.cut(cut_at)
            self._file.close()

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
                row = dict(numbers[i : i + MAX_ROW_NAMES])
                names = tuple(row)
                if is_live and names not in self._live:
                    self._live.add(names)
                    self._sets.pop(names, None)
                try:
                    self._put_row(names, list(row.values()), step)
                except OSError as error:
                    self._run_out(error)
                    self._lost.add(len(names), step)

    def _put_row(self, names: tuple[str, ...], numbers: list[float], step: int) -> None:
        wide = not 0 <= step <= metrics_file.MAX_STEP
        while True:  # another thread may fill what was grown before we come to use it
            pack, words, set_id = (
                self._sets.get(names) or self._slow_sets.get(names) or self._define(names)
            )
            write, zero_ns = self._out
            tick = (monotonic_ns() - zero_ns) >> 14
            if not 0 <= tick <= _MAX_TICK:
                # The clock of this extent has run out, or went back: the machine was restored.
                self._grow(words * 8)
                continue
            if wide:
                frame = metrics_file.pack_wide(
                    set_id, step, self._base_ns + tick * TICK_NS, numbers
                )
            else:
                body = pack(words, set_id, step, tick, *numbers)
                frame = crc32(body).to_bytes(4, "little") + body
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

    def _define(self, names: tuple[str, ...]) -> _Packer:
        """Write the key set into this extent, twice: damage to one extent costs no other."""
        set_id, frames_of_keys = self._keys.get(names) or self._number_keys(names, self._next_id)
        row_bytes = 8 * metrics_file.values_words(len(names))
        need = len(frames_of_keys) + row_bytes
        while True:
            if self._map is not None and len(self._map) - self._map.tell() < need:
                self._grow(need)
            try:
                self._out[0](frames_of_keys)
                break
            except ValueError:
                self._grow(need)
        words = metrics_file.values_words(len(names))
        packer = (metrics_file.values_struct(len(names)).pack, words, set_id)
        sets = self._slow_sets if names in self._live else self._sets
        sets[names] = packer
        return packer

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
        kept = tuple(self._clean_names(names))
        frame = metrics_file.pack_keys(KeySet(set_id, kept, axis))
        self._keys[names] = numbered = (set_id, 2 * frame)
        return numbered

    # -------------------------------------------------------------------------------------- extents

    def _grow(self, need: int) -> None:
        """Begin an extent that holds a frame of `need` bytes. OSError when there is no room."""
        now = monotonic_ns()
        if 0 < self._room_again_ns - now <= RETRY_NS:
            raise BlockingIOError
        if self._is_spoilt:
            self._mend()
        base_ns = time.time_ns() // TICK_NS * TICK_NS
        if self._preallocate:
            self._begin_mapped(need, base_ns, now)
        else:
            self._append(self._extent(base_ns, end=0))
            self._sets, self._slow_sets = {}, {}
            self._out = (self._append, now)
        self._base_ns, self._zero_ns = base_ns, now
        self._sequence += 1
        self._room_again_ns = 0
        self._lost.end(is_closed=bool(self._closed))
        self._on_grown()

    def _begin_mapped(self, need: int, base_ns: int, zero_ns: int) -> None:
        if 0 <= zero_ns - self._zero_ns < BUSY_NS and self._map is not None:
            self._extent_bytes = min(2 * self._extent_bytes, MAX_EXTENT_BYTES)
        with self._growing:
            fresh, self._spare = self._spare, None
            if fresh is None or not fresh.holds(need):
                if fresh is not None:
                    fresh.map.close()
                fresh = map_extent(self._file.descriptor, self._end, EXTENT_BYTES, need)
            guard(fresh.map, self._on_spoilt)
            fresh.map.write(self._extent(base_ns, end=fresh.end))
            # The old map is not closed: another thread may be about to write into what is left of
            # it, and it may.
            self._sets, self._slow_sets = {}, {}
            self._map, self._end = fresh.map, fresh.end
        self._out = (fresh.map.write, zero_ns) if not self._is_spoilt else (_no_room, zero_ns)

    def _follow_clock(self) -> None:
        """Begin an extent in what is left of this one, where the wall clock differs from it.

        Its ticks are counted from the same moment: a row that another thread is about to write has
        the right time on either side of the new head.
        """
        ahead_ns = time.time_ns() - (self._base_ns + monotonic_ns() - self._zero_ns)
        if abs(ahead_ns) < STEP_NS:
            return
        base_ns = (self._base_ns + ahead_ns) // TICK_NS * TICK_NS
        with contextlib.suppress(ValueError):  # it is full: the next one begins with the time
            self._out[0](self._extent(base_ns, end=self._end if self._preallocate else 0))
            self._sets, self._slow_sets = {}, {}
            self._base_ns = base_ns
            self._sequence += 1

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
            self._file.write_at(frame, self._end)
            self._end += len(frame)

    def _run_out(self, error: OSError) -> None:
        """Let every call come here until there is room again."""
        if isinstance(error, BlockingIOError):
            return
        self._out = (_no_room, self._zero_ns)
        self._room_again_ns = monotonic_ns() + RETRY_NS
        self._lost.begin(error)

    # --------------------------------------------------------------------------------------- repair

    def _on_spoilt(self) -> None:
        """Route every call to `_grow`, which mends. Also called from a signal, within a write."""
        self._is_spoilt = True
        self._out = (_no_room, self._zero_ns)
        self._on_grown()

    def _mend(self) -> None:
        """Continue in what is left of the file; OSError when nothing can be written there."""
        is_cut_off = self._file.size() < self._end
        with self._growing:
            self._spare = self._map = None  # not closed: another thread may be about to write
            self._file.bring_back()
            self._keys.clear()
            self._columns = 0
            try:
                self._end = self._repair()
            except RecordError:  # it is a file of another kind by now
                self._keys.clear()
                self._end = self._file.set_aside()
        self._is_spoilt = False
        if is_cut_off:
            self._on_lost(f"points of {self.path.name}, which was cut off")
        done = "cut off" if is_cut_off else "deleted or replaced"
        lost = "points of before are lost" if is_cut_off else "no point is lost"
        self._on_problem(
            f"{self.path.name} was {done} by somebody else while the run wrote it: {lost}."
        )

    def _repair(self) -> int:
        """Mend the file, and learn what is in it; return where the next extent begins."""
        end, sequence = self._file.repair(self._learn)
        if sequence is not None:
            self._sequence = sequence
        return end

    def _learn(self, data: bytes) -> None:
        """Learn the numbers of the key sets that the file has."""
        from assay.store.series import read_contents  # only where a run goes on

        blocks = read_contents(data).blocks
        for keys in sorted((block.keys for block in blocks), key=lambda each: each.id):
            if keys.axis is not None:
                self._axes.add(keys.names[keys.axis])
            self._number_keys(keys.names, keys.id)
        # Also those of sets whose definition is damaged: a number is never given to another set.
        self._next_id = max([self._next_id, *(each + 1 for each in metrics_reader.set_ids(data))])


def _sync(descriptor: int) -> None:
    # A disk that cannot sync, or is full, must not stop a training.
    with contextlib.suppress(OSError):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def _no_room(frame: bytes) -> None:
    raise ValueError("no room")


_WRITERS: weakref.WeakSet[MetricsWriter] = weakref.WeakSet()


def _abandon_all() -> None:
    for writer in list(_WRITERS):
        writer.abandon_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
