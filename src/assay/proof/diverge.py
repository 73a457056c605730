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
from assay.formats.manifest import folder_of_step
from assay.formats.verdict import Verdict
from assay.proof.cause import cause_of, changed_inputs
from assay.proof.differences import compare_checkpoints, first_in_records
from assay.proof.replay import permit_again, train_again
from assay.proof.step_range import StepRange, step_range
from assay.query.find import find_run
from assay.query.run import RunView
from assay.query.traces import Alignment
from assay.record.edits import keep_verdict
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
    `trust` has to allow that. That is also done where neither code nor config differs, to tell an
    input that has changed from a run that is never twice the same. InputError for runs that have no
    step in common.
    """
    a, b = find_run(left), find_run(right)
    if a.path == b.path:
        raise InputError(f"{left} and {right} are the same run, {a.id}.")
    alignment = first_in_records(a, b)
    if alignment.difference is None and not alignment.compared:
        reason = f": {alignment.notes[0]}" if alignment.notes else ""
        fix = (
            "the runs need a step in common with a trace or a curve of the loss: trace.every and"
            " log.every say which have one"
        )
        what = f"{a.id} and {b.id} have left nothing that compares and depends on the weights"
        raise InputError(f"{what}{reason}.", fix=fix)
    notes = list(alignment.notes)
    changed = changed_inputs(a, b, alignment.difference)
    repeats = None
    if alignment.difference is not None and reruns and not _is_exact(alignment, changed):
        try:
            alignment, repeats = _Retraining(a, b, trust, tell, notes).narrow(alignment, changed)
        except AssayError as error:
            notes.append(f"not trained again: {error.what}")
    if alignment.difference is not None and not changed and repeats is None:
        notes.append("an input outside the record has changed, or something is not fixed")
    verdict = _verdict(a, b, alignment, changed, notes, repeats)
    for view in (a, b):
        keep_verdict(view.folder, verdict, tell)
    return DivergeResult(verdict=verdict, notes=tuple(notes))


def _verdict(
    a: RunView,
    b: RunView,
    alignment: Alignment,
    changed: Mapping[str, tuple[str, str]],
    notes: Sequence[str],
    repeats: bool | None,
) -> Verdict:
    first = alignment.difference
    return Verdict(
        question="diverge",
        runs=(a.id, b.id),
        equal=first is None,
        first_step=max(alignment.first_step, 0),
        last_step=alignment.last_step,
        compared=alignment.compared,
        difference=first,
        cause=cause_of(alignment, changed, repeats=repeats),
        changed_inputs={name: list(values) for name, values in changed.items()},
        at_ns=time.time_ns(),
        note="; ".join(notes),
    )


def _is_exact(alignment: Alignment, changed: Mapping[str, tuple[str, str]]) -> bool:
    """Return True if training again would tell nothing new."""
    first = alignment.difference
    assert first is not None
    if first.phase == "init":
        return True
    if first.phase in ("data", "randomness", "average"):
        return first.step == alignment.equal_until + 1
    is_at_its_place = alignment.kind != "tensor" or first.phase == "evaluation"
    return is_at_its_place and bool(changed)


@dataclass(frozen=True, slots=True)
class _Retraining:
    """Training of both runs again, from their code and config, in a folder that is gone after."""

    a: RunView
    b: RunView
    trust: Trust
    tell: Callable[[str], None]
    notes: list[str]

    def narrow(
        self, alignment: Alignment, changed: Mapping[str, tuple[str, str]]
    ) -> tuple[Alignment, bool | None]:
        """Return a more exact difference than that of the records, and whether both repeat.

        That an input has changed is only said of runs that were trained from the beginning: a
        checkpoint may lack a state of the run, and then both lack it.
        """
        first = alignment.difference
        assert first is not None
        start = _common_checkpoint(self.a, self.b, first.step)
        exact, repeats = self._narrow_from(start, alignment, changed)
        if repeats and start.step:
            exact, repeats = self._narrow_from(_RestartPoint(), alignment, changed)
        return exact, repeats

    def _narrow_from(
        self,
        start: _RestartPoint,
        alignment: Alignment,
        changed: Mapping[str, tuple[str, str]],
    ) -> tuple[Alignment, bool | None]:
        first = alignment.difference
        assert first is not None
        since = max(start.step, alignment.equal_until) + 1
        runs = (self.a, self.b)
        ranges = [step_range(view, start.name, f":{first.step}") for view in runs]
        for view, steps in zip(runs, ranges, strict=True):
            permit_again(view, steps, use="train it again", trust=self.trust)
        folder = Path(tempfile.mkdtemp(prefix="assay-diverge-")).resolve()
        try:
            begun = time.monotonic()
            left, right = (
                _train(view, steps, folder / name, since)
                for view, steps, name in zip(runs, ranges, ("left", "right"), strict=True)
            )
            where = f" from {start.name}" if start.name else ""
            seconds = time.monotonic() - begun
            self.tell(f"trained again{where}: both to step {first.step}, {seconds:.0f} s")
            fine = first_in_records(left, right)
            unlike = [
                i
                for i, (view, again) in enumerate(zip(runs, (left, right), strict=True))
                if first_in_records(view, again).difference is not None
            ]
            if fine.difference is None:
                self.notes.append(f"trained again, both are equal up to step {first.step}")
                return alignment, True if unlike else None
            # Two runs of one program need no third to show that it is never twice the same.
            if any(name.startswith(("code ", "config ")) for name in changed):
                for i in unlike:
                    again = _train(runs[i], ranges[i], folder / "twice", since)
                    if first_in_records((left, right)[i], again).difference is None:
                        self.notes.append(
                            f"{runs[i].id}, trained again, has other bits than the first time, and"
                            " twice the same"
                        )
                        return alignment, True
            self.notes.extend(
                f"{runs[i].id}, trained again, has other bits than the first time: something in it"
                " is not fixed"
                for i in unlike
            )
            self.notes.extend(fine.notes)
            exact = replace(
                fine,
                traced={**alignment.traced, **fine.traced},
                first_step=alignment.first_step,
                last_step=alignment.last_step,
                compared=alignment.compared,
            )
            return exact, False if unlike else None
        finally:
            with suppress(OSError):
                forget([folder / name / "project" for name in ("left", "right", "twice")])
            shutil.rmtree(folder, ignore_errors=True)


def _train(view: RunView, steps: StepRange, folder: Path, since: int) -> RunView:
    """Train steps of a run in a folder of its own, with every operation traced from `since` on."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return train_again(view, steps, folder, traced_from=since)


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
