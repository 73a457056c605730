"""Comparison of two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.engine.checkpoint.codec import digest
from assay.engine.checkpoint.folder import load


def differing(left: Path, right: Path) -> dict[str, list[str]]:
    """Return, for each part of two checkpoints, the names of its values that differ.

    CheckpointError for one that is damaged.
    """
    a = load(left)
    b = load(right)
    return {part: _names(a.get(part), b.get(part)) for part in sorted(a.keys() | b.keys())}


def _names(left: Any, right: Any) -> list[str]:
    if digest(left) == digest(right):
        return []
    ours = dict(_leaves(left, ""))
    theirs = dict(_leaves(right, ""))
    return [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]


def _leaves(state: Any, path: str) -> Iterator[tuple[str, str]]:
    """Return the digest of every leaf of a state, by path."""
    inside = (
        state.items()
        if isinstance(state, Mapping)
        else enumerate(state)
        if isinstance(state, list)
        else None
    )
    if inside is None:
        yield path, digest(state)
        return
    for key, value in inside:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))
