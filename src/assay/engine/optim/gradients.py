"""Gradients of one optimizer's parameters over a window, and the losses that they are of.

Each micro-batch adds its loss, with its share or its weight; then they are added up over ranks,
divided, clipped and looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import clip_dtensor_norm_, is_dtensor, local_tensor
from assay.engine.numerics.seed import restore_generators
from assay.engine.numerics.sparse import entries
from assay.engine.optim.clip import clip_norm_
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.losses import (
    Loss,
    Losses,
    LossTerm,
    WeightedLoss,
    as_weighted,
    check_loss_names,
    divisor_of,
    zero_loss,
)


class Gradients:
    """Gradients of all parameters of an optimizer; each micro-batch of a window adds its own.

    `factors` weigh losses by name, 1 where there is none. `scale` returns the loss to
    differentiate; fp16 multiplies it. `shares` are the shares of the micro-batches in the samples
    of the window, None where the window is one batch. A window has an `unnamed` loss or `named`
    ones, never both.

    `hand_on` is called with a loss in place of differentiating it: a pipeline has the rest of the
    graph on other ranks. `has_dtensors` marks parameters that are split over ranks.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        factors: Mapping[str, float],
        scale: Callable[[Tensor], Tensor],
    ) -> None:
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.factors = factors
        self.scale = scale
        self.has_dtensors = any(map(is_dtensor, self.parameters))
        self.hand_on: Callable[[Tensor], None] | None = None
        self.ranks = DataParallelGroup()
        self.shares: Sequence[float] | None = None
        self.unnamed = LossTerm()
        self.named: dict[str, LossTerm] = {}
        self._forget = partial(_forget, optimizer)
        self._zero_grad = _own_zero_grad(optimizer) or self._forget
        self._is_clean = False  # gradients may be there from before, or from a window that failed
        self._sizes: Sequence[int] = ()
        self._samples = 0
        self._micro = 0
        self._kind = ""  # of the losses without a name, where there are several micro-batches
        self._buckets: Any = None  # of the gradients of several ranks
        self._in_buckets: list[int] = []
        self._one: Tensor | None = None
        self._is_alone = True
        self._keeps_graph = False
        self._found: Tensor | None = None
        self._unscaled: Tensor | None = None

    def share_graph(self, *, keep: bool) -> None:
        """Touch only these parameters in a backward pass; `keep` the graph for passes of others."""
        self._is_alone = False
        self._keeps_graph = keep

    # ---------------------------------------------------------------------- losses of a window

    def begin(self, sizes: Sequence[int] | None, ranks: DataParallelGroup) -> None:
        """Begin a window of micro-batches with `sizes` samples; None for a window of one batch.

        InputError where the samples of several micro-batches are unknown.
        """
        if not self._is_clean:
            self.clear()
        self._is_clean = False
        self.ranks = ranks
        if ranks.is_distributed:
            self._choose_buckets()
            self._samples = ranks.step.samples
            self._sizes = sizes or (self._samples,)
            self.shares = [size / self._samples for size in self._sizes]
        elif sizes is None or len(sizes) == 1:
            self.shares = None
        else:
            self._samples = sum(sizes)
            self._sizes = sizes
            if not self._samples:
                raise InputError(
                    "Micro-batches are weighted by their samples, but how many these hold is"
                    " unknown.",
                    fix="Give batches of tensors, or accumulate 1.",
                )
            self.shares = [size / self._samples for size in sizes]
        self._micro = 0
        self._kind = ""
        self.unnamed.clear()
        self.named = {}

    def add(self, loss: Losses) -> None:
        """Add the gradients of one micro-batch.

        InputError when the loss is of another kind than those before.
        """
        if self.ranks.is_distributed:
            loss = self._begin_pass(loss)
        # The plain case first: all that the others need takes 6 % of a bare step.
        if self.shares is None and isinstance(loss, Tensor):
            self.unnamed.scalars.append((loss, 1.0))
            self._differentiate(self.scale(loss))
            return
        if isinstance(loss, Mapping):
            self._add_named(loss)
            return
        own = as_weighted(loss)
        if self.shares is not None:
            if self._kind not in ("", own.kind):
                raise _two_kinds()
            self._kind = own.kind
        value, share, _ = self._add_to(self.unnamed, own, self._micro)
        self._micro += 1
        self._differentiate(self.scale(value if share == 1.0 else value * share))

    def _choose_buckets(self) -> None:
        """Put the parameters that are trained into buckets, unless they are; shards need none."""
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        if self._buckets is not None:
            self._buckets.forget()
            if [id(each) for each in trained] == self._in_buckets:
                return
            self._buckets.close()
        self._in_buckets = [id(each) for each in trained]
        is_sharded = self.ranks.sharding is not None
        self._buckets = None if is_sharded else self.ranks.gradient_buckets(trained)

    def _begin_pass(self, loss: Losses) -> Losses:
        """Begin a backward pass; return the loss, times 0 on a rank that has no batch left."""
        # Sums of several losses are divided by their weights one by one: none may wait for the next
        # pass.
        is_apart = isinstance(loss, Mapping) and any(
            isinstance(part, tuple | WeightedLoss) for part in loss.values()
        )
        is_last = self._micro + 1 == len(self.shares or ())
        self.ranks.begin_backward(is_last=is_apart or is_last)
        is_whole = self.ranks.has_whole_model and not self.has_dtensors and self._is_alone
        is_shared = self.ranks.step.is_open and self._buckets is not None
        if is_last and not is_apart and is_whole and is_shared:
            self._buckets.open()
        return zero_loss(loss) if self.ranks.step.is_idle else loss

    def _add_named(self, losses: Mapping[str, Loss]) -> None:
        """Add the gradients of losses by name: of all means in one pass, of each sum in its own.

        The weight that divides the gradients of a sum is known at the end of the window.
        """
        check_loss_names(losses, self.factors)
        if torch.is_anomaly_enabled():
            self._differentiate_each(losses)
        micro = self._micro
        self._micro += 1
        means: Tensor | None = None
        sums: list[tuple[LossTerm, Tensor]] = []
        for name, loss in losses.items():
            term = self.named.setdefault(name, LossTerm())
            value, share, weight = self._add_to(term, as_weighted(loss), micro)
            factor = self.factors.get(name, 1.0)
            if not factor:
                continue
            part = value * (factor * share)
            if weight is not None:
                sums.append((term, part))
            else:
                means = part if means is None else means + part
        has_sums = any(term.weight is not None for term in self.named.values())
        if self.hand_on is not None and has_sums:
            raise InputError(
                "Losses by name are (sum, weight) pairs, which a pipeline cannot differentiate"
                " one after another.",
                where="forward_step",
                fix="Return means by name, or one (sum, weight) pair.",
            )
        scaled = [(term, self.scale(part)) for term, part in sums]
        try:
            self._add_sums(scaled, keep=means is not None)
            if means is not None:
                self._differentiate(self.scale(means))
        except Exception as error:  # raised as it came, with a note
            error.add_note(
                f"in the backward pass of the losses {', '.join(losses)}; --debug says of which"
            )
            raise

    def _add_to(self, term: LossTerm, loss: WeightedLoss, micro: int) -> tuple[Tensor, float, Any]:
        """Add the loss of micro-batch `micro` to its term; return value, share and weight.

        `value * share` is to be differentiated; the weight divides it once the window is complete,
        None divides nothing. InputError where the term has other kinds of losses.
        """
        value, share, weight = self._split(loss, micro)
        if term.scalars and (term.weight is None) != (weight is None):
            raise _two_kinds()
        term.add(value.detach(), share, weight, over=self._samples if loss.is_mean else 1)
        if self.shares is None:
            term.divided_by = loss.weight
        return value, share, weight

    def _split(self, loss: WeightedLoss, micro: int) -> tuple[Tensor, float, Any]:
        """Return value, share and weight of a loss, as `_add_to`."""
        if self.shares is None:
            return loss.mean(), 1.0, None
        if not loss.is_mean:
            return loss.value, 1.0, loss.weight
        return loss.share(self._sizes[micro]), self.shares[micro], loss.weight

    def trained_terms(self, named: Mapping[str, LossTerm]) -> dict[str, LossTerm]:
        """Return those of the named terms that the weights are trained with: with a factor."""
        return {name: term for name, term in named.items() if self.factors.get(name, 1.0)}

    def weight(self) -> Any:
        """Return the weight of all that is trained with; None where a mean does not say its own."""
        terms = list(self.trained_terms(self.named).values()) if self.named else [self.unnamed]
        weights = [term.divided_by if term.weight is None else term.weight for term in terms]
        return None if any(weight is None for weight in weights) else sum(weights)

    def are_zero(self) -> bool:
        """Return whether every entry is zero, on all ranks; waits for the device."""
        are_zero = not any(bool(entries(local_tensor(grad)).any()) for grad in self.present())
        if self.ranks.is_distributed or self.ranks.is_staged:
            return self.ranks.all_true(are_zero)
        return are_zero

    # -------------------------------------------------------------------------- backward passes

    def present(self) -> list[Tensor]:
        """Return the gradients that there are."""
        return [grad for parameter in self.parameters if (grad := parameter.grad) is not None]

    def clear(self) -> None:
        """Drop the gradients, as the optimizer does it."""
        self._zero_grad()
        self._is_clean = True

    def _differentiate(self, loss: Tensor) -> None:
        """Add the gradients of a loss."""
        if self.hand_on is not None:
            self.hand_on(loss)
            return
        if loss.dim() or loss.is_complex():
            loss.backward()  # type: ignore[no-untyped-call]
            return
        if self._is_alone:
            # A new 1 for each pass, as torch makes it, takes 3 % of a bare step.
            one = self._one
            if one is None or one.dtype != loss.dtype or one.device != loss.device:
                one = self._one = torch.ones_like(loss)
            private_torch.backward(loss, one)
            return
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        torch.autograd.backward(loss, retain_graph=self._keeps_graph, inputs=trained)

    def _differentiate_each(self, losses: Mapping[str, Loss]) -> None:
        """Differentiate each loss alone, so that one that cannot be is named; drop the results."""
        with restore_generators():
            for name, loss in losses.items():
                if not self.factors.get(name, 1.0):
                    continue
                value, _, _ = self._split(as_weighted(loss), 0)
                try:
                    self._gradients_of(self.scale(value), keep=True)
                except Exception as error:  # raised as it came, with a note
                    error.add_note(f"in the backward pass of the loss {name!r}")
                    raise

    def _add_sums(self, sums: Sequence[tuple[LossTerm, Tensor]], *, keep: bool) -> None:
        """Add the gradients of sums to their terms, each in a backward pass of its own.

        `keep`: another backward pass through the graph follows.
        """
        for i, (term, total) in enumerate(sums):
            keeps = keep or i + 1 < len(sums) or self._keeps_graph
            grads = self._gradients_of(total, keep=keeps)
            if term.grads is None:
                term.grads = grads
            else:
                term.grads = [_add(*two) for two in zip(term.grads, grads, strict=True)]

    def _gradients_of(self, loss: Tensor, *, keep: bool) -> list[Tensor | None]:
        """Return the gradients of a loss alone, by parameter; None where it does not reach one."""
        if self.ranks.sharding is not None:
            return self._gradients_of_shards(loss, keep=keep)
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        grads = iter(torch.autograd.grad(loss, trained, retain_graph=keep, allow_unused=True))
        return [next(grads) if parameter.requires_grad else None for parameter in self.parameters]

    def _gradients_of_shards(self, loss: Tensor, *, keep: bool) -> list[Tensor | None]:
        """Return the same where the forward pass used gathered weights, whose parts are ours."""
        before = [parameter.grad for parameter in self.parameters]
        self._forget()
        torch.autograd.backward(loss, retain_graph=keep)
        alone = [parameter.grad for parameter in self.parameters]
        for parameter, grad in zip(self.parameters, before, strict=True):
            parameter.grad = grad
        return alone

    # ------------------------------------------------------------------ once the window is done

    def add_up(self, *, defers: bool = False) -> None:
        """Add up what ranks and sums share.

        With `defers` nothing is read from the device. InputError for sparse gradients of several
        ranks.
        """
        if self.ranks.is_distributed:
            self._add_up_over_ranks(defers=defers)
        else:
            self._settle()

    def divide_(self) -> None:
        """Divide the gradients of (sum, weight) pairs; those of named ones are divided already."""
        if self.unnamed.weight is not None:
            divisor = divisor_of(self.unnamed.weight)
            private_torch.foreach_div_([local_tensor(grad) for grad in self.present()], divisor)

    def clip_(self, max_norm: float) -> float:
        """Scale so that the norm is at most `max_norm`; return the norm before, over all ranks."""
        if self.ranks.is_distributed:
            return self.ranks.clip_grad_norm_(self.parameters, max_norm)
        return (clip_dtensor_norm_ if self.has_dtensors else clip_norm_)(self.parameters, max_norm)

    def _join(self, term: LossTerm) -> None:
        """Add the gradients of a sum, divided by its weight, to those of means."""
        weight = 1.0 if term.weight is None else divisor_of(term.weight)
        for parameter, grad in zip(self.parameters, term.grads or (), strict=False):
            if grad is None:
                continue
            mean = grad / weight
            parameter.grad = mean if parameter.grad is None else parameter.grad + mean
        term.grads = None

    def _add_up_over_ranks(self, *, defers: bool) -> None:
        """Sum losses and gradients over all ranks, to the same bits on each.

        Gradients come first, as some may be on their way; those of sums by name come last: the
        weights of all ranks divide them. The share of a rank may be empty: it has no losses, and
        takes the kinds that the others have.
        """
        step = self.ranks.step
        step.is_open = False
        terms = self.named or ({"": self.unnamed} if self.unnamed.scalars else {})
        own = [[name, term.kind] for name, term in terms.items()]
        kind = json.dumps([bool(self.named), own, self._kind]) if terms else ""
        device = local_tensor(self.parameters[0]).device
        read = partial(_in_double, device=device)
        parts = [part for term in terms.values() for part in (term.sum(read), read(term.weight))]
        none = partial(torch.zeros, dtype=torch.float64, device=device)
        losses = torch.stack(parts) if parts else none(0)
        kind, values, step.has_logged = self.ranks.agree_on_losses(
            kind, losses, has_logged=step.has_logged
        )
        is_named, names, _ = json.loads(kind)
        has_sums = is_named and any(how for _, how in names)
        if not has_sums:
            self._all_reduce_()
        if values is None:
            values = self.ranks.all_reduce_losses(losses if parts else none(2 * len(names)))
        found = iter(values if defers else values.tolist())
        for (name, how), value, weight in zip(names, found, found, strict=True):
            total = torch.as_tensor(value, dtype=torch.float64)
            divisors = {"": None, "pair": weight, "weighed": weight / step.samples}
            divisor = divisors[how]
            term = self.named.setdefault(name, LossTerm()) if is_named else self.unnamed
            if not is_named and divisor is not None:
                total = total / divisor
            term.scalars = [(total, 1.0)]
            term.weight = divisor
            term.over = 1
        self._settle()
        if has_sums:
            self._all_reduce_()

    def _settle(self) -> None:
        """Take the gradients of sums by name in, divided by the weights that are now known."""
        self.unnamed.settle()
        for term in self.named.values():
            term.settle()
            self._join(term)

    def _all_reduce_(self) -> None:
        """Sum the gradients over all ranks; shards are summed already."""
        if self._buckets is not None:
            self._buckets.finish()
        self.ranks.all_reduce_tied_(self.parameters)

    # ------------------------------------------------------------------------ are they finite

    @property
    def can_defer(self) -> bool:
        """True where the kernel of torch is used: only that sets a flag without waiting."""
        return self._found is not None

    def choose_check(self) -> None:
        """Choose the way to look for non-finite values, from the first gradients that there are.

        The kernel of torch, made for `torch.amp.GradScaler`, costs a fifth of a norm. What it
        cannot take is looked at one by one.
        """
        grads = self.present()
        device = grads[0].device
        if all(_is_plain(grad) and grad.device == device for grad in grads):
            # The kernel takes float32 alone, whatever torch's default dtype is.
            self._found = torch.zeros(1, dtype=torch.float32, device=device)
            self._unscaled = torch.ones(1, dtype=torch.float32, device=device)

    def are_finite(self) -> bool:
        """Return whether all entries are finite, on all ranks; waits for the device."""
        grads = self.present()
        if self.has_dtensors and self.ranks.is_distributed:
            return self.is_true_of_all(are_local_parts_finite(grads))
        return self.is_true_of_all(self._are_own_finite(grads))

    def mark(self, flag: Tensor, tensors: list[Tensor]) -> None:
        """Set `flag` if an entry is not finite; nothing waits for the device."""
        assert self._unscaled is not None
        private_torch.check_and_unscale_(tensors, flag, self._unscaled)

    def are_weights_finite(self) -> bool:
        """Return whether the parameters are finite, on all ranks; waits for the device."""
        return self.is_true_of_all(are_local_parts_finite(self.parameters))

    def is_true_of_all(self, value: bool) -> bool:
        """Return whether `value` is true on all ranks that have parts of the model."""
        if self.has_dtensors or self.ranks.is_staged:
            return self.ranks.all_true(value)
        return value

    def _are_own_finite(self, grads: list[Tensor]) -> bool:
        if self._found is None or self._unscaled is None:
            return all(bool(entries(grad).isfinite().all()) for grad in grads)
        private_torch.check_and_unscale_(grads, self._found, self._unscaled)
        if not self._found.item():
            return True
        self._found.zero_()
        return False


def are_local_parts_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all entries are finite; of a distributed tensor, those of this rank."""
    return all(bool(local_tensor(tensor).isfinite().all()) for tensor in tensors)


def _own_zero_grad(optimizer: Optimizer) -> Callable[[], None] | None:
    """Return the `zero_grad` of an optimizer; None if it is torch's."""
    own: Callable[[], None] | None = getattr(optimizer, "zero_grad", None)
    return None if getattr(own, "__func__", None) is Optimizer.zero_grad else own


def _forget(optimizer: Optimizer) -> None:
    """Drop the gradients, as `optimizer.zero_grad()` of torch.

    That opens an entry in a profile, which takes 17 % of a bare step.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _add(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, of which either may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _in_double(value: Tensor | float | None, *, device: torch.device) -> Tensor:
    """Return a number as a tensor on the device, 0 for None; nothing waits for the device."""
    if isinstance(value, Tensor):
        return value.detach().to(device, torch.float64).reshape(())
    # Filled there: a copy from the host would wait for what the device still has to do.
    return torch.full((), value or 0.0, dtype=torch.float64, device=device)


def _is_plain(grad: Tensor) -> bool:
    return (
        grad.layout == torch.strided
        and grad.is_floating_point()
        and grad.device.type in ("cpu", "cuda")
    )


def _two_kinds() -> InputError:
    return InputError(
        "The losses of one window are of two kinds: some are means, some (sum, weight) pairs or"
        " sums.",
        fix="Return the same kind for every batch.",
    )
