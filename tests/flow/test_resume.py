"""A run that was stopped, failed or killed goes on under its id and ends with the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from assay.formats import run_file
from assay.store.series import read_series
from flow.conftest import SRC
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow


@pytest.fixture
def uninterrupted(assay, toy: Path) -> str:
    """The digest of everything at the end of a run that nothing disturbed."""
    assert assay("run", "toy.toml").returncode == 0
    run = only_run(toy)
    digest = last_digest(run)
    run.rename(toy.parent / "reference")
    return digest


@pytest.mark.row("A37")
@pytest.mark.parametrize("sample", [5, 100, 151])
def test_a_killed_run_resumes_to_the_same_bits(
    assay, toy: Path, uninterrupted: str, sample: int
) -> None:
    killed = assay("run", "toy.toml", DIE_AT=str(sample))
    assert killed.returncode == -9
    run = only_run(toy)
    assert "killed" in assay("ls").stdout

    resumed = assay("resume", "last")

    assert resumed.returncode == 0, resumed.stderr
    assert only_run(toy) == run
    assert last_digest(run) == uninterrupted
    file = run_file.read(run)
    assert (file.status, len(file.attempts)) == ("finished", 2)
    curves = read_series(run / "metrics")
    assert list(curves["train/loss"].steps) == list(range(1, 33))
    assert list(curves["valid/acc"].steps) == [8, 16, 24, 32]


@pytest.mark.row("C64")
@pytest.mark.parametrize(("by", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_after_the_step_with_a_checkpoint(
    assay, toy: Path, uninterrupted: str, by: str, code: int
) -> None:
    stopped = assay("run", "toy.toml", DIE_AT="100", DIE_BY=by)
    assert stopped.returncode == code
    assert "assay resume" in stopped.stderr
    run = only_run(toy)
    assert run_file.read(run).status == "stopped"

    assert assay("resume", "last").returncode == 0
    assert last_digest(run) == uninterrupted


@pytest.mark.thorough
def test_a_finished_run_can_be_trained_longer_but_not_again(assay, toy: Path) -> None:
    assert assay("run", "toy.toml").returncode == 0
    again = assay("resume", "last")
    assert again.returncode == 2
    assert "finished" in again.stderr

    longer = assay("resume", "last", "train.epochs=5")
    assert longer.returncode == 0, longer.stderr
    assert run_file.read(only_run(toy)).newest.to_step == 40


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_a_run_that_somebody_goes_on_with_is_refused_to_a_second_one(
    assay, toy: Path, uninterrupted: str
) -> None:
    """The first holds still in the middle of an epoch, as one that is swapped out would."""
    assert assay("run", "toy.toml", DIE_AT="151").returncode == -9
    run = only_run(toy)
    first = subprocess.Popen(
        [sys.executable, "-m", "assay", "resume", "last", "--quiet"],
        cwd=toy,
        env={**os.environ, "PYTHONPATH": str(SRC), "DIE_AT": "20", "DIE_BY": "SIGSTOP"},
        stderr=subprocess.DEVNULL,
    )
    try:
        assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
        begun = run_file.read(run)
        assert len(begun.attempts) == 2

        for options in (["resume", "last"], ["resume", "last@-1", "--force"]):
            second = assay(*options)
            assert second.returncode != 0
            assert f"is being written by process {first.pid} on " in second.stderr
            assert "Traceback" not in second.stderr and "--take-over" in second.stderr
        assert run_file.read(run) == begun
        first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 0
    finally:
        first.kill()
        first.wait()

    assert last_digest(run) == uninterrupted
    assert list(read_series(run / "metrics")["train/loss"].steps) == list(range(1, 33))


def test_a_run_that_goes_on_at_the_end_of_an_epoch_knows_the_loss_of_the_step_before(
    assay, toy: Path, uninterrupted: str
) -> None:
    saving = ("checkpoint.every=8 steps", "checkpoint.background=false")
    assert assay("run", "toy.toml", *saving, DIE_AT="65").returncode == -9

    resumed = assay(
        "resume", "last", "checkpoint.every=3 steps"
    )  # none of the last step: it would come before its end

    assert resumed.returncode == 0, resumed.stderr
    # The end of the epoch is in the checkpoint: it is not told again.
    assert "epoch  1/4" not in resumed.stderr and "nan" not in resumed.stderr
    assert "epoch  2/4  step    16  loss " in resumed.stderr
    run = only_run(toy)
    assert run_file.read(run).newest.from_step == 8
    assert last_digest(run) == uninterrupted
    assert list(read_series(run / "metrics")["valid/acc"].steps) == [8, 16, 24, 32]


def test_a_run_that_was_limited_goes_on_to_the_bits_of_one_that_was_not(
    assay, toy: Path, uninterrupted: str
) -> None:
    limited = assay("run", "toy.toml", "--max-steps", "10")
    assert limited.returncode == 0, limited.stderr
    assert "limit of 10 steps" in limited.stderr

    resumed = assay("resume", "last")

    assert resumed.returncode == 0, resumed.stderr
    assert last_digest(only_run(toy)) == uninterrupted


def test_an_evaluation_made_because_a_run_was_stopped_leaves_the_curve_of_the_resumed_run(
    assay, toy: Path
) -> None:
    assay("run", "toy.toml", "--max-steps", "10")
    run = only_run(toy)
    assert list(read_series(run / "metrics")["valid/acc"].steps) == [8, 10]

    assay("resume", "last")

    curves = read_series(run / "metrics")
    assert list(curves["valid/acc"].steps) == [8, 16, 24, 32]
    assert list(curves["train/loss"].steps) == list(range(1, 33))


def test_nan_ends_the_run_with_the_weights_of_before(assay, toy: Path) -> None:
    failed = assay("run", "toy.toml", "optimizer.lr=1e30", "train.clip_norm=1e30")
    assert failed.returncode == 1
    assert "at step" in failed.stderr and "Traceback" not in failed.stderr
    assert run_file.read(only_run(toy)).status == "failed"


def test_an_error_in_the_users_code_is_shown_from_their_frames(assay, toy: Path) -> None:
    net = (toy / "net.py").read_text()
    (toy / "net.py").write_text(net.replace("return self.layers(x)", "return self.leyers(x)"))
    failed = assay("run", "toy.toml")
    assert failed.returncode == 1
    assert "net.py" in failed.stderr and "leyers" in failed.stderr
    assert run_file.read(only_run(toy)).status == "failed"


def test_an_import_error_in_the_users_module_is_an_input_error_with_their_line(
    assay, toy: Path
) -> None:
    (toy / "net.py").write_text("import nothing_like_this\n\nclass Net: pass\n")
    wrong = assay("run", "toy.toml")
    assert wrong.returncode == 2
    assert "nothing_like_this" in wrong.stderr and "net.py" in wrong.stderr
    assert not (toy / "runs").exists()


@pytest.mark.thorough
def test_resume_auto_goes_on_with_what_did_not_finish_and_begins_anew_without_it(
    assay, toy: Path, uninterrupted: str
) -> None:
    first = assay("run", "toy.toml", "--resume", "auto", DIE_AT="151")
    assert first.returncode == -9
    assert "nothing to resume: a new run\n" in first.stderr
    run = only_run(toy)
    assert (
        assay("run", "toy.toml", "--tag", "other", "--max-steps", "1").returncode == 0
    )  # of another tag
    assert (
        assay(
            "run", "toy.toml", "--resume", "auto", "optimizer.lr=1", "--max-steps", "1"
        ).returncode
        == 0
    )

    second = assay("run", "toy.toml", "--resume", "auto", "display.every=1 steps")

    assert second.returncode == 0, second.stderr
    assert f"resuming {run_file.read(run).id} (killed at step " in second.stderr
    assert last_digest(run) == uninterrupted
    file = run_file.read(run)
    assert [attempt.status for attempt in file.attempts][1:] == ["finished"]
    assert file.newest.changed == ("display",)
    third = assay("run", "toy.toml", "--resume", "auto", "--max-steps", "1")
    assert "nothing to resume: a new run\n" in third.stderr
    assert len(list((toy / "runs").iterdir())) == 4


@pytest.mark.thorough
def test_what_changed_is_told_and_kept_and_other_data_are_refused(assay, toy: Path) -> None:
    assert assay("run", "toy.toml", DIE_AT="151").returncode == -9
    (toy / "net.py").write_text((toy / "net.py").read_text() + "\n# looked at\n")

    for key, value in (
        ("seed", "4"),
        ("data.train.source.size", "30"),
        ("data.train.shuffle", "false"),
    ):
        refused = assay("resume", "last", f"{key}={value}")
        assert refused.returncode == 2
        assert (
            f"was trained with another {key}: " in refused.stderr
            and "assay rerun " in refused.stderr
            and "--force resumes all the same" in refused.stderr
        )
    changed = assay(
        "resume",
        "last",
        "data.train.source.size=30",
        "optimizer.lr=0.1",
        "--force",
        OMP_NUM_THREADS="2",
    )

    assert changed.returncode == 0, changed.stderr
    assert "changed: data.train.source.size  not given -> 30\n" in changed.stderr
    assert "code changed: net.py\n" in changed.stderr
    assert "environment changed: variables.OMP_NUM_THREADS  " in changed.stderr
    newest = run_file.read(only_run(toy)).newest
    assert (set(newest.changed), newest.changed_code) == (
        {"data.train.source.size", "optimizer.lr"},
        ("net.py",),
    )
    assert "code changed: net.py" in (only_run(toy) / "log.txt").read_text()
    events = assay("log", "last", "--events").stdout
    assert "data.train.source.size: not given -> 30\n" in events
    assert "optimizer.lr: 0.01 -> 0.1\n" in events


OWN = """
from assay.engine import Process

class Untrained(Process):
    def __init__(self, model):
        self.model = model

    def forward_step(self, batch): ...
"""


LENGTHS = """        self.loaded = 0
        self.lengths = [i * 7 % 5 for i in range(size)]
"""

REFUSED = {
    "last@7": "There is no checkpoint '7'.",
    "last data.train.batch_size=16": "cannot be resumed within epoch 2: the order of its samples",
    "last model.width=16": "The checkpoint does not fit the model",
    "last optimizer.type=torch.optim.SGD": "The checkpoint is of an optimizer with",
    "last process.type=own.Untrained process.criterion=@delete process.metrics=@delete": (
        "Untrained cannot train"
    ),
    "last optimizer.lr=fast": "must be a number",
    "last schedule.warmup_ratio=7": "it is a share of the run",
    "last parallel.data=3": "cannot be split evenly on 3 ranks",
    "last seed=4": "was trained with another seed",
}


def contents_of(run: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in run.rglob("*") if each.is_file()}


def test_a_resume_that_is_refused_leaves_the_record_as_it_was(assay, toy: Path) -> None:
    points = (toy / "points.py").read_text()
    (toy / "points.py").write_text(points.replace("        self.loaded = 0\n", LENGTHS))
    (toy / "own.py").write_text(OWN)
    by_length = 'sampler = { type = "assay.engine.ByLength" }\n[data.valid]'
    config = (toy / "toy.toml").read_text().replace("[data.valid]", by_length)
    (toy / "toy.toml").write_text(config)
    assert assay("run", "toy.toml", "--max-steps", "11").returncode == 0
    run = only_run(toy)
    before = contents_of(run)

    for refused, said in REFUSED.items():
        ended = assay("resume", *refused.split(" "))

        assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
        assert contents_of(run) == before, refused
        assert "resume with" not in ended.stderr


@pytest.mark.thorough
def test_a_run_whose_checkpoints_were_deleted_is_not_trained_anew_unless_forced(
    assay, toy: Path
) -> None:
    assert assay("run", "toy.toml").returncode == 0
    run = only_run(toy)
    whole = last_digest(run)
    shutil.rmtree(run / "checkpoints")

    refused = assay("resume", "last")

    file = run_file.read(run)
    assert refused.returncode == 2
    assert f"The run {file.id} (finished, step 32) has no checkpoint any more" in refused.stderr
    assert f"assay rerun {file.id} trains it as a new run" in refused.stderr
    assert len(file.attempts) == 1 and not (run / "checkpoints").exists()
    assert assay("resume", "last", "--force").returncode == 0
    assert last_digest(run) == whole


@pytest.mark.thorough
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(assay, toy: Path) -> None:
    killed = assay("run", "toy.toml", DIE_AT="10")
    assert killed.returncode == -9

    assert assay("resume", "last").returncode == 0
    assert run_file.read(only_run(toy)).newest.from_step == 0
