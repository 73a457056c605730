"""A training goes on when its record is harmed, and its end tells what the record lacks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flow.conftest import SRC
from run_folders import make_project

pytestmark = pytest.mark.slow

HARMED = """
import os, shutil, sys
from assay.cli.main import main
from assay.core.facts import Saved
from assay.record.recorder import RunRecorder

tell, harm = RunRecorder.tell, sys.argv.pop(1)

def harmed(recorder, fact):
    tell(recorder, fact)
    if isinstance(fact, Saved) and not recorder.lacks and not os.path.exists("harmed"):
        open("harmed", "w").close()
        match harm:
            case "cut off":
                for file in recorder.folder.metrics.glob("*.rows"):
                    os.truncate(file, 0)
            case "deleted":
                shutil.rmtree(recorder.folder.path)

RunRecorder.tell = harmed
sys.exit(main(["run", "toy.toml", "checkpoint.every=2 steps", "--max-steps", "7"]))
"""


@pytest.mark.parametrize(
    ("harm", "lacks"),
    [
        ("cut off", "points of metrics, which was cut off"),
        ("deleted", "what was in its folder before that was deleted or moved"),
        ("none", ""),
    ],
)
def test_what_a_record_lacks_is_told_at_the_end_and_by_the_exit_code(
    warm, toy: Path, harm: str, lacks: str
) -> None:
    make_project(toy)

    done = warm(["-c", HARMED, harm], folder=toy, variables={**os.environ, "PYTHONPATH": str(SRC)})

    assert done.returncode == (1 if lacks else 0), done.stderr
    assert "finished" in done.stderr
    assert (f"not kept: {lacks}" in " ".join(done.stderr.split())) == bool(lacks)
    (run,) = (toy / "runs").iterdir()
    written = json.loads((run / "run.json").read_text())
    assert written["status"] == "finished"
    assert written["attempts"][-1]["reason"] == (
        f"limit of 7 steps; not kept: {lacks}" if lacks else "limit of 7 steps"
    )
    kept = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert "step-000000007" in kept
