"""`assay queue`: what it moves, and what it does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.core.job import JobSpec
from assay.store.job_journal import JobJournal
from assay.store.layout import Project
from run_folders import make_run

from .conftest import Assay


def test_a_job_is_moved_before_another_one_and_a_move_to_nowhere_is_refused(
    assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_QUEUE_DIR", str(tmp_path / "queue"))
    with JobJournal() as journal:
        a, b, c = journal.submit([JobSpec(command=("true",), cwd="/")] * 3)

        assert assay("queue", "move", str(c), "--before", str(b)).code == 0
        assert [job.id for job in journal.line()] == [a, c, b]
        assert assay("queue", "move", str(b), "5").code == 0
        assert [job.id for job in journal.line()] == [b, a, c]

    for words in (("move", "1"), ("move", "1", "5", "--before", "2")):
        refused = assay("queue", *words)
        assert refused.code == 2
        assert "needs a priority, or `--before JOB`" in refused.err
    gone = assay("queue", "move", "1", "--before", "9")
    assert "There is no job 9." in gone.err


def test_a_run_of_several_ranks_is_not_queued_as_one_process(
    assay: Assay, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_QUEUE_DIR", str(tmp_path / "queue"))
    run = make_run(project, tag="wide", attempt={"launch": {"nproc": 2}})
    name = run.name.split("-")[2]

    refused = assay("queue", "rerun", name)

    assert refused.code == 2
    assert "It had 2 processes" in refused.err
    assert f"assay rerun {name} --nproc 2" in refused.err
