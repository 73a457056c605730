"""Table of a sweep: the best first, and nothing of a run that did not finish."""

from __future__ import annotations

from assay.query.sweep_summary import SweepRun, SweepSummary


def test_the_run_of_a_point_is_the_best_of_those_that_count() -> None:
    def run(name: str, status: str, score: float | None, lr: str = "0.1") -> SweepRun:
        return SweepRun(id=name, status=status, values={"lr": lr}, score=score)

    runs = [
        run("crashed", "failed", 0.99),
        run("good", "finished", 0.7),
        run("bad", "finished", 0.5),
        run("cut", "pruned", 0.8),
        run("only", "pruned", 0.2, lr="1"),
    ]
    summary = SweepSummary.of("s", runs, "acc", "max")

    first, second = (line.split() for line in summary.text()[2:4])
    assert (first[1], first[-1], second[1], second[-1]) == ("0.1", "good", "1", "only")
