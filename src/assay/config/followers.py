"""Parts of a config that follow a metric: what measures it decides the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from assay.config.tree import KeyPath, Node, Table, get_at, walk

_PLATEAU = ("torch.optim.lr_scheduler.ReduceLROnPlateau",)
_TORCH_SCHEDULE = ("assay.engine.TorchSchedule", "assay.engine.optim.schedules.TorchSchedule")


def has_follower(root: Table, counted: Iterable[Node]) -> bool:
    """Return whether a part that decides the weights follows a metric, as EarlyStop does.

    Those are torch's plateau, and every object that is given a `metric`.
    """
    return next(plateaus(root), None) is not None or any(
        isinstance(part, Table) and part.target is not None and "metric" in part.items
        for node in counted
        for _, part in walk(node)
    )


def plateaus(root: Table) -> Iterator[KeyPath]:
    """Yield the places of the metrics that schedules follow."""
    schedule = root.items.get("schedule")
    names = schedule.items if isinstance(schedule, Table) and schedule.target is None else {}
    paths: list[KeyPath] = [("schedule", name) for name in names] or [("schedule",)]
    for path in paths:
        follows = target_at(root, path) in _TORCH_SCHEDULE
        of_torch = (*path, "scheduler") if follows else path
        if target_at(root, of_torch) in _PLATEAU:
            yield (*path, "metric")


def target_at(root: Table, path: KeyPath) -> str:
    """Return the class of the object at a path, "" where there is none."""
    node = get_at(root, path)
    return (node.target or "") if isinstance(node, Table) else ""
