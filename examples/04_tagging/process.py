"""A process of one's own: the loss is counted by the word, however many of them a batch holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from assay.engine import OptimizerStep, Process


class Tagging(Process):
    """Process whose loss is a pair: its sum over the words, and their number.

    Weighted so, no word counts more than another.
    """

    def __init__(
        self, model: nn.Module, backward: OptimizerStep | None = None, *, metrics: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.metrics = metrics
        if backward is not None:
            self.backward = backward

    def forward_step(
        self, batch: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
        words, tags = batch
        pred = self.model(words)
        total, weight = cross_entropy(pred, tags, reduction="sum"), (tags >= 0).sum()
        return (total, weight), {
            "pred": pred.detach(),
            "target": tags,
            "loss": (total.detach(), weight),
        }
