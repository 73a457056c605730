"""Merge of the states of pipeline stages into that of the whole model, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from assay.engine.numerics.dtensor import full_tensor


def merge_states(states: Sequence[Any], order: Mapping[str, int]) -> Any:
    """Merge the states of several stages: tables are joined, other values are those of the first.

    Tables and lists of weights follow the `order` of names. Groups of an optimizer with the same
    settings become one.
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
    """Return a state without the entries of weights that are `elsewhere`."""
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
    """Return a state with full tensors in host memory; collective if any is a DTensor."""
    if isinstance(state, Tensor):
        return full_tensor(state.detach()).cpu()
    if isinstance(state, dict):
        return _like(state, ((key, to_host(value)) for key, value in state.items()))
    return type(state)(map(to_host, state)) if type(state) in (list, tuple) else state


def _are_groups(state: Any) -> bool:
    """Return True for a list of optimizer groups."""
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
        settings = [(key, value) for key, value in group.items() if key != "params"]
        whole = found.setdefault(repr(sorted(settings)), {**group, "params": []})
        names = [*whole["params"], *group["params"]]
        whole["params"] = list(dict.fromkeys(names))
    for whole in found.values():
        whole["params"].sort(key=lambda name: order.get(name, len(order)))
    return list(found.values())


def _like(table: dict[Any, Any], items: Any) -> Any:
    """Return a table of the same type, with the attributes that torch sets on a module's state."""
    made = type(table)(items)
    if hasattr(table, "__dict__"):
        made.__dict__.update(table.__dict__)
    return made
