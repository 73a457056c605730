"""Cause of the first difference of two runs: as far as what was compared before it is equal."""

from __future__ import annotations

from collections.abc import Mapping, Set

from assay.core.trace_file import SAMPLE_INDICES
from assay.core.verdict import Cause, Difference
from assay.proof.changed_inputs import is_only_outside
from assay.proof.differences import ORDER
from assay.query.traces import ABSENT, Alignment, Compared

OUTSIDE: Cause = "an input outside the record changed"


def cause_of(
    found: Alignment, changed: Mapping[str, object], *, repeats: bool | None = None
) -> Cause | None:
    """Return the cause of a difference, None for equal runs.

    `changed` has the inputs that differ. `repeats` says what training again has shown: True where
    it gives the same bits twice, though a record has others, so that an input has changed since;
    False where it gives other bits each time, so that no input has to change.

    A phase is the cause only if what comes before it in the step, and the weights that the step
    began with, are compared and equal. Else the cause is the list of what it may be.
    """
    first = found.difference
    if first is None:
        return None
    cause = _cause_by_phase(found, first)
    if cause in ("init", "data", "data order"):
        return cause
    if repeats or (repeats is None and is_only_outside(changed)):
        is_of_environment = any(name.startswith("environment ") for name in changed)
        return "environment" if is_of_environment else OUTSIDE
    return cause


def _cause_by_phase(found: Alignment, first: Difference) -> Cause:
    known = found.traced.get(first.step, frozenset())
    match first.phase:
        case "init" | "randomness" | "evaluation":
            return first.phase
        case "data":
            if first.name in (SAMPLE_INDICES, ORDER):
                return "data order"
            return "data" if "order" in known else "data or data order: not traced"
        case "forward" | "loss" | "state" if _knows_before(found, first, known, "data"):
            return "randomness" if found.kind == "random operation" else "forward"
        case "backward" if _knows_before(found, first, known, "data"):
            is_of_one = ABSENT in (first.left, first.right)
            is_known = is_of_one or "operations" in known
            return "backward" if is_known else "forward or backward: not traced"
        case "optimizer" if first.name.startswith("train/lr"):
            return "optimizer"
        case "optimizer" if _knows_before(found, first, known, "backward"):
            return "optimizer"
    is_at_start = first.step <= 1 and first.phase in ("forward", "loss")
    return (
        "data, init or forward: not traced"
        if is_at_start
        else "this step or one before it: not traced"
    )


def _knows_before(
    found: Alignment, first: Difference, known: Set[Compared], phase: Compared
) -> bool:
    """Return True if the weights before the step, and a phase of the step, are compared."""
    before = found.traced.get(first.step - 1, frozenset())
    return phase in known and bool(before & {"init", "optimizer"})
