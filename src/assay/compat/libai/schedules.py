"""Schedules by LiBai's names and arguments; each returns the schedule that stands for it.

`max_iter` and `warmup_iter` of LiBai come from the config: `train` gives the length of the run and
`train.warmup_ratio` that of the warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.compat.importing import import_target

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


def WarmupCosineLR(**given: Any) -> Any:
    """Return a cosine after a linear warm-up."""
    return _made("WarmupCosineLR", given)


def WarmupCosineAnnealingLR(**given: Any) -> Any:
    """Return a cosine down to `eta_min`, a share of the learning rate."""
    return _made("WarmupCosineAnnealingLR", given)


def WarmupMultiStepLR(**given: Any) -> Any:
    """Return steps at milestones after a linear warm-up."""
    return _made("WarmupMultiStepLR", given)


def WarmupStepLR(**given: Any) -> Any:
    """Return steps of equal length after a linear warm-up."""
    return _made("WarmupStepLR", given)


def WarmupExponentialLR(**given: Any) -> Any:
    """Return an exponential after a linear warm-up."""
    return _made("WarmupExponentialLR", given)


def WarmupPolynomialLR(**given: Any) -> Any:
    """Return a polynomial after a linear warm-up."""
    return _made("WarmupPolynomialLR", given)


def arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return LiBai's arguments of a schedule under their names here; unknown ones stay."""
    names = {"warmup_factor": "start", **HERE[name][1]}
    return {names.get(key, key): value for key, value in given.items() if key not in DROPPED}


def _made(name: str, given: Mapping[str, Any]) -> Any:
    return import_target(HERE[name][0])(**arguments(name, given))
