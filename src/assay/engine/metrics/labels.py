"""Scores of single labels: one logit a sample, or several labels of which any may be true.

A label is predicted where its score is above a threshold: 0 for logits, 0.5 for probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from assay.core.errors import InputError, did_you_mean
from assay.engine.metrics.metric import take_parts


class LabelCounts:
    """Counts of each label: true and predicted, true, predicted, and samples that count.

    `has_unscored`: a label that counts had a NaN for its score.
    """

    def __init__(self, threshold: float, *, ignore_index: int) -> None:
        self.threshold = threshold
        self.ignore_index = ignore_index
        self.reset()

    def reset(self) -> None:
        self.counts: Tensor | None = None

    def update(self, output: Any, *, by: str) -> None:
        scores, target = _labels_of(output, by=by, classes=False)
        counted = target != self.ignore_index
        true = (target == 1) & counted
        found = (scores > self.threshold) & counted
        right = (found == true) & counted
        odd = counted & (target != 0) & (target != 1)
        rows = (true & found, true, found, right, counted, odd, counted & scores.isnan())
        self._add(torch.stack([row.sum(0) for row in rows]))

    def merge(self, other: LabelCounts) -> None:
        if other.counts is not None:
            self._add(other.counts)

    def read(self) -> Tensor:
        """Return the counts by kind and label, on the CPU; InputError for targets that are none."""
        if self.counts is None:
            return torch.zeros(7, 1, dtype=torch.int64)
        counts = self.counts.cpu()
        if odd := int(counts[5].sum()):
            raise InputError(
                f"{odd} targets are neither 0 nor 1.",
                fix="With a threshold each label is true (1) or not (0); one that is not to count"
                f" has the value of `ignore_index`, here {self.ignore_index}.",
            )
        return counts

    def accuracy(self) -> float:
        """Return the share of labels that are right."""
        counts = self.read().sum(1)
        return float(counts[3] / counts[4]) if counts[4] and not counts[6] else math.nan

    def _add(self, counts: Tensor) -> None:
        self.counts = counts if self.counts is None else self.counts.to(counts.device) + counts


LabelAverage = Literal["macro", "none"]


class AUROC:
    """Area under the ROC curve: how often a true label has a higher score than one that is not.

    Reads `pred` of one score a sample, of one for each of several labels, whose targets are 0 and
    1, or of one for each class, of which each is taken against the others. The mean over labels or
    classes with both kinds of samples ("macro"), or each by its name ("none"). Equal scores count
    half. The scores of a split are kept until its end.
    """

    def __init__(
        self,
        classes: Sequence[str] = (),
        *,
        average: LabelAverage = "macro",
        ignore_index: int = -100,
    ) -> None:
        if average not in get_args(LabelAverage):
            raise InputError(
                f"average is {average!r}; it is one of {', '.join(get_args(LabelAverage))}.",
                fix=did_you_mean(str(average), get_args(LabelAverage)),
            )
        self.names = list(classes)
        self.average = average
        self.ignore_index = ignore_index
        self.reset()

    def reset(self) -> None:
        self.scores: list[Tensor] = []
        self.targets: list[Tensor] = []

    def update(self, output: Any) -> None:
        scores, target = _labels_of(output, by="AUROC", classes=True)
        self.scores.append(scores.detach().double())
        self.targets.append(target)

    def merge(self, other: AUROC) -> None:
        self.scores += other.scores
        self.targets += other.targets

    def value(self) -> float | Mapping[str, float]:
        if not self.scores:
            return math.nan
        scores, targets = (
            torch.cat([each.cpu() for each in of]) for of in (self.scores, self.targets)
        )
        areas = []
        for label in range(scores.shape[1]):
            own = targets if targets.dim() == 1 else targets[:, label]
            counted = own != self.ignore_index
            positive = own == (label if targets.dim() == 1 else 1)
            areas.append(_area(scores[counted, label], positive[counted]))
        if self.average == "none":
            names = self.names or [str(label) for label in range(len(areas))]
            return dict(zip(names, areas, strict=True))
        if any(math.isnan(area) for area in areas) and bool(scores.isnan().any()):
            return math.nan
        known = [area for area in areas if not math.isnan(area)]
        return sum(known) / len(known) if known else math.nan


def _area(scores: Tensor, positive: Tensor) -> float:
    """Return the share of pairs in which the positive sample has the higher score."""
    above, below = int(positive.sum()), int((~positive).sum())
    if not above or not below or bool(scores.isnan().any()):
        return math.nan
    _, places, sizes = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = sizes.cumsum(0).double()
    ranks = (ends - (sizes - 1) / 2)[places]  # equal scores share the mean of their ranks
    return float((ranks[positive].sum() - above * (above + 1) / 2) / (above * below))


def _labels_of(output: Any, *, by: str, classes: bool) -> tuple[Tensor, Tensor]:
    """Return scores (samples, labels), and targets of that shape or, of `classes`, (samples,).

    InputError for what is neither.
    """
    pred, target = take_parts(output, "pred", "target", by=by)
    shape = pred.shape[:1] + pred.shape[2:]
    if pred.is_floating_point() and pred.dim() and len(pred) == len(target):
        if pred.squeeze().shape == target.squeeze().shape:
            flat = target.reshape(pred.shape)
            if pred.dim() < 2:
                return pred[:, None], flat[:, None]
            return pred.movedim(1, -1).flatten(0, -2), flat.movedim(1, -1).flatten(0, -2)
        if classes and shape == target.shape and pred.shape[1] > 1:
            return pred.movedim(1, -1).flatten(0, -2), target.flatten()
    raise InputError(
        f"{by} cannot compare pred {tuple(pred.shape)} {pred.dtype} with target"
        f" {tuple(target.shape)}.",
        fix="Give one score for each target, of 0 or 1."
        if not classes
        else "Give one score for each target, of 0 or 1; or (batch, classes, ...) scores and"
        " (batch, ...) indices.",
    )
