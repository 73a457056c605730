"""Expected length of a run: an estimate from what its data says, which its epochs correct."""

from __future__ import annotations

from assay.core.facts import Warned
from assay.engine.loop.bounds import ExpectedSteps
from assay.engine.loop.run_parts import RunParts


class ExpectedLength:
    """Keeps the estimate of the state, and lets the schedule follow it as it changes.

    All that it does follows from the counters and from the data: a resumed run expects the same.
    """

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts
        self._fitted: ExpectedSteps | None = None
        self._is_said = False

    def begin_run(self) -> None:
        """Expect the epoch that begins or is resumed; start the schedule.

        InputError for a schedule that does not fit the run.
        """
        parts, bounds, state = self.parts, self.parts.bounds, self.parts.state
        self._is_said = False
        bounds.expect_epoch(state, parts.source)
        if state.length_error is None:
            bounds.start_schedule(state, parts.process.backward)
        else:
            self.refit()  # a run that has begun is not refused: its length is not for sure
        self._fitted = bounds.length(state)

    def begin_epoch(self) -> None:
        """Expect the epoch that begins; fit the schedule to what is known now."""
        self.parts.bounds.expect_epoch(self.parts.state, self.parts.source)
        self._follow(is_least=False)

    def extend_epoch(self) -> None:
        """Expect one step more of an epoch that goes on after its expected end."""
        self.parts.state.epoch_length = self.parts.state.epoch_step + 1
        self._follow(is_least=True)

    def refit(self) -> bool:
        """Put the schedule to the step of the state; return whether its rates are others then."""
        return self.parts.bounds.refit_schedule(self.parts.state, self.parts.process.backward)

    def _follow(self, *, is_least: bool) -> None:
        state = self.parts.state
        before, now = self._fitted, self.parts.bounds.length(state)
        if before is None or now == before:
            return
        self._fitted = now
        has_changed = self.refit()
        is_wrong = is_least or state.length_error is not None
        if self._is_said or None in (before.epoch, before.total) or now.epoch == before.epoch:
            return
        if has_changed or is_wrong:
            self._is_said = True
            message = _describe(before, now, is_least=is_least, has_changed=has_changed)
            self.parts.recorder.tell(Warned(message=message, step=state.step))


def _describe(
    before: ExpectedSteps, now: ExpectedSteps, *, is_least: bool, has_changed: bool
) -> str:
    """Return the message for another length of an epoch than the one that was expected."""
    assert before.total is not None and now.total is not None
    least = "at least " if is_least else ""
    message = (
        f"data.train: an epoch has {least}{now.epoch:,} steps, and {before.epoch:,} were expected."
        f" The run ends with its data, after {least}{now.total:,} steps as far as is known, not"
        f" {before.total:,}."
    )
    if has_changed:
        how = "stretched" if now.total > before.total else "squeezed"
        message += f" The schedule is {how} to that, and follows what comes without a word."
    return message
