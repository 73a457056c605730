"""`assay live`, `assay log --json`, `assay board`: curves while a run goes on."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from assay.record.media import png
from assay.record.opening import start_run
from assay.store.layout import Project
from event_reader import read
from run_folders import make_run, tell

from .conftest import Assay

SRC = Path(__file__).resolve().parents[2] / "src"
TRAINS = """\
import sys, time, assay
with assay.start("slow") as run:
    for step in range(1, 4000):
        run.log({"train/loss": 1 / step}, step)
        if step == 5:
            print("going", flush=True)
        time.sleep(0.01)
        import os
        if os.path.exists("stop"):
            break
"""


def test_a_curve_is_drawn_within_eighty_columns(project: Project, assay: Assay) -> None:
    make_run(
        project,
        tag="exp",
        points={"train/loss": [1 / (i + 1) for i in range(500)], "valid/acc": [0.5, 0.75]},
    )

    said = assay("live", "last")

    assert said.code == 0
    assert all(len(line) <= 80 for line in said.lines)
    assert said.lines[0].startswith("exp  ") and "finished" in said.lines[0]
    assert said.lines[2] == "train/loss"
    assert any(
        line.startswith("valid/acc") and "0.75" in line and "▁█" in line for line in said.lines
    )
    assert "valid/acc" in assay("live", "last", "-m", "valid/acc").lines[2]
    wrong = assay("live", "last", "-m", "valid/ac")
    assert wrong.code == 2 and "did you mean `valid/acc`?" in wrong.err


@pytest.mark.row("B33")
def test_epochs_stand_below_steps_and_the_newest_image_of_a_weight_below_the_curves(
    project: Project, assay: Assay
) -> None:
    with start_run(project, tag="exp") as run:
        for step in range(1, 31):
            run.log({"loss": 1 / step, "epoch": (step - 1) // 10}, step)
        for step, shade in ((10, 0), (20, 255)):
            run.artifact(
                png(np.full((4, 6, 3), shade, np.uint8)), "weight", kind="image", step=step
            )

    said = assay("live", "last", "--image", "weight")

    assert "epoch 3  step 30" in said.lines[0]
    axis = next(i for i, line in enumerate(said.lines) if "└step 1" in line)
    below = said.lines[axis + 1]
    assert below.split() == ["epoch", "1", "3"] and len(below) == len(said.lines[axis]) <= 80
    assert said.lines[-3:] == ["weight  step 20", "██████", "██████"]
    assert not any(line.startswith("epoch ") for line in said.lines), "no curve of its own"
    wrong = assay("live", "last", "--image", "wieght")
    assert wrong.code == 2 and "did you mean `weight`?" in wrong.err


def test_a_run_without_points_is_told_so(project: Project, assay: Assay) -> None:
    make_run(project)

    assert assay("live", "last").lines[-1] == "nothing was logged yet"


@pytest.mark.row("B33")
def test_a_run_of_another_process_is_drawn_again_until_it_ends(project: Project) -> None:
    variables = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "TERM": "xterm",
        "COLUMNS": "80",
        "LINES": "24",
    }
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINS], env=variables, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "going\n"
    ours, theirs = pty.openpty()
    live = subprocess.Popen(
        [sys.executable, "-m", "assay", "live", "last", "--every", "0.1"],
        env=variables,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    pictures = 0
    until = time.monotonic() + 100
    while time.monotonic() < until:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed: it has ended
                break
            shown += data
        pictures = shown.count(b"slow")
        if pictures >= 3:  # one look may bring several
            Path("stop").touch()
    os.close(ours)
    codes = (trainer.wait(100), live.wait(100))
    trainer.stdout.close()

    text = shown.decode()
    steps = [int(part.split()[0]) for part in text.replace("\x1b[0m", "").split("  step ")[1:]]
    assert codes == (0, 0)
    assert pictures >= 3 and steps[0] < steps[-1]
    assert "\x1b[" in text and "finished" in text.rpartition("slow")[2]


@pytest.mark.row("B20")
def test_every_logged_row_is_an_object_with_its_step(project: Project, assay: Assay) -> None:
    folder = make_run(project, points={"train/loss": [3.0, 2.0], "valid/acc": [0.5]})

    rows = [json.loads(line) for line in assay("metrics", "last", "--json").lines]

    assert [(row["step"], row["metrics"].get("train/loss"), row["metrics"].get("valid/acc")) for row in rows] == [
        (1, 3.0, 0.5), (2, 2.0, None)
    ]  # fmt: skip
    assert all(row["time"] > 0 for row in rows)
    from assay.core.facts import Warned

    tell(folder, Warned(message="hot"))
    (event,) = [json.loads(line) for line in assay("log", "last", "--json", "--events").lines]
    assert (event["fact"], event["message"]) == ("warned", "hot")


@pytest.mark.row("A89")
def test_without_tensorboard_one_line_says_what_to_install(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(project)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    said = assay("board", "last")

    assert said.code == 2
    assert "error: `assay board` without --logdir needs the extra `tensorboard`." in said.err


def test_event_files_are_written_without_tensorboard(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_run(project, id="aaaaaaaa", tag="cnn", points={"acc": [0.25, 0.5]})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    said = assay("board", "last", "--logdir", str(tmp_path / "events"))

    assert said.code == 0, said.err
    assert read(tmp_path / "events" / "cnn-aaaaaaaa").scalars == {"acc": [(1, 0.25), (2, 0.5)]}


VIEWER = {
    "__init__.py": "",
    "main.py": "import os, shutil, sys\nfolder = sys.argv[sys.argv.index('--logdir') + 1]\n"
    "print(sys.argv[1:])\nshutil.copytree(folder, os.environ['SEEN'])\n",
}
"""A package that stands where TensorBoard would, and says what it was given."""


@pytest.mark.row("B32")
def test_the_viewer_is_started_on_this_machine_only_with_the_curves_of_the_runs(
    project: Project, tmp_path: Path
) -> None:
    make_run(project, id="aaaaaaaa", tag="My Run", points={"train/loss": [2.0, 1.0]})
    make_run(project, id="bbbbbbbb", tag="", points={"acc": [0.5]})
    for name, text in VIEWER.items():
        file = tmp_path / "site" / "tensorboard" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "assay",
            "board",
            "aaaaaaaa",
            "bbbbbbbb",
            "aaaaaaaa",
            "--port",
            "7007",
        ],
        env={
            **os.environ,
            "PYTHONPATH": f"{SRC}:{tmp_path / 'site'}",
            "SEEN": str(tmp_path / "seen"),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "'--host', '127.0.0.1', '--port', '7007'" in done.stdout
    seen = {each.name: read(each).scalars for each in (tmp_path / "seen").iterdir()}
    assert seen == {
        "my-run-aaaaaaaa": {"train/loss": [(1, 2.0), (2, 1.0)]},
        "run-bbbbbbbb": {"acc": [(1, 0.5)]},
    }
