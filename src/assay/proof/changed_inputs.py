"""Inputs of two runs that differ and can change bits: config, code and environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.proof.replay import unlike
from assay.query.diff import diff, flat
from assay.query.run import RunView

_WITHOUT_WEIGHT = ("tag", "desc", "threads", "trace", "log", "display", "checkpoint", "evaluate")
"""Sections of a config that change no bit of the weights; threads are told with the environment."""


def changed_inputs(a: RunView, b: RunView) -> dict[str, tuple[str, str]]:
    """Return the inputs that differ between two runs and can change bits, with both values."""
    found = diff(a, b, ("config", "code"))
    changed = {
        f"config {each.key}": (each.left or "not given", each.right or "not given")
        for each in found.config
        if each.key.partition(".")[0] not in _WITHOUT_WEIGHT
    }
    changed |= {f"code {each.path}": ("", each.how) for each in found.code}
    left, right = (view.file.newest for view in (a, b))
    for name, values in _environment(left.environment, right.environment).items():
        changed[f"environment {name}"] = values
    if left.devices != right.devices:
        changed["environment devices"] = (", ".join(left.devices), ", ".join(right.devices))
    return changed


def is_only_environment(changed: Mapping[str, tuple[str, str]]) -> bool:
    """Return True if something differs, and nothing but the environment."""
    return bool(changed) and all(name.startswith("environment ") for name in changed)


def _environment(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return versions, threads and variables that differ."""
    a = dict(flat(left))
    b = dict(flat(right))
    counted = ("packages.", "variables.", "torch.threads")
    names = [name for name in dict.fromkeys([*a, *b]) if name.startswith(counted)]
    found = {
        name: (a.get(name, "not set"), b.get(name, "not set"))
        for name in names
        if a.get(name) != b.get(name)
    }
    return unlike(left, right) | found
