"""Gradients of one optimizer's parameters over a window: differentiate, add up, divide, clip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import clip_dtensor_norm_, is_dtensor, local_tensor
from assay.engine.numerics.sparse import entries
from assay.engine.optim import unprofiled
from assay.engine.optim.clip import clip_norm_
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.window_losses import Term, divisor_of


class Gradients:
    """Gradients of all parameters of an optimizer; each loss of a window adds its own.

    `hand_on` is called with a loss in place of differentiating it: a pipeline has the rest of the
    graph on other ranks. `has_dtensors` marks parameters that are split over ranks. `clear()` drops
    the gradients, as the optimizer does it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.has_dtensors = any(map(is_dtensor, self.parameters))
        self.hand_on: Callable[[Tensor], None] | None = None
        self.clear = _clear_of(optimizer)
        self._forget = partial(unprofiled.forget_gradients, optimizer)
        self._one: Tensor | None = None
        self._is_alone = True
        self._keeps_graph = False

    def share_graph(self, *, keep: bool) -> None:
        """Touch only these parameters in a backward pass; `keep` the graph for passes of others."""
        self._is_alone = False
        self._keeps_graph = keep

    def present(self) -> list[Tensor]:
        """Return the gradients that there are."""
        return [grad for parameter in self.parameters if (grad := parameter.grad) is not None]

    def add(self, loss: Tensor) -> None:
        """Add the gradients of a loss: `loss.backward()`, from a 1 that is kept.

        Torch would make a new 1 each time.
        """
        if self.hand_on is not None:
            self.hand_on(loss)
            return
        if loss.dim():
            loss.backward()  # type: ignore[no-untyped-call]
            return
        one = self._one
        if one is None or one.get_device() != loss.get_device() or one.dtype != loss.dtype:
            one = self._one = torch.ones_like(loss)
        if self._is_alone:
            private_torch.backward(loss, one)
            return
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        torch.autograd.backward(loss, one, retain_graph=self._keeps_graph, inputs=trained)

    def add_sums(
        self, sums: Sequence[tuple[Term, Tensor]], *, keep: bool, is_sharded: bool
    ) -> None:
        """Add the gradients of sums to their terms, each in a backward pass of its own.

        `keep`: another backward pass through the graph follows.
        """
        for i, (term, total) in enumerate(sums):
            keeps = keep or i + 1 < len(sums) or self._keeps_graph
            grads = self.of(total, keep=keeps, is_sharded=is_sharded)
            if term.grads is None:
                term.grads = grads
            else:
                term.grads = [_added(*two) for two in zip(term.grads, grads, strict=True)]

    def of(self, loss: Tensor, *, keep: bool, is_sharded: bool) -> list[Tensor | None]:
        """Return the gradients of a loss alone, by parameter; None where it does not reach one.

        `is_sharded`: the forward pass used gathered weights, of which the parameters are parts.
        """
        if is_sharded:
            return self._of_shards(loss, keep=keep)
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        grads = iter(torch.autograd.grad(loss, trained, retain_graph=keep, allow_unused=True))
        return [next(grads) if parameter.requires_grad else None for parameter in self.parameters]

    def _of_shards(self, loss: Tensor, *, keep: bool) -> list[Tensor | None]:
        before = [parameter.grad for parameter in self.parameters]
        self._forget()
        torch.autograd.backward(loss, retain_graph=keep)
        found = [parameter.grad for parameter in self.parameters]
        for parameter, grad in zip(self.parameters, before, strict=True):
            parameter.grad = grad
        return found

    def join(self, terms: Iterable[Term]) -> None:
        """Add the gradients of sums, divided by their weights, to those of means."""
        for term in terms:
            weight = 1.0 if term.weight is None else divisor_of(term.weight)
            for parameter, grad in zip(self.parameters, term.grads or (), strict=False):
                if grad is None:
                    continue
                mean = grad / weight
                parameter.grad = mean if parameter.grad is None else parameter.grad + mean
            term.grads = None

    def all_reduce_(self, ranks: DataParallelGroup) -> None:
        """Sum the gradients over all ranks, to the same bits on each; shards are summed already.

        InputError for sparse gradients.
        """
        if ranks.sharding is not None:
            return
        reached = ranks.all_reduce_stage_values(
            [parameter.grad is not None for parameter in self.parameters]
        )
        for parameter, count in zip(self.parameters, reached, strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = self.present()
        if any(grad.is_sparse for grad in grads):
            raise InputError(
                "Sparse gradients are not shared between processes.", fix="Use dense embeddings."
            )
        ranks.all_reduce_(grads)
        ranks.all_reduce_tied_(self.parameters)

    def divide_(self, weight: Tensor | float) -> None:
        divisor = divisor_of(weight)
        private_torch.foreach_div_([local_tensor(grad) for grad in self.present()], divisor)

    def are_zero(self) -> bool:
        """Return whether there is no gradient but zero; waits for the device."""
        return not any(bool(entries(local_tensor(grad)).any()) for grad in self.present())

    def clip_(self, max_norm: float, ranks: DataParallelGroup) -> float:
        """Scale so that the norm is at most `max_norm`; return the norm before, over all ranks."""
        if ranks.is_distributed:
            return ranks.clip_grad_norm_(self.parameters, max_norm)
        return (clip_dtensor_norm_ if self.has_dtensors else clip_norm_)(self.parameters, max_norm)


def _clear_of(optimizer: Optimizer) -> Callable[[], None]:
    """Return the optimizer's own `zero_grad`; torch's is called without its entry in a profile."""
    own = getattr(optimizer, "zero_grad", None)
    if own is None or getattr(own, "__func__", None) is Optimizer.zero_grad:
        return partial(unprofiled.forget_gradients, optimizer)
    found: Callable[[], None] = own
    return found


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, of which either may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
