"""State of a training run: counters and results that handlers, users and checkpoints share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from assay.core.events import Event
from assay.core.stop import Stop

SAVED = (
    *("epoch", "epoch_step", "epoch_samples", "step", "micro_step", "samples"),
    *("loss", "metrics", "evaluated", "best", "ends_epoch", "length_error"),
)


class MeanLoss:
    """Mean of the finite losses of steps since the last `take`."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, loss: float) -> None:
        if math.isfinite(loss):
            self.total += loss
            self.count += 1

    def take(self) -> float:
        """Return the mean and begin anew; nan without a finite loss."""
        mean = self.total / self.count if self.count else math.nan
        self.total, self.count = 0.0, 0
        return mean


@dataclass(slots=True, kw_only=True, repr=False)
class State:
    """All counters say what is completed, start at 0 and never count evaluation.

    `step` counts optimizer updates, `micro_step` forward/backward passes, `epoch_step` updates
    within the epoch, `samples` training samples, `epoch_samples` those of the epoch;
    `valid_samples` those that this process evaluated, which checkpoints do not keep: whether
    somebody looks must not change them.
    `loss` is the mean loss of the newest step. `max_steps` is what the run is expected to do in
    all, None when nobody can know: epochs end with their data, and `epoch_length` is an estimate.
    `step_bound` is the step that ends the run, if any does, `last_of_samples` the one that reaches
    a bound in samples, where the size of a batch is known. `claimed_length` is what the data says
    of the length of this epoch, `length_error` what it said of the last one and what that was,
    where these differ. `batch` and `output` are those of the newest micro-batch; on an accelerator
    `output` is None in training, unless a handler of yours may read it, since the backward pass
    needs its memory. `dataloader` is what batches come from; while a split is evaluated, the loader
    of that. `metrics` holds the newest evaluation, by name (`valid/acc`), and `evaluated` at which
    step it was, by split; `split` is the one that is being evaluated. `mean_loss` gathers the
    losses of steps once it is set. `stop` says whether somebody asked the run to end, `ends_epoch`
    whether the epoch is to end after this step (`Engine.end_epoch`). `left_out` counts steps whose
    update was not made, as it was not finite.
    """

    epoch: int = 0
    epoch_step: int = 0
    step: int = 0
    micro_step: int = 0
    samples: int = 0
    epoch_samples: int = 0
    valid_samples: int = 0
    max_epochs: int | None = None
    step_bound: int | None = None
    last_of_samples: int | None = None
    epoch_length: int | None = None
    claimed_length: int | None = None
    length_error: list[int | None] | None = None
    _loss: float | Callable[[], float] = float("nan")
    batch: Any = None
    output: Any = None
    dataloader: Any = None
    metrics: dict[str, Any] = field(default_factory=dict)
    evaluated: dict[str, int] = field(default_factory=dict)
    split: str = ""
    mean_loss: MeanLoss | None = None
    best: dict[str, Any] | None = None
    stop: Stop = field(default_factory=Stop)
    ends_epoch: bool = False
    left_out: int = 0
    error: BaseException | None = None

    def __repr__(self) -> str:
        steps = f"step {self.step}" + (f" of {self.max_steps}" if self.max_steps else "")
        # A loss that is still on the device is not waited for.
        losses = (
            [] if callable(self._loss) or math.isnan(self._loss) else [f"loss {self._loss:.4g}"]
        )
        values = [
            f"{name} {value:.4g}"
            for name, value in self.metrics.items()
            if isinstance(value, float)
        ]
        return f"<State {', '.join([f'epoch {self.epoch}', steps, *losses, *values])}>"

    @property
    def loss(self) -> float:
        """Mean loss of the newest step; reading it waits for the device that holds it."""
        if callable(self._loss):
            self._loss = self._loss()
        return self._loss

    @loss.setter
    def loss(self, loss: float | Callable[[], float]) -> None:
        self._loss = loss

    @property
    def max_steps(self) -> int | None:
        """Steps that the run is expected to make: its bound, or what its epochs come to."""
        bounds = (self.step_bound, self.last_of_epochs, self.last_of_samples)
        return min((bound for bound in bounds if bound is not None), default=None)

    @max_steps.setter
    def max_steps(self, bound: int | None) -> None:
        self.step_bound = bound

    @property
    def last_of_epochs(self) -> int | None:
        """Expected last step of the last epoch; None if nobody can know."""
        if self.max_epochs is None or self.epoch_length is None:
            return None
        left = max(0, self.max_epochs - self.epoch) * self.epoch_length - self.epoch_step
        return self.step + max(0, left)

    def count_step(self, samples: int) -> None:
        """Count a step of so many samples."""
        self.step += 1
        self.epoch_step += 1
        self.samples += samples
        self.epoch_samples += samples

    def describe_left_out(self) -> str:
        """Return how many updates were left out, such as "12 of 15 updates were left out"."""
        were = "update was" if self.step == 1 else "updates were"
        return f"{self.left_out:,} of {self.step:,} {were} left out" if self.left_out else ""

    def event_counts(self) -> dict[Event, int]:
        """Return the counts at which the events of epochs and steps are fired next."""
        return {
            Event.STEP_BEGIN: self.step,
            Event.STEP_END: self.step + 1,
            Event.EPOCH_BEGIN: self.epoch,
            Event.EPOCH_END: self.epoch + 1,
            Event.BACKWARD_BEGIN: self.micro_step,
            Event.BACKWARD_END: self.micro_step + 1,
        }

    @property
    def local_iteration(self) -> int:
        return self.epoch_step

    @local_iteration.setter
    def local_iteration(self, iteration: int) -> None:
        self.epoch_step = iteration

    @property
    def global_iteration(self) -> int:
        return self.step

    @global_iteration.setter
    def global_iteration(self, iteration: int) -> None:
        self.step = iteration

    @property
    def max_iterations(self) -> int | None:
        return self.max_steps

    @max_iterations.setter
    def max_iterations(self, bound: int | None) -> None:
        # A bound that is behind the run would never be met: the run ends at the current step.
        self.max_steps = None if bound is None else max(bound, self.step)

    @property
    def consumed_train_samples(self) -> int:
        return self.samples

    @property
    def consumed_valid_samples(self) -> int:
        return self.valid_samples

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: no batch, output, dataloader or bounds."""
        return {name: deepcopy(getattr(self, name)) for name in SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in SAVED:
            if name in state:
                setattr(self, name, deepcopy(state[name]))
        self.left_out = state.get("left_out", 0)
