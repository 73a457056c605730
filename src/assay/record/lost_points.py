"""Points that could not be written: the user is told when losses begin and when they are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Gap:
    count: int = 0
    first_step: int = 0
    last_step: int = 0


class LostPoints:
    """Count of the points that a full disk has cost, in all and in the present gap.

    `on_problem` gets sentences, `on_lost` in a few words what the file lacks for good.
    """

    def __init__(self, on_problem: Callable[[str], None], on_lost: Callable[[str], None]) -> None:
        self.total = 0
        self._on_problem = on_problem
        self._on_lost = on_lost
        self._gap: _Gap | None = None

    def begin(self, error: OSError) -> None:
        """Begin a gap, unless there is one."""
        if self._gap is None:
            self._gap = _Gap()
            self._on_problem(
                f"Metrics cannot be written ({error.strerror or error}). The run goes on without "
                "them."
            )

    def add(self, count: int, step: int) -> None:
        """Count points of a step as lost."""
        self.total += count
        gap = self._gap = self._gap or _Gap()
        is_first = gap.count == 0
        gap.first_step = step if is_first else min(gap.first_step, step)
        gap.last_step = step if is_first else max(gap.last_step, step)
        gap.count += count

    def end(self, *, is_closed: bool) -> None:
        """End the gap, if there is one; tell what was lost in it."""
        gap, self._gap = self._gap, None
        if gap is None or not gap.count:
            return
        where = f"steps {gap.first_step} to {gap.last_step}"
        if gap.first_step == gap.last_step:
            where = f"step {gap.first_step}"
        again = "" if is_closed else "Metrics are written again. "
        noun, verb = ("point", "was") if gap.count == 1 else ("points", "were")
        self._on_problem(f"{again}{gap.count} {noun} {verb} lost, of {where}.")
        self._on_lost(f"{gap.count} {noun}, of {where}")
