"""Names of alchemy: its plugins, pipelines, symbol table, task and runners over those of assay.

A config that names a target of alchemy uses it with a note, and its modules may `import alchemy`.
In a script, `assay.compat.install()` comes first.
"""

from __future__ import annotations

from typing import Any

from assay.compat.keys import OF_ALCHEMY as KEYS
from assay.compat.names import import_target
from assay.compat.tables import ALCHEMY as NAMES

__all__ = ["KEYS", "NAMES"]


def __getattr__(name: str) -> Any:
    """Return a name of alchemy itself (`sym_tbl`, `evaluate`); torch is loaded only for it."""
    if f"alchemy.{name}" not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_target(NAMES[f"alchemy.{name}"].target)
