"""Frozen code of jobs: kept while a job needs it, then deleted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from assay.core.job import JobSpec
from assay.jobs.frozen_jobs import delete_ended_trees, tree_name, trees_dir
from assay.store.job_journal import JobJournal
from assay.store.layout import Project
from run_folders import make_project

DAY_S = 86_400
Freeze = Callable[[str], Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("ASSAY_QUEUE_DIR", str(tmp_path / "queue"))
    return make_project(tmp_path / "project")


@pytest.fixture
def freeze(project: Project) -> Freeze:
    """Make the tree of a snapshot that was frozen a day ago; data are linked into it."""
    data = project.root / "data.txt"
    data.write_text("kept")

    def freeze(snapshot: str, age_s: float = DAY_S) -> Path:
        tree = trees_dir(project) / tree_name(snapshot)
        tree.mkdir(parents=True)
        (tree / "train.py").write_text("pass")
        (tree / "data.txt").symlink_to(data)
        os.utime(tree, (time.time() - age_s,) * 2)
        return tree

    return freeze


def test_code_stays_while_a_job_waits_or_runs_and_goes_when_all_have_ended(
    project: Project, freeze: Freeze
) -> None:
    spec = JobSpec(command=("true",), cwd="/", project=str(project.root), code="a" * 64)
    tree, other = freeze("a" * 64), freeze("b" * 64)
    with JobJournal() as journal:
        ids = journal.submit([spec, replace(spec, code="b" * 64), replace(spec, project="/away")])
        journal.request_cancel(ids[1:2])

        assert delete_ended_trees(project, dry_run=True) == [other] and other.exists()
        assert delete_ended_trees(project) == [other]
        journal.request_cancel(ids[:1])

    assert tree.exists() and not other.exists()
    assert delete_ended_trees(project) == [tree]
    assert list(trees_dir(project).iterdir()) == []
    assert (project.root / "data.txt").read_text() == "kept"


def test_code_that_was_frozen_a_moment_ago_or_in_the_future_stays(
    project: Project, freeze: Freeze
) -> None:
    """Its job may be in no queue yet; and the clock may have been set back since."""
    freeze("a" * 64, age_s=60)
    freeze("b" * 64, age_s=-DAY_S)

    assert delete_ended_trees(project) == []


def test_code_of_a_scheduler_s_job_stays_until_it_has_a_result(
    project: Project, freeze: Freeze
) -> None:
    tree = freeze("a" * 64)
    tasks, results = project.assay_dir / "slurm/tasks", project.assay_dir / "slurm/results/1f"
    tasks.mkdir(parents=True)
    results.mkdir(parents=True)
    (tasks / "1f.json").write_text(json.dumps({"launch": {"code": {"snapshot": "a" * 64}}}))

    assert delete_ended_trees(project) == []
    (results / "result-1.json").write_text("{}")

    assert delete_ended_trees(project) == [tree]


def test_a_link_in_the_place_of_the_folder_is_not_followed(
    project: Project, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere/precious").mkdir(parents=True)
    os.utime(tmp_path / "elsewhere/precious", (0, 0))
    trees_dir(project).parent.mkdir(parents=True, exist_ok=True)
    trees_dir(project).symlink_to(tmp_path / "elsewhere")

    assert delete_ended_trees(project) == []
    assert (tmp_path / "elsewhere/precious").exists()
