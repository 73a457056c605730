"""Search for the first step, phase, module and operation in which two runs differ."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from assay.compose.trust import Trust
from assay.core.errors import AssayError, InputError
from assay.core.manifest import folder_of_step
from assay.core.verdict import Verdict
from assay.proof.changed_inputs import changed_inputs, is_only_environment
from assay.proof.differences import compare_checkpoints
from assay.proof.first_difference import cause_of, first_in_records, first_in_traces
from assay.proof.replay import keep_verdict, permit_again, train_again
from assay.proof.step_range import step_range
from assay.query.find import find_run
from assay.query.run import RunView
from assay.query.traces import Alignment
from assay.store.known_projects import forget


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergeResult:
    """A verdict with what was done to reach it, and what could not be done."""

    verdict: Verdict
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RestartPoint:
    """Step from which both runs are trained again: the beginning, or a bit-equal checkpoint."""

    step: int = 0
    name: str = ""


def diverge(
    left: str,
    right: str,
    *,
    reruns: bool = True,
    trust: Trust = False,
    tell: Callable[[str], None] = lambda line: None,
) -> DivergeResult:
    """Compare the traces and curves of two runs; retrain steps where these are too coarse.

    Both are trained again from the newest checkpoint with equal bits before the difference, each
    from its own code and config, with every operation traced; for a run that was not made here
    `trust` has to allow that. InputError for runs that have no step in common.
    """
    a, b = find_run(left), find_run(right)
    if a.path == b.path:
        raise InputError(f"{left} and {right} are the same run, {a.id}.")
    found = first_in_records(a, b)
    if not found.compared:
        reason = f": {found.notes[0]}" if found.notes else ""
        fix = "the runs need a step in common; trace.every says which steps are traced"
        raise InputError(f"{a.id} and {b.id} have left nothing that compares{reason}.", fix=fix)
    notes = list(found.notes)
    changed = changed_inputs(a, b)
    if found.difference is not None and reruns and not _is_exact(found):
        try:
            found = _again(a, b, found, notes, trust, tell)
        except AssayError as error:
            notes.append(f"not trained again: {error.what}")
    verdict = _verdict(a, b, found, changed, notes)
    for view in (a, b):
        keep_verdict(view, verdict, tell)
    return DivergeResult(verdict=verdict, notes=tuple(notes))


def _verdict(
    a: RunView,
    b: RunView,
    found: Alignment,
    changed: Mapping[str, tuple[str, str]],
    notes: Sequence[str],
) -> Verdict:
    first = found.difference
    cause = None
    if first is not None:
        cause = cause_of(found, in_environment=is_only_environment(changed))
    return Verdict(
        question="diverge",
        runs=(a.id, b.id),
        equal=first is None,
        first_step=max(found.first_step, 0),
        last_step=found.last_step,
        compared=found.compared,
        difference=first,
        cause=cause,
        changed_inputs={name: list(values) for name, values in changed.items()},
        at_ns=time.time_ns(),
        note="; ".join(notes),
    )


def _is_exact(found: Alignment) -> bool:
    """Return True if training again would tell nothing new."""
    first = found.difference
    assert first is not None
    if first.phase == "init" or found.kind != "tensor":
        return True
    return first.phase in ("data", "randomness") and first.step == found.equal_until + 1


def _again(
    a: RunView,
    b: RunView,
    found: Alignment,
    notes: list[str],
    trust: Trust,
    tell: Callable[[str], None],
) -> Alignment:
    """Train both up to the step of the difference again, with every operation traced."""
    first = found.difference
    assert first is not None
    start = _common_checkpoint(a, b, first.step)
    since = max(start.step, found.equal_until) + 1
    ranges = [step_range(view, start.name, f":{first.step}") for view in (a, b)]
    for view, steps in zip((a, b), ranges, strict=True):
        permit_again(view, steps, use="train it again", trust=trust)
    folder = Path(tempfile.mkdtemp(prefix="assay-diverge-")).resolve()
    try:
        begun = time.monotonic()
        views = []
        for view, steps, name in zip((a, b), ranges, ("left", "right"), strict=True):
            place = folder / name
            place.mkdir()
            views.append(train_again(view, steps, place, traced_from=since))
        where = f" from {start.name}" if start.name else ""
        tell(f"trained again{where}: both to step {first.step}, {time.monotonic() - begun:.0f} s")
        fine = first_in_traces(*views)
        notes += _describe_unrepeated((a, b), views)
        if fine.difference is None:
            notes.append(f"trained again, both are equal up to step {first.step}")
            return found
        notes += fine.notes
        return replace(
            fine, first_step=found.first_step, last_step=found.last_step, compared=found.compared
        )
    finally:
        with suppress(OSError):
            forget([folder / name / "project" for name in ("left", "right")])
        shutil.rmtree(folder, ignore_errors=True)


def _describe_unrepeated(recorded: Sequence[RunView], again: Sequence[RunView]) -> list[str]:
    """Return a note for each run that was trained again and has other bits than its record."""
    return [
        f"{view.id}, trained again, has other bits than the first time: something in it is not"
        " fixed"
        for view, other in zip(recorded, again, strict=True)
        if first_in_records(view, other).difference is not None
    ]


def _common_checkpoint(a: RunView, b: RunView, before: int) -> _RestartPoint:
    """Return the newest checkpoint before a step that both runs have with equal bits."""
    theirs = {each.name: each for each in b.checkpoints}
    for each in sorted(a.checkpoints, key=lambda each: -(each.step or 0)):
        other = theirs.get(each.name)
        step = each.step
        if other is None or step is None or step >= before or each.name != folder_of_step(step):
            continue
        with suppress(AssayError):
            if not any(compare_checkpoints(each.path, other.path).values()):
                return _RestartPoint(step=step, name=each.name)
    return _RestartPoint()
