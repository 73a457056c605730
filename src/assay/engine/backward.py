"""From losses to an update: gradients over the real window, clip, step, schedule, zero after the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.core.errors import AssayError
from assay.engine.clip import clip_norm_
from assay.engine.schedules import LearningRate, Schedule

NonFinite = Literal["stop", "skip", "ignore"]
Loss = Tensor | tuple[Tensor, Tensor | float]
"""A mean over the batch, or (sum, weight): then the window's loss is the sum of sums over the sum of weights."""


class NonFiniteError(AssayError):
    """A loss or gradient became nan or infinite; the weights are those of before the step."""


class Backward:
    """Owns the order of one update; the engine tells it which window is coming.

    A window of several micro-batches gives the gradient of the whole window: means are weighted by their real number
    of samples, (sum, weight) pairs by their weights. `non_finite` says what happens when loss or gradient norm is not
    finite: stop with the weights as they were, skip the update and count it, or ignore it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
        non_finite: NonFinite = "stop",
    ) -> None:
        self.optimizer = optimizer
        self.rate = LearningRate(optimizer, schedule)
        self.clip_norm = clip_norm
        self.non_finite = non_finite
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.loss: float = math.nan
        self.grad_norm: float | None = None
        self.skipped = 0
        self._shares: Sequence[float] | None = None
        self._micro = 0
        self._weight: Tensor | float | None = None
        self._scalars: list[tuple[Tensor, float]] = []

    def begin(self, sizes: Sequence[int] | None) -> None:
        """A window begins. `sizes`: samples of each micro-batch; None for a window of one batch."""
        if sizes is None or len(sizes) == 1:
            self._shares = None
        else:
            total = sum(sizes)
            self._shares = [size / total for size in sizes]
        self._micro = 0
        self._weight = None
        self._scalars.clear()

    def __call__(self, loss: Loss) -> None:
        """Add the gradients of one micro-batch."""
        if isinstance(loss, tuple):
            self._backward_sum(*loss)
        elif self._shares is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self._scalars.append((loss, 1.0))
        else:
            share = self._shares[self._micro]
            self._micro += 1
            (loss * share).backward()  # type: ignore[no-untyped-call]
            self._scalars.append((loss, share))

    def update(self, step: int) -> bool:
        """Clip, step, set the rate of the next update, zero. False when the update was left out.

        Raises NonFiniteError, with the weights untouched, when that is the policy.
        """
        self.loss = self._read_loss()
        if self._weight is not None:
            weight = self._weight
            torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], weight)
        self.grad_norm = None if self.clip_norm is None else clip_norm_(self.parameters, self.clip_norm)
        if not math.isfinite(self.loss if self.grad_norm is None else self.loss + self.grad_norm):
            if self.non_finite == "stop":
                what = "loss" if not math.isfinite(self.loss) else "gradient norm"
                raise NonFiniteError(
                    f"The {what} is {self.loss if what == 'loss' else self.grad_norm} at step {step + 1}.",
                    fix='The weights are still those of before. Lower the learning rate, or [train] non_finite="skip".',
                )
            if self.non_finite == "skip":
                self.skipped += 1
                self.optimizer.zero_grad()
                return False
        self.optimizer.step()
        if self.rate.schedule is not None:
            self.rate.set(step + 1)
        self.optimizer.zero_grad()
        return True

    def _backward_sum(self, total: Tensor, weight: Tensor | float) -> None:
        if self._shares is None:
            loss = total / weight
            loss.backward()  # type: ignore[no-untyped-call]
            self._scalars.append((loss, 1.0))
            return
        total.backward()  # type: ignore[no-untyped-call]
        self._weight = weight if self._weight is None else self._weight + weight
        self._scalars.append((total, 1.0))

    def _read_loss(self) -> float:
        if len(self._scalars) == 1:
            return self._scalars[0][0].item()
        total = sum(scalar.item() * share for scalar, share in self._scalars)
        return total if self._weight is None else total / float(self._weight)
