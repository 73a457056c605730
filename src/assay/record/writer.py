"""Writer of the folder `metrics`: rows survive the death of the process as soon as `log` returns.

A row is one write at the end of the file of its length; `formats.metrics_file` has the format.
Somebody else may cut off, replace or delete the files meanwhile: `check` brings back what is open.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import struct
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from time import time_ns
from zlib import crc32

from assay.core.directory import make_directory, open_directory
from assay.core.errors import RecordError
from assay.core.regular_file import read_bytes
from assay.formats import metrics_file
from assay.formats.metrics_file import (
    HEAD_BYTES,
    MAX_SETS,
    MAX_VALUES,
    NAMES_FILE,
    PLACES,
    KeySet,
    MetricNames,
    Rewind,
    body_of_row,
    row_bytes,
    row_values,
    rows_file,
    seal,
    values_of_file,
)
from assay.record.lost_points import LostPoints
from assay.record.recordable import NO_STEP, Report, numbers_of, whole_step
from assay.store.layout import refusal
from assay.store.metrics_reader import refuse_old

if sys.platform != "win32":
    import fcntl

HOLD_S = 5.0
"""An earlier writer gets this long to notice that it is over."""
_COPY_BYTES = 1 << 20
_HAS_ENDED = "The run has ended: nothing can be logged to it any more."
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


@dataclass(slots=True)
class _OpenFile:
    """File that is open for appending; `is_gone` is as when it was last checked."""

    name: str
    file: FileIO
    synced: int = -1
    is_gone: bool = False


_Packer = tuple[Callable[..., bytes], int, Callable[[bytes], int | None], int]
"""Function that packs the body of a row, number of its set, function that writes, length."""


class MetricsWriter:
    """Writer of the metrics of one attempt, for any thread of this process; not for a forked one.

    When there is no room, points are dropped and counted, and `on_problem` is told twice: when it
    begins, and what was lost when it is over. `on_lost` is told in a few words what the record
    lacks for good, `on_refused` of a value that is no number and is left out; without it such a
    call is refused. `clean_names` returns the names that are written in place of those that are
    logged, as many and all different.
    """

    def __init__(
        self,
        path: Path,
        attempt: int = 1,
        *,
        on_problem: Callable[[str], None] = lambda message: None,
        on_lost: Callable[[str], None] = lambda what: None,
        on_refused: Report | None = None,
        clean_names: Callable[[Sequence[str]], Sequence[str]] = list,
    ) -> None:
        self.path = path
        self.attempt = attempt
        self._on_problem = on_problem
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._clean_names = clean_names
        self._lost = LostPoints(on_problem, on_lost)
        self._lock = threading.RLock()
        self._closed = ""
        # Of all sets; of those that take the fast path; and names that came with a live loss, of
        # which torch would warn there.
        self._packers: dict[tuple[str, ...], _Packer] = {}
        self._sets: dict[tuple[str, ...], _Packer] = {}
        self._live: set[tuple[str, ...]] = set()
        self._axes: set[str] = set()
        self._lines: list[bytes] = []
        self._written_lines = 0
        self._files: dict[str, _OpenFile] = {}
        self._next = self._columns = 0
        # Bytes that the file of names has at least; rows that were in the others as they were
        # opened, less those that were cut off since.
        self._names_bytes = self._old_rows = 0
        self._last_steps: dict[str, int] = {}
        try:
            make_directory(path)
            self._names = self._open(NAMES_FILE)
            try:
                self._hold()
                self._begin()
            except BaseException:  # raised again, Ctrl-C included: no descriptor must leak
                self._close_files()
                raise
        except OSError as error:
            raise refusal(error, path, "The metrics cannot be written") from error
        _WRITERS.add(self)

    def _begin(self) -> None:
        """Learn the numbers of sets and places that are taken; say what the format is."""
        refuse_old(self.path)
        known = MetricNames(str(self.path))
        known.add(read_bytes(self.path / NAMES_FILE, metrics_file.MAX_NAMES_BYTES))
        own = [number for number in known.sets if number // MAX_SETS == self.attempt]
        self._next = max(own, default=self.attempt * MAX_SETS - 1) + 1
        for keys in known.sets.values():
            if keys.axis is not None:
                self._axes.add(keys.names[keys.axis])
        # An attempt is begun twice where its first process could not write that it began.
        self._place = self._first_place = self.attempt * PLACES + sum(self._rows().values())
        self._lines.append(metrics_file.line_of({"format": metrics_file.FORMAT}))
        with contextlib.suppress(OSError):  # the disk is full: it is written before the first row
            self._write_lines()

    def _read_last_steps(self) -> dict[str, int]:
        """Read the step of the last row of each file that this attempt has written to."""
        steps = {}
        for name, file in self._files.items():
            values = values_of_file(name)
            if values is None:
                continue
            size = row_bytes(values)
            file.file.seek(max(0, os.fstat(file.file.fileno()).st_size - size))
            row = file.file.read(size) or b""
            if len(row) == size and seal(row[4:]) == row:
                _, number, _, step, _ = struct.unpack_from("<IIQqq", row)
                if number // MAX_SETS == self.attempt:
                    steps[name] = step
        return steps

    def _rows(self) -> dict[int, int]:
        """Return how many rows each file has room for, by number of values."""
        with open_directory(self.path, follow=True) as folder:
            sizes = {entry.name: folder.status(entry.name).st_size for entry in folder.entries()}
        known = ((values_of_file(name), size) for name, size in sizes.items())
        return {values: size // row_bytes(values) for values, size in known if values is not None}

    @property
    def lost_points(self) -> int:
        """Number of points that could not be written so far."""
        return self._lost.total

    @property
    def last_step(self) -> int | None:
        """Greatest step of the last rows of this attempt, one a file; None before `close`."""
        return max(self._last_steps.values(), default=None)

    def log(self, values: Mapping[str, float], step: int = NO_STEP) -> None:
        """Log values of several metrics at one step; RecordError names what is no number."""
        try:
            pack, number, write, size = self._sets[tuple(values)]
            with self._lock:  # no other thread takes the place, or closes the file
                body = pack(number, self._place, step, time_ns(), *values.values())
                written = write(crc32(body).to_bytes(4, "little") + body)
                if written != size:
                    self._cut_short(size, written)
                self._place += 1
        except _NOT_FAST:
            self._log_slowly(values, step)

    def axis(self, name: str) -> None:
        """From now on `name` is the x axis of the metrics that are logged together with it."""
        with self._lock:
            self._refuse_if_closed()
            self._axes.add(name)
            for names in [names for names in self._packers if name in names]:
                del self._packers[names]  # defined anew when next logged
                self._sets.pop(names, None)

    def rewind(self, step: int, *, stopped: Iterable[str] = ()) -> None:
        """Resume from `step`: points logged before at greater steps leave the curve.

        `stopped`: metrics whose points at `step` itself leave it, too.
        """
        with self._lock:
            self._refuse_if_closed()
            rewind = Rewind(operator.index(step), self.attempt, self._place, tuple(stopped))
            self._lines.append(metrics_file.line_of_rewind(rewind))
            try:
                self._write_lines()
            except OSError as error:  # it is written before the next row
                self._run_out(error)

    def check(self, *, at_once: bool = True) -> None:
        """Mend files that were cut off, replaced or deleted.

        Without `at_once` what is gone is only brought back by the next call: somebody may be
        deleting the whole folder.
        """
        with self._lock:
            if self._closed:
                return
            with contextlib.suppress(OSError):  # found out, and said, by whoever logs next
                self._mend(at_once=at_once)

    def sync(self) -> None:
        """Sync new data to disk. Power loss takes only what came after."""
        with self._lock:
            if self._closed:
                return
            copies = []
            for file in self._files.values():
                size = os.fstat(file.file.fileno()).st_size
                if size != file.synced:
                    file.synced = size
                    copies.append(os.dup(file.file.fileno()))
        for descriptor in copies:
            # A disk that cannot sync, or is full, must not stop a training.
            with contextlib.suppress(OSError):
                getattr(os, "fdatasync", os.fsync)(descriptor)
            os.close(descriptor)

    def close(self, *, durable: bool = True) -> None:
        """Stop writing, once; all data is on disk on return if `durable`."""
        with self._lock:
            if self._closed:
                return
            with contextlib.suppress(OSError):  # without it only a later loss is not noticed
                self._last_steps = self._read_last_steps()
                ends = {str(values): rows for values, rows in self._rows().items()}
                line = {"end": ends, "attempt": self.attempt}
                self._lines.append(metrics_file.line_of(line))
                self._write_lines()
            if durable:
                self.sync()
            self._give_up(_HAS_ENDED)
            self._lost.end(is_closed=True)

    def abandon(self, reason: str) -> None:
        """Refuse everything from now on, for `reason`: somebody else writes the metrics."""
        with self._lock:
            if not self._closed:
                self._give_up(reason)

    def abandon_in_child(self) -> None:
        """Refuse to write in a forked process, which would use the same places twice."""
        self._lock = threading.RLock()  # the old one may be held by a thread that is not here
        self.abandon(
            f"This run is written by process {os.getppid()}; a process forked from it cannot log "
            "to it."
        )

    def _give_up(self, reason: str) -> None:
        self._closed = reason
        self._sets = {}
        self._close_files()

    def _close_files(self) -> None:
        for file in self._files.values():
            file.file.close()
        self._files = {}

    def _refuse_if_closed(self) -> None:
        if self._closed:
            fix = "log before its end, or begin a new run" if self._closed is _HAS_ENDED else ""
            raise RecordError(self._closed, where=str(self.path), fix=fix)

    # -------------------------------------------------------------------------------- the slow path

    def _log_slowly(self, values: Mapping[str, float], step: int) -> None:
        step = whole_step(step)
        numbers = list(numbers_of(values, self._on_refused).items())
        is_live = any(getattr(value, "requires_grad", False) for value in values.values())
        with self._lock:
            self._refuse_if_closed()
            for i in range(0, len(numbers), MAX_VALUES):
                row = dict(numbers[i : i + MAX_VALUES])
                names = tuple(row)
                if is_live:
                    self._live.add(names)
                    self._sets.pop(names, None)
                try:
                    self._put_row(names, list(row.values()), step)
                except OSError as error:
                    self._run_out(error)
                    self._lost.add(len(names), step)

    def _put_row(self, names: tuple[str, ...], numbers: list[float], step: int) -> None:
        packer = self._packers.get(names) or self._define(names)
        self._write_lines()
        pack, number, write, size = packer
        written = write(seal(pack(number, self._place, step, time_ns(), *numbers)))
        if written != size:
            self._cut_short(size, written)
        self._place += 1
        self._lost.end(is_closed=False)
        if names not in self._live:
            self._sets[names] = packer

    def _run_out(self, error: OSError) -> None:
        """Let every call take the slow path, until one finds room."""
        self._sets = {}
        self._lost.begin(error)

    def _cut_short(self, size: int, written: int | None) -> None:
        """Take back the part of a row that there was room for, and raise OSError."""
        file = self._files[rows_file((size - HEAD_BYTES) // 8)].file
        os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - (written or 0))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _define(self, names: tuple[str, ...]) -> _Packer:
        values = row_values(len(names))
        name = rows_file(values)
        file = self._files.get(name) or self._open(name)
        number = self._next
        if number // MAX_SETS > self.attempt:
            raise RecordError(
                f"There are more than {MAX_SETS} different sets of metrics that were logged "
                "together.",
                where=str(self.path),
                fix=(
                    "Log the same metrics in the same order every time; a changing part belongs "
                    "into the value."
                ),
            )
        metrics_file.check_columns(self._columns + len(names), where=str(self.path))
        axis = next((i for i, name in enumerate(names) if name in self._axes), None)
        keys = KeySet(tuple(self._clean_names(names)), axis)
        self._lines.append(metrics_file.line_of_set(number, keys))
        self._next += 1
        self._columns += len(names)
        packer = body_of_row(len(names)).pack, number, file.file.write, row_bytes(values)
        self._packers[names] = packer
        return packer

    def _write_lines(self) -> None:
        """Write the lines that are not in the file of names yet: rows depend on them."""
        data = b"".join(self._lines[self._written_lines :])
        if data and self._names.file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._names_bytes += len(data)
        self._written_lines = len(self._lines)

    # --------------------------------------------------------------------------------------- files

    def _open(self, name: str) -> _OpenFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        try:
            with open_directory(self.path, follow=True) as folder:
                descriptor = folder.open(name, flags)
        except FileNotFoundError:  # the folder was deleted, and is made again by the next check
            descriptor = _open_nameless(flags)
        self._old_rows += _whole_rows(name, os.fstat(descriptor).st_size)
        file = self._files[name] = _OpenFile(name, FileIO(descriptor, "a+"))
        return file

    def _hold(self) -> None:
        """Lock the file of names; an earlier writer gets a moment to notice that it is over."""
        if sys.platform == "win32":
            return
        until = time.monotonic() + HOLD_S
        while True:
            try:
                fcntl.flock(self._names.file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def _mend(self, *, at_once: bool) -> None:
        """Bring back files that were deleted or replaced; notice those that were cut off."""
        gone = []
        rows = 0
        for file in self._files.values():
            mine = os.fstat(file.file.fileno())
            rows += _whole_rows(file.name, mine.st_size)
            if not self._is_at_its_path(file, mine):
                if at_once or file.is_gone:
                    gone.append(file)
                file.is_gone = True
            elif file is self._names and mine.st_size < self._names_bytes:
                self._names_bytes = mine.st_size
                self._written_lines = 0
                self._write_lines()
        for file in gone:
            self._bring_back(file)
        if gone:
            names = ", ".join(f"{self.path.name}/{file.name}" for file in gone)
            self._on_problem(
                f"{names} {'was' if len(gone) == 1 else 'were'} deleted or replaced by somebody "
                "else while the run wrote it: no point is lost."
            )
        if missing := max(0, self._old_rows + self._place - self._first_place - rows):
            self._old_rows -= missing
            self._on_lost(f"points of {self.path.name}, which was cut off")
            self._on_problem(
                f"{self.path.name} was cut off by somebody else while the run wrote it: {missing} "
                "calls of `log` are lost."
            )

    def _is_at_its_path(self, file: _OpenFile, mine: os.stat_result) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.lstat(self.path / file.name), mine)
        return False

    def _bring_back(self, file: _OpenFile) -> None:
        """Make a file again from the open one, under the same descriptor."""
        if self.path.parent.is_dir():
            make_directory(self.path)
        temporary = f".{file.name}.{os.urandom(6).hex()}.tmp"
        with open_directory(self.path, follow=True) as folder:
            fresh = folder.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
            try:
                file.file.seek(0)
                while part := file.file.read(_COPY_BYTES):
                    if os.write(fresh, part) != len(part):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                folder.move(temporary, folder, file.name)
                os.dup2(fresh, file.file.fileno(), inheritable=False)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.remove(temporary)
                raise
            finally:
                os.close(fresh)
        file.is_gone = False
        if file is self._names:
            self._hold()


def _open_nameless(flags: int) -> int:
    """Open a file that has no name, and is gone when it is closed."""
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    try:
        return os.open(path, flags)
    finally:
        os.unlink(path)


def _whole_rows(name: str, size: int) -> int:
    """Return how many rows a file of this name and size has; 0 for another file."""
    values = values_of_file(name)
    return 0 if values is None else size // row_bytes(values)


_WRITERS: weakref.WeakSet[MetricsWriter] = weakref.WeakSet()


def _abandon_all() -> None:
    for writer in list(_WRITERS):
        writer.abandon_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
