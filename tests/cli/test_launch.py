"""The line at the end of a run: it advises only what works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.cli.launch import print_result
from assay.compose import RunResult
from assay.formats.run_file import Best
from assay.store.layout import Project
from run_folders import make_checkpoint, make_run


def result(folder: Path, status: Any, step: int, **values: float) -> RunResult:
    return RunResult(
        id="kq3f7abc",
        record_dir=folder,
        config=None,
        status=status,
        step=step,
        exit_code=1,
        value=values,
    )


@pytest.mark.parametrize(
    ("status", "kept", "advice"),
    [
        ("finished", {}, "train it again with: assay rerun kq3f7abc"),
        ("stopped", {}, "train it again with: assay rerun kq3f7abc"),
        ("failed", {10: "model"}, "train it again with: assay rerun kq3f7abc"),
        ("failed", {10: "checkpoint"}, "resume with: assay resume kq3f7abc"),
        ("stopped", {20: "checkpoint"}, "resume with: assay resume kq3f7abc"),
        ("finished", {10: "best"}, "resume with: assay resume kq3f7abc"),
        ("finished", {10: "checkpoint", 20: "checkpoint"}, ""),
    ],
)
def test_the_end_of_a_run_advises_what_works(
    status: str,
    kept: dict[int, Any],
    advice: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for step, kind in kept.items():
        make_checkpoint(tmp_path, step, kind=kind)

    print_result(result(tmp_path, status, 20))

    said = capsys.readouterr().err
    assert advice in said
    assert ("resume with" in said) == advice.startswith("resume")
    assert ("rerun" in said) == ("rerun" in advice)


def test_the_end_line_has_the_best_value_beside_the_last_one(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    best = Best(metric="valid/loss", mode="min", value=0.25, step=2)
    points = {"valid/loss": [1.0, 0.25, 0.5], "valid/acc": [0.1, 0.9, 0.8]}
    folder = make_run(project, points=points, best=best)

    print_result(result(folder, "finished", 3, **{"valid/loss": 0.5, "valid/acc": 0.8}))

    said = " ".join(capsys.readouterr().err.split())
    assert "valid/loss 0.5000 (best 0.2500 at step 2) valid/acc 0.8000" in said


def test_a_checkpoint_that_cannot_be_read_is_none_to_resume_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (make_checkpoint(tmp_path, 10) / "model.json").unlink()

    print_result(result(tmp_path, "failed", 20))

    assert "resume with" not in capsys.readouterr().err
