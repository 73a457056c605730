"""States of the random generators of Python, numpy and torch: `thexp.utils.random`."""

from __future__ import annotations

from assay.engine import get_state, seed_all, set_state

__all__ = ["get_state", "seed_all", "set_state"]
