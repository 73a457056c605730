"""Losses of one window: each micro-batch adds its own, with its share or its weight."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError, did_you_mean
from assay.engine.numerics.deferred import DeferredNumbers
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.losses import Loss, Read, WeighedMean, check_loss, read_now

_Part = tuple[Tensor, float, Tensor | float | None]
"""(value, share, weight) of a loss: `value * share` is differentiated, and `weight` divides it once
the window is complete; None divides nothing."""


@dataclass(slots=True)
class Term:
    """One loss over a window: without a name, or one of several by name.

    `over` divides the weight: for weighed means the samples of the window, of which their shares
    are. `divided_by` is the weight of a loss that is divided already. `grads` are those of its
    sums, until the weights of all micro-batches are known.
    """

    scalars: list[tuple[Any, float]] = field(default_factory=list)
    weight: Any = None
    grads: list[Tensor | None] | None = None
    over: int = 1
    divided_by: Any = None

    @property
    def kind(self) -> str:
        if self.weight is None:
            return ""
        return "pair" if self.over == 1 else "weighed"

    def add(self, value: Tensor, share: float, weight: Tensor | float | None, *, over: int) -> None:
        """Add the loss of one micro-batch."""
        self.scalars.append((value, share))
        if weight is not None:
            self.weight = weight if self.weight is None else self.weight + weight
            self.over = over

    def settle(self) -> None:
        """Divide the weight by `over`, once all of it is known."""
        if self.weight is not None and self.over != 1:
            self.weight = self.weight / self.over
            self.over = 1

    def sum(self, read: Read) -> float:
        return sum(read(scalar) * share for scalar, share in self.scalars)

    def value(self, read: Read) -> float:
        """Return the loss of the window; nan where its weight is zero."""
        total = self.sum(read)
        if self.weight is None:
            return total
        weight = read(self.weight)
        return total / weight if weight else math.nan

    def put(self, numbers: DeferredNumbers) -> Term:
        """Return the same term, with slots of `numbers` for what is on the device."""
        scalars = [(numbers.add(scalar), share) for scalar, share in self.scalars]
        weight = None if self.weight is None else numbers.add(self.weight)
        return Term(scalars, weight)


class WindowLosses:
    """Losses of the micro-batches of one window, and what each counts in the loss of the window.

    `shares` are the shares of the micro-batches in the samples of the window, None where the window
    is one batch. `has_divided`: sums were divided by their weights at once. A window has an
    `unnamed` loss or `named` ones, never both. `factors` weigh losses by name, 1 where there is
    none.
    """

    def __init__(self) -> None:
        self.shares: Sequence[float] | None = None
        self.unnamed = Term()
        self.named: dict[str, Term] = {}
        self._sizes: Sequence[int] = ()
        self._samples = 0
        self._micro = 0
        self.has_divided = False
        self._kind = ""  # of the losses without a name, where there are several micro-batches

    @property
    def has_named_sums(self) -> bool:
        """True when weights divide named losses once the window is complete."""
        return any(term.weight is not None for term in self.named.values())

    def begin(self, sizes: Sequence[int] | None, ranks: DataParallelGroup) -> None:
        """Begin a window of micro-batches with `sizes` samples; None for a window of one batch.

        InputError where the samples of several micro-batches are unknown.
        """
        if ranks.is_distributed:
            self._samples = ranks.samples
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
        self.has_divided = False
        self.unnamed.scalars.clear()
        self.unnamed.weight = self.unnamed.divided_by = None
        if self.named:
            self.named = {}

    def add(self, loss: Loss) -> Tensor:
        """Add the loss of one micro-batch; return the tensor to differentiate.

        InputError when it is of another kind than those before.
        """
        if self.shares is None and isinstance(loss, Tensor):
            self.unnamed.scalars.append((loss, 1.0))
            return loss
        value, share, weight = self.part_of(loss, self._micro)
        self._micro += 1
        if self.shares is not None:
            self._be_alike(_kind_of(loss))
        self.unnamed.add(value, share, weight, over=self._over(loss))
        if self.shares is None:
            self.unnamed.divided_by = _weight_of(loss)
        return value if share == 1.0 else value * share

    def add_named(
        self, losses: Mapping[str, Loss], factors: Mapping[str, float]
    ) -> tuple[list[tuple[Term, Tensor]], Tensor | None]:
        """Add the losses of one micro-batch by name; return what is to be differentiated.

        Those are (sums, sum of all means). Each sum needs a backward pass of its own: the weight
        that divides its gradients is known at the end of the window.
        """
        micro = self._micro
        self._micro += 1
        means: Tensor | None = None
        sums: list[tuple[Term, Tensor]] = []
        for name, loss in losses.items():
            value, share, weight = self.part_of(loss, micro)
            factor = factors.get(name, 1.0)
            term = self.named.setdefault(name, Term())
            if term.scalars and (term.weight is None) != (weight is None):
                raise _two_kinds()
            term.add(value.detach(), share, weight, over=self._over(loss))
            if self.shares is None:
                term.divided_by = _weight_of(loss)
            if not factor:
                continue
            part = value * (factor * share)
            if weight is not None:
                sums.append((term, part))
            else:
                means = part if means is None else means + part
        return sums, means

    def part_of(self, loss: Loss, micro: int) -> _Part:
        """Return value, share and weight of the loss of micro-batch `micro`."""
        if isinstance(loss, tuple):
            total, weight = loss
            if weight is not None and self.shares is None:
                self.has_divided = True
                return total / divisor_of(weight), 1.0, None
            return total, 1.0, weight
        if not isinstance(loss, WeighedMean):
            return loss, 1.0 if self.shares is None else self.shares[micro], None
        if self.shares is None:
            return loss.value, 1.0, None
        return loss.share(self._sizes[micro]), self.shares[micro], loss.weight

    def settle(self) -> None:
        """Let each weight be what divides its sum, once the window is complete."""
        self.unnamed.settle()
        for term in self.named.values():
            term.settle()

    def all_reduce(self, ranks: DataParallelGroup) -> None:
        """Sum losses and weights over all ranks, to the same bits on each.

        The share of a rank may be empty: it takes the kinds that rank 0 has.
        """
        terms = self.named or ({"": self.unnamed} if self.unnamed.scalars else {})
        own = [[name, term.kind] for name, term in terms.items()]
        flat: list[float] = []
        for term in terms.values():
            flat.append(term.sum(read_now))
            flat.append(float(term.weight or 0.0))
        own_kind = json.dumps([bool(self.named), own, self._kind])
        kind, sums = ranks.all_reduce_losses(own_kind, flat, has_none=not terms)
        is_named, names, _ = json.loads(kind)
        values = sums[::2]
        weights = sums[1::2]
        for (name, how), value, weight in zip(names, values, weights, strict=True):
            total = torch.tensor(value, dtype=torch.float64)
            divisors = {"": None, "pair": weight, "weighed": weight / ranks.samples}
            divisor = divisors[how]
            term = self.named.setdefault(name, Term()) if is_named else self.unnamed
            if not is_named and divisor is not None:
                total = total / divisor
            term.scalars = [(total, 1.0)]
            term.weight = divisor
            term.over = 1

    def counted(self, factors: Mapping[str, float]) -> dict[str, Term]:
        """Return the named terms that the weights are trained with: those with a factor."""
        return {name: term for name, term in self.named.items() if factors.get(name, 1.0)}

    def weight(self, factors: Mapping[str, float]) -> Any:
        """Return the weight of all that is trained with; None where a mean does not say its own."""
        terms = list(self.counted(factors).values()) if self.named else [self.unnamed]
        weights = [term.divided_by if term.weight is None else term.weight for term in terms]
        return None if any(weight is None for weight in weights) else sum(weights)

    def _over(self, loss: Loss) -> int:
        return self._samples if isinstance(loss, WeighedMean) else 1

    def _be_alike(self, kind: str) -> None:
        if self._kind not in ("", kind):
            raise _two_kinds()
        self._kind = kind


def read_losses(
    unnamed: Term, named: Mapping[str, Term], factors: Mapping[str, float], read: Read
) -> tuple[float, dict[str, float]]:
    """Return the loss of a window and its losses by name; `read` returns the number of a scalar.

    InputError when some losses have names, and some have none.
    """
    if not named:
        # A single scalar is divided already.
        if len(unnamed.scalars) == 1:
            return read(unnamed.scalars[0][0]), {}
        return unnamed.value(read), {}
    if unnamed.scalars:
        raise InputError("Of the losses of one window some have names, and some have none.")
    values = {name: term.value(read) for name, term in named.items()}
    counted = [
        factor * values[name]
        for name, term in named.items()
        if (factor := factors.get(name, 1.0)) and (term.weight is None or read(term.weight))
    ]
    return sum(counted) if counted else math.nan, values


def divisor_of(weight: Any) -> Any:
    """Return what divides a sum of this weight: 1 where it is zero, of a sum over nothing."""
    return weight + (weight == 0) if isinstance(weight, Tensor) else weight or 1.0


def check_names(losses: Mapping[str, Loss], factors: Mapping[str, float]) -> None:
    """Raise InputError for a factor without a loss, and for a loss that gives no gradient."""
    for name in factors:
        if name not in losses:
            fix = did_you_mean(name, losses) or f"there are: {', '.join(losses)}"
            raise InputError(
                f"There is a weight for the loss {name!r}, which the step does not give.", fix=fix
            )
    for name, loss in losses.items():
        if factors.get(name, 1.0):
            check_loss(loss, f"the loss {name!r}")
    if not any(factors.get(name, 1.0) for name in losses):
        raise InputError(
            "There is no loss to train with: all of them have the weight 0, or there is none."
        )


def _weight_of(loss: Loss) -> Any:
    if isinstance(loss, tuple):
        return loss[1]
    return loss.weight if isinstance(loss, WeighedMean) else None


def _kind_of(loss: Loss) -> str:
    if isinstance(loss, tuple):
        return "sum" if loss[1] is None else "pair"
    return "weighed" if isinstance(loss, WeighedMean) else "mean"


def _two_kinds() -> InputError:
    return InputError(
        "The losses of one window are of two kinds: some are means, some (sum, weight) pairs or"
        " sums.",
        fix="Return the same kind for every batch.",
    )
