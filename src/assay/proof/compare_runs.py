"""Comparison of a run with its replay: a verdict, and a line for everything compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from assay.core.errors import CheckpointError, InputError
from assay.core.formatting import count
from assay.formats.manifest import folder_of_step
from assay.formats.verdict import Difference, Verdict
from assay.proof.cause import cause_of
from assay.proof.differences import (
    CLOCKED,
    CONTENT,
    ORDER,
    PARTS,
    Comparison,
    CurveDifference,
    add_evidence,
    are_of_one_moment,
    compare_checkpoints,
    compare_traces,
    curve_difference,
    depends_on_weights,
    evaluated_curves,
    first_in_traces,
    phase_of_curve,
    phase_of_part,
    sort_key,
)
from assay.proof.step_range import StepRange
from assay.query.run import RunView
from assay.query.traces import Alignment
from assay.store.series import read_series

if TYPE_CHECKING:
    from assay.store.series import Series

_TITLES: Mapping[str, str] = {ORDER: "sample order", CONTENT: "batches"}


def compare_runs(
    view: RunView,
    again: RunView,
    span: StepRange,
    changed: Mapping[str, tuple[str, str]],
    *,
    repeats: Callable[[int], bool | None] = lambda step: None,
    force: bool = False,
) -> tuple[Verdict, tuple[Comparison, ...]]:
    """Return the verdict on a replay; InputError when nothing that depends on the weights compares.

    `repeats` is called with the step of the first difference, and tells whether another replay has
    the bits of this one there; None where that says nothing. With `force` a damaged checkpoint is
    left out.
    """
    curves, differences, equal = _compare_curves(view, again, span)
    damaged: list[str] = []
    checkpoints = _checkpoints(view, again, span, damaged if force else None)
    parts, others = _compare_parts(checkpoints)
    traces = Alignment() if view.damages else first_in_traces(view, again)
    lines = compare_traces(traces)
    for name, steps in equal.items():
        add_evidence(traces, name, steps)
        if depends_on_weights(name):
            traces.add_steps(steps)
    traces.add_steps([*checkpoints])
    found = _earliest(traces, [*differences, *others])
    first = found.difference
    last = span.last if first is not None else found.last_step
    if last <= span.first:
        _refuse_without_evidence(view, span)
    is_repeated = repeats(first.step) if first is not None else None
    verdict = Verdict(
        question="replay",
        runs=(view.id, again.id),
        equal=first is None,
        first_step=span.first + 1,
        last_step=last,
        compared=found.compared,
        difference=first,
        cause=cause_of(found, changed, repeats=is_repeated),
        changed_inputs={name: list(values) for name, values in changed.items()},
        at_ns=time.time_ns(),
        note=" ".join([*view.damages, *damaged, *found.notes, *_what_is_open(last, span)]),
    )
    if view.damages:
        lines = replace(lines, otherwise="not compared: the record is damaged")
    return verdict, (*curves, *parts, lines)


def _refuse_without_evidence(view: RunView, span: StepRange) -> NoReturn:
    raise InputError(
        f"{view.id} has recorded nothing of {span.text} that depends on the weights: whether the"
        " replay is equal cannot be told.",
        where=str(view.path),
        fix="train it with a trace, a curve of the loss or a checkpoint: trace.every, log.every,"
        " checkpoint.every",
    )


def _what_is_open(last: int, span: StepRange) -> Iterator[str]:
    """Say of which steps the record cannot tell whether they are equal."""
    if last < span.last:
        steps = f"steps {last + 1} to" if last + 1 < span.last else "step"
        yield f"of {steps} {span.last} nothing that depends on the weights is recorded"


def _earliest(traces: Alignment, others: list[Difference]) -> Alignment:
    """Return the difference of the traces, or one of the others that comes before it.

    A curve names no module; the first place that the traces name is then a note.
    """
    traced = traces.difference
    earlier = [each for each in others if traced is None or sort_key(each) < sort_key(traced)]
    if not earlier:
        return traces
    notes = list(traces.notes)
    if traced is not None:
        notes.append(f"first difference of the traces: step {traced.step}, {traced.place}")
    return replace(traces, difference=min(earlier, key=sort_key), kind="tensor", notes=notes)


def _compare_curves(
    view: RunView, again: RunView, span: StepRange
) -> tuple[list[Comparison], list[Difference], dict[str, list[int]]]:
    """Return the comparison of each curve, first differences, and the equal steps by name."""
    compared: list[Comparison] = []
    differences: list[Difference] = []
    equal: dict[str, list[int]] = {}
    evaluated = evaluated_curves(view)
    for name, left, right in _curves(view, again, span):
        where = curve_difference(left, right)
        if left is not None:
            last = span.last if where is None else where.step - 1
            equal[name] = left.steps[left.steps <= last].tolist()
        if where is not None:
            differences.append(_difference(name, where, evaluated))
        points = len(left) if left is not None else 0
        compared.append(
            Comparison(
                name=_TITLES.get(name, name),
                differences=(where.how,) if where is not None else (),
                otherwise=f"equal, {count(points, 'point')}",
            )
        )
    if not equal.keys() & _TITLES.keys():
        lacking = "not recorded (assay.engine.BatchDigest does it)"
        compared.append(Comparison(name=_TITLES[ORDER], otherwise=lacking))
    return compared, differences, equal


def _compare_parts(
    found: Mapping[int, Mapping[str, list[str]]],
) -> tuple[list[Comparison], list[Difference]]:
    """Return the comparison of each part of the checkpoints, and all their differences."""
    equal = f"equal at step{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
    if not found:
        equal = "no checkpoint to compare"
    compared, differences = [], []
    for name in PARTS:
        own = [(step, each) for step, parts in found.items() for each in parts[name]]
        differences += [
            Difference(step=step, phase=phase_of_part(each), name=each) for step, each in own
        ]
        first_step = own[0][0] if own else 0
        told = tuple(each for step, each in own if step == first_step)
        if told:
            told = (f"at step {first_step} {told[0]}", *told[1:])
        compared.append(Comparison(name=name, differences=told, otherwise=equal))
    return compared, differences


def _difference(name: str, where: CurveDifference, evaluated: Collection[str]) -> Difference:
    left, right = ("" if value is None else repr(value) for value in (where.left, where.right))
    return Difference(
        step=where.step, phase=phase_of_curve(name, evaluated), name=name, left=left, right=right
    )


def _curves(
    view: RunView, again: RunView, span: StepRange
) -> Iterator[tuple[str, Series | None, Series | None]]:
    """Yield the curves of both within the range of steps by name, without those of the clock."""
    a = _series_within(view, span)
    b = _series_within(again, span)
    damaged = bool(view.damages)
    for name in dict.fromkeys([*a, *b]):
        if name.startswith(CLOCKED) or (name == ORDER and name not in a):  # as older records
            continue
        left = a.get(name)
        right = b.get(name)
        if damaged and right is not None:  # what the record has lost is nobody's difference
            right = _select(right, np.isin(right.steps, left.steps)) if left is not None else None
        # Of the last step each has what came before it was left.
        if not span.whole and _points_at(left, span.last) != _points_at(right, span.last):
            left = _select_before(left, span.last)
            right = _select_before(right, span.last)
        left = left if len(left or ()) else None
        right = right if len(right or ()) else None
        if left is not None or right is not None:
            yield name, left, right


def _series_within(view: RunView, span: StepRange) -> dict[str, Series]:
    series = read_series(view.folder.metrics)
    return {name: _select_range(each, span) for name, each in series.items()}


def _points_at(series: Series | None, step: int) -> int:
    return 0 if series is None else int((series.steps == step).sum())


def _select_before(series: Series | None, step: int) -> Series | None:
    return None if series is None else _select(series, series.steps < step)


def _select_range(series: Series, span: StepRange) -> Series:
    inside = series.steps <= span.last
    return _select(series, inside & (series.steps > span.first) if span.checkpoint else inside)


def _select(series: Series, inside: Any) -> Series:
    return replace(
        series,
        steps=series.steps[inside],
        times_ns=series.times_ns[inside],
        values=series.values[inside],
        branches=series.branches[inside],
        axis_values=None,
    )


def _checkpoints(
    view: RunView, again: RunView, span: StepRange, damaged: list[str] | None
) -> dict[int, dict[str, list[str]]]:
    """Return the differences of checkpoints that both have, by step and part.

    A damaged one of the record is told in `damaged`, and an InputError when that is None.
    """
    theirs = {each.name: each for each in again.checkpoints}
    starts = {each.number: each.from_step for each in view.file.attempts if each.number > 1}
    found = {}
    for each in view.all_checkpoints:
        other = theirs.get(each.name)
        step = each.step
        if other is None or step is None or each.name != folder_of_step(step):
            continue
        if each.manifest is not None and starts.get(each.manifest.attempt) == step:
            continue  # an attempt that resumed here wrote it again, with its own settings
        if span.first < step <= span.last:
            try:
                if are_of_one_moment(each.path, other.path):
                    found[step] = compare_checkpoints(each.path, other.path)
            except CheckpointError as error:
                if damaged is None:
                    fix = "--force compares the others"
                    raise InputError(error.what, where=error.where, fix=fix) from error
                damaged.append(f"{each.name}: {error.what}")
    return found
