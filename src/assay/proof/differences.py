"""First bit-for-bit difference of two runs: in checkpoints, curves and traces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.facts import COSTS, Evaluated
from assay.core.formatting import name_some
from assay.formats import manifest as manifests
from assay.formats.trace_file import PHASES, Phase
from assay.formats.verdict import Difference
from assay.query.run import RunView
from assay.query.traces import Alignment, Compared, align, ranks_of, steps_of
from assay.store.series import read_series

if TYPE_CHECKING:
    from assay.store.series import Series


ORDER = "data/order"
"""The curve that says which samples a step was given; not of a sampler of the user's own."""

CONTENT = "data/digest"
"""The curve that says what the batches of a step held."""

CLOCKED = (*COSTS, "compile/")
"""Curves of the machine, which differ between any two runs."""

_OF_THE_PLAN = (ORDER, CONTENT, "epoch", "lr")
"""Curves that are the same whatever the weights are, as is each one below `train/lr`."""

PARTS = ("weights", "optimizer", "state")
_NAMED = 3
_AVERAGE = "EMA"
"""Part of a checkpoint with averaged weights, by the name of its class in `assay.engine`."""


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


def are_of_one_moment(left: Path, right: Path) -> bool:
    """Return whether two checkpoints of a step were written at the same place of the loop.

    One of the last step of an epoch is written before the epoch ends, or again after it and its
    evaluation: a run that was killed in between has the first.
    """
    moments = [(each.epoch, {*each.info}) for each in map(manifests.read, (left, right))]
    return moments[0] == moments[1]


def compare_checkpoints(left: Path, right: Path) -> dict[str, list[str]]:
    """Return the differences of two checkpoints by part; empty lists for equal bits.

    CheckpointError for one that is damaged.
    """
    from assay.engine.checkpoint.folder import differing

    by_part: dict[str, list[str]] = {name: [] for name in PARTS}
    for part, names in differing(left, right).items():
        by_part[_group(part)] += [f"{part}: {name}" if name else part for name in names]
    return by_part


def _group(part: str) -> str:
    kind = part.partition(".")[0]
    if kind in ("model", "criterion"):
        return "weights"
    return "optimizer" if kind in ("optimizer", "schedule", "scaler", "backward") else "state"


def phase_of_part(part: str) -> Phase:
    """Return the phase of a step that computes a part of a checkpoint.

    >>> phase_of_part("model: body.weight"), phase_of_part("EMA: weights.body.weight")
    ('optimizer', 'average')
    """
    name = part.partition(":")[0]
    if name.partition(".")[0] == _AVERAGE:
        return "average"
    return "state" if _group(name) == "state" else "optimizer"


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
        f"{each.name:<{width}}  {_name_differences(each.differences) or each.otherwise}"
        for each in compared
    ]


def _name_differences(differences: tuple[str, ...]) -> str:
    return f"differs: {name_some(differences, _NAMED)}" if differences else ""


_PHASE_OF: Mapping[str, Phase] = {
    ORDER: "data",
    CONTENT: "data",
    "epoch": "data",
    "train/loss": "loss",
    "train/grad_norm": "backward",
}


def first_in_records(a: RunView, b: RunView, *, clocked: tuple[str, ...] = CLOCKED) -> Alignment:
    """Return the first difference that traces and curves of the records show.

    Curves whose names begin as one of `clocked` are left out.
    What it has compared, and from where to where, counts what depends on the weights alone.
    """
    alignment = first_in_traces(a, b)
    curve, steps = _in_curves(a, b, alignment, clocked)
    alignment.add_steps(steps)
    if curve is not None and (
        alignment.difference is None or curve.step < alignment.difference.step
    ):
        alignment.difference, alignment.kind = curve, "tensor"
    return alignment


def first_in_traces(a: RunView, b: RunView) -> Alignment:
    """Return the earliest difference of the traces of all ranks."""
    alignments = [
        (rank, align(steps_of(a, rank), steps_of(b, rank)))
        for rank in ranks_of(a)
        if rank in ranks_of(b)
    ]
    if not alignments:
        return Alignment()
    rank, first = min(alignments, key=lambda pair: (sort_key(pair[1].difference), pair[0]))
    first.compared = sum(each.compared for _, each in alignments)
    if len(alignments) > 1 and first.difference is not None:
        first.notes.append(f"first on rank {rank}")
    return first


def phase_of_curve(name: str, evaluated: Collection[str]) -> Phase:
    """Return the phase of a step in which a curve is computed; `evaluated` are of evaluations."""
    if name in evaluated:
        return "evaluation"
    if name.startswith("train/lr"):  # each group of parameters may have a curve of its own
        return "optimizer"
    return _PHASE_OF.get(name, "loss" if name.startswith("train/") else "state")


def depends_on_weights(name: str) -> bool:
    """Return False for a curve that other weights leave as it is: it is no evidence of theirs.

    >>> depends_on_weights("valid/acc"), depends_on_weights("train/lr/head")
    (True, False)
    """
    is_of_the_plan = name in _OF_THE_PLAN or name.startswith("train/lr")
    return not is_of_the_plan and not name.startswith(CLOCKED)


def evaluated_curves(view: RunView) -> set[str]:
    """Return the names of the curves that evaluations of a run have recorded."""
    facts = [timed.fact for timed in view.events]
    return {name for fact in facts if isinstance(fact, Evaluated) for name in fact.metrics}


def sort_key(difference: Difference | None) -> tuple[float, int, bool]:
    """Return step, position of the phase in it, and of the curve; infinity for no difference."""
    if difference is None:
        return (float("inf"), 0, False)
    is_made_of_others = difference.name == CONTENT  # other samples have other content
    return (difference.step, PHASES.index(difference.phase), is_made_of_others)


def add_evidence(found: Alignment, name: str, steps: Iterable[int]) -> None:
    """Note the steps at which a curve that says something of the data is compared, and equal."""
    evidence: Mapping[str, Compared] = {ORDER: "order", CONTENT: "data"}
    if name in evidence:
        for step in steps:
            found.traced[step] = found.traced.get(step, frozenset()) | {evidence[name]}


def _in_curves(
    a: RunView, b: RunView, traces: Alignment, clocked: tuple[str, ...]
) -> tuple[Difference | None, Sequence[int]]:
    """Return the first difference of common curves, and the step of each point of the weights."""
    left, right = (read_series(view.folder.metrics) for view in (a, b))
    first: Difference | None = None
    evaluated = evaluated_curves(a)
    compared: list[int] = []
    for name, series in left.items():
        if name.startswith(clocked) or name not in right:
            continue
        equal: list[int] = []
        for step, value, other in _points(series, right[name]):
            equal.append(step)
            if depends_on_weights(name):
                compared.append(step)
            if value.tobytes() != other.tobytes():
                found = Difference(
                    step=step,
                    phase=phase_of_curve(name, evaluated),
                    name=name,
                    left=repr(float(value)),
                    right=repr(float(other)),
                )
                first = min(filter(None, (first, found)), key=sort_key)
                equal.pop()
                break
        add_evidence(traces, name, equal)
    return first, compared


def _points(left: Series, right: Series) -> Iterator[tuple[int, Any, Any]]:
    """Yield the steps at which both have a point, with the values."""
    steps, i, j = np.intersect1d(left.steps, right.steps, return_indices=True)
    yield from zip(steps.tolist(), left.values[i], right.values[j], strict=True)


def compare_traces(traces: Alignment) -> Comparison:
    """Return the line of a report for two aligned traces."""
    first, count = traces.difference, traces.compared
    if first is not None:
        where = f"at step {first.step}, {first.place}"
        return Comparison(name="traces", differences=(where,))
    otherwise = f"equal, {count:,} fingerprints" if count else "no step is traced in both"
    return Comparison(name="traces", otherwise=otherwise)
