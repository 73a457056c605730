"""Pictures, tables and texts from inside of a training loop, on one rank and on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.query.run import RunView

pytestmark = pytest.mark.slow

SHOW = """\
import assay
import torch

from assay.engine import on


class Show:
    @on("epoch_end")
    def keep(self, recorder, state):
        step = state.step
        recorder.text("text", "the cat sat", step)
        recorder.table("table", [{"word": "cat", "score": 0.9}], step=step)
        recorder.histogram("histogram", torch.arange(9.0), step)
        recorder.image("image", torch.rand(3, 8, 8), step)
        recorder.images("images", torch.rand(4, 3, 8, 8), step)
        recorder.audio("audio", torch.sin(torch.arange(100.0)), 8000, step)
        recorder.video("video", b"frames", step)


class Pipe:
    def __call__(self, output):
        return output

    def share(self):
        return None

    def join(self, shares):
        pass

    def end_eval(self, evaluation):
        evaluation.recorder.image("errors", torch.rand(8, 8), evaluation.step)
        with assay.start(tag="inner", config={"a": 1}) as run:
            run.text("from a pipe", "seen", evaluation.step)
            run.log({"pipe/count": 1.0}, evaluation.step)
"""

KINDS = {
    **{name: name for name in ("text", "table", "histogram", "image", "audio", "video")},
    "images": "image",
    "errors": "image",
    "from a pipe": "text",
    "valid/conf/matrix.csv": "table",
    "valid/conf/matrix.png": "image",
}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_callback_and_a_pipe_keep_what_a_script_can_and_start_returns_their_run(
    assay: Any, toy: Path, ranks: int
) -> None:
    (toy / "shows.py").write_text(SHOW)
    given = [
        'plugins=[{type="shows.Show"}]',
        'evaluate.pipes=[{type="shows.Pipe"}]',
        'process.metrics.conf={type="assay.engine.Confusion"}',
    ]

    ran = assay("run", "toy.toml", "train.epochs=2", *given, "--nproc", str(ranks))

    assert ran.returncode == 0, ran.stderr
    (folder,) = (toy / "runs").iterdir()
    view = RunView(folder)
    kept = [(each.name, each.kind, each.step) for each in view.artifacts]
    steps = view.metric("pipe/count").steps.tolist()
    assert len(steps) == 2
    assert sorted(kept) == sorted((*each, step) for each in KINDS.items() for step in steps)
    assert view.status == "finished"
    assert {"valid/conf", "valid/acc"} <= view.summaries.keys()
    assert view.summaries["valid/conf"].last == view.summaries["valid/acc"].last
