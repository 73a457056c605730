"""Script with an engine and a record: it ends as a run of a config does, and can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import assay
from assay.cli.main import main
from assay.core.errors import InputError, LeaseError
from assay.core.facts import Started
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.query.run import RunView
from assay.store.series import read_series
from flow.conftest import SRC
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.usefixtures("forking")

SCRIPT = """\
import os
import sys
import time

import torch

import assay
from assay.engine import Engine, Evaluate, Loader, Save, Saver, Supervised, seed_all
from points import Points

torch.set_num_threads(1)
seed_all(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2))
process = Supervised(model, torch.nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=0.01))
with assay.start(tag="script", config={"lr": 0.01}, resume="auto") as run:
    saver = Saver(run.folder.checkpoints, keep=100)
    engine = Engine(process, Loader(Points(0, noisy=True), batch_size=8, shuffle=True), epochs=4, seed=3, recorder=run)
    engine.bus.extend(Evaluate({"valid": Loader(Points(1), batch_size=16)}).handlers())
    engine.bus.extend(Save(saver, every="3 steps").handlers())
    engine.on("step_begin")(lambda: time.sleep(float(os.environ.get("SLOW", 0))))
    engine.resume(saver)
    engine.run()
"""


@pytest.fixture
def script(toy: Path) -> Path:
    """The toy project with a script in the place of its config."""
    (toy / ".assay").mkdir()
    (toy / "train.py").write_text(SCRIPT)
    return toy


def begun(folder: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC), **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def run_to_its_end(folder: Path) -> str:
    running = begun(folder)
    said = running.communicate(timeout=100)[1]
    assert running.returncode == 0, said
    return said


def wait_for_steps(folder: Path, count: int) -> None:
    until = time.monotonic() + 100
    while time.monotonic() < until:
        files = list(folder.glob("runs/*/metrics"))
        if files and len(read_series(files[0]).get("train/loss", ())) >= count:
            return
        time.sleep(0.02)
    raise TimeoutError


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_script_that_was_ended_is_resumed_by_the_same_command_to_the_same_bits(
    number: signal.Signals, script: Path
) -> None:
    run_to_its_end(script)
    whole = only_run(script)
    kept = whole.rename(script / "whole")

    running = begun(script, SLOW="0.05")
    wait_for_steps(script, 7)
    running.send_signal(number)
    said = running.communicate(timeout=100)[1]

    run = only_run(script)
    file = run_file.read(run)
    if number == signal.SIGKILL:
        assert RunView(run).status == "killed"
    else:
        assert (
            f"{number.name}: stopping after this step, and saving; once more ends it at once"
            in said
        )
        assert running.returncode == (143 if number == signal.SIGTERM else -signal.SIGINT)
        assert (file.status, file.newest.reason) == ("stopped", number.name)
        assert (run / "checkpoints" / f"step-{file.newest.to_step:09d}").exists()
    resumed = run_to_its_end(script)

    file = run_file.read(run)
    assert f"assay: resuming {file.id} (" in resumed
    assert (file.status, len(file.attempts), file.newest.to_step) == ("finished", 2, 32)
    assert last_digest(run) == last_digest(kept)
    for name in ("train/loss", "valid/loss"):
        a, b = (read_series(each / "metrics")[name] for each in (run, kept))
        assert (a.steps.tolist(), a.values.tolist()) == (b.steps.tolist(), b.values.tolist())
    started = [
        timed.fact for timed in read_events(run / "events.jsonl") if isinstance(timed.fact, Started)
    ]
    assert [each.attempt for each in started] == [1, 2]
    assert started[1].step == file.newest.from_step > 0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".assay").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failed_run(**given: object) -> str:
    with pytest.raises(ZeroDivisionError), assay.start(**given) as run:  # type: ignore[arg-type]
        for step in (1, 2, 3):
            run.log({"loss": 1.0 / step}, step)
        1 / 0  # noqa: B018
    return run.id


def test_auto_takes_the_newest_unfinished_run_of_this_tag_and_config_or_begins_a_new_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed_run(tag="a", config={"lr": 1})
    newest = failed_run(tag="a", config={"lr": 1})
    failed_run(tag="b", config={"lr": 1})
    failed_run(tag="a", config={"lr": 2})

    with assay.start(tag="a", config={"lr": 1}, resume="auto") as run:
        assert (run.id, run.step) == (newest, 3)
        run.log({"loss": 0.1}, 4)
    assert (
        f"assay: resuming {newest} (failed: ZeroDivisionError: division by zero) from step 3"
        in capsys.readouterr().err
    )
    assert run.folder is not None
    assert read_series(run.folder.metrics)["loss"].steps.tolist() == [1, 2, 3, 4]

    with assay.start(tag="c", resume="auto") as other:
        assert other.step == 0
    assert "assay: nothing to resume: a new run" in capsys.readouterr().err


def test_a_run_that_is_being_written_is_never_taken(project: Path) -> None:
    with assay.start(tag="a") as first:
        with assay.start(tag="a", resume="auto") as second:
            assert second.id != first.id
        with pytest.raises(LeaseError, match="is being written by process"):
            assay.start(tag="a", resume=first.id)


def test_a_named_run_is_resumed_even_if_it_finished_and_its_changed_config_is_recorded(
    project: Path,
) -> None:
    with assay.start(tag="a", config={"lr": 1, "steps": 3}) as first:
        first.log({"loss": 1.0}, 3)

    with assay.start(tag="a", config={"lr": 1, "steps": 6}, resume=first.id) as run:
        run.rewind(2)
        run.log({"loss": 0.5}, 3)

    file = RunView(run.folder).file  # type: ignore[arg-type]
    assert (run.id, file.newest.changed, file.newest.from_step) == (first.id, ("steps",), 2)
    assert read_series(run.folder.metrics)["loss"].values.tolist() == [0.5]  # type: ignore[union-attr]


def test_what_no_script_has_recorded_is_refused(project: Path) -> None:
    with pytest.raises(InputError, match="There is no run `nothing`"):
        assay.start(resume="nothing")


def test_resume_and_rerun_of_a_scripts_run_say_how_it_was_started(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = failed_run(tag="a", config={"lr": 1})
    capsys.readouterr()

    for command in ("resume", "rerun", "replay"):
        assert main([command, run_id]) == 2
        said = capsys.readouterr().err
        assert f"The run {run_id} was recorded by a script: there is no config to train." in said, (
            said
        )
        assert "It was started by: " in said
