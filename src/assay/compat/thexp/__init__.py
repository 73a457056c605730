"""Names of thexp: parameters, meters, logger, saver, experiment, viewer, trainer and callbacks.

`assay.compat.install()`, or `python -m assay.compat SCRIPT`, lets `from thexp import Params` find
them.
"""

from __future__ import annotations

from typing import Any

from assay.compat.names import import_target
from assay.compat.tables import THEXP as NAMES

__all__ = ["NAMES"]


def __getattr__(name: str) -> Any:
    """Return a name of thexp itself, as `Params`; torch is loaded only where it is needed."""
    for module in ("thexp", "thexp.frame"):
        if f"{module}.{name}" in NAMES:
            return import_target(NAMES[f"{module}.{name}"].target)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
