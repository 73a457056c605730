"""Learning-rate schedules in closed form: the factor at a step is a pure function of the step.

So nothing of such a schedule needs to be saved, and a run resumes exactly from any step. A
scheduler of torch has a state, which a checkpoint keeps. ReduceLROnPlateau follows a metric
(`plateau`).
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, Unpack, runtime_checkable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from assay.core.errors import InputError
from assay.core.events import Handler
from assay.engine.checkpoint.optimizer_state import settings_of
from assay.engine.optim.plateau import PlateauFollower, Progress

Unit = Literal["step", "epoch"]


@runtime_checkable
class Factor(Protocol):
    """Factor of the base learning rate.

    A schedule with an attribute `unit = "epoch"` is asked in completed epochs instead of steps.
    """

    def factor(self, step: int, total: int | None) -> float:
        """For the update after `step` completed ones, of `total` in all (None: nobody knows)."""
        ...


Schedule = Factor | LRScheduler
"""Schedule of an `OptimizerStep`: a closed-form factor, or a torch scheduler of its optimizer."""


class Constant:
    """The base learning rate throughout."""

    def factor(self, step: int, total: int | None) -> float:
        return 1.0


class Noam:
    """Linear warm-up for `warmup_steps`, then inverse-square-root decay.

    The factor is scale * model_size ** -0.5 * min(n ** -0.5, n * warmup_steps ** -1.5) at update
    number n, from 1 (Vaswani et al., arXiv 1706.03762). It is a learning rate by itself: give the
    optimizer lr = 1.
    """

    def __init__(self, model_size: int, *, warmup_steps: int = 4000, scale: float = 1.0) -> None:
        for name, value in {"model_size": model_size, "warmup_steps": warmup_steps}.items():
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1.")
        self.model_size = model_size
        self.warmup_steps = warmup_steps
        self.scale = scale

    def factor(self, step: int, total: int | None) -> float:
        number = step + 1
        rise = number * self.warmup_steps**-1.5
        return float(self.scale * self.model_size**-0.5 * min(number**-0.5, rise))


class Warming(TypedDict, total=False):
    """Base of the schedules with a warmup."""

    warmup_ratio: float
    warmup_steps: int | None
    warmup_epochs: int | None
    start: float
    unit: Unit


class _Warmup:
    """Linear warm-up from `start` to exactly 1, then a decay.

    The warm-up is a count of steps, or a share of the run rounded up to whole ones. With `unit =
    "epoch"` the rate changes only between epochs: all is counted in epochs, and the count is
    `warmup_epochs`.
    """

    def __init__(
        self,
        *,
        warmup_ratio: float = 0.0,
        warmup_steps: int | None = None,
        warmup_epochs: int | None = None,
        start: float = 0.001,
        unit: Unit = "step",
    ) -> None:
        if unit not in ("step", "epoch"):
            raise InputError(
                f"unit is {unit!r}; a schedule counts in steps or epochs.",
                fix='Use "step" or "epoch".',
            )
        if not 0.0 <= warmup_ratio < 1.0:
            raise InputError(
                f"warmup_ratio is {warmup_ratio}; it is a share of the run, from 0 up to below 1."
            )
        counts = {"warmup_steps": warmup_steps, "warmup_epochs": warmup_epochs}
        for name, count in counts.items():
            if count is not None and (count < 0 or warmup_ratio):
                raise InputError(
                    f"{name} is {count}: give a count from 0 on, and not warmup_ratio as well."
                )
            if count is not None and name != f"warmup_{unit}s":
                raise InputError(
                    f"{name} is given, but the schedule counts in {unit}s.",
                    fix=f"Use warmup_{unit}s.",
                )
        self.warmup_ratio = warmup_ratio
        self.warmup = counts[f"warmup_{unit}s"]
        self.start = start
        self.unit = unit

    def factor(self, step: int, total: int | None) -> float:
        warmup = self._warmup(total)
        if step < warmup:
            return self.start + (1.0 - self.start) * step / warmup
        return self._decay(step, warmup, total)

    def check_length(self, total: int) -> None:
        """Raise InputError for a warm-up that is longer than the run of `total` steps or epochs."""
        warmup = self._warmup(total)
        if warmup > total:
            raise InputError(
                f"The warm-up takes {warmup:,} {self.unit}s, and the run has {total:,}.",
                fix=f"Lower warmup_{self.unit}s, or give warmup_ratio, a share of the run.",
            )

    def _warmup(self, total: int | None) -> int:
        if self.warmup is not None:
            return self.warmup
        # Rounded first: 0.07 * 100 is a little more than 7.
        return (
            math.ceil(round(self.warmup_ratio * self._need_total(total), 9))
            if self.warmup_ratio
            else 0
        )

    def _need_total(self, total: int | None) -> int:
        if total is None:
            raise InputError(
                f"{type(self).__name__} needs to know how long the run is.",
                fix="Set [train] steps (or epochs).",
            )
        return total

    def _decay(self, step: int, warmup: int, total: int | None) -> float:
        """The factor after the warm-up."""
        raise NotImplementedError


class _Decay(_Warmup):
    """Linear warm-up to exactly 1, then a decay to `final` over what is left of the run."""

    def __init__(self, *, final: float = 0.0, **warmup: Unpack[Warming]) -> None:
        super().__init__(**warmup)
        self.final = final

    def _decay(self, step: int, warmup: int, total: int | None) -> float:
        left = self._need_total(total) - warmup
        share = min(1.0, (step - warmup) / max(1, left))
        return self.final + (1.0 - self.final) * self.shape(share)

    def shape(self, share: float) -> float:
        """From 1 at share 0 to 0 at share 1."""
        raise NotImplementedError


class WarmupCosine(_Decay):
    """Linear warm-up from `start` to 1, then half a cosine down to `final`.

    Loshchilov & Hutter, arXiv 1608.03983.
    """

    def shape(self, share: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * share))


class WarmupLinear(_Decay):
    """Linear warm-up from `start` to 1, then linearly down to `final`."""

    def shape(self, share: float) -> float:
        return 1.0 - share


class WarmupPoly(_Decay):
    """Linear warm-up from `start` to 1, then (1 - share of the rest) ** `power` down to `final`."""

    def __init__(
        self, *, power: float = 2.0, final: float = 0.0, **warmup: Unpack[Warming]
    ) -> None:
        super().__init__(final=final, **warmup)
        if power <= 0:
            raise InputError(f"power is {power}; it must be greater than 0.")
        self.power = power

    def shape(self, share: float) -> float:
        return float((1.0 - share) ** self.power)


class WarmupStep(_Warmup):
    """Linear warm-up from `start` to 1, then times `gamma` every `step_size` steps (or epochs).

    The steps are counted from the end of the warm-up.
    """

    def __init__(self, step_size: int, *, gamma: float = 0.1, **warmup: Unpack[Warming]) -> None:
        super().__init__(**warmup)
        if step_size < 1:
            raise InputError(f"step_size is {step_size}; it must be at least 1.")
        self.step_size = step_size
        self.gamma = gamma

    def _decay(self, step: int, warmup: int, total: int | None) -> float:
        return float(self.gamma ** ((step - warmup) // self.step_size))


class WarmupMultiStep(_Warmup):
    """Linear warm-up from `start` to 1, then times `gamma` at each of `milestones`.

    A milestone is a moment of the run: steps (or epochs) from its beginning, or a share of it below
    1, rounded down.
    """

    def __init__(
        self, milestones: Sequence[float], *, gamma: float = 0.1, **warmup: Unpack[Warming]
    ) -> None:
        super().__init__(**warmup)
        for each in milestones:
            if each <= 0 or (each > 1 and each % 1):
                what = "a count above 0, or a share of the run below 1"
                raise InputError(f"The milestone {each} is no moment of a run: it must be {what}.")
        self.milestones = tuple(milestones)
        self.gamma = gamma

    def _decay(self, step: int, warmup: int, total: int | None) -> float:
        passed = sum(step >= self._moment(each, total) for each in self.milestones)
        return float(self.gamma**passed)

    def _moment(self, milestone: float, total: int | None) -> int:
        return (
            int(round(milestone * self._need_total(total), 9)) if milestone < 1 else int(milestone)
        )


class WarmupExponential(_Warmup):
    """Linear warm-up from `start` to 1, then times `gamma` at every step (or epoch)."""

    def __init__(self, gamma: float, **warmup: Unpack[Warming]) -> None:
        super().__init__(**warmup)
        self.gamma = gamma

    def _decay(self, step: int, warmup: int, total: int | None) -> float:
        return float(self.gamma ** (step - warmup))


class TorchSchedule:
    """Schedule of `torch.optim.lr_scheduler`, stepped per optimizer step or per epoch.

    A scheduler of torch without this wrapper is stepped per optimizer step. ReduceLROnPlateau is
    stepped after each evaluation, with the value of `metric`: valid/loss where none is given.

    A checkpoint keeps the scheduler's own state, and a resumed run has it from there.
    """

    def __init__(
        self, scheduler: LRScheduler, *, unit: Unit = "step", metric: str | None = None
    ) -> None:
        follows = isinstance(scheduler, ReduceLROnPlateau)
        if metric is not None and not follows:
            raise InputError(
                f"metric is {metric!r}, and {type(scheduler).__name__} follows the steps.",
                fix="Leave metric out: it is for ReduceLROnPlateau.",
            )
        self.scheduler = scheduler
        self.metric = (metric or "valid/loss") if follows else None
        self.unit: Unit = "step" if follows else unit
        self.optimizer: Optimizer = scheduler.optimizer
        self._count = 0
        self._first = self._newest = self._take_snapshot()
        self._begins_anew = False

    def put(self, count: int) -> None:
        """Set the groups to their values after `count` steps (or epochs).

        InputError for a count that the scheduler does not have.
        """
        if self.metric is not None:
            return  # the metric decides, and a checkpoint keeps the rate that it has led to
        if self._begins_anew:
            self._run_anew(count)
        elif count < self._count:
            self._restore(self._newest if self._newest.count <= count else self._first)
        elif count > self._count and self.unit == "epoch":
            self._newest = self._take_snapshot()  # an epoch that goes on takes its end back
        self._advance(count)

    def check_length(self, total: int) -> None:
        """Raise InputError for a scheduler that ends before the run of `total` steps or epochs."""
        last = getattr(self.scheduler, "total_steps", None)  # OneCycleLR raises beyond it
        if isinstance(last, int) and last < total:
            raise InputError(
                f"{type(self.scheduler).__name__} has {last:,} steps, and the run has {total:,}"
                f" {self.unit}s.",
                fix=f"Give it total_steps = {total}.",
            )

    def sets(self, name: str) -> bool:
        """Return whether a setting of the groups is a function of the step alone, or may be.

        A scheduler of the user's may set all of them.
        """
        groups = self.optimizer.param_groups
        cycles = any("base_momentum" in group for group in groups)  # OneCycleLR, CyclicLR
        is_set = name in _RATES or (cycles and name in _MOMENTA) or not _is_of_torch(self.scheduler)
        return self.metric is None and is_set

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state; the settings that it changes are the optimizer's."""
        kind = type(self.scheduler).__name__
        return {"type": kind, "count": self._count, "scheduler": _scheduler_state(self.scheduler)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a scheduler of this class; another one is run from its beginning."""
        if state["type"] != type(self.scheduler).__name__:
            self.begin_anew({})
            return
        self._count = state["count"]
        _load_scheduler_state(self.scheduler, state["scheduler"])
        self._newest = self._take_snapshot()

    def begin_anew(self, state: Mapping[str, Any]) -> None:
        """Keep the settings that this run gives to scheduler and optimizer; `state` has others.

        The scheduler is then run from its beginning to the step of the run. ReduceLROnPlateau
        cannot be: it keeps what it has seen.
        """
        self._begins_anew = self.metric is None
        if self.metric is not None and state.get("type") == type(self.scheduler).__name__:
            own = state["scheduler"]["own"]
            self.scheduler.load_state_dict(
                {**self.scheduler.state_dict(), **{name: own[name] for name in _SEEN}}
            )

    def _advance(self, count: int) -> None:
        if count == self._count:
            return
        with warnings.catch_warnings():
            if not getattr(self.optimizer, "_opt_called", False):  # torch's own mark
                # Torch warns if no update came before, as when one was left out.
                warnings.filterwarnings(
                    "ignore", message=r".*(lr_scheduler\.step\(\)|has been overridden)"
                )
            while self._count < count:
                self._step()

    def _step(self) -> None:
        try:
            self.scheduler.step()
        except ValueError as error:
            raise InputError(
                f"{type(self.scheduler).__name__} ends after {self._count:,} {self.unit}s: {error}",
                fix="Make it as long as the run, or bound the run: [train] steps.",
            ) from error
        self._count += 1

    def _run_anew(self, count: int) -> None:
        """Run the scheduler from its beginning; settings that it does not change stay as loaded."""
        self._begins_anew = False
        loaded = settings_of(self.optimizer)
        self._restore(self._first)
        changed = set(_RATES)
        while self._count < count:
            self._advance(self._count + 1)
            for settings, first in zip(
                settings_of(self.optimizer), self._first.settings, strict=True
            ):
                changed |= {key for key in settings if settings[key] != first.get(key)}
        for group, settings in zip(self.optimizer.param_groups, loaded, strict=True):
            group.update({key: each for key, each in settings.items() if key not in changed})

    def _take_snapshot(self) -> _Snapshot:
        settings = copy.deepcopy(settings_of(self.optimizer))
        return _Snapshot(self._count, _scheduler_state(self.scheduler), settings)

    def _restore(self, snapshot: _Snapshot) -> None:
        self._count = snapshot.count
        _load_scheduler_state(self.scheduler, snapshot.scheduler)
        groups = self.optimizer.param_groups
        for group, settings in zip(groups, snapshot.settings, strict=True):
            group.update(copy.deepcopy(settings))


def _is_of_torch(scheduler: Any) -> bool:
    """Return True if a scheduler, and each that it is made of, is a class of torch."""
    parts = getattr(scheduler, "_schedulers", ())  # SequentialLR, ChainedScheduler: torch 2.11
    is_own = type(scheduler).__module__.startswith("torch.optim.")
    return is_own and all(map(_is_of_torch, parts))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """State of a scheduler after `count` steps, with the settings of its optimizer."""

    count: int
    scheduler: Mapping[str, Any]
    settings: Sequence[Mapping[str, Any]]


def _scheduler_state(scheduler: LRScheduler) -> dict[str, Any]:
    """Return a copy of what the scheduler gives of its state, as plain data.

    Schedulers among its attributes, as of a warm-up that wraps another, are `inner` ones. Functions
    are left out, as torch leaves out those of LambdaLR.
    """
    given = scheduler.state_dict()
    inner = {key: each for key, each in given.items() if isinstance(each, LRScheduler)}
    own = {key: each for key, each in given.items() if key not in inner and not callable(each)}
    return {
        "own": copy.deepcopy(own),
        "inner": {key: _scheduler_state(each) for key, each in inner.items()},
    }


def _load_scheduler_state(scheduler: LRScheduler, state: Mapping[str, Any]) -> None:
    scheduler.load_state_dict(copy.deepcopy(state["own"]))
    for key, each in state["inner"].items():
        _load_scheduler_state(getattr(scheduler, key), each)


_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
_MOMENTA = ("momentum", "base_momentum", "max_momentum", "betas")
"""Settings that schedulers of torch change or leave in the groups."""
_SEEN = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
"""Attributes of ReduceLROnPlateau that a step changes, besides the rates of the optimizer."""


class LearningRate:
    """Applies a schedule to an optimizer: each group's rate is its own base rate times the factor.

    `total` is the number of steps of the run, `epoch_length` those of one epoch, where they are
    known; `skipped` those that past epochs had fewer than an epoch of that length.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule | None = None) -> None:
        _refuse_non_finite(optimizer)
        self.optimizer = optimizer  # not its groups: loading a state replaces their list
        self.schedule: Factor | TorchSchedule | None = (
            None if schedule is None else _applicable(schedule, optimizer)
        )
        self.bases = [
            float(group.setdefault("initial_lr", group["lr"])) for group in optimizer.param_groups
        ]
        self.total: int | None = None
        self.epoch_length: int | None = None
        self.skipped = 0
        self._counts_epochs = getattr(self.schedule, "unit", "step") == "epoch"
        self._apart = {number for number, base in enumerate(self.bases) if base != self.bases[0]}

    def start(self, step: int, *, total: int | None, epoch_length: int | None) -> None:
        """Set the length of the run, and the rates after `step` completed updates.

        InputError for a schedule that does not fit the length.
        """
        self.total, self.epoch_length = total, epoch_length
        if self._counts_epochs:
            _, total = self._in_epochs(step)
        if total is not None and isinstance(self.schedule, TorchSchedule | _Warmup):
            self.schedule.check_length(total)
        self.set(step)

    def refit(self, step: int, *, total: int | None, epoch_length: int | None) -> bool:
        """Set another expected length, and the rates after `step` completed updates.

        Return whether a run of the new length has other rates.
        """
        before = self.total
        self.total, self.epoch_length = total, epoch_length
        self.set(step)
        schedule = self.schedule
        if schedule is None or isinstance(schedule, TorchSchedule) or self._counts_epochs:
            return False  # they count on, however long the run is
        if before is None or total is None or before == total:
            return False
        last = max(0, min(before, total) - 1)
        return schedule.factor(last, before) != schedule.factor(last, total)

    def walk(self, steps: int) -> None:
        """Set the rates of the run, but of at most so many `steps`, and then those of its start.

        InputError where the schedule has none, or one that is not finite.
        """
        for step in range(1, min(steps, self.total or 0)):
            self.set(step)
            for group in self.optimizer.param_groups:
                if not math.isfinite(group["lr"]):
                    rate = float(group["lr"])
                    raise InputError(f"After {step:,} steps the schedule sets the rate {rate}.")
        self.set(0)

    def handlers(self, progress: Progress) -> list[Handler]:
        """Return the handlers of a schedule that follows a metric of `progress`."""
        schedule = self.schedule
        if not isinstance(schedule, TorchSchedule) or schedule.metric is None:
            return []
        return PlateauFollower(schedule.scheduler, schedule.metric, progress).handlers()

    def set(self, step: int) -> None:
        """Set the rates for the update after `step` completed ones."""
        if self.schedule is None:
            return
        total = self.total
        if self._counts_epochs:
            step, total = self._in_epochs(step)
        if isinstance(self.schedule, TorchSchedule):
            self.schedule.put(step)
            return
        factor = self.schedule.factor(step, total)
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            group["lr"] = base * factor

    def _in_epochs(self, step: int) -> tuple[int, int | None]:
        if self.epoch_length is None:
            raise InputError(
                "The schedule counts in epochs, but how many steps an epoch has is unknown.",
                fix='Use unit = "step", or give training data of known length.',
            )
        epoch = (step + self.skipped) // self.epoch_length
        if self.total is None:
            return epoch, None
        return epoch, math.ceil((self.total + self.skipped) / self.epoch_length)

    def read(self) -> dict[str, float]:
        """Return the rate of the first group as "", and of others by name where it is another.

        A group without a `name` has its number. One that had another rate once is always there.
        """
        groups = self.optimizer.param_groups
        rates = {"": float(groups[0]["lr"])}
        for number in range(1, len(groups)):
            rate = float(groups[number]["lr"])
            if number in self._apart or rate != rates[""]:
                self._apart.add(number)
                rates[str(groups[number].get("name", number + 1))] = rate
        return rates


def _refuse_non_finite(optimizer: Optimizer) -> None:
    """Raise InputError for an infinite or NaN setting; an optimizer of others may mean it so."""
    is_of_torch = type(optimizer).__module__.startswith("torch.")
    for group in optimizer.param_groups:
        for name, value in group.items():
            numbers = value if isinstance(value, tuple) else (value,)
            if (is_of_torch or name == "lr") and any(
                isinstance(number, float) and not math.isfinite(number) for number in numbers
            ):
                raise InputError(
                    f"{name} of {type(optimizer).__name__} is {value}: it must be finite.",
                    fix=f"Set [optimizer] {name}.",
                )


def _applicable(schedule: Any, optimizer: Optimizer) -> Factor | TorchSchedule:
    """InputError for what is no schedule, or one that was made for another optimizer."""
    if isinstance(schedule, LRScheduler):
        schedule = TorchSchedule(schedule)
    if isinstance(schedule, TorchSchedule):
        if schedule.optimizer is not optimizer:
            raise InputError(
                f"The {type(schedule.scheduler).__name__} was made for another optimizer than"
                " the one that is stepped."
            )
        return schedule
    if not hasattr(schedule, "factor"):
        raise InputError(
            f"[schedule] is a {type(schedule).__name__}; a schedule gives a factor for each step.",
            fix='Use type = "assay.engine.WarmupCosine" or "torch.optim.lr_scheduler.StepLR".',
        )
    return schedule  # type: ignore[no-any-return]
