"""Whole model run stage after stage in one process, as a pipeline splits it among ranks."""

from __future__ import annotations

from typing import Any

from torch import nn

from assay.engine.parallel.layout import Layout
from assay.engine.parallel.pipeline_split import split_model
from assay.engine.parallel.stage_shapes import Shapes, sendable, shapes_of


class StagedForward:
    """Replacement of a model's forward pass by its pipeline stages, one after another.

    It records what each stage gives to the next, and at which stage the model is. InputError if the
    model cannot be split as `layout` says.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.split = split_model(model, layout.stage_count, layout.split)
        self.stage: int | None = None
        """Stage at work, or the last one after all have run; None before the first call."""
        self.boundaries: dict[bool, tuple[Shapes, ...]] = {}
        """Shapes between the stages in the first call in training (True) and in evaluation."""
        self._model = model
        model.forward = self._forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        given: list[Shapes] = []
        for number, parts in enumerate(self.split.stages):
            self.stage = number
            for part in parts:
                args = (part.run(*args, **kwargs),)
                kwargs = {}
            if number + 1 < len(self.split.stages):
                args = (sendable(args[0], parts[-1].name),)
                given.append(shapes_of(args[0]))
        self.boundaries.setdefault(self._model.training, tuple(given))
        return args[0]
