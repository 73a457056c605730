"""Schedules of LiBai: the target that stands for each, and its arguments by their names there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HERE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "WarmupCosineLR": ("assay.engine.WarmupCosine", {"alpha": "final"}),
    "WarmupCosineAnnealingLR": ("assay.engine.WarmupCosine", {"eta_min": "final"}),
    "WarmupMultiStepLR": (
        "assay.engine.WarmupMultiStep",
        {"milestones": "milestones", "gamma": "gamma"},
    ),
    "WarmupStepLR": ("assay.engine.WarmupStep", {"step_size": "step_size", "gamma": "gamma"}),
    "WarmupExponentialLR": ("assay.engine.WarmupExponential", {"gamma": "gamma"}),
    "WarmupPolynomialLR": ("assay.engine.WarmupPoly", {"power": "power", "end_lr": "final"}),
}
"""Name in LiBai -> target here, and its arguments by their names there."""

DROPPED = ("max_iter", "warmup_iter", "warmup_method", "last_epoch", "verbose", "optimizer")
"""Arguments that the config gives, or that have one value here: the warm-up is linear."""


def arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return LiBai's arguments of a schedule under their names here; unknown ones stay."""
    names = {"warmup_factor": "start", **HERE[name][1]}
    return {names.get(key, key): value for key, value in given.items() if key not in DROPPED}
