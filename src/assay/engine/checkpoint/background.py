"""Work that the training does not wait for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_SECONDS_TO_BEGIN = 5.0


class Background:
    """Does one job after another, in order, in a thread that lives as long as there are any.

    It is no daemon: Python waits for it before it ends. A job has to answer for its own errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Let a job be done after those that were submitted before."""
        with self._lock:
            self._jobs.append(job)
            if self._thread is None:
                self._begin()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None

    def wait(self) -> None:
        """Return when nothing is left to do."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _begin(self) -> None:
        has_begun = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(has_begun,), name=self.name)
        try:
            self._thread.start()
        except BaseException:
            # Most likely Ctrl-C while it waited for the thread, which begins all the same.
            if not has_begun.wait(_SECONDS_TO_BEGIN):
                self._thread = None
                self._jobs.pop()
            raise

    def _work(self, has_begun: threading.Event) -> None:
        has_begun.set()
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            try:
                job()
            finally:
                del job  # what it holds may be large
