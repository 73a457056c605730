"""State of a criterion, a part of each checkpoint: its buffers, or its own `state_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.core.errors import CheckpointError

PART = "criterion"


def criterion_state(process: object) -> dict[str, Any]:
    """Return the checkpoint part with the state of `process.criterion`; empty if it has none."""
    criterion: Any = getattr(process, "criterion", None)
    state = criterion.state_dict() if hasattr(criterion, "state_dict") else {}
    return {PART: dict(state)} if state else {}


def load_criterion_state(process: object, parts: Mapping[str, Any]) -> None:
    """Give the criterion its state back. CheckpointError when it is that of another one."""
    criterion: Any = getattr(process, "criterion", None)
    if PART not in parts or not hasattr(criterion, "load_state_dict"):
        return
    try:
        criterion.load_state_dict(parts[PART])
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(f"The checkpoint does not fit the criterion: {error}") from error
