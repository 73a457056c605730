"""Progress of a search: a table redrawn in place on a terminal, elsewhere a line for each run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from assay.cli.terminal import STATUS_STYLES, echo, is_live, paint, redraw, use_color, width
from assay.core.formatting import number
from assay.core.terminal import elide
from assay.query.sweep_summary import align_visible, spell_values

if TYPE_CHECKING:
    from assay.config.sweep import Point
    from assay.jobs.search import ActiveTrial
    from assay.jobs.search_plan import SearchPlan
    from assay.jobs.trials import SearchTrial, TrialRun

_LEAST_ROWS = 3


class SweepProgress:
    """Receiver of what a search does. `points` and `trials` are those of the search, by number.

    On a terminal a table shows the runs at work and the best of those that ended.
    """

    def __init__(
        self,
        plan: SearchPlan,
        sweep: str,
        points: Mapping[int, Point],
        trials: Mapping[int, SearchTrial],
    ) -> None:
        self.plan = plan
        self._sweep = sweep
        self._points = points
        self._trials = trials
        self._is_live = is_live(sys.stderr)
        self._active: Sequence[ActiveTrial] = ()
        self._drawn = 0

    def tell(self, run: TrialRun) -> None:
        """Take a run that has ended."""
        if not self._is_live:
            self._print_run(run)

    def watch(self, active: Sequence[ActiveTrial]) -> None:
        """Take the runs at work, and redraw the table."""
        self._active = active
        if self._is_live:
            self._drawn = redraw(self._table(), self._drawn, sys.stderr)

    def warn(self, line: str) -> None:
        """Print a line for people; the table is drawn anew below it."""
        self.close()
        echo(line, err=True)

    def close(self) -> None:
        """Take the table away."""
        self._drawn = redraw([], self._drawn, sys.stderr)

    @property
    def best(self) -> TrialRun | None:
        """Best finished run by the first metric; None without one."""
        ranked = self._rank()
        return ranked[0] if ranked else None

    def _list_ended(self) -> list[TrialRun]:
        """Return the runs that came to an end, in this process or before it."""
        runs = [run for trial in self._trials.values() for run in trial.runs.values()]
        return [run for run in runs if run.is_ended]

    def _rank(self) -> list[TrialRun]:
        """Return the finished runs, the best first."""
        sign = -1.0 if self.plan.metrics[0].mode == "max" else 1.0
        scored = [
            (score, run)
            for run in self._list_ended()
            if run.status == "finished" and (score := run.scores[0]) is not None and score == score
        ]
        return [run for _, run in sorted(scored, key=lambda pair: sign * pair[0])]

    def _print_run(self, run: TrialRun) -> None:
        name = self.plan.metrics[0].name
        score = run.scores[0]
        best = self.best
        status = paint(run.status, STATUS_STYLES.get(run.status, ""), on=use_color(sys.stderr))
        shown = [f"[{run.number + 1}/{self.plan.trials}]", run.view.id, status]
        shown += [f"{name} {number(score)}"] if score is not None else [run.cause]
        shown += [f"best {number(best.scores[0] or 0.0)}"] if best is not None else []
        echo("  ".join(filter(None, shown)), err=True)

    def _table(self) -> list[str]:
        """Return the lines of the table, as many as the terminal has room for."""
        room = max(_LEAST_ROWS, shutil.get_terminal_size((80, 24)).lines - 4)
        active = list(self._active)[:room]
        rows = [self._row_of_active(each) for each in active]
        rows += [self._row(run) for run in self._rank()[: room - len(rows)]]
        keys = [axis.key for axis, _ in next(iter(self._points.values()), ())]
        heads = ["trial", "status", *keys, self.plan.metrics[0].name, "step", "run"]
        columns = (width(sys.stderr) or 80) - 1
        lines = [self._head()]
        if rows:
            lines += align_visible([heads, *rows])
        return [elide(line, columns) for line in lines]

    def _head(self) -> str:
        """Return a line of counts: `sweep kq3f  3 finished  1 pruned  2 running  of 50`."""
        counts: dict[str, int] = {}
        for run in self._list_ended():
            counts[run.status] = counts.get(run.status, 0) + 1
        counts["running"] = len(self._active)
        parts = [f"{count} {status}" for status, count in counts.items() if count]
        return "  ".join([f"sweep {self._sweep}", *parts, f"of {self._total}"])

    @property
    def _total(self) -> int:
        return self.plan.trials * self.plan.seeds

    def _row_of_active(self, each: ActiveTrial) -> list[str]:
        if each.run is not None:
            return self._row(each.run)
        point = self._points[each.task.number]
        values = spell_values({axis.key: node for axis, node in point}).values()
        return [str(each.task.number + 1), "running", *values, "-", "-", "-"]

    def _row(self, run: TrialRun) -> list[str]:
        score = run.scores[0]
        shown = number(score) if score is not None else "-"
        values = run.shown_values(self._points[run.number]).values()
        return [str(run.number + 1), run.status, *values, shown, str(run.step), run.view.id]
