"""The task of a run, and what an evaluation takes from it and from the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assay.compose.house import House
from assay.config.tree import List, get_at
from assay.core.errors import AssayError, InputError
from assay.core.event_log import Warned
from assay.core.ports import Recorder

if TYPE_CHECKING:
    from assay.engine.metrics.outputs import Pipes

META = "task/meta.json"
"""The name of the artifact that holds what the task knows about its data."""


def make_task(house: House) -> Any:
    """What [task] asks for, if it is there; built once."""
    from assay.engine.loop.task import meta_of

    if "task" not in house.root.items:
        return None
    if house.task is None:
        task = house.build("task")
        if not hasattr(task, "dataset"):
            raise InputError(
                f"[task] made a {type(task).__name__}, which has no data sets.",
                fix="Derive it from assay.engine.Task, or write `def dataset(self, split)`.",
            )
        house.context.set("task", task)
        house.task, house.meta = (
            task,
            meta_of(task),
        )  # now: what cannot be written is known before the run begins
    return house.task


def dataset_of(house: House, split: str) -> Any:
    """The data of a split whose section has no source."""
    task = make_task(house)
    if task is None:
        raise InputError(f"[data.{split}] has no source, and there is no [task].")
    found = task.dataset(split)
    if found is None:
        raise InputError(f"The task {type(task).__name__} gave nothing for the split {split!r}.")
    return found


def evaluation_of(house: House) -> tuple[Pipes, Mapping[str, Any]]:
    """The pipes of an evaluation, those of the task first, and the metrics of the task."""
    from assay.engine.metrics.outputs import Pipes

    task = make_task(house)
    node = get_at(house.root, ("evaluate", "pipes"))
    own = house.build_at(("evaluate", "pipes")) if isinstance(node, List) else []
    return Pipes([*getattr(task, "pipes", ()), *own]), getattr(task, "metrics", {})


def keep_meta(house: House, recorder: Recorder) -> None:
    """Keep what the task knows about its data in the record."""
    if house.meta:
        try:
            recorder.artifact(house.meta, META)
        except AssayError as error:
            recorder.tell(Warned(message=f"{META} was not kept: {error.what}"))
