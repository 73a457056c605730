"""Names with dots, as tables inside of each other; and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 20
"""Names of more parts than this are no tables inside of each other."""


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"model.width": 16}` as `{"model": {"width": 16}}`; clashing names stay whole.

    >>> nest({"a.b": 1, "a.c": 2, "lr": 3, "lr.x": 4, "..": 5, "a.b.d": 6})
    {'a': {'b': 1, 'c': 2}, 'lr': 3, 'lr.x': 4, '..': 5, 'a.b.d': 6}
    """
    root: dict[str, Any] = {}
    plain = {key for key in flat if "." not in key}
    for key, value in flat.items():
        parts = key.split(".")
        if len(parts) > MAX_DEPTH:
            root[key] = value
            continue
        heads = {".".join(parts[:i]) for i in range(1, len(parts))}
        if not all(parts) or heads & flat.keys() or (parts[0] in plain and len(parts) > 1):
            root[key] = value
            continue
        table = root
        for part in parts[:-1]:
            table = table.setdefault(part, {})
        table[parts[-1]] = value
    return root


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves by dotted name; what has a `_type` is one thing and stays whole.

    >>> dict(flatten({"a": {"b": 1}, "c": 2}))
    {'a.b': 1, 'c': 2}
    """
    for key, value in values.items():
        if isinstance(value, dict) and "_type" not in value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
