"""States of a model's stages as one state of the whole model, and the other way round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from assay.engine.numerics.dtensor import full_tensor


def merge_states(states: Sequence[Any], order: Mapping[str, int]) -> Any:
    """One tree of several: tables are joined, anything else is that of the first who has it.

    Tables and lists of weights are in the `order` of their names. Groups of an optimizer are one
    where their settings are the same.
    """
    first = states[0]
    if isinstance(first, dict):
        tables = [state for state in states if isinstance(state, dict)]
        keys = list(dict.fromkeys(key for table in tables for key in table))
        if any(key in order for key in keys):
            keys.sort(key=lambda key: order.get(key, len(order)))
        items = (
            (key, merge_states([table[key] for table in tables if key in table], order))
            for key in keys
        )
        return _like(first, items)
    if _are_groups(first):
        return _groups_together([group for state in states for group in state], order)
    return first


def drop_weights(state: Any, elsewhere: Collection[str]) -> Any:
    """A tree without what is said of weights that are `elsewhere`."""
    if isinstance(state, dict):
        return _like(
            state,
            (
                (key, drop_weights(value, elsewhere))
                for key, value in state.items()
                if key not in elsewhere
            ),
        )
    if _are_groups(state):
        own = [
            {**group, "params": [name for name in group["params"] if name not in elsewhere]}
            for group in state
        ]
        return [group for group in own if group["params"]]
    return state


def to_host(state: Any) -> Any:
    """A tree with whole tensors in host memory, as another process can be given it; collective
    where any is divided."""
    if isinstance(state, Tensor):
        return full_tensor(state.detach()).cpu()
    if isinstance(state, dict):
        return _like(state, ((key, to_host(value)) for key, value in state.items()))
    return type(state)(map(to_host, state)) if type(state) in (list, tuple) else state


def _are_groups(state: Any) -> bool:
    """Whether it is a list of groups of an optimizer."""
    return (
        isinstance(state, list)
        and bool(state)
        and all(isinstance(one, dict) and "params" in one for one in state)
    )


def _groups_together(
    groups: Sequence[Mapping[str, Any]], order: Mapping[str, int]
) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        settings = repr(sorted((key, value) for key, value in group.items() if key != "params"))
        whole = found.setdefault(settings, {**group, "params": []})
        whole["params"] = list(dict.fromkeys([*whole["params"], *group["params"]]))
    for whole in found.values():
        whole["params"].sort(key=lambda name: order.get(name, len(order)))
    return list(found.values())


def _like(table: dict[Any, Any], items: Any) -> Any:
    """A table of the same kind, with what else torch keeps in that of a module."""
    made = type(table)(items)
    if hasattr(table, "__dict__"):
        made.__dict__.update(table.__dict__)
    return made
