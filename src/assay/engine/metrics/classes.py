"""Accuracy, the confusion matrix and what is counted from it."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from assay.core.errors import InputError, did_you_mean
from assay.engine.metrics.labels import LabelCounts
from assay.engine.metrics.metric import Matrix, take_parts

Average = Literal["macro", "micro", "weighted", "none"]
AVERAGES = get_args(Average)


class Accuracy:
    """Share of samples whose true class is among the `top` highest scores.

    Reads `output["pred"]` of shape (batch, classes, ...) or, for `top` 1, class indices of the
    target's shape, and `output["target"]` of shape (batch, ...). A target of `ignore_index` is not
    counted; one that is no class, as what the criterion alone ignores, is an InputError of `value`.
    A NaN among the scores of a sample makes the value NaN, as it does a mean loss.

    With a `threshold`, of one score for each target (one logit a sample, or several labels): the
    share of targets, 0 or 1, that are right; 0 is the threshold of logits, 0.5 of probabilities.
    """

    def __init__(
        self, *, top: int = 1, ignore_index: int = -100, threshold: float | None = None
    ) -> None:
        if top < 1:
            raise InputError(f"Accuracy(top={top}): it must be at least 1.")
        self.top = top
        self.ignore_index = ignore_index
        self.labels = (
            None if threshold is None else LabelCounts(threshold, ignore_index=ignore_index)
        )
        self.reset()

    def reset(self) -> None:
        if self.labels is not None:
            self.labels.reset()
        self.right: Tensor | int = 0
        self.count: Tensor | int = 0
        self.outside: Tensor | int = 0
        self.unscored: Tensor | int = 0
        self._classes: int | None = None

    def update(self, output: Any) -> None:
        if self.labels is not None:
            self.labels.update(output, by="Accuracy")
            return
        pred, target = take_parts(output, "pred", "target", by="Accuracy")
        classes = _classes_of(pred, target, by="Accuracy", top=self.top)
        target = _as_indices(target)
        if classes is None:
            hits = pred == target
        elif self.top == 1:
            hits = pred.argmax(dim=1) == target
        else:
            hits = (pred.topk(self.top, dim=1).indices == target.unsqueeze(1)).any(dim=1)
        kept = target != self.ignore_index
        is_outside = target < 0 if classes is None else (target < 0) | (target >= classes)
        self._classes = classes
        if classes is not None:
            self.unscored = self.unscored + (pred.isnan().any(dim=1) & kept).sum()
        self.right = self.right + (hits & kept).sum()
        self.count = self.count + kept.sum()
        self.outside = self.outside + (is_outside & kept).sum()

    def merge(self, other: Accuracy) -> None:
        if self.labels is not None and other.labels is not None:
            self.labels.merge(other.labels)
        self.right = self.right + other.right
        self.count = self.count + other.count
        self.outside = self.outside + other.outside
        self.unscored = self.unscored + other.unscored
        self._classes = self._classes or other._classes

    def value(self) -> float:
        if self.labels is not None:
            return self.labels.accuracy()
        if outside := int(self.outside):
            raise _outside(f"{outside} targets", self._classes, self.ignore_index)
        count = int(self.count)
        return int(self.right) / count if count and not int(self.unscored) else math.nan


class Confusion:
    """Confusion matrix: `matrix()[true, predicted]` counts.

    `classes` is their number or their names; with scores it can be left out. Its value is the share
    of the diagonal, NaN if a sample has a NaN among its scores; such samples are not in the matrix.
    Each evaluation keeps the matrix as a table and as a picture. Reads what `Accuracy` reads.
    """

    def __init__(
        self, classes: int | Sequence[str] | None = None, *, ignore_index: int = -100
    ) -> None:
        self.names = list(classes) if classes is not None and not isinstance(classes, int) else None
        self._given = (
            len(self.names)
            if self.names is not None
            else classes
            if isinstance(classes, int)
            else None
        )
        if self._given is not None and self._given < 2:
            raise InputError(f"There must be at least 2 classes, not {self._given}.")
        self.ignore_index = ignore_index
        self.reset()

    def reset(self) -> None:
        self.classes: int | None = self._given
        # Counts of all pairs, then of what is ignored, has no score, and is no class.
        self._counts: Tensor | None = None

    def update(self, output: Any, *, by: str = "Confusion") -> None:
        pred, target = take_parts(output, "pred", "target", by=by)
        found = _classes_of(pred, target, by=by)
        is_binary = found is None and pred.dtype == torch.bool and self.classes is None
        self._settle(2 if is_binary else found)
        classes = self.classes or 0
        pairs = classes * classes
        scores, pred = pred, (pred if found is None else pred.argmax(dim=1)).long()
        true = _as_indices(target)
        inside = (true >= 0) & (true < classes) & (pred >= 0) & (pred < classes)
        where = torch.where(inside, true * classes + pred, pairs + 2)
        if found is not None:
            where = torch.where(scores.isnan().any(dim=1), pairs + 1, where)
        where = torch.where(true == self.ignore_index, pairs, where).flatten()
        if self._counts is None:
            self._counts = torch.zeros(pairs + 3, dtype=torch.int64, device=where.device)
        self._counts.index_add_(0, where, torch.ones_like(where))

    def merge(self, other: Confusion) -> None:
        if other._counts is None:
            return
        self._settle(other.classes)
        if self._counts is None:
            self._counts = other._counts.clone()
        else:
            self._counts = self._counts + other._counts

    def matrix(self) -> Tensor:
        """Counts by true and predicted class, on the CPU; without a row when there was nothing."""
        if self._counts is None:
            return torch.zeros(self.classes or 0, self.classes or 0, dtype=torch.int64)
        classes = self.classes or 0
        counts = self._counts.cpu()
        if counts[-1]:
            raise _outside(f"{int(counts[-1])} targets or predictions", classes, self.ignore_index)
        return counts[:-3].view(classes, classes)

    def has_unscored(self) -> bool:
        """True once a sample that counts had a NaN among its scores."""
        return self._counts is not None and bool(self._counts[-2])

    def name(self, index: int) -> str:
        return self.names[index] if self.names is not None else str(index)

    def index(self, name: int | str) -> int:
        """The class of that name or number."""
        if isinstance(name, int):
            return name
        if self.names is None or name not in self.names:
            fix = did_you_mean(name, self.names or []) or "Give the names of all as `classes`."
            raise InputError(f"There is no class {name!r}.", fix=fix)
        return self.names.index(name)

    def value(self) -> Mapping[str, Any]:
        """Return the share of samples on the diagonal under "", and the matrix."""
        matrix = self.matrix()
        total = int(matrix.sum())
        share = int(matrix.trace()) / total if total and not self.has_unscored() else math.nan
        names = [self.name(index) for index in range(len(matrix))]
        return {"": share, "matrix": Matrix(matrix, names)} if total else {"": share}

    def _settle(self, classes: int | None) -> None:
        """Fix the number of classes."""
        if classes is None and self.classes is None:
            raise InputError(
                "How many classes there are cannot be told from a pred of class indices.",
                fix="Give their number, or their names, as `classes`.",
            )
        if classes is not None and self.classes is not None and classes != self.classes:
            raise InputError(
                f"There are {classes} classes in pred, and {self.classes} by its settings or"
                " before."
            )
        self.classes = self.classes if classes is None else classes


class Score(ABC):
    """Abstract score from the counts of right and wrong for each class: Precision, Recall and F1.

    `average`: "macro" is the mean over the classes that occurred (as target or prediction), "micro"
    counts them all together, "weighted" weighs each by its targets, "none" gives each by its name
    (nan where it did not occur). Classes in `without` are left out of the average; to confuse one
    of them with another is still an error of that.

    With a `threshold`, of one score for each target, as `Accuracy`: the score of the label that is
    true, over several labels as over classes.
    """

    wrong: ClassVar[tuple[float, float]]
    """Weights of a false positive and of a false negative."""

    def __init__(
        self,
        classes: int | Sequence[str] | None = None,
        *,
        average: Average = "macro",
        without: Sequence[int | str] = (),
        ignore_index: int = -100,
        threshold: float | None = None,
    ) -> None:
        if average not in AVERAGES:
            raise InputError(
                f"average is {average!r}; it is one of {', '.join(AVERAGES)}.",
                fix=did_you_mean(str(average), AVERAGES),
            )
        has_labels = threshold is not None
        names = classes if isinstance(classes, Sequence) and len(classes) > 1 else None
        self.confusion = Confusion(names if has_labels else classes, ignore_index=ignore_index)
        self.labels = (
            None if threshold is None else LabelCounts(threshold, ignore_index=ignore_index)
        )
        self.average = average
        self.without = [self.confusion.index(name) for name in without]

    def reset(self) -> None:
        self._of.reset()

    def update(self, output: Any) -> None:
        self._of.update(output, by=type(self).__name__)

    def merge(self, other: Score) -> None:
        if self.labels is not None and other.labels is not None:
            self.labels.merge(other.labels)
        self.confusion.merge(other.confusion)

    @property
    def _of(self) -> Confusion | LabelCounts:
        return self.confusion if self.labels is None else self.labels

    def _read(self) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Return right, true and predicted ones of each class, and if there is an unscored one."""
        if self.labels is not None:
            counts = self.labels.read()
            right, support, predicted = counts[:3].double()
            return right, support, predicted, bool(counts[6].any())
        matrix = self.confusion.matrix().double()
        return matrix.diagonal(), matrix.sum(1), matrix.sum(0), self.confusion.has_unscored()

    def value(self) -> float | Mapping[str, float]:
        right, support, predicted, has_unscored = self._read()
        taken_wrongly, missed = self.wrong
        whole = right + taken_wrongly * (predicted - right) + missed * (support - right)
        occurred = (predicted + support) > 0
        counted = torch.ones(len(right), dtype=torch.bool)
        counted[self.without] = False
        scores = torch.where(whole > 0, right / whole.clamp(min=0.5), 0.0)
        if has_unscored:
            scores, right = scores * math.nan, right * math.nan
        if self.average == "none":
            scores = torch.where(occurred, scores, torch.nan)
            classes = [i for i in range(len(scores)) if counted[i]]
            return {self.confusion.name(i): float(scores[i]) for i in classes}
        counted &= occurred
        if self.average == "macro":
            return float(scores[counted].mean())
        if self.average == "micro":
            return float(right[counted].sum() / whole[counted].sum())
        weighted = scores * support
        return float(weighted[counted].sum() / support[counted].sum())


@final
class Precision(Score):
    """Share of the samples predicted as a class that belong to it."""

    wrong = (1.0, 0.0)


@final
class Recall(Score):
    """Share of the samples of a class that are predicted as it."""

    wrong = (0.0, 1.0)


@final
class F1(Score):
    """The harmonic mean of precision and recall."""

    wrong = (0.5, 0.5)


def _as_indices(target: Tensor) -> Tensor:
    """Return targets as int64, with the least number for a fraction: it is no class.

    An `ignore_index` of -100 would be class 156 in uint8.
    """
    indices = target.long()
    if not target.is_floating_point():
        return indices
    return torch.where(indices == target, indices, torch.iinfo(torch.int64).min)


def _outside(what: str, classes: int | None, ignore_index: int) -> InputError:
    among = "below 0" if classes is None else f"not among the classes 0 to {classes - 1}"
    return InputError(
        f"{what} are {among}.",
        fix="Is the number of classes right? A target that is not to count has the value of"
        f" `ignore_index`, here {ignore_index}.",
    )


_ONE_SCORE = (
    "With one score for each target, say from where on it is true: {by}(threshold=0.0) for logits,"
    " 0.5 for probabilities."
)


def _classes_of(pred: Tensor, target: Tensor, *, by: str, top: int = 1) -> int | None:
    """Return the number of classes if `pred` holds scores; None for class indices.

    Scores have the target's shape with a dim of classes after the first. InputError for anything
    else.
    """
    shape = pred.shape
    if len(shape) > 1 and shape[:1] + shape[2:] == target.shape:
        if shape[1] < max(top, 2):
            name = f"{by}(top={top})" if by == "Accuracy" else by
            raise InputError(
                f"{name} needs at least {max(top, 2)} classes; pred has {shape[1]}.",
                fix=_ONE_SCORE.format(by=by),
            )
        return shape[1]
    if top > 1 or shape != target.shape or pred.is_floating_point():
        is_one_score = pred.is_floating_point() and shape == target.shape and by != "Confusion"
        raise InputError(
            f"{by} cannot compare pred {tuple(shape)} {pred.dtype} with target"
            f" {tuple(target.shape)}.",
            fix=_ONE_SCORE.format(by=by)
            if is_one_score
            else "Give pred as (batch, classes, ...) scores or as class indices, target as"
            " (batch, ...) indices.",
        )
    return None
