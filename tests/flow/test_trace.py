"""Traces of recorded runs: they survive kills, resumes and several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.query.run import RunView
from assay.query.traces import align, ranks_of, steps_of
from flow.test_train import only_run

pytestmark = pytest.mark.slow

EVERY = "trace.every=2 steps"


def test_a_run_that_was_killed_and_resumed_has_the_trace_of_one_that_was_not(
    assay, toy: Path
) -> None:
    assert assay("run", "toy.toml", "--quiet", EVERY).returncode == 0
    whole = only_run(toy).rename(toy.parent / "whole")
    assert assay("run", "toy.toml", "--quiet", EVERY, DIE_AT="150").returncode == -9
    assert assay("resume", "last", "--quiet").returncode == 0
    left, right = RunView(whole), RunView(only_run(toy))

    found = align(steps_of(left), steps_of(right))

    assert len(right.file.attempts) == 2
    assert found.difference is None
    assert (found.first_step, found.last_step, found.equal_until) == (0, 32, 32)
    assert {each.step for each in steps_of(left)} >= {0, 2, 3, 30, 32}  # 3: a checkpoint
    assert "time/trace_s" in left.summaries


@pytest.mark.thorough
def test_each_rank_leaves_a_trace_and_nothing_is_traced_when_it_is_off(assay, toy: Path) -> None:
    done = assay("run", "toy.toml", "--quiet", "--nproc", "2", "--max-steps", "4", EVERY)
    assert done.returncode == 0, done.stderr
    view = RunView(only_run(toy).rename(toy.parent / "ranks"))
    assert (
        assay("run", "toy.toml", "--quiet", "--max-steps", "4", "trace.enabled=false").returncode
        == 0
    )

    first, second = (list(steps_of(view, rank)) for rank in (0, 1))
    difference = align(iter(first), iter(second)).difference

    assert ranks_of(view) == [0, 1]
    assert [each.step for each in second] == [0, 1, 2, 4]
    assert {each.step for each in first} == {0, 1, 2, 3, 4}  # rank 0 writes the checkpoint
    assert difference is not None and (difference.step, difference.name) == (1, "sample indices")
    assert not RunView(only_run(toy)).folder.trace.exists()
