"""Optimizer and scheduler of alchemy: wrappers whose classes set `optimizer` and `lr_sched`."""

from __future__ import annotations

from typing import Any

from assay.compat.alchemy.registrable import Registrable
from assay.compat.alchemy.symbols import sym_tbl


class AlchemyOptimizer(Registrable):
    """Wrapper of an optimizer: its class sets `self.optimizer`, which the run uses.

    `sym_tbl().optimizer` is the wrapper; it has what its optimizer has.
    """

    optimizer: Any

    def __init__(self, **given: Any) -> None:
        sym_tbl().force_set("optimizer_wrapper", self)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(f"{type(self).__name__} has not set `self.optimizer`")
        return getattr(self.optimizer, name)


class AlchemyTrainScheduler(Registrable):
    """Wrapper of a schedule of the learning rate: its class sets `self.lr_sched`.

    The counters `cur_epoch` and `cur_step` are those of the run: `sym_tbl().train_sched` has them.
    """

    lr_sched: Any

    def __init__(self, **given: Any) -> None:
        sym_tbl().force_set("sched_wrapper", self)

    def __getattr__(self, name: str) -> Any:
        if name in ("cur_epoch", "cur_step"):
            return getattr(sym_tbl().train_sched, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
