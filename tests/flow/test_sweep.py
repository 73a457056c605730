"""Searches: trials proposed by a study, remembered by records alone."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.config.expansion import plan_of
from assay.config.loading import loads
from assay.formats import run_file
from assay.jobs.search_plan import SearchMetric, SearchPlan
from assay.jobs.study import make_study
from assay.jobs.trials import SearchTrial, TrialRun, read_trials
from assay.query.run import RunView
from assay.store.job_journal import JobJournal
from assay.store.layout import open_project

from .conftest import SRC, wait_for

pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("forking")

SPACE = """
[sweep]
mode = "random"
points = 40
"optimizer.lr" = { low = 1e-4, high = 1.0, scale = "log" }
"model.width" = [4, 8, 16]
"""


@pytest.fixture
def searched(toy: Path) -> Path:
    text = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 2")
    (toy / "space.toml").write_text(text + SPACE)
    return toy


def points(folder: Path) -> list[str]:
    """The points of all runs that finished, in the order of the folders."""
    return [file.newest.launch["point"] for file in files_of(folder) if file.status == "finished"]


def files_of(folder: Path) -> list[run_file.RunFile]:
    """The runs that were begun; a folder may have been made the moment before a SIGKILL."""
    runs = [run for run in (folder / "runs").iterdir() if (run / "run.json").exists()]
    return [run_file.read(run) for run in runs]


def command(*arguments: str) -> list[str]:
    file = () if "--resume" in arguments else ("space.toml",)
    return [sys.executable, "-m", "assay", "sweep", *file, *arguments]


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1"}


def searched_whole(
    folder: Path, *arguments: str, **changes: str
) -> subprocess.CompletedProcess[str]:
    """A search to its end: longer than the commands of other tests may take."""
    environment = {**variables(), **changes}
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment, capture_output=True, text=True
    )


def searching(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(*arguments),
        cwd=folder,
        env=variables(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.thorough
@pytest.mark.row("A88")
def test_40_trials_killed_and_resumed_twice_are_those_of_an_uninterrupted_search(
    searched: Path,
) -> None:
    whole = searched_whole(searched, "--sampler", "tpe", "--json")
    assert whole.returncode == 0, whole.stderr
    expected = json.loads(whole.stdout)
    (searched / "runs").rename(searched / "kept")
    (searched / "runs").mkdir()

    arguments = ["--sampler", "tpe"]
    for count in (12, 25):
        begun = searching(searched, *arguments)
        wait_for(lambda count=count: len(list((searched / "runs").iterdir())) >= count)
        begun.send_signal(signal.SIGKILL)
        begun.wait()
        arguments = ["--resume", files_of(searched)[0].newest.launch["sweep"]]
    last = searched_whole(searched, *arguments, "--json")

    assert last.returncode == 0, last.stderr
    assert sorted(points(searched)) == sorted(f"{i}/40" for i in range(1, 41))
    found = json.loads(last.stdout)
    assert [(each["values"], each["mean"]) for each in found["points"]] == [
        (each["values"], each["mean"]) for each in expected["points"]
    ]
    assert found["importance"] == expected["importance"]
    assert found["importance"].keys() == {"optimizer.lr", "model.width"}
    metric = SearchMetric(name="valid/acc", mode="max")
    assert len(read_trials(open_project(searched), arguments[1], [metric])) == 40


HELD = """
import fcntl, os, pathlib
import net

class Net(net.Net):
    def __init__(self, width):
        device = os.environ["ASSAY_JOB_DEVICES"]
        lock = open(pathlib.Path(os.environ["HELD"]) / device, "a")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if somebody else has it
        assert width < 20, "too wide"
        super().__init__(width)
        self.__dict__["kept"] = lock
"""


@pytest.mark.thorough
@pytest.mark.row("C77")
def test_parallel_trials_have_devices_of_their_own_and_a_failing_one_is_told_with_its_cause(
    toy: Path,
) -> None:
    text = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 2")
    text = text.replace("net.Net", "held.Net") + '[sweep]\n"model.width" = [8, 24]\n'
    (toy / "space.toml").write_text(text)
    (toy / "held.py").write_text(HELD)
    (held := toy / "devices").mkdir()
    machine = {"ASSAY_FAKE_DEVICES": "2", "ASSAY_QUEUE_DIR": str(toy / "queue"), "HELD": str(held)}

    ran = searched_whole(toy, "--parallel", "3", "--seeds", "2", "--json", **machine)

    assert ran.returncode == 1, ran.stderr
    good, bad = json.loads(ran.stdout)["points"]
    assert (good["values"], good["n"]) == ({"model.width": "8"}, 2)
    scores = [run["score"] for run in good["runs"]]
    assert good["mean"] == sum(scores) / 2 and [run["seed"] for run in good["runs"]] == [3, 4]
    assert [run["cause"] for run in bad["runs"]] == ["AssertionError: too wide"] * 2
    files = files_of(toy)
    assert len({file.newest.pid for file in files}) == 4
    assert os.getpid() not in {file.newest.pid for file in files}
    assert {path.name for path in held.iterdir()} == {"cuda:0", "cuda:1"}
    with JobJournal(toy / "queue") as journal:
        assert journal.leases() == []


SLOW = """
import time
import net

class Net(net.Net):
    def __init__(self, width, kind):
        super().__init__(width)
        self.kind = kind

    def forward(self, x):
        if self.kind == "good":
            return super().forward(x)
        time.sleep(0.25 if self.training else 0.0)
        return 50.0 - 100.0 * super().forward(x)
"""


@pytest.mark.thorough
def test_a_pruned_trial_is_ended_in_the_midst_of_its_run_and_the_search_goes_on(toy: Path) -> None:
    text = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 240")
    text = text.replace("net.Net", "slow.Net").replace("width = 8", 'width = 8\nkind = "good"')
    text += '[evaluate]\nevery = "2 steps"\n'
    text += '[sweep]\nmode = "random"\npoints = 2\n"model.kind" = ["good", "bad"]\n'
    text += '"optimizer.lr" = { low = 0.01, high = 0.0101 }\n'  # no point comes twice
    (toy / "space.toml").write_text(text)
    (toy / "slow.py").write_text(SLOW)
    asked = ("--sampler", "tpe", "--trials", "4", "--search-seed", "1")
    asked += ("--pruner", "asha", "-m", "valid/loss:min")

    ran = searched_whole(toy, *asked, "--device", "cpu", ASSAY_QUEUE_DIR=str(toy / "queue"))

    assert ran.returncode == 0, ran.stderr
    views = [RunView(run) for run in sorted((toy / "runs").iterdir())]
    bad = [view for view in views if view.config["model"]["kind"] == "bad"]
    assert len(views) == 4 and bad
    for view in bad:
        assert view.labels == ["pruned"] and view.status == "stopped"
        assert 2 <= view.last_step < 240
    assert any(view.status == "finished" and view.last_step == 240 for view in views)
    told = [line for line in ran.stderr.splitlines() if line.startswith("[")]
    assert len(told) == 4 and "  pruned  " in told[3]


def study_of(text: str, folder: Path, **changes: Any) -> Any:
    metrics = (SearchMetric(name="loss", mode="min"),)
    settings = {"sampler": "tpe", "trials": 20, "metrics": metrics, **changes}
    plan = plan_of(loads(text))
    assert plan is not None
    return make_study(SearchPlan(**settings), plan, folder / "study.jsonl")


def run_study(study: Any, count: int) -> list[dict[str, Any]]:
    """Continue a study up to `count` trials of a small objective; return all trials."""
    found = []
    for number in range(count):
        known = study.points()
        point = known[number] if number < len(known) else study.ask()
        values = {axis.key: node.value for axis, node in point}
        is_pruned = False
        for step in range(1, 10):
            loss = (values["lr"] - 0.3) ** 2 + values["width"] / step
            if not study.is_told(number):
                is_pruned = is_pruned or study.report(number, step, loss)
        if not study.is_told(number):
            study.tell(number, [loss], is_pruned=is_pruned)
        found.append({**values, "state": study._study.trials[number].state.name})
    return found


def killed(study: Any, folder: Path, number: int, *, lines: int) -> None:
    """Leave the journal as a process did that was killed in the midst of a line."""
    study.ask()
    journal = folder / "study.jsonl"
    text = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(text[: len(text) - lines]) + text[-lines][: number + 3])


STUDY = 'lr = 0.1\nwidth = 1\n[sweep]\nmode = "random"\npoints = 20\nlr = { low = 0.01, high = 1.0 }\nwidth = { low = 1, high = 9 }\n'


@pytest.mark.parametrize("pruner", ["none", "asha", "hyperband", "median"])
@pytest.mark.parametrize("sampler", ["tpe", "cma-es", "nsga2"])
def test_a_study_that_was_killed_goes_on_with_the_same_points(
    tmp_path: Path, sampler: str, pruner: str
) -> None:
    """Each process has a study of its own; it dies between two lines of the journal, or in one."""
    folders = [tmp_path / name for name in ("whole", "cut", "other")]
    for folder in folders:
        folder.mkdir()
    how = {"sampler": sampler, "pruner": pruner}
    whole = run_study(study_of(STUDY, folders[0], **how), 20)

    for number in range(20):
        study = study_of(STUDY, folders[1], **how)
        run_study(study, number)
        killed(study, folders[1], number, lines=number % 3 + 1)
    assert run_study(study_of(STUDY, folders[1], **how), 20) == whole
    assert len({each["lr"] for each in whole}) == 20
    states = {each["state"] for each in whole}
    assert states == {"COMPLETE"} if pruner == "none" else states == {"COMPLETE", "PRUNED"}
    other = run_study(study_of(STUDY, folders[2], search_seed=1, **how), 20)
    assert other[0]["lr"] != whole[0]["lr"]


@pytest.mark.parametrize(
    ("sampler", "modes"),
    [("tpe", ["min"]), ("tpe", ["max"]), ("cma-es", ["max"]), ("nsga2", ["min", "max"])],
)
@pytest.mark.parametrize("diverged", [math.nan, math.inf, -math.inf])
def test_a_trial_that_diverged_is_the_worst_that_a_sampler_knows(
    tmp_path: Path, sampler: str, modes: list[Any], diverged: float
) -> None:
    metrics = tuple(SearchMetric(name=f"metric{i}", mode=mode) for i, mode in enumerate(modes))
    study = study_of(STUDY, tmp_path, sampler=sampler, metrics=metrics)

    for number in range(30):
        values = {axis.key: node.value for axis, node in study.ask()}
        score = diverged if values["lr"] > 0.3 else values["lr"]
        study.tell(number, [score] * len(modes), is_pruned=False)

    trials = study._study.trials
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    bad = [trial for trial in trials if trial.params["lr"] > 0.3]
    assert 0 < len(bad) < 30
    for trial in trials:
        for value, mode in zip(trial.values, modes, strict=True):
            worst = 1e30 if mode == "min" else -1e30
            assert value == (worst if trial in bad else trial.params["lr"])
    if sampler == "tpe":  # one that learns nothing from them draws 21 of 30 there
        assert len(bad) < 20


@pytest.mark.parametrize(
    ("statuses", "cause", "expected"),
    [
        (["failed"], "NonFiniteError: The loss is inf at step 1.", [math.nan]),
        (["finished", "failed"], "NonFiniteError: the loss is not finite", [math.nan]),
        (["failed"], "ValueError: no such file", None),
        (["finished", "failed"], "ValueError: no such file", [0.5]),
        (["finished"], "", [0.5]),
        (["finished", "finished"], "", [0.5]),
        (["stopped"], "", None),
    ],
)
def test_a_run_that_diverged_makes_its_trial_one_that_did(
    statuses: list[str], cause: str, expected: list[float] | None
) -> None:
    trial = SearchTrial(0)
    for seed, status in enumerate(statuses):
        trial.runs[seed] = TrialRun(
            view=None,  # type: ignore[arg-type]
            number=0,
            seed=seed,
            status=status,
            scores=(0.5,),
            cause=cause,
        )

    assert repr(trial.values()) == repr(expected)


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_finished_run_without_a_finite_score_has_none_to_be_proud_of(score: float) -> None:
    trial = SearchTrial(0)
    for seed, each in enumerate((0.5, score)):
        trial.runs[seed] = TrialRun(
            view=None,  # type: ignore[arg-type]
            number=0,
            seed=seed,
            status="finished",
            scores=(each,),
            cause="",
        )

    (mean,) = trial.values() or (0.0,)

    assert not math.isfinite(mean)
