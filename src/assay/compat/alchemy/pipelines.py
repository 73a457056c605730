"""Pipelines of alchemy: callbacks of an epoch or a step, and `evaluate`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar

from assay.build import register
from assay.compat.alchemy.symbols import ENDING, sym_tbl
from assay.engine import Evaluate

logger = logging.getLogger("assay")
"""Logger whose lines are in the record."""


class SchedPipeline:
    """Base class of the callbacks of a training; a call takes and returns keyword arguments."""

    ends: ClassVar[str] = ""
    """Whatever has just ended when the callback is called: `epoch`, `step`, or nothing."""

    @staticmethod
    def register(name: str) -> Callable[[type], type]:
        """Register a class under a short name that a config may use as `type`."""
        return register(name)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__call__")
        if own is not None and cls.ends:
            setattr(cls, "__call__", _at_end(own, cls.ends))  # noqa: B010 - mypy forbids to assign it


def _at_end(call: Callable[..., Mapping[str, Any]], ends: str) -> Callable[..., Mapping[str, Any]]:
    """Return `call` with the counters of `train_sched` still at what ends."""

    @wraps(call)
    def called(self: Any, **kwargs: Any) -> Mapping[str, Any]:
        table = sym_tbl()
        table.force_set(ENDING, ends)
        try:
            return call(self, **kwargs)
        finally:
            table.force_set(ENDING, "")

    return called


class BeginEpochPipeline(SchedPipeline):
    """Callback at the beginning of an epoch."""


class EndEpochPipeline(SchedPipeline):
    """Callback at the end of an epoch; `train_sched.cur_epoch` is the epoch that ends."""

    ends = "epoch"


class BeginStepPipeline(SchedPipeline):
    """Callback before a step."""


class EndStepPipeline(SchedPipeline):
    """Callback after a step; `train_sched.cur_step` is the step that ends."""

    ends = "step"


def evaluate(split: str = "dev") -> None:
    """Evaluate a split of the run now, through the pipes and metrics of all its evaluations.

    The metrics go to the record, and decide which checkpoint is the best.
    """
    table = sym_tbl()
    evaluation: Evaluate = table.get("evaluation")
    evaluation.for_splits({split: table.get(f"{split}_loader")}).run(table.get("engine"))
