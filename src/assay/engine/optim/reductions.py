"""Denominators of losses: what torch divided a mean by, noted while the loss is computed.

The loss of several micro-batches, of several ranks or of a whole split is the sum of their sums
over the sum of their weights. But a criterion returns a mean alone: over samples, over elements,
over targets that are not ignored, over the weights of classes. So the functions of torch that
reduce are watched, and what each result was divided by is kept beside it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from assay.core.errors import InputError
from assay.engine.optim.losses import LOSS, WeightedLoss, detach_loss

Weight = Tensor | int
"""A number that follows from shapes, or a tensor on the device of the loss."""
Reduction = Literal["mean", "sum"]
"""A mean over the samples of a batch, or a sum."""


@dataclass(frozen=True, slots=True)
class _Reduced:
    """One number that torch made of many; `numel` is how many, 0 where that is not known any more.

    `weight` is what a mean was divided by, made when it is asked for if it depends on the data;
    None for a sum.
    """

    result: Tensor  # kept alive: no other tensor gets its id
    weight: Callable[[], Tensor] | int | None
    numel: int = 0


class Reductions(TorchFunctionMode):
    """Context that records which means and sums torch computes, to tell a loss's denominator.

    `samples` is the size of the batch. `weigh` returns a loss with its denominator. A multiple of
    a mean is a mean, and so is the sum of two with the same denominator. Results are the same as
    without it, and no device waits.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self._known: dict[int, _Reduced] = {}
        self._stacks: dict[int, tuple[Tensor, list[_Reduced | None]]] = {}
        self._selected: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def knows(self, loss: object) -> bool:
        """Return whether this tensor is a mean or a sum that was watched."""
        return id(loss) in self._known

    def weight(self, loss: Tensor) -> Weight | None:
        """Return what a mean was divided by; None for anything else."""
        known = self._known.get(id(loss))
        if known is None:
            return None
        return known.weight() if callable(known.weight) else known.weight

    def weigh(self, loss: Any, who: object, reduction: Reduction | None = None) -> Any:
        """Return a loss of `who` as an engine adds it up: with its weight, unless a sample mean.

        `reduction` classifies a loss of unknown origin. Without it such a loss raises InputError,
        which tells how to declare it, if gradients are wanted; in an evaluation it counts as a mean
        over the samples.
        """
        if isinstance(loss, Mapping):
            return {name: self.weigh(part, who, reduction) for name, part in loss.items()}
        if not isinstance(loss, Tensor) or reduction == "mean":
            return loss
        if reduction == "sum":
            return WeightedLoss(loss, None, is_mean=False)
        known = self._known.get(id(loss))
        if known is None and torch.is_grad_enabled():
            raise _unknown(who)
        weight = self.weight(loss)
        is_sample_mean = isinstance(weight, int) and self._is_regular(weight)
        if known is None or is_sample_mean:
            return loss
        if weight is None:
            return WeightedLoss(loss, None, is_mean=False)
        # The quotient of two whole numbers would be of single precision.
        if isinstance(weight, Tensor):
            dtype = torch.promote_types(loss.dtype, torch.float32)
            weight = weight.to(dtype)
        return WeightedLoss(loss, weight)

    @staticmethod
    def report(loss: Any, weighted: Any) -> dict[str, Any]:
        """Return the loss in the output of a process, and in evaluation also its denominator."""
        output = {LOSS: detach_loss(loss)}
        if not torch.is_grad_enabled() and isinstance(weighted, WeightedLoss):
            output[f"{LOSS}_weight"] = weighted.weight
        return output

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not torch.compiler.is_compiling():
            note = _NOTES.get(func)
            known = note(self, result, args, kwargs or {}) if note is not None else None
            if known is not None:
                self._known[id(result)] = _Reduced(result, known.weight, known.numel)
            else:
                self._known.pop(id(result), None)  # an operation in place may have changed it
        return result

    def reduction_of(self, value: Any) -> _Reduced | None:
        """Return what is known of a result of before."""
        return self._known.get(id(value)) if isinstance(value, Tensor) else None

    def stack(self, result: Tensor, parts: Sequence[Any]) -> None:
        """Note a tensor that is made of several numbers."""
        self._stacks[id(result)] = result, [self.reduction_of(part) for part in parts]

    def select(self, result: Tensor) -> None:
        """Note a tensor of the entries that a mask lets through."""
        self._selected[id(result)] = result

    def combine(self, parts: Sequence[_Reduced | None]) -> _Reduced | None:
        """Return the sum of several, or their mean; None where their denominators are not one."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or not known:
            return None
        first = known[0]
        weights = [part.weight for part in known]
        if all(weight is first.weight or weight == first.weight for weight in weights):
            return replace(first, numel=0)
        if all(isinstance(weight, int) and self._is_regular(weight) for weight in weights):
            return _Reduced(first.result, self.samples)
        return None

    def whole(self, source: Tensor) -> tuple[_Reduced | None, int]:
        """Return (what is known of the numbers in `source` together, how many entries it has).

        (None, 0) for a tensor that is not about the samples of the batch.
        """
        if not source.dim():
            return self.reduction_of(source), 0
        if id(source) in self._stacks:
            _, parts = self._stacks[id(source)]
            return self.combine(parts), 0
        is_ours = id(source) in self._selected or self._is_regular(source.shape[0])
        return None, source.numel() if is_ours else 0

    def _is_regular(self, count: int) -> bool:
        return self.samples > 0 and count % self.samples == 0 and count > 0


def _unknown(who: object) -> InputError:
    name = who.__name__ if inspect.isroutine(who) else type(who).__name__
    return InputError(
        f"A step has several micro-batches, and what {name} divides its loss by is unknown:"
        " they cannot be added up.",
        fix=f"Let {name} return the pair (sum, weight); or say what it returns: reduction ="
        ' "mean" (over the samples'
        ' of the batch) or "sum" under [process], or as an argument.',
    )


_Note = Callable[[Reductions, Tensor, Sequence[Any], Mapping[str, Any]], _Reduced | None]

# ------------------------------------------------------------------------------- criteria of torch


def _broadcast(*shapes: torch.Size) -> torch.Size:
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return shape


def _elements(given: Mapping[str, Any]) -> int:
    first, second, *_ = given.values()
    return math.prod(_broadcast(first.shape, second.shape))


def _elements_of_three(given: Mapping[str, Any]) -> int:
    first, second, third, *_ = given.values()
    return math.prod(_broadcast(first.shape, second.shape, third.shape))


def _rows(given: Mapping[str, Any]) -> int:
    """Count what is left when the last dim, the classes, is gone."""
    first: Tensor = next(iter(given.values()))
    return math.prod(first.shape[:-1])


def _rows_of_two(given: Mapping[str, Any]) -> int:
    first, second, *_ = given.values()
    return math.prod(_broadcast(first.shape, second.shape)[:-1])


def _sequences(given: Mapping[str, Any]) -> int:
    log_probs: Tensor = given["log_probs"]  # (time, batch, classes), or without the batch
    return log_probs.shape[1] if log_probs.dim() == 3 else 1


def _divergence(given: Mapping[str, Any]) -> int:
    batch: int = given["input"].shape[0]
    return batch if given["reduction"] == "batchmean" else _elements(given)


def _weighted_elements(given: Mapping[str, Any]) -> Callable[[], Tensor] | int:
    weight: Tensor | None = given.get("weight")
    return _elements(given) if weight is None else weight.sum


def _classes(given: Mapping[str, Any]) -> Callable[[], Tensor] | int:
    """Return what cross entropy divides by: the weights of the targets that are not ignored."""
    target: Tensor = given["target"]
    if target.is_floating_point():  # probabilities: each sample counts as one, whatever the weights
        return target.numel() // target.shape[min(1, target.dim() - 1)]
    weight: Tensor | None = given["weight"]
    ignored = -100 if given["ignore_index"] is None else given["ignore_index"]

    def count() -> Tensor:
        counted = target != ignored
        if weight is None:
            return counted.sum()
        classes = torch.where(counted, target, 0)
        return torch.where(counted, weight[classes], 0.0).sum()

    return count


_DENOMINATORS: dict[Any, Callable[[Mapping[str, Any]], Callable[[], Tensor] | int]] = {
    F.l1_loss: _weighted_elements,
    F.mse_loss: _weighted_elements,
    F.huber_loss: _elements,
    F.smooth_l1_loss: _elements,
    F.binary_cross_entropy: _elements,
    F.binary_cross_entropy_with_logits: _elements,
    F.poisson_nll_loss: _elements,
    F.gaussian_nll_loss: _elements,
    F.hinge_embedding_loss: _elements,
    F.soft_margin_loss: _elements,
    F.margin_ranking_loss: _elements_of_three,
    F.kl_div: _divergence,
    F.multi_margin_loss: _rows,
    F.multilabel_margin_loss: _rows,
    F.multilabel_soft_margin_loss: _rows,
    F.cosine_embedding_loss: _rows_of_two,
    F.triplet_margin_loss: _rows_of_two,
    F.triplet_margin_with_distance_loss: _rows_of_two,
    F.ctc_loss: _sequences,
    F.cross_entropy: _classes,
    F.nll_loss: _classes,
}
if hasattr(F, "linear_cross_entropy"):  # torch 2.13
    _DENOMINATORS[F.linear_cross_entropy] = _classes


def _criterion(func: Any) -> _Note:
    """Make the note of a function of `torch.nn.functional` that has a parameter `reduction`."""
    denominator = _DENOMINATORS[func]
    defaults = {name: each.default for name, each in inspect.signature(func).parameters.items()}

    def note(
        watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> _Reduced | None:
        # Torch has bound the arguments before: there are no wrong ones.
        positional = dict(zip(defaults, args, strict=False))
        given = {**defaults, **positional, **kwargs}
        if given.get("size_average") is not None or given.get("reduce") is not None:
            return None  # of torch before 0.4
        match given["reduction"]:
            case "sum":
                return _Reduced(result, None)
            case "mean" | "batchmean":
                return _Reduced(result, denominator(given))
        return None

    return note


# ---------------------------------------------------------------------- means, sums and arithmetic


def _source(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    source: Tensor = args[0] if args else kwargs["input"]
    return source


def _mean(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    if result.dim():
        return None
    known, count = watch.whole(_source(args, kwargs))
    if known is None and count:
        return _Reduced(result, count)
    return known


def _sum(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    if result.dim():
        return None
    known, count = watch.whole(_source(args, kwargs))
    if known is None and count:
        return _Reduced(result, None, count)
    return known


def _identity(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    return watch.reduction_of(_source(args, kwargs))


def _product(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    one, other = (*args, *kwargs.values())[:2]
    if isinstance(other, int | float):
        return watch.reduction_of(one)
    return watch.reduction_of(other) if isinstance(one, int | float) else None


def _quotient(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    one, other = (*args, *kwargs.values())[:2]
    known = watch.reduction_of(one)
    if known is None:
        return None
    if isinstance(other, int | float):
        is_count = known.weight is None and other in (watch.samples, known.numel) and other > 0
        return _Reduced(result, int(other)) if is_count else known
    if known.weight is None and not other.requires_grad and not other.dim():
        # A sum over what a mask lets through, divided by their number.
        return _Reduced(result, lambda: other)
    return None


def _total(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    one, other = (*args, *kwargs.values())[:2]
    known_one = watch.reduction_of(one)
    known_other = watch.reduction_of(other)
    for known, shift in ((known_one, other), (known_other, one)):
        if known is not None and isinstance(shift, int | float):
            is_sum = known.weight is None
            return None if is_sum and shift else known
    return watch.combine([known_one, known_other])


def _stack(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    parts = args[0] if args else kwargs["tensors"]
    if any(not part.dim() or part.numel() == 1 for part in parts):
        watch.stack(result, parts)


def _selection(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    mask = args[1] if len(args) > 1 else kwargs.get("mask")
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        watch.select(result)


_OPERATIONS: dict[str, _Note] = {
    **dict.fromkeys(("mean",), _mean),
    **dict.fromkeys(("sum",), _sum),
    **dict.fromkeys(
        ("to", "float", "double", "half", "bfloat16", "type", "cpu", "cuda"), _identity
    ),
    **dict.fromkeys(("clone", "detach", "contiguous", "neg", "negative", "squeeze"), _identity),
    **dict.fromkeys(("mul", "multiply", "mul_", "__rmul__"), _product),
    **dict.fromkeys(("div", "divide", "true_divide", "div_"), _quotient),
    **dict.fromkeys(
        ("add", "add_", "__radd__", "sub", "subtract", "sub_", "rsub", "__rsub__"), _total
    ),
    **dict.fromkeys(("stack", "hstack", "cat", "concat"), _stack),
    **dict.fromkeys(("__getitem__", "masked_select"), _selection),
}
_NOTES: dict[Any, _Note] = {func: _criterion(func) for func in _DENOMINATORS}
_NOTES |= {
    getattr(owner, name): note
    for name, note in _OPERATIONS.items()
    for owner in (torch, Tensor)
    if hasattr(owner, name)
}
