"""Small functions of trainings: shares of right predictions, and weights that grow or fall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def classify(logits: Any, labels: Any, topk: Sequence[int] = (1,)) -> list[float]:
    """Return, for each k, the share of samples whose class is among the first k predictions.

    `logits` are samples x classes, `labels` the class of each sample.
    """
    best = logits.topk(max(topk), dim=1).indices
    is_right = best == labels.view(-1, 1)
    return [float(is_right[:, :k].any(1).float().mean()) for k in topk]


def rampup(current: float, length: float) -> float:
    """Return a weight that grows as exp(-5 (1 - t)^2), t = current / length, and stays at 1.

    It is the ramp-up of temporal ensembling (Laine and Aila, arXiv 1610.02242).

    >>> [round(rampup(step, 10), 3) for step in (0, 5, 10, 20)]
    [0.007, 0.287, 1.0, 1.0]
    """
    if length <= 0:
        return 1.0
    rest = 1.0 - min(max(current, 0.0), length) / length
    return math.exp(-5.0 * rest * rest)


sigmoid_rampup = rampup


def linear_rampup(current: float, length: float) -> float:
    """Return a weight that grows in proportion to `current`, and stays at 1.

    >>> linear_rampup(5, 10), linear_rampup(20, 10)
    (0.5, 1.0)
    """
    return 1.0 if length <= 0 else min(max(current, 0.0), length) / length


def cosine_rampdown(current: float, length: float) -> float:
    """Return a weight that falls as half a cosine, from 1 to 0.

    >>> [round(cosine_rampdown(step, 10), 3) for step in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """
    return 0.5 * (math.cos(math.pi * linear_rampup(current, length)) + 1.0)
