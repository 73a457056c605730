"""Optimizer step: losses -> gradients: add up, unscale, clip, check finite -> new weights.

Each part is a module of its own: `losses`, `gradients`, `torch_step`, `schedules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.core.events import Handler
from assay.core.optimizer_closure import needs_closure
from assay.engine.numerics.deferred import DeferredNumbers, DeferredUpdate, Slot
from assay.engine.numerics.dtensor import local_parameters
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.clip import clip_norm_on_device_
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.gradients import Gradients
from assay.engine.optim.losses import (
    Loss,
    Losses,
    LossTerm,
    Read,
    WindowNumbers,
    as_weighted,
    blame_loss,
    read_at,
    read_now,
    sum_losses,
)
from assay.engine.optim.optimizer_step_base import NonFinite, OptimizerStepBase, Stateful
from assay.engine.optim.plateau import Progress
from assay.engine.optim.schedules import LearningRate, Schedule, TorchSchedule
from assay.engine.optim.torch_step import can_leave_out, fill_momentum, take_step


class OptimizerStep(OptimizerStepBase):
    """Update of the weights from the losses of one window: backward, clip, step, schedule.

    A window of several micro-batches gives the gradient of the whole window: means are weighted by
    their real number of samples, (sum, weight) pairs by their weights. A mapping of losses by name
    counts as their sum, each times its factor in `weights` (1 where there is none); each is
    recorded as `train/loss/NAME`. `non_finite` says what happens when loss or gradient norm is not
    finite: stop with the weights as they were, skip the update and count it, or ignore it.

    A window in which nothing has a weight, as where every label is ignored, is no sample: its
    update is skipped and counted under both policies.

    `flag`, where results are deferred, is set on the device for an update that must not be made;
    `lasting` is what it is set to before each, where an update ends the run.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
        non_finite: NonFinite = "stop",
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.optimizers = {"": optimizer}
        self.rate = LearningRate(optimizer, schedule)
        self.clip_norm = clip_norm
        self.non_finite = non_finite
        self.weights = dict(weights or {})
        self.loss = math.nan
        self.losses: dict[str, float] = {}
        self.rates = self.rate.read()
        self.grad_norm: float | None = None
        self._skipped = 0
        self._num_empty = 0
        self.flag: Tensor | None = None
        self.lasting: Tensor | None = None
        self.ranks = DataParallelGroup()
        self.gradients = Gradients(optimizer, factors=self.weights, scale=self.scale_loss)
        self.parameters = self.gradients.parameters
        self._has_stepped = False

    def begin(self, sizes: Sequence[int] | None) -> None:
        self.gradients.begin(sizes, self.ranks)
        self.losses = {}
        if self.flag is not None and self.lasting is not None:
            self.flag.copy_(self.lasting)
        elif self.flag is not None and self.non_finite == "skip":
            self.flag.zero_()

    def __call__(self, loss: Losses) -> None:
        begun = perf_counter()
        try:
            self.gradients.add(loss)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            blame_loss(loss, error)
            raise
        self.seconds += perf_counter() - begun

    def update(self, step: int) -> bool:
        taken = self.prepare(step, defers=self.can_defer_update)
        self.finish(step, take=taken)
        return taken

    @property
    def can_defer_update(self) -> bool:
        """True where the numbers of the next update can be read later.

        The first step is read at once: afterwards the optimizer has its state.
        """
        return self.flag is not None and self._has_stepped and self.gradients.can_defer

    def prepare(self, step: int, *, defers: bool) -> bool:
        """Prepare the gradients for the optimizer; return False when they are not to be used.

        They are added up, divided, unscaled and clipped. The numbers of the window are judged at
        once, or later, where a flag on the device leaves the update out.
        """
        gradients = self.gradients
        gradients.add_up(defers=defers)
        if not self._has_stepped:
            self._check_reach()
        gradients.divide_()
        self._unscale()
        if defers and self.flag is not None:
            self.deferred = self._defer(self.flag)
            return True
        self.deferred = None
        numbers = WindowNumbers(gradients.unnamed, gradients.named)
        if self.clip_norm is not None:
            numbers.norm = gradients.clip_(self.clip_norm)
        elif self.non_finite != "ignore":
            numbers.found = not gradients.are_finite()
        self._recall(numbers, read_now)
        return self._judge(numbers, read_now, step)

    def finish(self, step: int, *, take: bool) -> None:
        """Take the step of the optimizer or leave it out; set the next rate, drop the gradients."""
        if take and self.gradients.has_dtensors:
            with local_parameters(self.optimizer):
                take_step(self.optimizer)
        elif take:
            take_step(self.optimizer)
        self._has_stepped |= take
        if self.rate.schedule is not None:
            self.rates = self.rate.read()
            self.rate.set(step + 1)
        self.gradients.clear()

    def defer(self, flag: Tensor | None) -> bool:
        self.flag = self.lasting = self.deferred = None
        kind = type(self)
        optimizer = self.optimizer
        vars(optimizer).pop("found_inf", None)
        if flag is None or flag.device.type not in ("cpu", "cuda"):
            return False
        has_parts = self.gradients.has_dtensors or not self.ranks.has_whole_model
        if self.ranks.is_distributed and has_parts:  # the flag of another rank may differ
            return False
        # A subclass that replaces one of these may read numbers in it.
        for name in ("update", "prepare", "finish", "_unscale", "_judge"):
            if getattr(kind, name) is not getattr(OptimizerStep, name):
                return False
        if any(parameter.device.type != flag.device.type for parameter in self.parameters):
            return False
        if self.non_finite != "ignore":
            if not can_leave_out(optimizer):
                return False
            optimizer.found_inf = flag  # type: ignore[attr-defined]
        self.flag = flag
        self.lasting = flag.clone() if self.non_finite == "stop" else None
        return True

    def skip_steps(self, count: int) -> None:
        self.rate.skipped = count

    def start(self, step: int, *, total: int | None, epoch_length: int | None) -> None:
        self.rate.start(step, total=total, epoch_length=epoch_length)

    def refit(self, step: int, *, total: int | None, epoch_length: int | None) -> bool:
        return self.rate.refit(step, total=total, epoch_length=epoch_length)

    def walk_schedule(self, steps: int) -> None:
        self.rate.walk(steps)

    def handlers(self, progress: Progress) -> list[Handler]:
        return self.rate.handlers(progress)

    def parts(self, model: nn.Module) -> dict[str, Stateful]:
        schedule = self.rate.schedule
        own = {"schedule": schedule} if isinstance(schedule, TorchSchedule) else {}
        return {**super().parts(model), **own}

    def points(self) -> dict[str, float]:
        if self.rate.schedule is None and self.deferred is None:
            self.rates = self.rate.read()
        points = {**super().points(), "train/lr": self.rates[""]}
        if len(self.rates) > 1:
            points |= {f"train/lr/{name}": rate for name, rate in self.rates.items() if name}
        if self.grad_norm is not None:
            points["train/grad_norm"] = self.grad_norm
        if self.losses:
            points |= {f"train/loss/{name}": value for name, value in self.losses.items()}
        return points

    @property
    def lr(self) -> float:
        """Learning rate of the first group in the newest update."""
        return self.rates[""]

    @property
    def skipped(self) -> int:
        return self._skipped

    @property
    def num_empty(self) -> int:
        return self._num_empty

    @property
    def needs_weights(self) -> bool:
        return self.gradients.shares is not None

    def _check_reach(self) -> None:
        """Raise InputError when no gradient reaches the optimizer, or it calls the loss itself."""
        if not self.gradients.present():
            raise InputError(
                "The loss gives no gradient to any parameter of the optimizer: nothing would be"
                " trained.",
                fix="Make the optimizer from the parameters of the model that is trained; not"
                " all can be frozen.",
            )
        self.gradients.choose_check()
        if needs_closure(type(self.optimizer)):
            raise InputError(
                f"{type(self.optimizer).__name__} computes the loss again within its step: the"
                " step needs a closure.",
                fix="Write the step yourself, as a StepFunction: it may call"
                " optimizer.step(closure).",
            )

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate; fp16 multiplies it by its scale."""
        return loss

    def _unscale(self) -> None:
        """Divide gradients by the loss scale; fp16 alone has one."""

    def _recall(self, numbers: WindowNumbers, read: Read) -> None:
        """Set the results to those of an update; `read` returns what its numbers stand for."""
        self.loss, self.losses = sum_losses(numbers.unnamed, numbers.named, self.weights, read)
        self.grad_norm = None if self.clip_norm is None else read(numbers.norm)
        self.has_loss = self.loss == self.loss or not self._is_empty(numbers, read)
        if not self.has_loss:
            self.grad_norm = None

    def _is_empty(self, numbers: WindowNumbers, read: Read) -> bool:
        """Return whether nothing in a window has a weight; its loss is nan.

        A mean that does not say its weight is over nothing if its gradient is zero.
        """
        trained = self.gradients.trained_terms(numbers.named).values() or [numbers.unnamed]
        if all(term.weight is not None or term.divided_by is not None for term in trained):
            return not any(term.is_counted(read) for term in trained)
        if numbers.largest is not None:
            return bool(read(numbers.largest) == 0)
        return self.gradients.are_zero()

    def _judge(self, numbers: WindowNumbers, read: Read, step: int) -> bool:
        """Return whether an update is made, after `step` completed ones and after `_recall`.

        NonFiniteError where that is the policy.
        """
        if self.non_finite == "ignore":
            return True
        if not self.has_loss:
            self._skipped += 1
            self._num_empty += 1
            return False
        norm = self.grad_norm or 0.0
        if math.isfinite(self.loss + norm) and numbers.is_finite(read):
            return True
        return self._accept_non_finite(step)

    def _accept_non_finite(self, step: int) -> bool:
        """Count an update that is skipped because it is not finite; return False.

        NonFiniteError where the run stops, or skipping cannot help.
        """
        if self.non_finite == "stop" or not self.gradients.are_weights_finite():
            raise self._non_finite_error(step)
        self._skipped += 1
        return False

    def _non_finite_error(self, step: int) -> NonFiniteError:
        """Return the error for an update after `step` completed ones."""
        if not math.isfinite(self.loss):
            what = f"The loss is {self.loss}"
        elif self.grad_norm is None:
            what = "The gradient is not finite"
        else:
            what = f"The gradient norm is {self.grad_norm}"
        if not self.gradients.are_weights_finite():
            return NonFiniteError(
                f"{what} at step {step + 1}: weights became infinite or NaN in a step before.",
                fix="Lower the learning rate, or set [train] clip_norm.",
            )
        return NonFiniteError(
            f"{what} at step {step + 1}.",
            fix="The weights are still those of before. Lower the learning rate, or [train]"
            ' non_finite="skip".',
        )

    def _defer(self, flag: Tensor) -> DeferredUpdate:
        """Clip, and set `flag` if something is not finite; return the numbers to read later.

        Those that count stand before the flag, losses that are only recorded after it.
        """
        gradients = self.gradients
        fill_momentum(self.optimizer)
        row = DeferredNumbers(flag.device)
        unnamed = gradients.unnamed.put(row)
        counted = {
            name: term.put(row) for name, term in gradients.trained_terms(gradients.named).items()
        }
        numbers = WindowNumbers(unnamed, {})
        weight = gradients.weight()
        losses = row.tensors.copy()
        self._defer_norm(numbers, row, flag, has_weight=weight is not None)
        one_or_nan = 1.0 if weight is None else _one_or_nan(weight)
        is_any = row.add(one_or_nan)
        numbers.found = numbers.num_counted = row.add(flag)
        numbers.named = {
            name: counted.get(name) or term.put(row) for name, term in gradients.named.items()
        }
        together = torch.stack(row.tensors)
        if self.non_finite != "ignore":
            gradients.mark(flag, [together[: numbers.num_counted]])
            if not isinstance(is_any, Slot) and math.isnan(is_any):
                flag.fill_(1.0)
        if self.lasting is not None:
            # An empty window leaves out this update, and none of the later ones.
            if isinstance(one_or_nan, Tensor):
                torch.where(one_or_nan.isnan(), self.lasting, flag, out=self.lasting)
            elif weight is None and numbers.largest is not None:
                is_nan = torch.stack(losses).isnan().any() if losses[1:] else losses[0].isnan()
                is_without = is_nan & (row.tensors[numbers.largest] == 0)
                torch.where(is_without, self.lasting, flag, out=self.lasting)
            elif not math.isnan(one_or_nan):
                self.lasting.copy_(flag)
        rates = self.rate.read()

        def recall(values: Sequence[float]) -> None:
            self._recall(numbers, partial(read_at, values))
            self.rates = rates

        def judge(values: Sequence[float], step: int) -> bool:
            return self._judge(numbers, partial(read_at, values), step)

        return DeferredUpdate(together, recall, judge)

    def _defer_norm(
        self, numbers: WindowNumbers, row: DeferredNumbers, flag: Tensor, *, has_weight: bool
    ) -> None:
        """Clip and add the norm to the row; without a limit, mark gradients in `flag`.

        A window whose weight is unknown is empty if its loss is nan and its gradient zero: without
        a limit the row has the largest entry of that.
        """
        if self.clip_norm is not None:
            norm = clip_norm_on_device_(self.parameters, self.clip_norm)
            numbers.norm = numbers.largest = row.add(norm)
            return
        grads = self.gradients.present()
        if self.non_finite != "ignore":
            self.gradients.mark(flag, grads)
        if not has_weight:
            numbers.largest = row.add(torch.nn.utils.get_total_norm(grads, math.inf))

    def deferred_loss(self, loss: Loss, blame: Callable[[int], NonFiniteError]) -> DeferredUpdate:
        """Return the deferred update of other code, of which only the loss is known."""
        numbers = DeferredNumbers(self.parameters[0].device)
        rates = self.rate.read()
        own = as_weighted(loss)
        term = LossTerm([(own.value, 1.0)], None if own.is_mean else own.weight).put(numbers)

        def recall(values: Sequence[float]) -> None:
            self.loss = term.value(partial(read_at, values))
            self.has_loss = True
            self.rates = rates

        def judge(values: Sequence[float], step: int) -> bool:
            if self.non_finite == "stop" and not math.isfinite(self.loss):
                raise blame(step + 1)
            return True

        return DeferredUpdate(torch.stack(numbers.tensors), recall, judge)


def _one_or_nan(weight: Any) -> Tensor | float:
    """Return 1, or nan for a weight of zero, without waiting for the device."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, math.nan, 1.0)
    return 1.0 if weight else math.nan
