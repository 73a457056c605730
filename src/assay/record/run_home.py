"""Folder of an open run: held open, leased, with disk space reserved for the end of the run."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from assay.core.directory import create_file, open_directory
from assay.core.errors import LeaseError
from assay.formats import lease as leases
from assay.store.layout import RunFolder

RESERVE_NAME = ".reserve.tmp"
RESERVE_BYTES = 1 << 16
"""Disk space reserved for the end of a run, which has to be written when the disk is full."""
STEP_NS = 500_000_000
"""A wall clock that differs by more was set, or the machine was suspended meanwhile."""


class RunHome:
    """Leased folder of an open run; it notices when the folder is deleted, moved or replaced."""

    def __init__(self, folder: RunFolder, lease: leases.Lease) -> None:
        self._folder = folder
        self._lease = lease
        self._began_ns = lease.beat_ns
        self._zero_ns = time.monotonic_ns()
        with contextlib.suppress(OSError):  # without the reserve only a full disk loses the end
            self._reserve()
        # Held open: the inode number of an open folder is given to no other one.
        self._held = open_directory(folder.path, follow=True)
        self._mode = stat.S_IMODE(self._held.mode)

    def is_intact(self) -> bool:
        """Return whether the record still lies where the run began.

        A folder without `run.json` is not the record: a checkpoint writer may have made it again.
        """
        try:
            held = self._held.descriptor
            is_same = held is None or os.path.samestat(os.fstat(held), os.stat(self._folder.path))
            return is_same and os.path.lexists(self._folder.run_json)
        except OSError:
            return False

    @property
    def ran_ns(self) -> int:
        """Time since the lease was taken, by a clock that nobody sets.

        It stands still while the machine is suspended; 0 where it has gone back.
        """
        return max(0, time.monotonic_ns() - self._zero_ns)

    def renew_lease(self, *, is_due: bool) -> None:
        """Write a beat if it is due, else check the lease; LeaseError when it is lost.

        One is due as soon as the wall clock was set: readers take the time since the last beat from
        it.
        """
        try:
            if is_due or self._is_clock_set():
                self._beat()
            else:
                leases.check(self._folder.path, self._lease)
        except LeaseError:
            # In a deleted folder nobody has taken the run over: it is made again at the next sync.
            if self.is_intact():
                raise
        except OSError:
            pass  # a full disk or an absent network: the next beat may get through

    def recreate(self, attempt: int) -> None:
        """Make the folder again, empty but for a new lease; OSError when that is impossible.

        It is not made again where the folder of all runs is gone too, as after a test.
        """
        path = self._folder.path
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder of runs is gone", str(path.parent))
        with contextlib.suppress(FileExistsError):
            path.mkdir(self._mode)
        with contextlib.suppress(FileNotFoundError):  # there only where all else was deleted
            (path / leases.FILE_NAME).unlink()
        self._held.close()
        self._held = open_directory(path, follow=True)
        self._lease = leases.acquire(path, attempt)
        self._beat()

    def _beat(self) -> None:
        steady_ns = self._began_ns + self.ran_ns
        self._lease = leases.beat(self._folder.path, self._lease, steady_ns)

    def _is_clock_set(self) -> bool:
        """Return whether the wall clock and that of the lease have moved apart since its beat."""
        passed_ns = time.time_ns() - self._lease.beat_ns
        ran_ns = self._began_ns + self.ran_ns - self._lease.steady_ns
        return abs(passed_ns - ran_ns) > STEP_NS

    def release_reserve(self) -> None:
        """Give the reserved disk space back, so that the end can be written."""
        with contextlib.suppress(OSError):
            (self._folder.path / RESERVE_NAME).unlink()

    def close(self) -> None:
        """Release the lease and the handle of the folder."""
        with contextlib.suppress(OSError):
            leases.release(self._folder.path, self._lease)
        self._held.close()

    def _reserve(self) -> None:
        descriptor = create_file(self._folder.path / RESERVE_NAME, exclusive=False)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            else:
                os.write(descriptor, bytes(RESERVE_BYTES))
        finally:
            os.close(descriptor)
