"""`assay queue`: runs that it does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.store.layout import Project
from run_folders import make_run

from .conftest import Assay


def test_a_run_of_several_ranks_is_not_queued_as_one_process(
    assay: Assay, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_QUEUE_DIR", str(tmp_path / "queue"))
    run = make_run(project, tag="wide", attempt={"launch": {"nproc": 2}})
    name = run.name.split("-")[2]

    refused = assay("rerun", "--queue", name)

    assert refused.code == 2
    assert "It had 2 processes" in refused.err
    assert f"assay rerun {name} --nproc 2" in refused.err
