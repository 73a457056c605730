"""Denominators of losses: what divides the mean that a criterion returns.

The loss of several micro-batches, of several ranks or of a whole split is the sum of their sums
over the sum of their weights; but a criterion returns a mean alone. Its weight is known

1. of a criterion of torch, by its class or function: the number that it divides by;
2. of code of the user's, by what it says: it returns the pair (sum, weight), or the word
   `reduction` is given to the process, or is an attribute of the criterion;
3. of a model of transformers, by its class: the labels that are not ignored.

Anything else is refused where it would be added up; in an evaluation it counts as a mean over the
samples, which is said.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.optim.losses import LOSS, WeightedLoss, detach_loss

Reduction = Literal["mean", "sum"]
"""A mean over the samples of a batch, or a sum."""
ModelReduction = Literal["mean", "sum", "labels"]
"""The same of a loss within a model, or a mean over the labels of the batch that are no negative
numbers."""

_WORDS = ("mean", "sum")

Count = Callable[[Mapping[str, Any]], Tensor | int]
"""Tells what a mean is divided by, from the arguments of a criterion by their names."""

IGNORED = -100
"""Label that torch and transformers ignore."""


def weigh_loss(
    loss: Any,
    criterion: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
    reduction: Reduction | None,
) -> Any:
    """Return the loss of a criterion as an engine adds it up, with its weight; None if unknown.

    `args` and `named` are what the criterion was called with.
    """
    criterion = getattr(criterion, "_orig_mod", criterion)  # of torch.compile
    word = reduction or _word_of(criterion)
    if isinstance(loss, Mapping):
        parts = {name: _declare(part, word) for name, part in loss.items()}
        return None if None in parts.values() else parts
    declared = _declare(loss, word)
    if declared is not None:
        return declared
    given = _torch_arguments(criterion, args, named)
    if given is None or given["reduction"] == "none":
        return None
    if given["reduction"] == "sum":
        return WeightedLoss(loss, None, is_mean=False)
    return _with_weight(loss, given["count"](given))


def weigh_model_loss(
    loss: Any, model: nn.Module, labels: Any, reduction: ModelReduction | None
) -> Any:
    """Return the loss of a model as an engine adds it up, with its weight; None if unknown.

    InputError where labels are to be counted, and the batch has none.
    """
    if reduction != "labels":
        declared = _declare(loss, reduction)
        if declared is not None:
            return declared
        shift = _label_shift(model)
        if shift is None or not isinstance(labels, Tensor):
            return None
        if labels.is_floating_point():
            return loss
        return _with_weight(loss, (labels[..., shift:] != IGNORED).sum())
    if not isinstance(labels, Tensor):
        raise InputError(
            'reduction is "labels", and the batch has none.',
            fix='Say which field they are: target = "NAME" under [process].',
        )
    return _with_weight(loss, (labels >= 0).sum())


def report_loss(loss: Any, weighted: Any) -> dict[str, Any]:
    """Return the loss in the output of a process, and in evaluation also its denominator."""
    if torch.is_grad_enabled() or not isinstance(weighted, WeightedLoss):
        return {LOSS: detach_loss(loss)}
    return {LOSS: detach_loss(loss), f"{LOSS}_weight": weighted.weight}


def declares_denominator(kind: Any) -> bool:
    """Return True if all losses of a class say what they are divided by, before any is computed.

    `kind` is the class of a criterion or of a model of transformers.
    """
    if not isinstance(kind, type):
        return False
    if _torch_class(kind) is not None or _shift_of_class(kind) is not None:
        return True
    return not issubclass(kind, tuple(_CLASSES)) and getattr(kind, "reduction", None) in _WORDS


class UnknownDenominatorError(InputError):
    """Losses of several micro-batches or ranks that cannot be added up."""


def unknown_denominator(
    who: object, *, words: str = '"mean" (over the samples of the batch) or "sum"'
) -> UnknownDenominatorError:
    """Return the error for a loss that cannot be added up, with the line to write."""
    name = display_name(who)
    return UnknownDenominatorError(
        f"A step has several micro-batches or ranks, and what {name} divides its loss by is"
        " unknown: they cannot be added up.",
        fix=f"Let {name} return the pair (sum, weight); or say what it returns, under [process] or"
        f" as an argument: reduction = {words}.",
    )


def display_name(who: object) -> str:
    """Return the name by which a person knows a criterion or a model."""
    return who.__name__ if inspect.isroutine(who) else type(who).__name__


def _declare(loss: Any, word: str | None) -> Any:
    """Return a loss that says its weight, or of which a word says it; None for others."""
    if not isinstance(loss, Tensor) or word == "mean":
        return loss
    return WeightedLoss(loss, None, is_mean=False) if word == "sum" else None


def _with_weight(loss: Tensor, weight: Tensor | int) -> WeightedLoss:
    # The quotient of two whole numbers would be of single precision.
    dtype = torch.promote_types(loss.dtype, torch.float32)
    return WeightedLoss(loss, weight.to(dtype) if isinstance(weight, Tensor) else weight)


def _word_of(criterion: Any) -> str | None:
    """Return the attribute `reduction` of a criterion of the user's.

    A class that inherits from a criterion of torch may have it from there, and another mean.
    """
    word = getattr(criterion, "reduction", None)
    is_of_torch = isinstance(criterion, (*_CLASSES, type))
    return word if not is_of_torch and word in _WORDS else None


def _torch_class(kind: type) -> type[nn.Module] | None:
    """Return the criterion of torch that a class is, or inherits from with its `forward`."""
    found = next((each for each in kind.__mro__ if each in _CLASSES), None)
    is_own = found is None or getattr(kind, "forward", None) is not found.forward
    return None if is_own else found


def _torch_arguments(
    criterion: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the arguments of a criterion of torch by name, with its `count`; None for others."""
    while isinstance(criterion, functools.partial):
        args, named = (*criterion.args, *args), {**criterion.keywords, **named}
        criterion = criterion.func
    settings: dict[str, Any] = {}
    function = criterion
    if isinstance(criterion, nn.Module):
        kind = _torch_class(type(criterion))
        if kind is None:
            return None
        function = _CLASSES[kind]
        names = list(inspect.signature(kind.forward).parameters)[1:]
        settings = {name: each for name, each in vars(criterion).items() if name != "training"}
        settings |= dict(criterion.named_buffers(recurse=False))
        if kind in _OTHER_ORDER:
            args, named = (), {**dict(zip(names, args, strict=False)), **named}
    if not inspect.isroutine(function) or function not in _FUNCTIONS:
        return None
    count, defaults = _FUNCTIONS[function]
    own = {name: each for name, each in settings.items() if name in defaults}
    given = {**defaults, **own, **dict(zip(defaults, args, strict=False)), **named}
    if named.get("size_average") is not None or named.get("reduce") is not None:
        return None  # of torch before 0.4
    return {**given, "count": count}


_SHIFTED = ("LMHeadModel", "ForCausalLM")
_UNSHIFTED = (
    *("ForMaskedLM", "ForTokenClassification", "ForSequenceClassification"),
    "ForImageClassification",
)


def _label_shift(model: Any) -> int | None:
    """Return how many labels a model of transformers leaves out at the start of a sequence.

    None for any other model.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # of peft
    kind = type(model)
    shift = _shift_of_class(kind)
    is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if shift is None and is_encoder_decoder:
        is_conditional = kind.__name__.endswith("ForConditionalGeneration")
        return 0 if is_conditional and kind.__module__.startswith("transformers.") else None
    return shift


def _shift_of_class(kind: type) -> int | None:
    if not kind.__module__.startswith("transformers."):
        return None
    return (
        1 if kind.__name__.endswith(_SHIFTED) else 0 if kind.__name__.endswith(_UNSHIFTED) else None
    )


def _entries(count: int, *, classes: int = 0) -> Count:
    """Count the entries of the first arguments together, without the last dims: the classes."""

    def entries(given: Mapping[str, Any]) -> int:
        shapes = [each.shape for each, _ in zip(given.values(), range(count), strict=False)]
        shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        return math.prod(shape[: len(shape) - classes])

    return entries


def _weighted_entries(given: Mapping[str, Any]) -> Tensor | int:
    weight: Tensor | None = given.get("weight")
    return _entries(2)(given) if weight is None else weight.sum()


def _divergence(given: Mapping[str, Any]) -> Tensor | int:
    batch: int = given["input"].shape[0]
    return batch if given["reduction"] == "batchmean" else _entries(2)(given)


def _sequences(given: Mapping[str, Any]) -> int:
    log_probs: Tensor = given["log_probs"]  # (time, batch, classes), or without the batch
    return log_probs.shape[1] if log_probs.dim() == 3 else 1


def _classes(given: Mapping[str, Any]) -> Tensor | int:
    """Return what cross entropy divides by: the weights of the targets that are not ignored."""
    given_target: Tensor = given["target"]
    if given_target.is_floating_point():  # probabilities: each sample counts as one
        return given_target.numel() // given_target.shape[min(1, given_target.dim() - 1)]
    weight: Tensor | None = given["weight"]
    ignored = IGNORED if given["ignore_index"] is None else given["ignore_index"]
    target = given_target.long()  # in uint8, -100 would be 156, and an index a mask
    counted = target != ignored
    if weight is None:
        return counted.sum()
    classes = torch.where(counted, target, 0)
    return torch.where(counted, weight[classes], 0.0).sum()


def _targets(given: Mapping[str, Any]) -> int:
    target: Tensor = given["target"]
    return target.numel()


def _adaptive(input: Tensor, target: Tensor, reduction: str = "mean") -> None:
    """Stand for AdaptiveLogSoftmaxWithLoss, which is no function of torch."""


_COUNTS: dict[str, Count] = {
    **dict.fromkeys(("l1_loss", "mse_loss"), _weighted_entries),
    **dict.fromkeys(("huber_loss", "smooth_l1_loss", "soft_margin_loss"), _entries(2)),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"), _entries(2)),
    **dict.fromkeys(("poisson_nll_loss", "gaussian_nll_loss"), _entries(2)),
    "hinge_embedding_loss": _entries(2),
    "margin_ranking_loss": _entries(3),
    "multi_margin_loss": _entries(1, classes=1),
    **dict.fromkeys(
        ("multilabel_margin_loss", "multilabel_soft_margin_loss"), _entries(1, classes=1)
    ),
    **dict.fromkeys(
        ("triplet_margin_loss", "triplet_margin_with_distance_loss"), _entries(2, classes=1)
    ),
    "cosine_embedding_loss": _entries(2, classes=1),
    "kl_div": _divergence,
    "ctc_loss": _sequences,
    **dict.fromkeys(("cross_entropy", "nll_loss", "linear_cross_entropy"), _classes),
}
"""Denominators of the means of torch, by function."""
_OF_CLASS = {
    **{"L1Loss": "l1_loss", "MSELoss": "mse_loss", "SmoothL1Loss": "smooth_l1_loss"},
    **{"HuberLoss": "huber_loss", "PoissonNLLLoss": "poisson_nll_loss"},
    **{"GaussianNLLLoss": "gaussian_nll_loss", "HingeEmbeddingLoss": "hinge_embedding_loss"},
    **{"SoftMarginLoss": "soft_margin_loss", "BCELoss": "binary_cross_entropy"},
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "MultiLabelMarginLoss": "multilabel_margin_loss",
    **{"MultiMarginLoss": "multi_margin_loss", "CrossEntropyLoss": "cross_entropy"},
    **{"NLLLoss": "nll_loss", "CosineEmbeddingLoss": "cosine_embedding_loss"},
    **{"MarginRankingLoss": "margin_ranking_loss", "TripletMarginLoss": "triplet_margin_loss"},
    "TripletMarginWithDistanceLoss": "triplet_margin_with_distance_loss",
    **{"KLDivLoss": "kl_div", "CTCLoss": "ctc_loss"},
    "LinearCrossEntropyLoss": "linear_cross_entropy",  # torch 2.13
}


def _defaults(function: Any) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(function).parameters.items()}


_FUNCTIONS: dict[Any, tuple[Count, dict[str, Any]]] = {
    getattr(F, name): (count, _defaults(getattr(F, name)))
    for name, count in _COUNTS.items()
    if hasattr(F, name)
}
_FUNCTIONS[_adaptive] = (_targets, _defaults(_adaptive))
_CLASSES: dict[type[nn.Module], Any] = {
    getattr(nn, kind): getattr(F, name) for kind, name in _OF_CLASS.items() if hasattr(nn, kind)
}
_CLASSES[nn.AdaptiveLogSoftmaxWithLoss] = _adaptive
_OTHER_ORDER = {kind for kind in _CLASSES if kind.__name__ == "LinearCrossEntropyLoss"}
"""Classes whose arguments are not the first ones of their function."""
