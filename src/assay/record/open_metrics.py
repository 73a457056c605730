"""Open file `metrics.bin`: locked, and mended where it is damaged, cut off, replaced or deleted."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from assay.core.directory import open_directory
from assay.core.errors import RecordError
from assay.formats import frames, metrics_file, metrics_reader
from assay.formats.frames import Damage, Extent
from assay.formats.json_codec import write_atomic
from assay.record.mapped_extent import EXTENT_BYTES, MAX_EXTENT_BYTES
from assay.store.layout import refusal

if sys.platform != "win32":
    import fcntl

HOLD_S = 5.0


class OpenMetrics:
    """Descriptor of `metrics.bin`, locked against other writers; RecordError when it is taken."""

    def __init__(self, path: Path, attempt: int, on_problem: Callable[[str], None]) -> None:
        self.path = path
        self.attempt = attempt
        self._on_problem = on_problem
        try:
            with open_directory(path.parent, follow=True) as folder:
                self.descriptor = folder.open(path.name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise refusal(error, path, "The metrics cannot be written") from error
        try:
            self._lock()
        except BaseException:  # raised again, Ctrl-C included: only the descriptor must not leak
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor, and with it the lock."""
        os.close(self.descriptor)

    def size(self) -> int:
        """Return the present size in bytes."""
        return os.fstat(self.descriptor).st_size

    def is_whole(self, end: int) -> bool:
        """Return whether this is still the file at the path, and has at least `end` bytes."""
        mine = os.fstat(self.descriptor)
        with contextlib.suppress(OSError):
            return os.path.samestat(os.lstat(self.path), mine) and mine.st_size >= end
        return False

    def write_at(self, frame: bytes, offset: int) -> None:
        """Write a whole frame; OSError when there is no room for it."""
        if os.pwrite(self.descriptor, frame, offset) != len(frame):
            raise OSError("there was no room for a whole frame")

    def cut(self, end: int) -> None:
        """Give back what was allocated from `end` on."""
        with contextlib.suppress(OSError):
            if self.size() > end:
                os.ftruncate(self.descriptor, end)

    def bring_back(self) -> None:
        """Make the file again from the open one when it was deleted or replaced."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(self.path), os.fstat(self.descriptor)):
                return
        temporary = f".{self.path.name}.{os.urandom(6).hex()}.tmp"
        with open_directory(self.path.parent, follow=True) as folder:
            fresh = folder.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                offset = 0
                while part := os.pread(self.descriptor, EXTENT_BYTES, offset):
                    offset += os.pwrite(fresh, part, offset)
                folder.move(temporary, folder, self.path.name)
                os.dup2(fresh, self.descriptor, inheritable=False)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.remove(temporary)
                raise
            finally:
                os.close(fresh)
        self._lock()

    def repair(self, learn: Callable[[bytes], None]) -> tuple[int, int | None]:
        """Cut the file where an extent may begin; return the offset and the number of the extent.

        Nothing readable is lost. The number is None where no extent is left. `learn` is called with
        the content before anything is changed.
        """
        size = self.size()
        data = self._read(size)
        if len(data) < frames.FILE_HEAD_BYTES or not any(data):
            os.ftruncate(self.descriptor, 0)
            return self._begin(), None
        if frames.check_file_head(data, metrics_file.FORM, where=str(self.path)) is not None:
            self._begin()
        extent, good, damages = _structure(data)
        learn(data)
        if extent is None:
            return self._set_aside(data), None
        sequence = (extent.sequence + 1) & 0xFFFFFFFF
        tail = damages[-1] if damages and damages[-1].torn else None
        self._tell_damage(damages if tail is None else damages[:-1])
        if not extent.end:
            os.ftruncate(self.descriptor, good)
            return good, sequence
        # What a damaged or hostile head claims is not allocated.
        end = extent.end if extent.end <= size + MAX_EXTENT_BYTES else size + -size % 8
        if tail is not None and tail.offset < end:
            os.pwrite(self.descriptor, bytes(min(end, size) - tail.offset), tail.offset)
        # Shorter: filled up with zeros; longer: an extent that never began.
        os.ftruncate(self.descriptor, end)
        return end, sequence

    def set_aside(self) -> int:
        """Move content that is no metrics to another file; return where to begin in this one."""
        return self._set_aside(self._read(self.size()))

    def _set_aside(self, data: bytes) -> int:
        if any(data[frames.FILE_HEAD_BYTES :]):
            aside = self.path.with_name(f"metrics.damaged-{self.attempt}.bin")
            write_atomic(aside, data)
            self._on_problem(f"The metrics so far cannot be read; they were moved to {aside.name}.")
        os.ftruncate(self.descriptor, 0)
        return self._begin()

    def _begin(self) -> int:
        os.pwrite(self.descriptor, frames.file_head(metrics_file.FORM), 0)
        return frames.FILE_HEAD_BYTES

    def _tell_damage(self, damages: Sequence[Damage]) -> None:
        if damages:
            size = sum(each.end - each.offset for each in damages)
            places = f"{len(damages)} places" if len(damages) > 1 else f"byte {damages[0].offset}"
            self._on_problem(
                f"The metrics so far are damaged at {places}: {size} bytes cannot be read."
            )

    def _lock(self) -> None:
        """Lock the file; an earlier writer gets a moment to notice that it is over."""
        if sys.platform == "win32":
            return
        until = time.monotonic() + HOLD_S
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def _read(self, size: int) -> bytes:
        parts, offset = [], 0
        while offset < size:
            part = os.pread(self.descriptor, size - offset, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


def _structure(data: bytes) -> tuple[Extent | None, int, list[Damage]]:
    """Return the last extent, the end of the last intact frame, and what is damaged."""
    extent: Extent | None = None
    damages: list[Damage] = []
    good = frames.FILE_HEAD_BYTES
    for item in metrics_reader.frame_groups(data):
        match item:
            case Extent():
                extent = item
                good = item.offset + frames.EXTENT_HEAD_BYTES
            case Damage():
                damages.append(item)
            case frames.FrameGroup():
                good = item.offset + len(item.data)
    return extent, good, damages
