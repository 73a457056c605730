"""Scheduler of torch that follows a metric: ReduceLROnPlateau, stepped once for each evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from assay.core.errors import InputError, did_you_mean
from assay.core.events import Event, Handler
from assay.core.stop import Stop


class Progress(Protocol):
    """Part of the state of a run that a metric is read from; `split` is the one just evaluated."""

    step: int
    split: str
    metrics: dict[str, Any]
    stop: Stop


class PlateauFollower:
    """Steps `scheduler` with the newest value of `metric`, such as `valid/loss`.

    Checkpoints hold when it was stepped last, and the state of the scheduler as a part of its own:
    a resumed run lowers the rate where an uninterrupted one would have.
    """

    def __init__(self, scheduler: Any, metric: str, progress: Progress) -> None:
        self.scheduler = scheduler
        self.metric = metric
        self.progress = progress
        self.measured_at = -1

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.EVAL_END, fn=self.follow),
            Handler(event=Event.RUN_END, fn=self.end, priority=100),  # after the last evaluation
        ]

    def follow(self) -> None:
        """Step the scheduler, if the metric is of the split that was just evaluated."""
        progress = self.progress
        if not self.metric.startswith(f"{progress.split}/"):
            return
        if progress.step == self.measured_at:  # evaluated again, by a run that resumes from here
            return
        if self.metric not in progress.metrics:
            known = ", ".join(progress.metrics)
            raise InputError(
                f"The schedule follows {self.metric!r}, which the evaluation does not give.",
                fix=did_you_mean(self.metric, progress.metrics) or f"there are: {known}",
            )
        self.measured_at = progress.step
        self.scheduler.step(float(progress.metrics[self.metric]))

    def end(self) -> None:
        if self.measured_at < 0 and not self.progress.stop.interrupts:
            warnings.warn(
                f"The schedule follows {self.metric!r}, which was never measured: the learning"
                " rate stayed as it was.",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"measured_at": self.measured_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.measured_at = state["measured_at"]
