"""Data of a config: every setting reaches the loader, and a resumed run has equal samples."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import assay as api
from assay.cli.main import main
from assay.compose.launch import Launch
from assay.compose.loaders import make_loader
from assay.compose.run_scope import open_run_scope
from assay.config import open_config
from assay.formats import run_file
from flow.conftest import CONFIG, SRC
from flow.test_train import last_digest, only_run
from warm_python import Begin

pytestmark = pytest.mark.slow

TRAIN = "batch_size = 8\n[data.valid]"


def with_train(text: str) -> str:
    """The toy config with more under [data.train]."""
    return CONFIG.replace(TRAIN, f"{text}\n[data.valid]")


@pytest.fixture
def here(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(toy)
    return toy


# ------------------------------------------------------------------------------------------------------------ exactness


HELD = """\
import os
import random
import time
import numpy as np

passes = 0

def wait(training):
    # Whoever is to be killed does not come to its end before, however late the killer is.
    global passes
    passes += training
    if passes > int(os.environ.get("HELD_AFTER", 1_000_000)):
        time.sleep(60)

"""


def killed_at(begin: Begin, toy: Path, batches: int, passes: int, *arguments: str) -> int:
    """Kill a run once `batches` points of its loss are on disk; return the exit code.

    It is killed after `passes` forward passes at the latest.
    """
    from assay.store.series import read_series

    slow = {"SLOW": "0.01", "HELD_AFTER": str(passes)}
    own = {**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1", **slow}
    process = begin("-m", "assay", *arguments, folder=toy, variables=own)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        files = list(toy.glob("runs/*/metrics"))
        curve = read_series(files[0]).get("train/loss") if files else None
        if curve is not None and curve.steps[-1] >= batches:
            break
        time.sleep(0.02)
    children = (
        psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    )
    process.kill()
    code = process.wait()
    _, alive = psutil.wait_procs(children, timeout=100)
    assert not alive, "workers outlive the run that they load for"
    return code


@pytest.mark.thorough
@pytest.mark.row("F01")
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_run_killed_anywhere_goes_on_to_the_same_bits_with_any_workers(
    assay, begin: Begin, toy: Path, accumulate: int
) -> None:
    points = (toy / "points.py").read_text()
    slow = '        time.sleep(float(os.environ.get("SLOW", 0)))\n        x = self.points[i]\n'
    (toy / "points.py").write_text(points.replace("        x = self.points[i]\n", slow))
    net = (toy / "net.py").read_text()
    draws = "return self.layers(x + 0.01 * random.random() + 0.01 * np.random.rand())"
    (toy / "net.py").write_text(
        HELD + net.replace("return self.layers(x)", f"wait(self.training)\n        {draws}")
    )
    more = f"train.accumulate={accumulate}"
    plain = assay("run", "toy.toml", more)
    assert plain.returncode == 0, plain.stderr
    run = only_run(toy)
    expected = last_digest(run)
    run.rename(toy.parent / "reference")
    pick = random.Random(accumulate)

    for workers in (0, 2):
        at = pick.randrange(4, 30)
        given = ["run", "toy.toml", more, f"data.train.workers={workers}"]
        assert killed_at(begin, toy, at, 31 * accumulate, *given) == -signal.SIGKILL
        run = only_run(toy)
        # The workers of the rest are others than those of the beginning: they change nothing.
        resumed = assay("resume", "last", f"data.train.workers={2 - workers}")
        assert resumed.returncode == 0, resumed.stderr
        assert last_digest(run) == expected, f"killed at step {at} with {workers} workers"
        assert run_file.read(run).newest.to_step == 32
        run.rename(toy.parent / f"after-{workers}")


@pytest.mark.thorough
def test_a_worker_that_dies_or_hangs_ends_the_run_with_one_clear_error_and_a_checkpoint(
    assay, toy: Path
) -> None:
    assert assay("run", "toy.toml").returncode == 0
    run = only_run(toy)
    expected = last_digest(run)
    run.rename(toy.parent / "reference")
    for by, told in {
        "SIGKILL": "was killed by SIGKILL.",
        "SIGSTOP": r"has been at sample \d+ for \d+ s\.\n  at:  it is stopped: by SIGSTOP, or by a debugger\n",
    }.items():
        given = ["data.train.workers=2", "data.train.timeout=5 s", "checkpoint.every=11 steps"]

        failed = assay("run", "toy.toml", *given, DIE_AT="126", DIE_BY=by)

        assert failed.returncode == 1
        assert re.search(r"loader worker \d of data\.train \(pid \d+\) " + told, failed.stderr), (
            failed.stderr
        )
        assert "Traceback" not in failed.stderr
        run = only_run(toy)
        assert run_file.read(run).status == "failed"
        newest = max(
            int(folder.name.removeprefix("step-"))
            for folder in (run / "checkpoints").glob("step-*")
        )
        assert newest % 11 and newest % 8, (
            "neither of a period nor of an epoch: it is of the last step"
        )
        assert assay("resume", "last").returncode == 0
        assert run_file.read(run).newest.from_step == newest
        assert last_digest(run) == expected
        run.rename(toy.parent / f"after-{by}")


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_a_signal_to_all_processes_of_a_run_stops_it_after_the_step(toy: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "assay",
            "run",
            "toy.toml",
            "data.train.workers=2",
            "train.epochs=10000",
        ],
        cwd=toy,
        env={**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list(toy.glob("runs/*/checkpoints/step-*")) and process.poll() is None:
        time.sleep(0.05)

    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)

    assert process.returncode == 130, told
    assert "Traceback" not in told and "KeyboardInterrupt" not in told
    assert run_file.read(only_run(toy)).status == "stopped"


@pytest.mark.row("F10")
def test_the_seed_of_the_config_reaches_the_order_of_the_data(here: Path) -> None:
    def order(seed: int) -> list[Any]:
        with open_run_scope(
            open_config("toy.toml", [f"seed={seed}", "data.train.source.noisy=false"]), Launch()
        ) as scope:
            return [
                window.batches[0][0].tolist()
                for window in make_loader(scope, "train").windows(0, 0)
            ]  # type: ignore[attr-defined]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(point for batch in order(1) for point in batch) == sorted(
        p for b in order(2) for p in b
    )


# ------------------------------------------------------------------------------------------------------------- settings


TOOLS = """
import torch

prepared = []

def pad(samples, by):
    return torch.stack([x + by for x, _ in samples]), torch.stack([y for _, y in samples])

def prepare(number):
    prepared.append(number)

class EveryOther:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(0, self.n, 2))

class Pairs(EveryOther):
    def __iter__(self):
        return iter([[i, i + 1] for i in range(0, self.n, 2)])
"""

EVERYTHING = """
batch_size = 8
drop_last = true
randomness = "batch"
micro_batch_size = 4
sampler = { type = "tools.EveryOther", n = 40 }
collate = { type = "tools.pad", by = 100.0, _partial_ = true }
workers = 2
prefetch = 3
persistent_workers = false
pin_memory = true
timeout = "30 s"
worker_init = { type = "tools.prepare", _partial_ = true }
start_method = "fork"
"""


@pytest.mark.row("B06")
def test_each_setting_reaches_the_loader(here: Path) -> None:
    (here / "tools.py").write_text(TOOLS)
    (here / "all.toml").write_text(with_train(EVERYTHING))
    assert main(["check", "all.toml"]) == 0

    with open_run_scope(open_config("all.toml", []), Launch()) as scope:
        loader: Any = make_loader(scope, "train")
        assert (loader.batch_size, loader.micro_batch_size, loader.drop_last) == (8, 4, True)
        assert (loader.randomness, loader.workers, loader.order.n) == ("batch", 2, 20)
        pool = loader._pool
        assert (pool.prefetch, pool.limit_s, pool.start_method) == (3, 30.0, "fork")
        assert pool.init.func.__name__ == "prepare"
        windows = list(loader.windows(0, 0))
        assert [window.samples for window in windows] == [8, 8]
        assert (windows[0].batches[0][0] > 50).all()
        assert pool._running.iterator is None  # not persistent

    (here / "pairs.toml").write_text(with_train('batch_sampler = { type = "tools.Pairs", n = 10 }'))
    with open_run_scope(open_config("pairs.toml", []), Launch()) as scope:
        assert [window.samples for window in make_loader(scope, "train").windows(0, 0)] == [2] * 5  # type: ignore[attr-defined]


@pytest.mark.row("B06")
@pytest.mark.parametrize(
    ("keys", "line", "message"),
    [
        (
            'batch_size = 8\nsampler = { type = "tools.EveryOther", n = 9 }\nshuffle = true',
            3,
            "`sampler` and `shuffle`",
        ),
        (
            'batch_size = 8\nbatch_sampler = { type = "tools.Pairs", n = 4 }',
            1,
            "`batch_sampler` and `batch_size`",
        ),
        (
            'drop_last = true\nbatch_sampler = { type = "tools.Pairs", n = 4 }',
            1,
            "`batch_sampler` and `drop_last`",
        ),
        (
            "batch_size = 8\nprefetch = 4",
            2,
            "`prefetch` is of worker processes, and there are none",
        ),
        ('batch_size = 8\nworkers = 0\ntimeout = "3 s"', 3, "`timeout` is of worker processes"),
    ],
)
def test_settings_that_do_not_go_together_are_told_by_the_check(
    here: Path, capsys: pytest.CaptureFixture[str], keys: str, line: int, message: str
) -> None:
    (here / "tools.py").write_text(TOOLS)
    (here / "bad.toml").write_text(with_train(keys))
    first = CONFIG[: CONFIG.index(TRAIN)].count("\n") + 1

    assert main(["check", "bad.toml"]) == 2

    told = capsys.readouterr().out
    assert message in told and "1 error" in told
    assert f"bad.toml:{first + line - 1}:" in told


def test_names_of_torch_are_taken_with_a_note(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "torch.toml").write_text(
        with_train("batch_size = 8\nnum_workers = 2\nprefetch_factor = 3")
    )

    assert main(["check", "torch.toml"]) == 0

    told = capsys.readouterr().out
    assert "`data.train.num_workers` is `data.train.workers` here" in told
    assert "`data.train.prefetch_factor` is `data.train.prefetch` here" in told


def test_workers_do_not_change_the_hash_of_a_config(here: Path) -> None:
    from assay.config import config_hash

    def hashed(*overrides: str) -> str:
        return config_hash(open_config("toy.toml", overrides).root)

    assert hashed() == hashed(
        "data.train.workers=4", "data.train.prefetch=3", "data.train.pin_memory=true"
    )
    assert hashed() != hashed("data.train.batch_size=4")


@pytest.mark.thorough
@pytest.mark.row("A26")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipe_that_keeps_the_context_is_stopped_before_workers_copy_it(
    here: Path, workers: int
) -> None:
    pipe = """
from assay.build import Context
from points import Points

class Stage:
    def __init__(self, ctx):
        self.owner = ctx

class Pipe(Points):
    def __init__(self, split, context: Context):
        super().__init__(split)
        self.stages = [Stage(context)]
"""
    (here / "pipe.py").write_text(pipe)
    changed = CONFIG.replace('"points.Points", split = 0, noisy = true', '"pipe.Pipe", split = 0')
    (here / "pipe.toml").write_text(changed)

    result = api.run(_with_workers("pipe.toml", workers), check=False)

    if workers:
        assert result.exit_code == 2
        assert "`data.train.source.stages[0].owner` holds the context" in str(result.exception)
    else:
        assert result.exception is None


def _with_workers(name: str, workers: int) -> str:
    path = Path(name)
    path.write_text(
        path.read_text().replace("batch_size = 8\n", f"batch_size = 8\nworkers = {workers}\n")
    )
    return name


@pytest.mark.row("C57")
def test_without_a_split_to_evaluate_evaluation_is_left_out_with_one_note(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, end = CONFIG.index("[data.valid]"), CONFIG.index("[data.test]")
    (here / "alone.toml").write_text(
        CONFIG[:begin] + CONFIG[end:].replace('best = { metric = "valid/acc", mode = "max" }', "")
    )

    result = api.run("alone.toml", check=False)

    assert result.exception is None and "valid/acc" not in result.value
    assert capsys.readouterr().err.count("nothing is evaluated: there is no data.valid\n") == 1


def test_an_empty_list_of_splits_is_the_reason_that_nothing_is_evaluated(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIG.replace('best = { metric = "valid/acc", mode = "max" }', "")
    (here / "none.toml").write_text(text)

    assert main(["run", "none.toml", "evaluate.splits=[]", "--device", "cpu"]) == 0
    assert capsys.readouterr().err.count("evaluated: evaluate.splits names no split\n") == 1


def test_how_exactly_a_run_could_go_on_is_said_at_its_start(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "stream.py").write_text(
        "from torch.utils.data import DataLoader\n\nfrom points import Points\n\n\n"
        "def loader(split):\n    return DataLoader(Points(split, noisy=True), batch_size=16, shuffle=True)\n"
    )
    config = CONFIG.replace(
        '"points.Points", split = 0, noisy = true', '"stream.loader", split = 0'
    )
    (here / "stream.toml").write_text(config.replace("batch_size = 8\n", ""))

    result = api.run("stream.toml", check=False)

    assert result.exception is None
    assert "data.train: exact (plan)\n" in capsys.readouterr().err
    assert result.record_dir is not None
    assert run_file.read(result.record_dir).newest.exactness == "exact (plan)"


# ------------------------------------------------------------------------------------------------- looked at, measured


@pytest.mark.row("F10")
def test_the_check_loads_an_epoch_and_says_what_it_found(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "toy.toml", "--data"]) == 0
    told = capsys.readouterr().out

    train = told[told.index("data.train") : told.index("data.valid")]
    assert "60 samples, 8 batches" in train
    for line in (
        "each of 60 once",
        "0 and 2 load the same",
        "float32 Bx4",
        "0 to 1, 2 different",
        "none of its own",
    ):
        assert line in train
    assert "data.test" in told and not (here / "runs").exists()


def test_the_check_fails_with_1_when_data_is_not_the_same_twice(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = (here / "points.py").read_text()
    points = points.replace(
        "self.loaded = 0", "self.loaded = 0\n        self.rng = random.SystemRandom(1)"
    )
    (here / "points.py").write_text(
        points.replace("0.1 * random.random()", "0.1 * self.rng.random()")
    )

    assert main(["check", "toy.toml", "--data", "--json"]) == 1

    train, *others = json.loads(capsys.readouterr().out)["data"]
    assert ["generators", "Points.rng, a random.Random"] in train["facts"]
    assert train["problems"][0].startswith(
        "data.train is not the same with 0 and 2 workers: the first difference"
    )
    assert not any(other["problems"] for other in others)


def test_the_shape_alone_loads_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "toy.toml", "--data", "--shape"]) == 2
    assert "--data loads the data, which --shape leaves out" in capsys.readouterr().err


@pytest.mark.row("B07")
def test_loading_is_measured_with_and_without_pinning(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "toy.toml", "data.train.workers=2", "--show", "loading"]) == 0
    told = capsys.readouterr().out

    assert told.count("batches/s") == told.count("\n")
    assert "workers 2" in told and "pinned" in told


LENGTH = CONFIG.replace("warmup_ratio = 0.1", 'warmup_steps = "${length:data.train}"')


@pytest.mark.thorough
@pytest.mark.row("B05")
def test_the_length_of_a_loader_is_known_at_the_start_and_written_down(here: Path) -> None:
    (here / "long.toml").write_text(LENGTH)
    assert main(["check", "long.toml"]) == 0

    result = api.run("long.toml", check=False)

    assert result.exception is None and result.record_dir is not None
    assert "warmup_steps = 8  # known by" in (result.record_dir / "config.toml").read_text()
    (here / "points.py").write_text((here / "points.py").read_text().replace("size=60", "size=90"))
    assert (
        main(["resume", result.id, "train.epochs=5"]) == 0
    )  # the recorded one, not that of the data of now
    assert "warmup_steps = 8  # known by" in (result.record_dir / "config.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data.train}", "data.trian}", "there is no [data.trian]"),
        (
            "size = 8",
            'size = "${length:data.valid}"',
            "The data cannot depend on how long data.valid is",
        ),
    ],
)
def test_a_length_that_nobody_can_know_is_refused(
    here: Path, old: str, new: str, message: str
) -> None:
    (here / "long.toml").write_text(LENGTH.replace(old, new, 1))

    result = api.run("long.toml", check=False)

    assert result.exit_code == 2 and message in str(result.exception)
