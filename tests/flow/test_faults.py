"""Faults of a run, each really provoked: one clear error, and no record is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.core.facts import Ended, Warned
from assay.formats import manifest, run_file
from assay.formats.event_log import read_events
from assay.store.series import read_series
from flow.conftest import SRC, Assay
from flow.test_flags import without
from flow.test_train import last_digest, only_run
from warm_python import Run

pytestmark = pytest.mark.slow

HANDLER = """
from assay.core.events import Event, Handler

class Careless:
    def handlers(self):
        return [Handler(event=Event.STEP_END, fn=self.look)]

    def look(self, state):
        if state.step == 5:
            return {}["nothing"]
"""

LOADER = """
import os
import signal
import torch
from points import Points

class Failing(Points):
    def __getitem__(self, i):
        if i == 41:
            raise LookupError("no sample 41")
        return super().__getitem__(i)

class Dying(Failing):
    def __getitem__(self, i):
        if i == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)

def batches(first=0):
    data = torch.utils.data.Subset(Dying(0), range(first, 60))
    return torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)

class Nothing:
    def __iter__(self):
        return iter(())
"""


def fails(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """What a run says that is refused before it begins."""
    monkeypatch.chdir(toy)
    assert main(["run", "toy.toml", "--device", "cpu", *arguments]) == 2
    assert not (toy / "runs").exists()
    return capsys.readouterr().err


def with_source(toy: Path, source: str) -> str:
    name = without(toy, "data.train", "schedule")
    (toy / "loads.py").write_text(LOADER)
    (toy / name).write_text(f"{(toy / name).read_text()}[data.train]\nsource = {source}\n")
    return name


def ended(run: Path) -> Ended:
    return next(
        timed.fact for timed in read_events(run / "events.jsonl") if isinstance(timed.fact, Ended)
    )


# ---------------------------------------------------------------------------------------------------------- users' code


@pytest.mark.thorough
def test_an_error_in_a_handler_names_handler_and_event_and_shows_the_users_line_alone(
    assay, toy: Path
) -> None:
    (toy / "careless.py").write_text(HANDLER)

    failed = assay("run", "toy.toml", 'plugins=[{ type = "careless.Careless" }]')

    assert failed.returncode == 1
    assert "KeyError: 'nothing'\nin handler Careless.look at step_end 5\n" in failed.stderr
    assert failed.stderr.count("File ") == 1 and 'careless.py", line 10, in look' in failed.stderr
    run = only_run(toy)
    assert "careless.py" in (run / "log.txt").read_text() and "careless.py" in ended(run).traceback
    assert (ended(run).status, ended(run).reason, ended(run).step) == (
        "failed",
        "KeyError: 'nothing'",
        5,
    )
    assert "resume with: assay resume" in failed.stderr
    whole = assay(
        "run",
        "toy.toml",
        'plugins=[{ type = "careless.Careless" }]',
        "--no-file",
        ASSAY_TRACEBACK="1",
    )
    assert "engine.py" in whole.stderr


# ----------------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("kills", [True, False])
def test_a_dead_worker_of_a_loader_is_one_clear_error_and_a_failing_one_shows_its_own(
    kills: bool, assay, toy: Path
) -> None:
    source = '{ type = "loads.batches" }' if kills else '{ type = "loads.batches", first = 41 }'

    failed = assay(
        "run", with_source(toy, source), "checkpoint.enabled=false", "evaluate.enabled=false"
    )

    assert failed.returncode == 1
    assert run_file.read(only_run(toy)).status == "failed"
    if kills:
        assert re.search(
            r"error: The loader worker \d of data.train \(pid \d+\) was killed by SIGKILL\.",
            failed.stderr,
        )
        assert "fix: Most likely the memory ran out" in failed.stderr
        assert "Traceback" not in failed.stderr
    else:
        assert "LookupError: no sample 41" in failed.stderr and "loads.py" in failed.stderr
        assert "site-packages/assay" not in failed.stderr and "engine.py" not in failed.stderr


def test_what_a_worker_of_ours_raises_shows_the_users_line_alone(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy / "loads.py").write_text(LOADER)
    monkeypatch.chdir(toy)

    failed = main(
        [
            "run",
            "toy.toml",
            "--no-file",
            "data.train.source.type=loads.Failing",
            "data.train.workers=1",
        ]
    )

    told = capsys.readouterr().err
    assert failed == 1
    assert "LookupError: no sample 41" in told
    assert "while loading the sample 41 of data.train\nin loader worker 0:\n" in told
    assert told.count("File ") == 1 and "loads.py" in told


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["data.train.source.size=0"],
            "data.train is empty: the Points has no samples.\n  at:  toy.toml:9:10\n  fix: Look at its arguments",
        ),
        (
            ["data.valid.source.size=0"],
            "data.valid is empty: the Points has no samples.\n  at:  toy.toml:12:10",
        ),
        (
            ["data.train.source.size=5", "data.train.drop_last=true"],
            "data.train has 5 samples, fewer than one batch of 8, and drop_last leaves them out.\n"
            "  at:  toy.toml:10:1\n  fix: batch_size = 5 at most, or drop_last = false.",
        ),
        (
            ["train.accumulate=3"],
            "| train.accumulate=3\n  |                  ^\n  = accumulate can be",
        ),
        (
            ["data.train.micro_batch_size=3"],
            "                            ^\n  = micro_batch_size can be 1, 2, 4, 8.",
        ),
    ],
)
def test_data_that_makes_no_batch_is_refused_before_a_run_begins(
    overrides: list[str],
    said: str,
    toy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in fails(toy, monkeypatch, capsys, *overrides)


def test_a_stream_that_turns_out_to_be_empty_is_told(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy)
    config = with_source(toy, '{ type = "loads.Nothing" }')

    assert main(["run", config, "--device", "cpu"]) == 2

    told = capsys.readouterr().err
    assert "error: The training data is empty: an epoch has no batch." in told
    assert "resume with" not in told  # there is nothing to go on from


# -------------------------------------------------------------------------------------------------------------- signals


def stopped(toy: Path, *signals: int) -> subprocess.CompletedProcess[str]:
    """Run that is sent signals, each once the one before was acknowledged."""
    said, waiting = [], list(signals)
    command = [sys.executable, "-m", "assay", "run", "slow.toml", "--device", "cpu"]
    env = {**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1"}
    with subprocess.Popen(command, cwd=toy, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if waiting and ("epoch  1" in line or "stopping after this step" in line):
                process.send_signal(waiting.pop(0))
    return subprocess.CompletedProcess(command, process.returncode, "", "".join(said))


def slow(toy: Path) -> None:
    """The toy's config with a step that takes half a second, and a line for each."""
    net = (
        (toy / "net.py")
        .read_text()
        .replace("return self", "time.sleep(0.3 * self.training)\n        return self")
    )
    (toy / "net.py").write_text(f"import time\n{net}")
    text = (toy / "toy.toml").read_text()
    (toy / "slow.toml").write_text(f'{text}\n[display]\nevery = "1 steps"\n')


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.usefixtures("forking")
def test_a_signal_is_answered_at_once_and_ends_after_the_step_with_the_line_to_go_on(
    number: signal.Signals, code: int, toy: Path
) -> None:
    slow(toy)

    said = stopped(toy, number)

    assert said.returncode == code
    assert (
        f"{number.name}: stopping after this step, and saving; once more ends it at once\n"
        in said.stderr
    )
    run = only_run(toy)
    file = run_file.read(run)
    assert (file.status, file.newest.reason) == ("stopped", number.name)
    assert said.stderr.endswith(f"resume with: assay resume {file.id}\n")
    steps = [manifest.step_of_folder(path.name) for path in (run / "checkpoints").glob("step-*")]
    assert file.newest.to_step in steps


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_a_second_signal_ends_at_once_and_loses_nothing_that_was_recorded(toy: Path) -> None:
    slow(toy)

    said = stopped(toy, signal.SIGINT, signal.SIGINT)

    assert said.returncode == 130
    assert "Traceback" not in said.stderr and "stopped" in said.stderr
    run = only_run(toy)
    file = run_file.read(run)
    assert (file.status, file.sealed, file.newest.reason) == ("stopped", True, "SIGINT")
    shown = sum(line.startswith("epoch ") and "loss" in line for line in said.stderr.splitlines())
    assert list(read_series(run / "metrics")["train/loss"].steps) == list(
        range(1, file.newest.to_step + 1)
    )
    assert shown <= file.newest.to_step <= shown + 1
    assert ended(run).status == "stopped"


# ---------------------------------------------------------------------------------------------------------------- disks


@pytest.fixture
def in_child(toy: Path, warm: Run) -> Run:
    """Runs a program in the toy project as a process of its own."""
    own = {"PYTHONPATH": str(SRC), "NO_COLOR": "1"}
    own["PYTHONDONTWRITEBYTECODE"] = (
        "1"  # bytecode that a limit has cut off would stay in the source tree
    )
    return lambda program, *arguments: warm(
        ["-c", program, *arguments], folder=toy, variables={**os.environ, **own}
    )


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from assay.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_disk_that_fills_up_ends_no_run_and_is_told(in_child, toy: Path) -> None:
    """Files are limited to 20 kB: no checkpoint of this wide a model fits."""
    ran = in_child(FULL, "20000", "run", "toy.toml", "model.width=2000", "--device", "cpu")

    assert ran.returncode == 1, ran.stderr
    run = only_run(toy)
    lost = "final weights not kept: file too large"
    warned = [
        timed.fact for timed in read_events(run / "events.jsonl") if isinstance(timed.fact, Warned)
    ]
    assert "Traceback" not in ran.stderr
    assert warned and warned[0].message in ran.stderr
    assert (
        sum("checkpoint" in each.message for each in warned) == 2
    )  # the first one and the final one
    assert run_file.read(run).status == "finished"
    assert run_file.read(run).newest.reason == f"{lost}; limit of 4 epochs"
    assert list(read_series(run / "metrics")["train/loss"].steps) == list(range(1, 33))
    assert "finished" in ran.stderr and lost in ran.stderr
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.endswith(".tmp")]


@pytest.mark.thorough
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="mounting a disk takes root"
)
def test_a_run_on_a_disk_that_is_really_full_keeps_its_last_good_checkpoint_and_goes_on_when_there_is_room(
    assay: Assay, toy: Path
) -> None:
    """600 kB: the record and one checkpoint of this wide a model fit, two do not."""
    assert assay("run", "toy.toml", "model.width=2000", "--device", "cpu").returncode == 0
    whole = last_digest(only_run(toy))
    disk = toy / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(disk)], check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        ran = assay(
            "run", "toy.toml", "model.width=2000", "--device", "cpu", ASSAY_RUNS_DIR=str(disk)
        )

        assert ran.returncode == 1, ran.stderr
        assert "Traceback" not in ran.stderr
        assert (
            "The checkpoint of step 32 was not written: [Errno 28] No space left on device."
            in ran.stderr
        )
        (run,) = disk.iterdir()
        assert run_file.read(run).status == "finished"
        assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000000003"]
        curve = read_series(run / "metrics")["train/loss"]
        assert list(curve.steps) == list(range(1, 33))
        lost = "final weights not kept: disk full"
        assert lost in [
            each.strip() for line in ran.stderr.splitlines() for each in line.split("  ")
        ]
        assert f"resume with: assay resume {run_file.read(run).id}" in ran.stderr
        assert f"{run_file.read(run).id}: {lost}" in assay("ls", ASSAY_RUNS_DIR=str(disk)).stdout
        assert f"finished: {lost}" in assay("show", "last", ASSAY_RUNS_DIR=str(disk)).stdout
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        tested = assay("test", "last", "--split", "valid", ASSAY_RUNS_DIR=str(disk))
        said = " ".join(tested.stderr.split())
        assert (
            "@step-000000003: the newest that were kept"
            f" (step 32 was the last; finished: {lost}; limit of 4 epochs)" in said
        )

        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        resumed = assay("resume", "last", ASSAY_RUNS_DIR=str(disk))

        assert resumed.returncode == 0, resumed.stderr
        assert run_file.read(run).newest.from_step == 3
        assert last_digest(run) == whole
        assert read_series(run / "metrics")["train/loss"].values.tobytes() == curve.values.tobytes()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


WITHOUT_POWERS = """
import ctypes, sys
# Root may write anywhere; without its capabilities the mode of a folder holds for it too.
ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
from assay.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("at", ["project", "runs"])
def test_a_folder_that_may_not_be_written_is_one_clear_error(at: str, in_child, toy: Path) -> None:
    locked = toy
    if at == "runs":
        (toy / ".assay").mkdir()
        locked = toy / "runs"
        locked.mkdir()
    locked.chmod(0o555)
    try:
        ran = in_child(WITHOUT_POWERS, "run", "toy.toml", "--device", "cpu", "--max-steps", "1")
    finally:
        locked.chmod(0o755)

    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert (
        ran.stderr.count("error: ") == 1
        and "no permission" in ran.stderr
        and str(locked) in ran.stderr
    )
    fix = (
        "Make a folder above it a project"
        if at == "project"
        else "Let runs go elsewhere: set ASSAY_RUNS_DIR"
    )
    assert f"fix: {fix}" in ran.stderr


# -------------------------------------------------------------------------------------------------------- tired fingers


def test_an_error_of_the_users_class_while_it_is_made_shows_their_line_and_its_place_in_the_config(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy / "points.py").write_text(
        (toy / "points.py").read_text().replace("self.noisy = noisy", "self.noisy = nosiy")
    )
    monkeypatch.chdir(toy)

    assert main(["run", "toy.toml", "--device", "cpu"]) == 1

    said = capsys.readouterr().err
    assert (
        said.startswith("Traceback (most recent call last):\n  File ")
        and said.count("  File ") == 1
    )
    assert "points.py" in said and "NameError: name 'nosiy' is not defined" in said
    assert said.endswith("while building data.train.source = points.Points (toy.toml:9:10)\n")
    assert "fault in assay" not in said and not (toy / "runs").exists()


def test_a_label_that_is_no_class_is_told_with_its_sample_and_the_graph_of_the_step_survives(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = "        self.labels = (self.points.sum(1) > 0).long()\n"
    wrong = f"{labelled}        self.labels[41] = 7\n"
    (toy / "points.py").write_text((toy / "points.py").read_text().replace(labelled, wrong))
    monkeypatch.chdir(toy)

    assert main(["run", "toy.toml", "--device", "cpu"]) == 2

    said = capsys.readouterr().err
    assert "error: CrossEntropyLoss cannot be computed: Target 7 is out of bounds." in said
    assert (
        "pred float32 [8, 2], target int64 [8]" in said and "fix: Give the model 8 outputs" in said
    )
    assert "It is about sample 41 of data.train." in said
    assert "File " not in said and "fault in assay" not in said
    assert main(["check", "--show", "batch", "toy.toml"]) == 2
    drawn = capsys.readouterr()
    assert (
        "7 is out of range for 2 classes" in drawn.err
        and "process.criterion  CrossEntropyLoss" in drawn.out
    )


def test_what_a_library_refuses_while_it_is_made_is_told_with_its_place_in_the_config_alone(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy)

    given = ["optimizer.type=torch.optim.SGD", "optimizer.nesterov=true"]
    assert main(["run", "toy.toml", "--device", "cpu", *given]) == 1

    said = capsys.readouterr().err
    assert said.startswith("error while building optimizer = torch.optim.SGD (")
    assert "  ValueError: Nesterov momentum requires a momentum and zero dampening\n" in said
    assert "sgd.py" not in said
    monkeypatch.setenv("ASSAY_TRACEBACK", "1")
    assert main(["run", "toy.toml", "--device", "cpu", *given]) == 1
    assert "sgd.py" in capsys.readouterr().err


def test_a_run_and_a_config_that_were_taken_for_each_other_are_told_with_the_command_that_was_meant(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy)
    assert main(["run", "toy.toml", "--device", "cpu", "--max-steps", "1"]) == 0
    capsys.readouterr()

    for arguments, what, fix in (
        (
            ["run", "last"],
            "`last` is a run, not a config file.",
            "assay resume last resumes it; assay run runs/",
        ),
        (["run", "toy"], "`toy` is a run, not a config file.", "assay resume toy resumes it"),
        (["run", "nothing"], "There is no config file nothing.", "Near it there is: "),
        (
            ["resume", "toy.toml"],
            "toy.toml is a file, not a run.",
            "assay run toy.toml, or assay resume last",
        ),
        (
            ["resume", "last", "toy"],
            "`assay resume` takes one run, not 2: last, toy.",
            "assay resume last",
        ),
        (
            ["run", "toy.toml", "--epochs", "3"],
            "has no option `--epochs`.",
            "write `train.epochs=...`",
        ),
        (
            ["run", "toy.toml", "--batch-size=3"],
            "has no option `--batch-size`.",
            "write `data.train.batch_size=3`",
        ),
    ):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and what in said and f"fix: {fix}" in said, arguments
