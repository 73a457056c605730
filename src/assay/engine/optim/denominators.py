"""Denominators of torch's criteria: what each function divides its mean by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Count = Callable[[Mapping[str, Any]], Callable[[], Tensor] | int]
"""Tells what a mean is divided by, from the arguments of a criterion by their names."""


def _entries(count: int, *, classes: int = 0) -> Count:
    """Count the entries of the first arguments together, without the last dims: the classes."""

    def entries(given: Mapping[str, Any]) -> int:
        shapes = [each.shape for each, _ in zip(given.values(), range(count), strict=False)]
        shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        return math.prod(shape[: len(shape) - classes])

    return entries


def _weighted_entries(given: Mapping[str, Any]) -> Callable[[], Tensor] | int:
    weight: Tensor | None = given.get("weight")
    return _entries(2)(given) if weight is None else weight.sum


def _divergence(given: Mapping[str, Any]) -> Callable[[], Tensor] | int:
    batch: int = given["input"].shape[0]
    return batch if given["reduction"] == "batchmean" else _entries(2)(given)


def _sequences(given: Mapping[str, Any]) -> int:
    log_probs: Tensor = given["log_probs"]  # (time, batch, classes), or without the batch
    return log_probs.shape[1] if log_probs.dim() == 3 else 1


def _classes(given: Mapping[str, Any]) -> Callable[[], Tensor] | int:
    """Return what cross entropy divides by: the weights of the targets that are not ignored."""
    given_target: Tensor = given["target"]
    if given_target.is_floating_point():  # probabilities: each sample counts as one
        return given_target.numel() // given_target.shape[min(1, given_target.dim() - 1)]
    weight: Tensor | None = given["weight"]
    ignored = -100 if given["ignore_index"] is None else given["ignore_index"]

    def count() -> Tensor:
        target = given_target.long()  # in uint8, -100 would be 156, and an index a mask
        counted = target != ignored
        if weight is None:
            return counted.sum()
        classes = torch.where(counted, target, 0)
        return torch.where(counted, weight[classes], 0.0).sum()

    return count


DENOMINATORS: dict[str, Count] = {
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
