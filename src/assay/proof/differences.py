"""Bit-for-bit differences of checkpoints, part by part, and of curves, point by point."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.store.series import Series

ORDER = "data/order"
"""The curve that says which samples a step was given; not of a sampler of the user's own."""

CONTENT = "data/digest"
"""The curve that says what the batches of a step held."""

CLOCKED = ("speed/", "time/", "memory/", "compile/")
"""Curves of the machine, which differ between any two runs."""

PARTS = ("weights", "optimizer", "state")
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result for one compared thing: its differences, none when it is equal.

    `otherwise` is printed when nothing differs.
    """

    name: str
    differences: tuple[str, ...] = ()
    otherwise: str = "equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveDifference:
    """First difference of two curves: its step, its description, and both values if there are."""

    step: int
    how: str
    left: float | None = None
    right: float | None = None


def compare_checkpoints(left: Path, right: Path) -> dict[str, list[str]]:
    """Return the differences of two checkpoints by part; empty lists for equal bits.

    CheckpointError for one that is damaged.
    """
    from assay.engine.checkpoint.compare import differing

    by_part: dict[str, list[str]] = {name: [] for name in PARTS}
    for part, names in differing(left, right).items():
        by_part[_group(part)] += [f"{part}: {name}" if name else part for name in names]
    return by_part


def _group(part: str) -> str:
    kind = part.partition(".")[0]
    if kind in ("model", "criterion"):
        return "weights"
    return "optimizer" if kind in ("optimizer", "scaler", "backward") else "state"


def curve_difference(left: Series | None, right: Series | None) -> CurveDifference | None:
    """Return the first difference of two curves, None when all bits are equal."""
    if left is None or right is None:
        known = right if left is None else left
        return CurveDifference(
            step=int(known.steps[0]) if known is not None else 0, how="is in one of them only"
        )
    if (
        left.steps.tobytes() == right.steps.tobytes()
        and left.values.tobytes() == right.values.tobytes()
    ):
        return None
    for step, other, value, its in zip(
        left.steps, right.steps, left.values, right.values, strict=False
    ):
        if step != other:
            first = int(min(step, other))
            return CurveDifference(
                step=first, how=f"has a point at step {first} in one of them only"
            )
        if value.tobytes() != its.tobytes():
            return CurveDifference(
                step=int(step), how=f"from step {step} on", left=float(value), right=float(its)
            )
    longer = left if len(left) > len(right) else right
    how = f"has {len(left.steps)} points and {len(right.steps)}"
    return CurveDifference(step=int(longer.steps[min(len(left), len(right))]), how=how)


def format_comparisons(compared: tuple[Comparison, ...]) -> list[str]:
    """Return a line for each thing that was compared."""
    width = max(len(each.name) for each in compared)
    return [
        f"{each.name:<{width}}  {_said(each.differences) or each.otherwise}" for each in compared
    ]


def _said(differences: tuple[str, ...]) -> str:
    named = ", ".join(differences[:_NAMED])
    more = f" and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
    return f"differs: {named}{more}" if differences else ""
