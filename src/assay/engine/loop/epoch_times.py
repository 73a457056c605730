"""Seconds of a run, by what they were spent on."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class EpochTimes:
    """Seconds that the steps of an epoch have taken so far, and `totals` of all epochs by name.

    `computing` is forward and backward, `telling` handlers and the record. `update_began` is the
    moment at which gradients were done, by `perf_counter`.
    """

    waiting: float = 0.0
    computing: float = 0.0
    updating: float = 0.0
    telling: float = 0.0
    update_began: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)
    _moved_before: float = 0.0
    _differentiated_before: float = 0.0

    def add(self, name: str, seconds: float) -> None:
        """Add to the total of a name."""
        self.totals[name] = self.totals.get(name, 0.0) + seconds

    def begin(self, *, moved: float, differentiated: float) -> None:
        """Begin an epoch with the two counters as they are.

        `moved`: seconds spent on copying to the device, `differentiated`: on the backward pass.
        """
        self.waiting = self.computing = self.updating = self.telling = 0.0
        self._moved_before = moved
        self._differentiated_before = differentiated

    def end_step(self, loaded: float, computed: float) -> None:
        """Add a step that got its window at `loaded`, and was computed at `computed`."""
        self.computing += self.update_began - loaded
        self.updating += computed - self.update_began

    def end(self, *, moved: float, differentiated: float) -> None:
        """Add the epoch to the totals; the counters are those of `begin`."""
        moved -= self._moved_before
        differentiated -= self._differentiated_before
        self.add("data", self.waiting - moved)
        self.add("move", moved)
        self.add("forward", self.computing - differentiated)
        self.add("backward", differentiated)
        self.add("optimizer", self.updating)
        self.add("telling", self.telling)
