"""Background thread of an open run: it syncs, renews the lease, and does the work of others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from assay.formats import lease as leases

SYNC_S = leases.CHECK_S
STOP_S = 10.0


class BackgroundWork:
    """Functions called by the background thread of a run. One that fails is dropped and told."""

    def __init__(self, first: Callable[[], object], *, on_problem: Callable[[str], object]) -> None:
        self._on_problem = on_problem
        # Tuples, replaced as a whole: the training adds while the background thread iterates.
        self._works: tuple[Callable[[], object], ...] = (first,)
        self._last_works: tuple[Callable[[], object], ...] = ()

    def add(self, work: Callable[[], object], at_end: Callable[[], object]) -> None:
        """Call `work` from now on, and `at_end` once when the run ends."""
        self._works = (*self._works, work)
        self._last_works = (*self._last_works, at_end)

    def run(self) -> None:
        """Call all of them once."""
        for work in self._works:
            try:
                work()
            except Exception as error:
                # Plugins write copies of the record here, and a device may be gone: whatever they
                # raise is told and must not end the run.
                self._works = tuple(each for each in self._works if each is not work)
                self._on_problem(f"{type(error).__name__} in the background: {error}")

    def finish(self) -> None:
        """Call all of them a last time, then what was added for the end."""
        self.run()
        self._works, self._last_works = self._last_works, ()
        self.run()


class RecorderThread:
    """Daemon thread that calls `sync` and `renew` each second.

    `sync` returns False when the lease is not to be looked at this time. `renew` is told whether a
    beat is due, and returns False when the run is lost and the thread has to end.
    """

    def __init__(
        self, name: str, *, sync: Callable[[], bool], renew: Callable[[bool], bool]
    ) -> None:
        self._sync = sync
        self._renew = renew
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.pid = os.getpid()

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Let the thread end at the next opportunity; do not wait for it."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end of the thread, at most 10 s; return at once within the thread itself."""
        if threading.current_thread() is not self.thread:
            self.thread.join(timeout=STOP_S)

    def _run(self) -> None:
        next_beat = time.monotonic() + leases.BEAT_S
        while not self._stopping.wait(SYNC_S):
            if not self._sync():
                continue
            is_due = not _is_ahead(next_beat, leases.BEAT_S)
            if is_due:
                next_beat = time.monotonic() + leases.BEAT_S
            if not self._renew(is_due):
                return


def _is_ahead(at_s: float, period_s: float) -> bool:
    """Return whether a time is in the next period; later than that, the clock has gone back."""
    return 0 < at_s - time.monotonic() <= period_s
