"""Names of flame, and of the package `injector` that it builds on, over those of assay."""

from __future__ import annotations

from typing import Any

from assay.compat.names import import_target
from assay.compat.tables import FLAME as NAMES


def __getattr__(name: str) -> Any:
    """Return a name of flame or of `injector`; torch is loaded only for those that need it."""
    for package in ("flame", "injector"):
        if f"{package}.{name}" in NAMES:
            return import_target(NAMES[f"{package}.{name}"].target)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
