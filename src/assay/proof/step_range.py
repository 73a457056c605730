"""Range of steps of a recorded run to do again, and the attempts that made them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.compose.ranks import processes
from assay.compose.training import refuse_without_config
from assay.config import load, plain
from assay.core.errors import CheckpointError, InputError
from assay.core.regular_file import read_bytes
from assay.formats.run_file import Attempt
from assay.query.find import checkpoint_of
from assay.query.run import RunView
from assay.store.config_items import MAX_CONFIG_BYTES

_STEPS = re.compile(r"(\d*):(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Steps after `first` up to `last`, and the attempts that made them.

    `whole`: the run ended there by itself.

    `checkpoint` is where it begins, "" for the beginning of the run.
    """

    first: int
    last: int
    attempts: tuple[Attempt, ...]
    whole: bool
    is_interrupted: bool
    checkpoint: str

    @property
    def text(self) -> str:
        return f"steps {self.first + 1} to {self.last}"


def step_range(view: RunView, name: str, steps: str) -> StepRange:
    """Return the range of steps; InputError for a run that cannot be done again from there."""
    where = str(view.path)
    if view.kind != "train":
        raise InputError(
            f"The run {view.id} is a test, which trains nothing.",
            where=where,
            fix=f"assay test {view.id}",
        )
    refuse_without_config(view, fix="run it again, and `assay diff` both")
    first, last = _parse_steps(steps)
    if name and first is not None:
        raise InputError(
            "A replay begins at one place.", fix=f"leave out @{name}, or the step before the colon"
        )
    checkpoint = ""
    if name or first:
        first, checkpoint = _find_start(view, name or str(first))
    end = _last_known_step(view)
    first, last = _check_bounds(view, first or 0, last, end)
    config_of(view, view.file.newest)
    span = StepRange(
        first=first,
        last=last,
        attempts=_attempts(view, first, last),
        whole=last == end and view.status == "finished",
        is_interrupted=last == end and view.status == "stopped",
        checkpoint=checkpoint,
    )
    _refuse_seams(view, span)
    return span


def _find_start(view: RunView, name: str) -> tuple[int, str]:
    """Return step and name of the first checkpoint; InputError for one of weights only."""
    try:
        checkpoint = checkpoint_of(view, name)
    except CheckpointError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    assert checkpoint.manifest is not None
    if checkpoint.manifest.kind == "model":
        raise InputError(
            f"{checkpoint.name} of {view.id} holds weights only: nothing can be resumed from"
            " there.",
            where=str(view.path),
        )
    return checkpoint.manifest.step, checkpoint.name


def _check_bounds(view: RunView, first: int, last: int | None, end: int) -> tuple[int, int]:
    """Return both bounds; InputError where the run has not made these steps."""
    where = str(view.path)
    if last is None and view.status in ("running", "unknown"):
        fix = "wait for its end"
        if end > first:
            fix = f"say up to where: --steps {first}:{end}"
        raise InputError(f"The run {view.id} is {view.status_text}.", where=where, fix=fix)
    if last is not None and last > end:
        raise InputError(f"The run {view.id} has made {end} steps, not {last}.", where=where)
    last = end if last is None else last
    if last <= first:
        raise InputError(f"There is no step after {first}: {view.id} has made {end}.", where=where)
    return first, last


def _parse_steps(steps: str) -> tuple[int | None, int | None]:
    if not steps:
        return None, None
    match = _STEPS.fullmatch(steps.strip())
    if match is None or not any(match.groups()):
        raise InputError(
            f"--steps must be a range of steps, not {steps}.",
            fix="--steps 100:200, or :200, or 100:",
        )
    return (int(match[1]) if match[1] else None), (int(match[2]) if match[2] else None)


def _last_known_step(view: RunView) -> int:
    """Return the last completed step, as far as the record knows."""
    newest = view.file.newest
    if view.file.status != "running":
        return newest.to_step
    return max((each.step for each in view.summaries.values()), default=0)


def _attempts(view: RunView, first: int, last: int) -> tuple[Attempt, ...]:
    """Return the attempts whose steps are on the curve in the range, oldest first."""
    attempts, upper = [], last
    for attempt in reversed(view.file.attempts):
        if attempt.from_step < upper:
            attempts.append(attempt)
            upper = attempt.from_step
        if upper <= first:
            break
    return tuple(reversed(attempts))


def _refuse_seams(view: RunView, span: StepRange) -> None:
    """InputError when the steps were not all made from the same code and config."""
    if any("time" in _section_of(config_of(view, attempt), "train") for attempt in span.attempts):
        raise InputError(
            f"A clock ended {view.id} (train.time): it is never twice the same.",
            where=str(view.path),
            fix="train with train.steps or train.epochs what has to be replayed",
        )
    for before, after in zip(span.attempts, span.attempts[1:], strict=False):
        differs = [
            name
            for name, a, b in (
                ("other code", before.code.snapshot, after.code.snapshot),
                (
                    "another config",
                    read_bytes(config_of(view, before), MAX_CONFIG_BYTES),
                    read_bytes(config_of(view, after), MAX_CONFIG_BYTES),
                ),
                ("another device", before.devices, after.devices),
                ("other options", _bounds_of(before), _bounds_of(after)),
            )
            if a != b
        ]
        if differs:
            at = after.from_step
            steps = [
                each.step for each in view.checkpoints if each.step is not None and each.step >= at
            ]
            fixes = [f"the steps before it alone: assay replay {view.id} --steps {span.first}:{at}"]
            fixes += (
                [f"those after it: assay replay {view.id}@{steps[0]}"]
                if steps and steps[0] < span.last
                else []
            )
            with_what = " and ".join(differs)
            what = f"Attempt {after.number} of {view.id} resumed at step {at} with {with_what}."
            raise InputError(what, where=str(view.path), fix="; ".join(fixes))


def _bounds_of(attempt: Attempt) -> tuple[Any, ...]:
    return attempt.launch.get("max_steps"), processes(attempt)


def config_of(view: RunView, attempt: Attempt) -> Path:
    """Return the config file of an attempt; a later attempt may have moved it aside."""
    return view.folder.config_of_attempt(attempt.number, view.file.newest.number)


def _section_of(config: Path, section: str) -> dict[str, Any]:
    return dict(plain(load(config).root).get(section, {}))
