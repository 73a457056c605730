"""Windows of an epoch, or of the rest of one, on the device that trains."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import perf_counter

import torch

from assay.core.errors import InputError
from assay.engine.data.ahead import ahead
from assay.engine.data.loader import Loader
from assay.engine.data.source import Source, Window
from assay.engine.loop.state import State
from assay.engine.parallel.pipeline import Pipeline

_LOGGER = logging.getLogger("assay")


class EpochWindows:
    """Windows from where the state says the epoch is; on an accelerator one is copied ahead.

    `moved_s` counts the seconds spent on copying.
    """

    def __init__(self, source: Source, state: State, device: torch.device) -> None:
        self.source = source
        self.state = state
        self.device = device
        self.moved_s = 0.0

    def rest(self, pipeline: Pipeline | None) -> Iterator[Window]:
        """Return the rest of the epoch; nothing of one that is resumed after it was ended early.

        Nothing either where the bound of the run was reached with the expected end of the epoch.

        Batches of a `Loader` are counted by samples: they may have other sizes than before.
        """
        state, source = self.state, self.source
        if state.ends_epoch or state.step == state.step_bound:
            return iter(())
        if state.epoch_samples and isinstance(source, Loader):
            windows = source.windows_after(state.epoch, state.epoch_samples)
        else:
            windows = source.windows(state.epoch, state.epoch_step)
        is_middle = bool(state.epoch_step) and not isinstance(source, Loader)
        if is_middle and "(replayed" in source.exactness(state.epoch):
            windows = _replayed(windows, state.epoch_step)
        if pipeline is not None:
            windows = pipeline.drop_unused_windows(windows)
        if self.device.type == "cpu":
            return windows
        return ahead(windows, self.device, is_last=self._is_last, took=self._add_moved)

    def first_again(self, pipeline: Pipeline | None) -> Window | None:
        """Return the next window of an epoch that can be read again exactly, else None."""
        if not self.source.exactness(self.state.epoch).startswith("exact"):
            return None
        return next(self.rest(pipeline), None)

    def close(self) -> None:
        """End the worker processes of the data."""
        if isinstance(self.source, Loader):
            self.source.close()

    def _is_last(self) -> bool:
        return bool(self.state.stop.reason) or self.state.step + 1 == self.state.step_bound

    def _add_moved(self, seconds: float) -> None:
        self.moved_s += seconds


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


def _replayed(windows: Iterator[Window], steps: int) -> Iterator[Window]:
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
