"""Seconds of an epoch, by what they were spent on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EpochTimes:
    """Seconds that the steps of an epoch have taken so far.

    `computing` is forward and backward, `telling` handlers and the record. `update_began` is the
    moment at which gradients were done, by `perf_counter`.
    """

    waiting: float = 0.0
    computing: float = 0.0
    updating: float = 0.0
    telling: float = 0.0
    update_began: float = 0.0

    def end_step(self, loaded: float, computed: float) -> None:
        """Add a step that got its window at `loaded`, and was computed at `computed`."""
        self.computing += self.update_began - loaded
        self.updating += computed - self.update_began

    def take(self, *, moved: float, differentiated: float) -> dict[str, float]:
        """Return the seconds by name, and begin anew.

        `moved`: seconds of the waiting that were spent on copying to the device, `differentiated`:
        those of the computing that were spent on the backward pass.
        """
        seconds = {
            "data": self.waiting - moved,
            "move": moved,
            "forward": self.computing - differentiated,
            "backward": differentiated,
            "optimizer": self.updating,
            "telling": self.telling,
        }
        self.waiting = self.computing = self.updating = self.telling = 0.0
        return seconds
