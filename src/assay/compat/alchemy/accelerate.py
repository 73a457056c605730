"""Names of `accelerate` as alchemy's text uses them: the parallel run of assay behind them.

`--nproc 2` starts the processes, shares out the data, joins the gradients and lets the first one
record: an accelerator has little left to do.
"""

from __future__ import annotations

from typing import Any

from assay.compat.alchemy.model import BackwardHandler
from assay.compat.alchemy.optim import AlchemyOptimizer
from assay.compat.alchemy.plugins import BasicSetup
from assay.compat.alchemy.symbols import sym_tbl
from assay.compat.names import import_target
from assay.engine.model.modules import unwrap
from assay.engine.parallel.process_group import world

AccelerateBackwardHandler = BackwardHandler
AccelerateOptimizer = AlchemyOptimizer


class Accelerator:
    """View of the processes of this run by the names of accelerate."""

    @property
    def is_main_process(self) -> bool:
        return world().rank == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.is_main_process

    @property
    def num_processes(self) -> int:
        return int(world().count)

    @property
    def device(self) -> Any:
        return sym_tbl().device

    def prepare(self, *things: Any) -> Any:
        """Return the things as they are: the run has placed and shared them."""
        return things[0] if len(things) == 1 else things

    def backward(self, loss: Any) -> None:
        """Add gradients of a loss, by the handler of the run."""
        sym_tbl().get("backward")(loss)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        """Clip the gradients of parameters."""
        return import_target("torch.nn.utils.clip_grad_norm_")(parameters, max_norm, norm_type)

    def wait_for_everyone(self) -> None:
        """Do nothing: the run evaluates and saves when all processes are there."""

    def unwrap_model(self, model: Any) -> Any:
        """Return the model of the user without what was put around it."""
        return unwrap(model)


class AccelerateSetup(BasicSetup):
    """Set-up that keeps an `Accelerator` in the symbol table; the first process alone prints."""

    def begin(self) -> None:
        sym_tbl().force_set("accelerator", Accelerator())
        if world().rank == 0:
            super().begin()
