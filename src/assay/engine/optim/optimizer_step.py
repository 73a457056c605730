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
        self._is_known_to_reach = False

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
        taken = self.prepare(step)
        self.finish(step, take=taken)
        return taken

    def prepare(self, step: int) -> bool:
        """Prepare the gradients for the optimizer; return False when they are not to be used."""
        gradients = self.gradients
        # The first step is read at once: afterwards the optimizer has its state.
        defers = self.flag is not None and self._is_known_to_reach and gradients.can_defer
        gradients.add_up(defers=defers)
        if not self._is_known_to_reach:
            self._check_reach()
        elif self.flag is not None and defers:
            self.deferred = self._deferred_update(self.flag)
            return True
        self.deferred = None
        self.loss, self.losses = gradients.read_losses(read_now)
        is_odd = math.isnan(self.loss) or gradients.has_divided
        if is_odd and self.non_finite != "ignore" and gradients.are_empty():
            return self._leave_out()
        gradients.divide_()
        if not self._unscale(step):
            return False
        self.grad_norm = None
        if self.clip_norm is not None:
            self.grad_norm = gradients.clip_(self.clip_norm)
        return self._is_finite() or self._accept_non_finite(step)

    def finish(self, step: int, *, take: bool) -> None:
        """Take the step of the optimizer or leave it out; set the next rate, drop the gradients."""
        if take and self.gradients.has_dtensors:
            with local_parameters(self.optimizer):
                take_step(self.optimizer)
        elif take:
            take_step(self.optimizer)
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
        for name in ("update", "prepare", "finish", "_unscale"):
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
        points = {"train/loss": self.loss, "train/lr": self.rates[""]}
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

    @property
    def results(self) -> tuple[float, dict[str, float], float | None, dict[str, float]]:
        """Recorded results of an update: loss, losses by name, norm and learning rates."""
        return self.loss, self.losses, self.grad_norm, self.rates

    @results.setter
    def results(
        self, results: tuple[float, dict[str, float], float | None, dict[str, float]]
    ) -> None:
        self.loss, self.losses, self.grad_norm, self.rates = results

    def _check_reach(self) -> None:
        """Raise InputError when no gradient reaches the optimizer, or it calls the loss itself."""
        if not self.gradients.present():
            raise InputError(
                "The loss gives no gradient to any parameter of the optimizer: nothing would be"
                " trained.",
                fix="Make the optimizer from the parameters of the model that is trained; not"
                " all can be frozen.",
            )
        self._is_known_to_reach = True
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

    def _unscale(self, step: int) -> bool:
        """Divide gradients by the loss scale; return whether they can be used. No scale here."""
        return True

    def _is_finite(self) -> bool:
        if self.grad_norm is not None:
            return math.isfinite(self.loss + self.grad_norm)
        if not math.isfinite(self.loss):
            return False
        return self.non_finite == "ignore" or self.gradients.are_finite()

    def _leave_out(self) -> bool:
        """Count an update that is left out because the window is empty."""
        self.loss = math.nan
        self.grad_norm = None
        self._skipped += 1
        self._num_empty += 1
        return False

    def _accept_non_finite(self, step: int) -> bool:
        """Apply the policy for a non-finite update: True if it is made, False if skipped.

        NonFiniteError where the run stops, or skipping cannot help.
        """
        if self.non_finite == "ignore":
            return True
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

    def _deferred_update(self, flag: Tensor) -> DeferredUpdate:
        """Clip, and set `flag` if something is not finite; return the numbers to read later.

        Those that count stand before the flag, losses that are only recorded after it.
        """
        gradients = self.gradients
        gradients.divide_()
        fill_momentum(self.optimizer)
        numbers = DeferredNumbers(flag.device)
        unnamed = gradients.unnamed.put(numbers)
        counted = {name: term.put(numbers) for name, term in gradients.trained_terms().items()}
        weight = gradients.weight()
        losses = numbers.tensors.copy()
        norm = self._defer_norm(numbers, flag, has_weight=weight is not None)
        one_or_nan = 1.0 if weight is None else _one_or_nan(weight)
        is_any = numbers.add(one_or_nan)
        num_counted = numbers.add(flag)
        named = {
            name: counted.get(name) or term.put(numbers) for name, term in gradients.named.items()
        }
        together = torch.stack(numbers.tensors)
        if self.non_finite != "ignore":
            gradients.mark(flag, [together[:num_counted]])
            if not isinstance(is_any, Slot) and math.isnan(is_any):
                flag.fill_(1.0)
        if self.lasting is not None:
            # An empty window leaves out this update, and none of the later ones.
            if isinstance(one_or_nan, Tensor):
                torch.where(one_or_nan.isnan(), self.lasting, flag, out=self.lasting)
            elif weight is None and norm is not None:
                is_nan = torch.stack(losses).isnan().any() if losses[1:] else losses[0].isnan()
                is_without = is_nan & (numbers.tensors[norm] == 0)
                torch.where(is_without, self.lasting, flag, out=self.lasting)
            elif not math.isnan(one_or_nan):
                self.lasting.copy_(flag)
        rates = self.rate.read()

        def is_empty(values: Sequence[float]) -> bool:
            if weight is not None or norm is None:
                return math.isnan(read_at(values, is_any))
            return any(map(math.isnan, values[: len(losses)])) and values[norm] == 0

        def recall(values: Sequence[float]) -> None:
            read = partial(read_at, values)
            self.loss, self.losses = sum_losses(unnamed, named, self.weights, read)
            if is_empty(values):
                self.loss = math.nan
            self.rates = rates
            self.grad_norm = None if norm is None or self.clip_norm is None else values[norm]

        def judge(values: Sequence[float], step: int) -> NonFiniteError | None:
            if self.non_finite == "ignore":
                return None
            if is_empty(values):
                self._leave_out()
                return None
            has_gradient = not values[num_counted] and (norm is None or math.isfinite(values[norm]))
            if has_gradient and all(map(math.isfinite, values[:num_counted])):
                return None
            if self.non_finite == "stop" or not self.gradients.are_weights_finite():
                return self._non_finite_error(step - 1)
            self._skipped += 1
            return None

        return DeferredUpdate(together, recall, judge)

    def _defer_norm(
        self, numbers: DeferredNumbers, flag: Tensor, *, has_weight: bool
    ) -> Slot | None:
        """Clip and return the slot of the norm; without a limit, mark gradients in `flag`.

        A window whose weight is unknown is empty if its loss is nan and its gradient zero: the slot
        is then that of the largest entry.
        """
        if self.clip_norm is not None:
            norm: Slot = numbers.add(clip_norm_on_device_(self.parameters, self.clip_norm))
            return norm
        if self.non_finite == "ignore":
            return None
        grads = self.gradients.present()
        self.gradients.mark(flag, grads)
        if has_weight:
            return None
        largest: Slot = numbers.add(torch.nn.utils.get_total_norm(grads, math.inf))
        return largest

    def deferred_loss(self, loss: Loss, blame: Callable[[int], NonFiniteError]) -> DeferredUpdate:
        """Return the deferred update of other code, of which only the loss is known."""
        numbers = DeferredNumbers(self.parameters[0].device)
        rates = self.rate.read()
        own = as_weighted(loss)
        term = LossTerm([(own.value, 1.0)], None if own.is_mean else own.weight).put(numbers)

        def recall(values: Sequence[float]) -> None:
            self.loss = term.value(partial(read_at, values))
            self.rates = rates

        def judge(values: Sequence[float], step: int) -> NonFiniteError | None:
            return None if self.non_finite != "stop" or math.isfinite(self.loss) else blame(step)

        return DeferredUpdate(torch.stack(numbers.tensors), recall, judge)


def _one_or_nan(weight: Any) -> Tensor | float:
    """Return 1, or nan for a weight of zero, without waiting for the device."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, math.nan, 1.0)
    return 1.0 if weight else math.nan
