"""Learning-rate schedules in closed form: the factor at a step is a pure function of the step.

So nothing of a schedule needs to be saved, and going on from any step is exact.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from torch.optim import Optimizer

from assay.core.errors import InputError


@runtime_checkable
class Schedule(Protocol):
    """What the base learning rate is multiplied with."""

    def factor(self, step: int, total: int | None) -> float:
        """For the update after `step` completed ones, of `total` in all (None: nobody knows)."""
        ...


class Constant:
    """The base learning rate throughout."""

    def factor(self, step: int, total: int | None) -> float:
        return 1.0


class _Warmup:
    """Linear warm-up to exactly 1, then a decay over what is left."""

    def __init__(
        self,
        *,
        warmup_ratio: float = 0.0,
        warmup_steps: int | None = None,
        start: float = 0.001,
        final: float = 0.0,
    ) -> None:
        if not 0.0 <= warmup_ratio < 1.0:
            raise InputError(f"warmup_ratio is {warmup_ratio}; it is a share of the run, from 0 up to below 1.")
        if warmup_steps is not None and (warmup_steps < 0 or warmup_ratio):
            raise InputError(f"warmup_steps is {warmup_steps}: give a count from 0 on, and not warmup_ratio as well.")
        self.warmup_ratio = warmup_ratio
        self.warmup_steps = warmup_steps
        self.start = start
        self.final = final

    def factor(self, step: int, total: int | None) -> float:
        if total is None:
            raise InputError(
                f"{type(self).__name__} needs to know how long the run is.", fix="Set [train] steps (or epochs)."
            )
        # Rounded first: 0.07 * 100 is a little more than 7.
        warmup = math.ceil(round(self.warmup_ratio * total, 9)) if self.warmup_steps is None else self.warmup_steps
        if step < warmup:
            return self.start + (1.0 - self.start) * step / warmup
        share = min(1.0, (step - warmup) / max(1, total - warmup))
        return self.final + (1.0 - self.final) * self.shape(share)

    def shape(self, share: float) -> float:
        """From 1 at share 0 to 0 at share 1."""
        raise NotImplementedError


class WarmupCosine(_Warmup):
    """Linear warm-up from `start` to 1, then half a cosine down to `final` (Loshchilov & Hutter, arXiv 1608.03983)."""

    def shape(self, share: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * share))


class WarmupLinear(_Warmup):
    """Linear warm-up from `start` to 1, then linearly down to `final`."""

    def shape(self, share: float) -> float:
        return 1.0 - share


class LearningRate:
    """Applies a schedule to an optimizer: each group's rate is its own base rate times the factor."""

    def __init__(self, optimizer: Optimizer, schedule: Schedule | None = None) -> None:
        self.optimizer = optimizer  # not its groups: loading a state replaces their list
        self.schedule = schedule
        self.bases = [float(group.setdefault("initial_lr", group["lr"])) for group in optimizer.param_groups]
        self.total: int | None = None

    def set(self, step: int) -> None:
        """Set the rates for the update after `step` completed ones."""
        if self.schedule is None:
            return
        factor = self.schedule.factor(step, self.total)
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            group["lr"] = base * factor

    @property
    def current(self) -> float:
        """The rate of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])
