"""From losses to an update: gradients over the real window, clip, step, schedule, zero after the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.core.errors import AssayError, InputError
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
        self.lr = self.rate.current
        self.grad_norm: float | None = None
        self.skipped = 0
        own = getattr(optimizer, "zero_grad", None)
        if own is None or getattr(own, "__func__", None) is Optimizer.zero_grad:
            own = self._forget_gradients
        self._zero_grad: Callable[[], None] = own
        self._shares: Sequence[float] | None = None
        self._micro = 0
        self._weight: Tensor | float | None = None
        self._scalars: list[tuple[Tensor, float]] = []
        self._one: Tensor | None = None
        self._is_clean = False  # gradients may be there from before, or from a window that failed
        self._is_known_to_reach = False
        self._finder: tuple[Tensor, Tensor] | None = None  # what torch's own check of gradients needs, where it works

    def begin(self, sizes: Sequence[int] | None) -> None:
        """A window begins. `sizes`: samples of each micro-batch; None for a window of one batch."""
        if not self._is_clean:
            self._zero_grad()
        self._is_clean = False
        if sizes is None or len(sizes) == 1:
            self._shares = None
        else:
            total = sum(sizes)
            if not total:
                raise InputError(
                    "Micro-batches are weighted by their samples, but how many these hold is unknown.",
                    fix="Give batches of tensors, or accumulate 1.",
                )
            self._shares = [size / total for size in sizes]
        self._micro = 0
        self._weight = None
        self._scalars.clear()

    def __call__(self, loss: Loss) -> None:
        """Add the gradients of one micro-batch. InputError when the loss is none."""
        try:
            if isinstance(loss, tuple):
                self._backward_sum(*loss)
            elif self._shares is None:
                self._differentiate(loss)
                self._scalars.append((loss, 1.0))
            else:
                share = self._shares[self._micro]
                self._micro += 1
                self._differentiate(loss * share)
                self._scalars.append((loss, share))
        except (AttributeError, RuntimeError, TypeError) as error:
            _blame_loss(loss, error)
            raise

    def update(self, step: int) -> bool:
        """Clip, step, set the rate of the next update, zero. False when the update was left out.

        Raises NonFiniteError, with the weights untouched, when that is the policy.
        """
        if not self._is_known_to_reach:
            self._check_reach()
        self.loss = self._read_loss()
        self.lr = self.rate.current
        if self._weight is not None:
            weight = self._weight
            if self._micro:
                raise InputError(
                    "The losses of one window are of two kinds: some are means, some (sum, weight) pairs.",
                    fix="Return the same kind for every batch.",
                )
            torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], weight)
        self.grad_norm = None if self.clip_norm is None else clip_norm_(self.parameters, self.clip_norm)
        if not self._is_finite():
            if self.non_finite == "stop" or (self.non_finite == "skip" and not self._are_weights_finite()):
                raise self._non_finite(step)
            if self.non_finite == "skip":
                self.skipped += 1
                self._end(step)
                return False
        self.optimizer.step()
        self._end(step)
        return True

    def _end(self, step: int) -> None:
        if self.rate.schedule is not None:
            self.rate.set(step + 1)
        self._zero_grad()
        self._is_clean = True

    def _forget_gradients(self) -> None:
        """As torch's `zero_grad`, without its entry in a profile: that costs more than the engine does otherwise."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _is_finite(self) -> bool:
        if self.grad_norm is not None:
            return math.isfinite(self.loss + self.grad_norm)
        return math.isfinite(self.loss) and (self.non_finite == "ignore" or self._are_gradients_finite())

    def _are_gradients_finite(self) -> bool:
        grads = [grad for parameter in self.parameters if (grad := parameter.grad) is not None]
        if self._finder is None:
            return all(bool(_values(grad).isfinite().all()) for grad in grads)
        found, one = self._finder
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, one)  # a fifth of what a norm costs
        if not found.item():
            return True
        found.zero_()
        return False

    def _check_reach(self) -> None:
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self._is_known_to_reach = bool(grads)
        if grads and all(_is_plain(grad) and grad.device == grads[0].device for grad in grads):
            self._finder = torch.zeros(1, device=grads[0].device), torch.ones(1, device=grads[0].device)
        if not grads:
            raise InputError(
                "The loss gives no gradient to any parameter of the optimizer: nothing would be trained.",
                fix="Make the optimizer from the parameters of the model that is trained; not all can be frozen.",
            )

    def _are_weights_finite(self) -> bool:
        return all(bool(parameter.isfinite().all()) for parameter in self.parameters)

    def _non_finite(self, step: int) -> NonFiniteError:
        what = "The gradient is not finite" if self.grad_norm is None else f"The gradient norm is {self.grad_norm}"
        if not math.isfinite(self.loss):
            what = f"The loss is {self.loss}"
        if not self._are_weights_finite():
            return NonFiniteError(
                f"{what} at step {step + 1}: weights became infinite or NaN in a step before.",
                fix="Lower the learning rate, or set [train] clip_norm.",
            )
        return NonFiniteError(
            f"{what} at step {step + 1}.",
            fix='The weights are still those of before. Lower the learning rate, or [train] non_finite="skip".',
        )

    def _backward_sum(self, total: Tensor, weight: Tensor | float) -> None:
        if self._shares is None:
            loss = total / weight
            self._differentiate(loss)
            self._scalars.append((loss, 1.0))
            return
        self._differentiate(total)
        self._weight = weight if self._weight is None else self._weight + weight
        self._scalars.append((total, 1.0))

    def _differentiate(self, loss: Tensor) -> None:
        """`loss.backward()`, from a 1 that is kept: torch would make a new one each time."""
        if loss.dim():
            loss.backward()  # type: ignore[no-untyped-call]
            return
        if self._one is None or self._one.get_device() != loss.get_device() or self._one.dtype != loss.dtype:
            self._one = torch.ones_like(loss)
        torch.autograd.backward(loss, self._one)

    def _read_loss(self) -> float:
        if len(self._scalars) == 1:
            return self._scalars[0][0].item()
        total = sum(scalar.item() * share for scalar, share in self._scalars)
        return total if self._weight is None else total / float(self._weight)


def _is_plain(grad: Tensor) -> bool:
    return grad.layout == torch.strided and grad.is_floating_point() and grad.device.type in ("cpu", "cuda")


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def _blame_loss(loss: object, error: Exception) -> None:
    """Raise InputError if `error` came from a loss that nothing can be learned from; its type and shape tell."""
    total = loss[0] if isinstance(loss, tuple) and len(loss) == 2 else loss
    if not isinstance(total, Tensor):
        kind = f"tuple of {len(total)}" if isinstance(total, tuple) else type(total).__name__
        what = f"The loss is a {kind}; it must be a tensor, or a (sum, weight) pair."
        fix = "Return what the criterion gave, not its .item() or .detach()."
    elif total.numel() != 1:
        what = f"The loss has the shape {tuple(total.shape)}; it must be one number."
        fix = "Return loss.mean(), or the pair (loss.sum(), weight)."
    elif not total.requires_grad:
        what = "The loss has no gradient: it depends on no parameter that is trained."
        fix = "Was it detached, or computed under no_grad, or is every parameter of the model frozen?"
    else:
        return
    raise InputError(what, where="forward_step", fix=fix) from error
