"""Work that an open run repeats about once a second, beside the training."""

from __future__ import annotations

from collections.abc import Callable


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
