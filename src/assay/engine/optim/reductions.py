"""Denominators of losses: what torch divided a mean by, noted while the loss is computed.

The loss of several micro-batches, of several ranks or of a whole split is the sum of their sums
over the sum of their weights. But a criterion returns a mean alone: over samples, over elements,
over targets that are not ignored, over the weights of classes. So the functions of torch that
reduce are watched:

1. The weight of a criterion of torch is the number that it divides by, as a table says; with
   `reduction="sum"` it is a sum.
2. `.mean()` of a tensor whose first dim is the batch is a mean over the samples.
3. The weight of a sum over a sum, as in `(loss * mask).sum() / mask.sum()`, is the second one.
4. A number times such a loss is one, if Python has read nothing of the batch, and so is the sum of
   means over the samples.
5. Anything else is unknown: refused where losses are added up, and in an evaluation a mean over the
   samples, which is said.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import getattr_static
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from assay.core.errors import InputError
from assay.engine.optim.denominators import DENOMINATORS, Count
from assay.engine.optim.losses import LOSS, WeightedLoss, detach_loss

Weight = Tensor | int
"""A number that follows from shapes, or a tensor on the device of the loss."""
Reduction = Literal["mean", "sum"]
"""A mean over the samples of a batch, or a sum."""

LENGTH, VALUE = 1, 2
"""What the code has read of a tensor into Python: its length, or a value. A number that it computes
afterwards may depend on the batch, and is no constant any more."""
ROUNDING = 1e-5
"""At most so much keeps a divisor from zero; it changes no loss."""


@dataclass(frozen=True, slots=True)
class _Reduced:
    """One number that torch made of many.

    Kinds: a "mean"; a "sum" of a criterion; a "part": the sum of a tensor, of which only what it is
    over another one is known; a "bound": a part that is 1 where it would be less.

    `weight` is what divided a mean, made when it is asked for if it depends on the data; None for
    one over the samples. That of a bound is the part. `has_rows`: it is of a tensor whose first dim
    is the batch. `divisor` is a bound that divided a mean in place of its weight.
    """

    result: Tensor  # kept alive: no other tensor gets its id
    kind: Literal["mean", "sum", "part", "bound"]
    weight: Callable[[], Tensor] | Tensor | int | None = None
    has_rows: bool = False
    divisor: Tensor | None = None


class Reductions(TorchFunctionMode):
    """Context that records which means and sums torch computes, to tell a loss's denominator.

    `samples` is the size of the batch. `weigh` returns a loss with its denominator. Results are the
    same as without it, and no device waits. `is_unsure`: a loss was unknown, and counted as a mean
    over the samples.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.read = 0
        self.is_unsure = False
        self._known: dict[int, _Reduced] = {}
        self._mixed: dict[int, Tensor] = {}

    def knows(self, loss: object) -> bool:
        """Return whether this tensor is a mean or a sum that can be added up."""
        known = self.find(loss)
        return known is not None and known.kind in ("mean", "sum")

    def weight(self, loss: object) -> Weight | None:
        """Return what a mean was divided by; None for one over the samples, and anything else."""
        known = self.find(loss)
        weight = known.weight if known is not None and known.kind == "mean" else None
        return weight if weight is None or isinstance(weight, Tensor | int) else weight()

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
        if not self.knows(loss):
            if torch.is_grad_enabled():
                raise _unknown(who)
            self.is_unsure = True
            return loss
        known = self._known[id(loss)]
        weight = self.weight(loss)
        if weight is None:
            return loss if known.kind == "mean" else WeightedLoss(loss, None, is_mean=False)
        # The quotient of two whole numbers would be of single precision.
        dtype = torch.promote_types(loss.dtype, torch.float32)
        weight = weight.to(dtype) if isinstance(weight, Tensor) else weight
        if known.divisor is None:
            return WeightedLoss(loss, weight)
        return WeightedLoss(loss * known.divisor.to(dtype), weight, is_mean=False)

    @staticmethod
    def report(loss: Any, weighted: Any) -> dict[str, Any]:
        """Return the loss in the output of a process, and in evaluation also its denominator."""
        if torch.is_grad_enabled() or not isinstance(weighted, WeightedLoss):
            return {LOSS: detach_loss(loss)}
        if not weighted.is_mean and weighted.weight is not None:
            return {LOSS: (weighted.value, weighted.weight)}
        return {LOSS: detach_loss(loss), f"{LOSS}_weight": weighted.weight}

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.compiler.is_compiling():
            return result
        if not isinstance(result, Tensor):
            self.read = max(self.read, _READS.get(func, 0))
            if func in _ROWS and args[1:] in ((), (0,)) and not kwargs and self.has_rows(args[0]):
                result = tuple(result)
                for row in result:
                    self.mix(row)
            return iter(result) if func is Tensor.__iter__ else result
        note = _NOTES.get(func)
        known = None if note is None else note(self, result, *args, **(kwargs or {}))
        if known is not None:
            self._known[id(result)] = replace(known, result=result)
        else:
            self._known.pop(id(result), None)  # an operation in place may have changed it
        return result

    def find(self, value: object) -> _Reduced | None:
        """Return what is known of a number that torch computed."""
        return self._known.get(id(value)) if isinstance(value, Tensor) else None

    def has_rows(self, tensor: Tensor) -> bool:
        """Return whether the first dim of a tensor is the batch."""
        return tensor.shape[:1] == (self.samples,) and id(tensor) not in self._mixed

    def mix(self, tensor: Tensor) -> None:
        """Note a tensor whose first dim is not the batch, even if it is as long."""
        self._mixed[id(tensor)] = tensor


def _unknown(who: object) -> InputError:
    name = display_name(who)
    return InputError(
        f"A step has several micro-batches, and what {name} divides its loss by is unknown:"
        " they cannot be added up.",
        fix=f"Let {name} return the pair (sum, weight); or say what it returns: reduction ="
        ' "mean" (over the samples of the batch) or "sum" under [process], or as an argument.',
    )


def display_name(who: object) -> str:
    """Return the name by which a person knows a criterion or a model."""
    return who.__name__ if inspect.isroutine(who) else type(who).__name__


_Note = Callable[..., _Reduced | None]
"""Tells what a result is, from the watch, the result and the arguments of the call."""


def _criterion(func: Any, count: Count) -> _Note:
    """Make the note of a function of `torch.nn.functional` that has a parameter `reduction`."""
    defaults = {name: each.default for name, each in inspect.signature(func).parameters.items()}

    def note(watch: Reductions, result: Tensor, *args: Any, **kwargs: Any) -> _Reduced | None:
        # Torch has bound the arguments before: there are no wrong ones.
        given = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
        how = given["reduction"]
        if (
            how == "none"
            or given.get("size_average") is not None
            or given.get("reduce") is not None
        ):
            return None  # the last two: of torch before 0.4
        if how == "sum":
            return _Reduced(result, "sum")
        weight = count(given)
        has_rows = isinstance(weight, int) and watch.has_rows(next(iter(given.values())))
        return _Reduced(result, "mean", weight, has_rows)

    return note


def _mean(watch: Reductions, result: Tensor, input: Tensor, *_: Any, **__: Any) -> _Reduced | None:
    if result.dim() or not input.dim():
        return watch.find(input)
    return _Reduced(result, "mean", has_rows=True) if watch.has_rows(input) else None


def _sum(
    watch: Reductions, result: Tensor, input: Tensor, dim: Any = None, axis: Any = None, **_: Any
) -> _Reduced | None:
    if not input.dim():
        return watch.find(input)
    if not result.dim():
        return _Reduced(result, "part", has_rows=watch.has_rows(input))
    dims = dim if axis is None else axis
    if {0, -input.dim()} & ({dims} if isinstance(dims, int) else {*(dims or (0,))}):
        watch.mix(result)
    return None


def _stack(
    watch: Reductions, result: Tensor, tensors: Sequence[Tensor], *_: Any, **__: Any
) -> None:
    if any(each.numel() == 1 for each in tensors):
        watch.mix(result)  # losses, perhaps as many as there are samples


def _row(watch: Reductions, result: Tensor, input: Tensor, index: Any, *_: Any) -> None:
    if isinstance(index, int) and watch.has_rows(input):
        watch.mix(result)


def _same(watch: Reductions, result: Tensor, input: Tensor, *_: Any, **__: Any) -> _Reduced | None:
    return None if result.dim() else watch.find(input)


def _product(
    watch: Reductions, result: Tensor, input: Any, other: Any, **_: Any
) -> _Reduced | None:
    number, known = (
        (other, watch.find(input)) if isinstance(input, Tensor) else (input, watch.find(other))
    )
    is_constant = isinstance(number, int | float) and not watch.read
    return known if is_constant and known is not None and known.kind != "bound" else None


def _quotient(
    watch: Reductions, result: Tensor, input: Any, other: Any, **_: Any
) -> _Reduced | None:
    if not isinstance(other, Tensor):
        return _product(watch, result, input, other)
    total, count = watch.find(input), watch.find(other)
    if total is None or count is None or other.requires_grad or watch.read == VALUE:
        return None
    is_ratio = total.kind in ("sum", "part") and count.kind in ("part", "bound")
    if not is_ratio or not count.has_rows:
        return None
    if count.kind == "bound":
        return _Reduced(result, "mean", count.weight, divisor=other)
    return _Reduced(result, "mean", other)


def _total(watch: Reductions, result: Tensor, input: Any, other: Any, **_: Any) -> _Reduced | None:
    one, second = watch.find(input), watch.find(other)
    if one is not None and second is not None:
        return _add(one, second)
    known, number = (one, other) if second is None else (second, input)
    if known is None or not isinstance(number, int | float):
        return None
    if known.kind == "mean" and known.divisor is None and not watch.read:
        return known
    return known if abs(number) <= (ROUNDING if known.kind == "part" else 0) else None


def _add(one: _Reduced, other: _Reduced) -> _Reduced | None:
    """Return what the sum of two is."""
    if {one.kind, other.kind} <= {"sum", "part"}:
        kind = one.kind if one.kind == other.kind else "part"
        return replace(one, kind=kind, has_rows=one.has_rows and other.has_rows)
    if one.kind != "mean" or other.kind != "mean":
        return None
    if one.has_rows and other.has_rows:
        return replace(one, weight=None)
    # Two that were counted are of one tensor, or as many by chance.
    is_one = one.weight is other.weight and not isinstance(one.weight, int | None)
    return one if is_one and one.divisor is other.divisor else None


def _floor(
    watch: Reductions, result: Tensor, input: Tensor, min: Any = None, max: Any = None
) -> _Reduced | None:
    known = watch.find(input)
    is_number = isinstance(min, int | float) and min <= 1 and max is None
    if known is None or known.kind != "part" or not is_number:
        return None
    return known if min <= ROUNDING else replace(known, kind="bound", weight=input)


_OPERATIONS: dict[_Note, tuple[str, ...]] = {
    _mean: ("mean",),
    _sum: ("sum",),
    _row: ("__getitem__",),
    _stack: ("stack", "hstack", "cat", "concat"),
    _same: (
        *("to", "type", "float", "double", "half", "bfloat16", "cpu", "cuda", "clone"),
        *("detach", "contiguous", "neg", "negative", "squeeze", "reshape", "view"),
    ),
    _product: ("mul", "multiply", "mul_", "__rmul__"),
    _quotient: ("div", "divide", "true_divide", "div_"),
    _total: ("add", "add_", "__radd__", "sub", "subtract", "sub_", "rsub", "__rsub__"),
    _floor: ("clamp", "clamp_min", "clip"),
}


def _functions(*names: str) -> set[Any]:
    """Return what torch and its tensors have under these names."""
    owners = (torch, Tensor)
    return {getattr(owner, name) for name in names for owner in owners if hasattr(owner, name)}


_NOTES = {
    getattr(F, name): _criterion(getattr(F, name), count)
    for name, count in DENOMINATORS.items()
    if hasattr(F, name)  # linear_cross_entropy: torch 2.13
}
_NOTES |= {func: note for note, names in _OPERATIONS.items() for func in _functions(*names)}
_ROWS = _functions("__iter__", "unbind")
_READS = dict.fromkeys(
    (*_functions("__len__", "size", "numel"), getattr_static(Tensor, "shape").__get__), LENGTH
)
_READS |= dict.fromkeys(
    _functions("item", "tolist", "numpy", "__int__", "__float__", "__bool__", "__index__"), VALUE
)
