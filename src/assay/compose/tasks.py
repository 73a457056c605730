"""Task of a run: its datasets, and its part in evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assay.compose.run_scope import RunScope
from assay.config.tree import List, get_at
from assay.core.errors import AssayError, InputError
from assay.core.event_log import Warned
from assay.core.ports import Recorder

if TYPE_CHECKING:
    from assay.engine.metrics.outputs import Pipes

META = "task/meta.json"
"""The name of the artifact that holds what the task knows about its data."""


def make_task(scope: RunScope) -> Any:
    """Build [task] once; return None where there is none."""
    from assay.engine.loop.task import meta_of

    if "task" not in scope.root.items:
        return None
    if scope.task is None:
        task = scope.build("task")
        if not hasattr(task, "dataset"):
            raise InputError(
                f"[task] made a {type(task).__name__}, which has no data sets.",
                fix="Derive it from assay.engine.Task, or write `def dataset(self, split)`.",
            )
        scope.context.set("task", task)
        # Made now, so that what cannot be written is known before the run begins.
        scope.task = task
        scope.meta = meta_of(task)
    return scope.task


def dataset_of(scope: RunScope, split: str) -> Any:
    """Return the task's dataset for a split whose section has no source."""
    task = make_task(scope)
    if task is None:
        raise InputError(f"[data.{split}] has no source, and there is no [task].")
    found = task.dataset(split)
    if found is None:
        raise InputError(f"The task {type(task).__name__} gave nothing for the split {split!r}.")
    return found


def evaluation_of(scope: RunScope) -> tuple[Pipes, Mapping[str, Any]]:
    """Return the pipes of an evaluation, those of the task first, and the task's metrics."""
    from assay.engine.metrics.outputs import Pipes

    task = make_task(scope)
    node = get_at(scope.root, ("evaluate", "pipes"))
    own = scope.build_at(("evaluate", "pipes")) if isinstance(node, List) else []
    return Pipes([*getattr(task, "pipes", ()), *own]), getattr(task, "metrics", {})


def keep_meta(scope: RunScope, recorder: Recorder) -> None:
    """Keep the task's description of its data in the record."""
    if scope.meta:
        try:
            recorder.artifact(scope.meta, META)
        except AssayError as error:
            recorder.tell(Warned(message=f"{META} was not kept: {error.what}"))
