"""First difference of two runs in what their records hold: traces and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.trace_file import PHASES, Phase
from assay.core.verdict import Cause, Difference
from assay.proof.differences import CLOCKED, ORDER, Comparison
from assay.query.run import RunView
from assay.query.traces import Alignment, align, ranks_of, steps_of
from assay.store.series import read_series

if TYPE_CHECKING:
    from assay.store.series import Series

_PHASE_OF: Mapping[str, Phase] = {
    ORDER: "data",
    "epoch": "data",
    "train/loss": "loss",
    "train/grad_norm": "backward",
    "train/lr": "optimizer",
}

_CAUSE_OF: Mapping[Phase, Cause] = {
    "init": "init",
    "data": "data",
    "randomness": "randomness",
    "forward": "forward",
    "loss": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "state": "forward",
}


def first_in_records(a: RunView, b: RunView) -> Alignment:
    """Return the first difference that traces and curves of the records show."""
    found = first_in_traces(a, b)
    curve, compared, last = _in_curves(a, b)
    found.compared += compared
    found.last_step = max(found.last_step, last)
    if curve is not None and (found.difference is None or curve.step < found.difference.step):
        found.difference, found.kind = curve, "tensor"
    return found


def first_in_traces(a: RunView, b: RunView) -> Alignment:
    """Return the earliest difference of the traces of all ranks."""
    alignments = [
        (rank, align(steps_of(a, rank), steps_of(b, rank)))
        for rank in ranks_of(a)
        if rank in ranks_of(b)
    ]
    if not alignments:
        return Alignment()
    rank, first = min(alignments, key=lambda pair: (moment(pair[1].difference), pair[0]))
    first.compared = sum(each.compared for _, each in alignments)
    if len(alignments) > 1 and first.difference is not None:
        first.notes.append(f"first on rank {rank}")
    return first


def phase_of_curve(name: str) -> Phase:
    """Return the phase of a step in which the values of a curve are computed."""
    return _PHASE_OF.get(name, "loss" if name.startswith("train/") else "state")


def moment(difference: Difference | None) -> tuple[float, int]:
    """Return the step and the position of the phase in it; infinity for no difference."""
    return (
        (float("inf"), 0)
        if difference is None
        else (difference.step, PHASES.index(difference.phase))
    )


def _in_curves(a: RunView, b: RunView) -> tuple[Difference | None, int, int]:
    """Return the first difference of common curves, the number of points, and the last step."""
    left, right = (read_series(view.folder.metrics) for view in (a, b))
    first: Difference | None = None
    count = last = 0
    for name, series in left.items():
        if name.startswith(CLOCKED) or name not in right:
            continue
        for step, value, other in _points(series, right[name]):
            count += 1
            last = max(last, step)
            if value.tobytes() != other.tobytes():
                found = Difference(
                    step=step,
                    phase=phase_of_curve(name),
                    name=name,
                    left=repr(float(value)),
                    right=repr(float(other)),
                )
                first = min(filter(None, (first, found)), key=moment)
                break
    return first, count, last


def _points(left: Series, right: Series) -> Iterator[tuple[int, Any, Any]]:
    """Yield the steps at which both have a point, with the values."""
    steps, i, j = np.intersect1d(left.steps, right.steps, return_indices=True)
    yield from zip(steps.tolist(), left.values[i], right.values[j], strict=True)


def cause_of(found: Alignment, *, in_environment: bool) -> Cause:
    """Return the class of a difference by its phase and kind.

    `in_environment`: of the inputs of both runs only the environment differs.
    """
    first = found.difference
    assert first is not None
    if in_environment and first.phase not in ("init", "data"):
        return "environment"
    if first.name in ("sample indices", ORDER):
        return "data order"
    if found.kind == "random operation":
        return "randomness"
    return _CAUSE_OF[first.phase]


def compare_traces(traces: Alignment) -> Comparison:
    """Return the line of a report for two aligned traces."""
    first, count = traces.difference, traces.compared
    if first is not None:
        where = f"at step {first.step}, {first.place}"
        return Comparison(name="traces", differences=(where,))
    otherwise = f"equal, {count:,} fingerprints" if count else "no step is traced in both"
    return Comparison(name="traces", otherwise=otherwise)
