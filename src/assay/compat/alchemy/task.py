"""Task of alchemy: a class that loads the data of one split at a time, and may write its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.compat.alchemy.registrable import Registrable
from assay.compat.alchemy.symbols import sym_tbl
from assay.compat.fitting_call import call_fitting
from assay.engine import Task


class AlchemyTask(Registrable, Task):
    """Task whose `load_dataset(split)` sets `self._datasets[split]`, with loader arguments or not.

    `self._datasets[split] = (data, {"collate_fn": function})` sets arguments of the loader. Data
    of a split that the config describes are `self.datasets[split]`. A class may write `step` and
    `eval_step`, which get each batch, and `begin_eval` and `end_eval`.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._datasets: dict[str, Any] = {}
        own = [name for name in ("begin_eval", "end_eval") if _is_written(self, name)]
        self.pipes = [*self.pipes, *([TaskPipe(self)] if own else [])]

    def load_dataset(self, split: str, **kwargs: Any) -> None:
        """Set `self._datasets[split]`; the class of the user writes this."""

    def dataset(self, split: str) -> Any:
        """Return what `load_dataset` has set for a split."""
        if split not in self._datasets:
            self.load_dataset(split)
        found = self._datasets.get(split)
        return super().dataset(split) if found is None else found

    def load_source(self, split: str, source: Any) -> Any:
        """Return the data of a split whose pipes stand in the config, through `load_dataset`."""
        self.datasets[split] = source
        return self.dataset(split)

    def step(self, batch: Any) -> Any:
        """Train on a batch; return the output of the model."""
        return sym_tbl().model(batch, needs_loss=True, requires_grad=True)

    def begin_eval(self, *_: Any, **given: Any) -> None:
        """Do what is needed before the first batch of a split."""

    def eval_step(self, batch: Any) -> Any:
        """Evaluate a batch; return the output of the model, which goes through the pipes."""
        return sym_tbl().model(batch, needs_loss=True, requires_grad=False)

    def end_eval(self, *_: Any, **given: Any) -> Mapping[str, Any] | None:
        """Return metrics of the split after its last batch, or nothing."""
        return None


class TaskPipe:
    """Pipe of an evaluation that calls `begin_eval` and `end_eval` of a task."""

    def __init__(self, task: AlchemyTask) -> None:
        self.task = task

    def begin_eval(self, evaluation: Any) -> None:
        call_fitting(self.task.begin_eval, evaluation, split=evaluation.split)

    def end_eval(self, evaluation: Any) -> Any:
        return call_fitting(self.task.end_eval, evaluation, split=evaluation.split)


def _is_written(task: AlchemyTask, name: str) -> bool:
    return getattr(type(task), name) is not getattr(AlchemyTask, name)
