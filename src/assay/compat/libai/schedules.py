"""Schedules by LiBai's names and arguments; each returns the schedule that stands for it.

`max_iter` and `warmup_iter` of LiBai come from the config: `train` gives the length of the run and
`train.warmup_ratio` that of the warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.compat.names import import_target
from assay.compat.tables import SCHEDULES, rename_arguments


def WarmupCosineLR(**given: Any) -> Any:
    """Return a cosine after a linear warm-up."""
    return _make("WarmupCosineLR", given)


def WarmupCosineAnnealingLR(**given: Any) -> Any:
    """Return a cosine down to `eta_min`, a share of the learning rate."""
    return _make("WarmupCosineAnnealingLR", given)


def WarmupMultiStepLR(**given: Any) -> Any:
    """Return steps at milestones after a linear warm-up."""
    return _make("WarmupMultiStepLR", given)


def WarmupStepLR(**given: Any) -> Any:
    """Return steps of equal length after a linear warm-up."""
    return _make("WarmupStepLR", given)


def WarmupExponentialLR(**given: Any) -> Any:
    """Return an exponential after a linear warm-up."""
    return _make("WarmupExponentialLR", given)


def WarmupPolynomialLR(**given: Any) -> Any:
    """Return a polynomial after a linear warm-up."""
    return _make("WarmupPolynomialLR", given)


def _make(name: str, given: Mapping[str, Any]) -> Any:
    return import_target(SCHEDULES[name][0])(**rename_arguments(name, given))
