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
from inspect import getattr_static
from itertools import chain
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
    """One number that torch made of many.

    `weight` is what a mean was divided by, made when it is asked for if it depends on the data;
    None for a sum. `is_counted`: it is the number of what was selected, and that of the samples by
    chance alone. `shape` has the entries of a sum, and is empty where they are not known any more.
    `terms` is how many such numbers were added up.
    """

    result: Tensor  # kept alive: no other tensor gets its id
    weight: Callable[[], Tensor] | int | None
    is_counted: bool = False
    shape: tuple[int, ...] = ()
    terms: int = 1


class Reductions(TorchFunctionMode):
    """Context that records which means and sums torch computes, to tell a loss's denominator.

    `samples` is the size of the batch. `weigh` returns a loss with its denominator. A multiple of
    a mean is a mean, and so is the sum of two with the same denominator; one of losses of single
    samples is known where their number divides it. Results are the same as without it, and no
    device waits.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self._known: dict[int, _Reduced] = {}
        self._stacks: dict[int, tuple[Tensor, list[_Reduced | None]]] = {}
        self._selected: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._floors: dict[int, tuple[Tensor, Callable[[], Tensor]]] = {}
        self._numbers: set[float] = set()
        self._compared: list[Tensor] = []

    def knows(self, loss: object) -> bool:
        """Return whether this tensor is a mean or a sum that was watched."""
        return self._find(loss) is not None

    def weight(self, loss: Tensor) -> Weight | None:
        """Return what a mean was divided by; None for anything else."""
        known = self._find(loss)
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
        known = self._find(loss)
        if known is None and torch.is_grad_enabled():
            raise _unknown(who)
        weight = self.weight(loss)
        if known is None or self._is_sample_mean(known):
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
        if torch.compiler.is_compiling():
            return result
        if isinstance(result, Tensor):
            note = _NOTES.get(func)
            known = note(self, result, args, kwargs or {}) if note is not None else None
            if known is not None:
                self._known[id(result)] = replace(known, result=result)
            else:
                self._known.pop(id(result), None)  # an operation in place may have changed it
        elif func in _READS or (func in _LENGTHS and self.is_selected(args)):
            numbers = result[:1] if isinstance(result, torch.Size) else [result]
            self._numbers |= {number for number in numbers if isinstance(number, int | float)}
        elif func in _FINDS or (func in _ROWS and self.is_selected(args)):
            rows = tuple(result)
            for row in rows:
                self.select(row)
            return iter(rows) if func is Tensor.__iter__ else rows
        if self._selected:
            parts = _parts_with_rows(func, args, kwargs or {})
            for each in result if isinstance(result, tuple) else [result]:
                if isinstance(each, Tensor) and each.dim() and self.is_selected(parts, len(each)):
                    self.select(each)
        return result

    def _find(self, loss: object) -> _Reduced | None:
        """Return what is known of a loss; a sum of losses of parts of the batch is not known."""
        known = self.reduction_of(loss)
        if known is None or known.terms == 1 or not isinstance(known.weight, int):
            return known
        return known if known.is_counted or self._is_sample_mean(known) else None

    def reduction_of(self, value: Any) -> _Reduced | None:
        """Return what is known of a result of before."""
        return self._known.get(id(value)) if isinstance(value, Tensor) else None

    def stack(self, result: Tensor, parts: Sequence[Any]) -> None:
        """Note a tensor that is made of several numbers."""
        self._stacks[id(result)] = result, [self.reduction_of(part) for part in parts]

    def select(self, result: Tensor) -> None:
        """Note a tensor of the entries that a mask lets through, or of their places."""
        self._selected[id(result)] = result

    def is_selected(self, parts: Iterable[Any], length: int | None = None) -> bool:
        """Return whether one of these is a tensor, of this length, that a mask let through.

        One of the parts may be a tuple or list of such.
        """
        flat = (part if type(part) in (tuple, list) else [part] for part in parts)
        selected = [part for part in chain(*flat) if id(part) in self._selected]
        return any(length is None or part.shape[:1] in ((), (length,)) for part in selected)

    def floor(self, result: Tensor, count: Callable[[], Tensor]) -> None:
        """Note a number that is `count` or, if that is smaller, another one."""
        self._floors[id(result)] = result, count

    def compare(self, count: Tensor) -> None:
        """Note a number that decides in Python, as in `max(count, 1)`."""
        self._compared.append(count)

    def divide(self, known: _Reduced, number: float) -> _Reduced | None:
        """Return what a sum is, divided by a number: a mean, a multiple, or None: who knows."""
        if number == 1:  # max(count, 1)
            counts = {*self._numbers, *map(float, self._compared)}
            if 0 in counts and not known.result:
                return _Reduced(known.result, 0, is_counted=True)
            if 1 in counts:
                return _Reduced(known.result, 1, is_counted=True)
        if number in self._numbers:
            return _Reduced(known.result, lambda: torch.tensor(float(number)))
        is_count = known.is_counted or self._is_regular(number)
        if is_count and number in {self.samples, *_counts(known.shape)}:
            return _Reduced(known.result, int(number), known.is_counted)
        return None if self._numbers else known

    def divide_by(self, known: _Reduced, divisor: Tensor) -> _Reduced:
        """Return what a sum is, divided by a tensor: by nothing, where only a floor divides it."""
        if id(divisor) not in self._floors:
            return _Reduced(known.result, lambda: divisor)
        _, count = self._floors[id(divisor)]
        return _Reduced(known.result, lambda: torch.where(count() == 0, 0, divisor))

    def combine(self, parts: Sequence[_Reduced | None]) -> _Reduced | None:
        """Return the sum of several, or their mean; None where their denominators are not one."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or not known:
            return None
        first = known[0]
        weights = [part.weight for part in known]
        if all(weight is first.weight or weight == first.weight for weight in weights):
            terms = sum(part.terms for part in known)
            is_counted = any(part.is_counted for part in known)
            shape = first.shape if all(part.shape == first.shape for part in known) else ()
            return replace(first, is_counted=is_counted, shape=shape, terms=terms)
        if all(self._is_sample_mean(part) for part in known):
            return _Reduced(first.result, self.samples)
        return None

    def whole(self, source: Tensor) -> _Reduced | None:
        """Return what is known of the sum of the numbers in `source`.

        None for a tensor that is not about the samples of the batch.
        """
        if not source.dim():
            return self.reduction_of(source)
        if id(source) in self._stacks:
            _, parts = self._stacks[id(source)]
            return self.combine(parts)
        is_counted = id(source) in self._selected
        is_ours = is_counted or self._is_regular(source.shape[0])
        return _Reduced(source, None, is_counted, tuple(source.shape)) if is_ours else None

    def _is_sample_mean(self, known: _Reduced) -> bool:
        weight = known.weight
        return isinstance(weight, int) and not known.is_counted and self._is_regular(weight)

    def _is_regular(self, count: float) -> bool:
        return self.samples > 0 and count % self.samples == 0 and count > 0


def _counts(shape: Sequence[int]) -> set[int]:
    """Return what a mean over some dims of a tensor is divided by: each product of its dims."""
    products = {1}
    for size in shape:
        products |= {product * size for product in products}
    return products - {1} | {math.prod(shape)}


def _parts_with_rows(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Return the arguments whose rows, along dim 0, may be those of the result."""
    if func in _WRITES:
        return args[:1]
    if func in _FOLDS:
        dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
        dims = [dims] if isinstance(dims, int) else dims
        if isinstance(dims, tuple | list) and {0, -_source(args, kwargs).dim()} & {*dims}:
            return ()
    return args


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
                shape = tuple(next(iter(given.values())).shape)
                return _Reduced(result, None, watch.is_selected(given.values()), shape)
            case "mean" | "batchmean":
                return _Reduced(result, denominator(given), watch.is_selected(given.values()))
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
    source = _source(args, kwargs)
    known = watch.whole(source)
    if known is None or not source.dim():
        return known
    if known.result is source:
        return replace(known, weight=source.numel(), shape=())
    return _mean_of_terms(known)


def _mean_of_terms(known: _Reduced) -> _Reduced:
    """Return the mean of several numbers with one denominator: over all that they are of."""
    if not isinstance(known.weight, int):
        return known
    return replace(known, weight=known.weight * known.terms, terms=1)


def _sum(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    if result.dim():
        return None
    return watch.whole(_source(args, kwargs))


def _identity(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    return watch.reduction_of(_source(args, kwargs))


def _rearrangement(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Reduced | None:
    source = _source(args, kwargs)
    if watch.is_selected([source]):
        watch.select(result)
    return None if result.dim() else watch.reduction_of(source)


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
        if known.weight is None:
            return watch.divide(known, other)
        return _mean_of_terms(known) if other == known.terms else known
    if known.weight is None and not other.requires_grad and not other.dim():
        # A sum over what a mask lets through, divided by their number.
        return watch.divide_by(known, other)
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
    if watch.is_selected(parts):
        watch.select(result)
    elif any(not part.dim() or part.numel() == 1 for part in parts):
        watch.stack(result, parts)


def _selection(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    mask = args[1] if len(args) > 1 else kwargs.get("mask")
    if isinstance(mask, tuple) and mask:
        mask = mask[0]
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        watch.select(result)


def _places(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    watch.select(result)


def _floor(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    one, *others = (*args, *kwargs.values())
    if result.dim() or not others:
        return
    other = others[0]
    count = (lambda: torch.minimum(one, other)) if isinstance(other, Tensor) else (lambda: one)
    watch.floor(result, count)


def _comparison(
    watch: Reductions, result: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    if not result.dim() and isinstance(args[0], Tensor):
        watch.compare(args[0])


_OPERATIONS: dict[str, _Note] = {
    **dict.fromkeys(("mean",), _mean),
    **dict.fromkeys(("sum",), _sum),
    **dict.fromkeys(
        ("to", "float", "double", "half", "bfloat16", "type", "cpu", "cuda"), _identity
    ),
    **dict.fromkeys(("clone", "detach", "contiguous", "neg", "negative"), _identity),
    **dict.fromkeys(("squeeze", "reshape", "view", "flatten", "ravel"), _rearrangement),
    **dict.fromkeys(("t", "transpose", "permute"), _rearrangement),
    **dict.fromkeys(("mul", "multiply", "mul_", "__rmul__"), _product),
    **dict.fromkeys(("div", "divide", "true_divide", "div_"), _quotient),
    **dict.fromkeys(
        ("add", "add_", "__radd__", "sub", "subtract", "sub_", "rsub", "__rsub__"), _total
    ),
    **dict.fromkeys(("stack", "hstack", "cat", "concat"), _stack),
    **dict.fromkeys(("__getitem__", "masked_select"), _selection),
    **dict.fromkeys(("nonzero", "argwhere"), _places),
    **dict.fromkeys(("clamp", "clamp_min", "clip", "max", "maximum"), _floor),
    **dict.fromkeys(("gt", "lt", "__gt__", "__lt__"), _comparison),
}


def _functions(*names: str) -> set[Any]:
    """Return what torch and its tensors have under these names."""
    owners = (torch, Tensor)
    return {getattr(owner, name) for name in names for owner in owners if hasattr(owner, name)}


_LENGTHS = _functions("__len__", "numel", "size") | {getattr_static(Tensor, "shape").__get__}
_READS = {Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__index__}
_FINDS = _functions("nonzero", "where")  # a tuple, of each dim one
_ROWS = _functions("unbind", "__iter__")
_WRITES = _functions(
    *("index_add", "index_copy", "index_fill", "index_put", "index_reduce", "masked_scatter"),
    *("index_add_", "index_copy_", "index_fill_", "index_put_", "index_reduce_"),
    *("scatter", "scatter_add", "scatter_reduce", "scatter_", "scatter_add_", "scatter_reduce_"),
    *("masked_scatter_", "put", "put_"),
)
_FOLDS = _functions("sum", "mean", "prod", "amax", "amin", "max", "min", "std", "var", "logsumexp")
_NOTES: dict[Any, _Note] = {func: _criterion(func) for func in _DENOMINATORS}
_NOTES |= {func: note for name, note in _OPERATIONS.items() for func in _functions(name)}
_NOTES[getattr_static(Tensor, "T").__get__] = _rearrangement
