"""Progress of a search: one table on a terminal, one line for each run elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from assay.cli.sweep_progress import SweepProgress
from assay.config.expansion import plan_of
from assay.config.loading import loads
from assay.jobs.search import ActiveTrial, TrialTask
from assay.jobs.search_plan import SearchMetric, SearchPlan
from assay.jobs.trials import PRUNED, SearchTrial, TrialRun, read_trial
from assay.query.run import RunView
from run_folders import make_project, make_run

PLAN = SearchPlan(sampler="tpe", trials=9, metrics=(SearchMetric(name="loss", mode="min"),))
SPACE = "lr = 0.5\n[sweep]\nlr = [0.0, 0.1, 0.2, 0.3]\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def runs(tmp_path: Path) -> list[TrialRun]:
    """Runs of three trials: two finished, one at work."""
    project = make_project(tmp_path)
    found = []
    for i, (loss, ran_s) in enumerate([(0.5, 1.0), (0.25, 1.0), (0.75, None)], 1):
        attempt = {"launch": {"point": f"{i}/9"}, "seeds": {"seed": 0}}
        points = {"loss": [1.0, loss]}
        folder = make_run(project, ran_s=ran_s, attempt=attempt, points=points)
        run = read_trial(RunView(folder), PLAN.metrics)
        assert run is not None
        found.append(run)
    return found


def progress(trials: dict[int, SearchTrial]) -> SweepProgress:
    plan = plan_of(loads(SPACE))
    assert plan is not None
    return SweepProgress(PLAN, "kq3fabcd", dict(enumerate(plan.points())), trials)


def test_on_a_terminal_one_table_has_the_runs_at_work_and_the_best_and_leaves_at_the_end(
    runs: list[TrialRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    shown = progress({i: SearchTrial(i, {0: runs[i]}) for i in (0, 1)})
    active = [ActiveTrial(TrialTask(2, 0), run=runs[2]), ActiveTrial(TrialTask(3, 0))]

    shown.watch(active)
    first = terminal.getvalue().replace("\x1b[K", "").splitlines()
    shown.watch(active)
    second = terminal.getvalue()
    shown.close()

    assert first[0] == "sweep kq3fabcd  2 finished  2 running  of 9"
    assert [line.split() for line in first[1:]] == [
        ["trial", "status", "lr", "loss", "step", "run"],
        ["3", runs[2].status, "0.2", "0.75", "2", runs[2].view.id],
        ["4", "running", "0.3", "-", "-", "-"],
        ["2", "finished", "0.1", "0.25", "2", runs[1].view.id],
        ["1", "finished", "0.0", "0.5", "2", runs[0].view.id],
    ]
    assert second.count("\x1b[6A") == 1, "drawn over itself"
    assert terminal.getvalue().removeprefix(second) == "\x1b[6A\x1b[J"


def test_elsewhere_each_run_that_ends_is_a_line_with_the_best_of_all_processes_so_far(
    runs: list[TrialRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", pipe := io.StringIO())
    better = replace(runs[0], scores=(0.125,), number=7)
    trials = {7: SearchTrial(7, {0: better})}  # of a process before this one
    shown = progress(trials)

    for run in runs[:2]:
        shown.watch([])
        trials[run.number] = SearchTrial(run.number, {0: run})
        shown.tell(run)
    shown.warn("trial 3 left no result")
    shown.close()

    assert pipe.getvalue().splitlines() == [
        f"[1/9]  {runs[0].view.id}  finished  loss 0.5  best 0.125",
        f"[2/9]  {runs[1].view.id}  finished  loss 0.25  best 0.125",
        "trial 3 left no result",
    ]


def test_a_trial_that_was_pruned_under_one_seed_has_ended_for_all(runs: list[TrialRun]) -> None:
    finished = SearchTrial(1, {0: runs[0]})
    pruned = SearchTrial(1, {0: replace(runs[0], status=PRUNED)})

    assert (finished.is_ended(2), pruned.is_ended(2)) == (False, True)
