"""One epoch: its windows from where a run is, the seconds it takes, and its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

from assay.core.errors import InputError
from assay.engine.data.loader import Loader
from assay.engine.data.source import Source, Window
from assay.engine.loop.state import State

_LOGGER = logging.getLogger("assay")


@dataclass(slots=True)
class EpochTimes:
    """Seconds that the steps of an epoch have taken so far, and `totals` of all epochs by name.

    `moved` was spent on copies to the device, `computing` on forward and backward, `telling` on
    handlers and the record. `update_began` is the moment at which gradients were done, by
    `perf_counter`.
    """

    waiting: float = 0.0
    moved: float = 0.0
    computing: float = 0.0
    updating: float = 0.0
    telling: float = 0.0
    update_began: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)
    _differentiated_before: float = 0.0

    def add(self, name: str, seconds: float) -> None:
        """Add to the total of a name."""
        self.totals[name] = self.totals.get(name, 0.0) + seconds

    def add_moved(self, seconds: float) -> None:
        """Add to the seconds of copies to the device."""
        self.moved += seconds

    def begin(self, *, differentiated: float) -> None:
        """Begin an epoch; `differentiated`: seconds of backward passes in the run so far."""
        self.waiting = self.moved = self.computing = self.updating = self.telling = 0.0
        self._differentiated_before = differentiated

    def end_step(self, loaded: float, computed: float) -> None:
        """Add a step that got its window at `loaded`, and was computed at `computed`."""
        self.computing += self.update_began - loaded
        self.updating += computed - self.update_began

    def end(self, *, differentiated: float) -> None:
        """Add the epoch to the totals; `differentiated` counts as in `begin`."""
        differentiated -= self._differentiated_before
        self.add("data", self.waiting - self.moved)
        self.add("move", self.moved)
        self.add("forward", self.computing - differentiated)
        self.add("backward", differentiated)
        self.add("optimizer", self.updating)
        self.add("telling", self.telling)


def rest_of_epoch(source: Source, state: State) -> Iterator[Window]:
    """Return the rest of the epoch; nothing of one that is resumed after it was ended early.

    Nothing either where the bound of the run was reached with the expected end of the epoch.
    Batches of a `Loader` are counted by samples: they may have other sizes than before.
    """
    if state.ends_epoch or state.step == state.step_bound:
        return iter(())
    if isinstance(source, Loader):
        if state.epoch_samples:
            return source.windows_after(state.epoch, state.epoch_samples)
        return source.windows(state.epoch, state.epoch_step)
    windows = source.windows(state.epoch, state.epoch_step)
    if state.epoch_step and "(replayed" in source.exactness():
        return _report_replay(windows, state.epoch_step)
    return windows


def end_epoch(state: State) -> bool:
    """Count an epoch that is complete or was ended early; return whether it was counted.

    An epoch that continues, or is to be resumed later, is not counted. InputError for an epoch
    without a batch.
    """
    is_bounded = bool(state.stop.reason) or state.step == state.step_bound
    is_complete = state.epoch_step == state.epoch_length or not is_bounded or state.ends_epoch
    if not is_complete or state.stop.interrupts:
        return False
    if state.epoch_step == 0:
        raise no_batch()
    if not state.ends_epoch:
        is_true = state.claimed_length == state.epoch_step
        state.length_error = None if is_true else [state.claimed_length, state.epoch_step]
        state.epoch_length = state.epoch_step
    state.ends_epoch = False
    state.epoch += 1
    state.epoch_step = 0
    state.epoch_samples = 0
    return True


def no_batch() -> InputError:
    """Return the error for training data without a batch."""
    return InputError(
        "The training data is empty: an epoch has no batch.",
        fix="Look at [data.train]; drop_last wants one full batch.",
    )


def _report_replay(windows: Iterator[Window], steps: int) -> Iterator[Window]:
    """Yield the rest of an epoch whose first steps are read again; say how long that took."""
    begun = perf_counter()
    first = next(windows, None)
    _LOGGER.warning(
        "data.train: the %d steps of this epoch before were gone through again, in %.1f s",
        steps,
        perf_counter() - begun,
    )
    if first is not None:
        yield first
        yield from windows
