"""Whole projects in the styles of five older systems.

Each trains, is killed and resumed, is tested, seen on the page, and diffed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.query.run import RunView
from assay.store.layout import open_project, run_folders
from assay.store.series import read_series
from examples import EXAMPLES, SRC
from warm_python import Run

pytestmark = pytest.mark.slow

See = Callable[..., None]
Start = Callable[..., subprocess.CompletedProcess[str]]

KILL = """
import os
import signal

from assay.engine import on


class Kill:
    def __init__(self, step):
        self.step = step

    @on("step_end")
    def kill(self, state):
        if state.step == self.step and os.environ.pop("KILLED", ""):
            os.kill(os.getpid(), signal.SIGKILL)
"""
"""Plugin that kills the OS process after a step, where the environment asks for it."""


@pytest.fixture
def start(warm: Run, tmp_path: Path) -> Start:
    """Runs Python in a project, and expects its end."""

    def run(
        *arguments: str, ends: int = 0, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        own = {
            "PYTHONPATH": str(SRC),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "XDG_DATA_HOME": str(tmp_path / "home"),
        }
        given = {**os.environ, **own, **(variables or {})}
        done = warm(list(arguments), folder=tmp_path / "project", variables=given)
        assert done.returncode == ends, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def see(serve: Callable[..., Any], visit: Callable[..., Any]) -> See:
    """Opens the page of a run in a browser, and expects its title and its curves there."""

    def look(folder: Path, view: RunView, *curves: str) -> None:
        page = visit(serve(folder)).open(f"/runs/{view.id}?tab=curves")
        for text in (view.tag, *curves):
            page.get_by_text(text).first.wait_for()

    return look


def copy_project(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / "seeds" / name, folder / "project"))


def runs_in(folder: Path) -> list[RunView]:
    views = [RunView(each) for each in run_folders(open_project(folder))]
    return sorted(views, key=lambda view: view.file.created_ns)


def last_weights(view: RunView) -> bytes:
    newest = sorted(view.folder.checkpoints.glob("step-*"))[-1]
    return (newest / "model.safetensors").read_bytes()


def check_resumed(killed: RunView, whole: RunView, *curves: str) -> None:
    """Check that a killed and resumed run has the bits of one that was not."""
    assert (killed.status, whole.status) == ("finished", "finished")
    assert len(killed.file.attempts) == 2
    assert last_weights(killed) == last_weights(whole)
    first, second = read_series(killed.folder.metrics), read_series(whole.folder.metrics)
    for name in curves:
        assert first[name].values.tolist() == second[name].values.tolist()


@pytest.mark.row("A90", "A93")
def test_the_project_in_the_style_of_alchemy(start: Start, see: See, tmp_path: Path) -> None:
    project = copy_project("alchemy", tmp_path)
    (project / "src" / "kill.py").write_text(KILL, encoding="utf-8")
    config = (project / "cfg.toml").read_text(encoding="utf-8")
    plugin = '    { type = "src.kill.Kill", step = 50 },\n]\n[task]'
    (project / "cfg.toml").write_text(config.replace("]\n[task]", plugin, 1), encoding="utf-8")
    start("make_data.py")
    train = ("-m", "assay", "run", "cfg.toml", "--device", "cpu")

    start(*train, ends=-signal.SIGKILL, variables={"KILLED": "1"})
    start("-m", "assay", "resume", "last")
    start(*train)
    tested = start("-m", "assay.compat", "train_and_test.py").stdout
    diff = start("-m", "assay", "diff", *(view.id for view in runs_in(project)[:2]))

    killed, whole, again, test = runs_in(project)
    check_resumed(killed, whole, "train/loss", "dev/recall")
    assert last_weights(again) == last_weights(whole)
    assert whole.best is not None and whole.best.metric == "dev/recall"
    assert read_series(whole.folder.metrics)["dev/recall"].steps.tolist() == [40, 80]
    assert (whole.path / "checkpt" / "best" / "manifest.json").is_file()
    assert (whole.path / "backup" / "src" / "tagging.py").is_file()
    assert (test.kind, test.file.parent) == ("test", f"{again.id}@best")
    assert f"trained {again.id} tested" in tested and "test/recall" in tested
    assert "dev/recall" not in diff.stdout
    see(project, killed, "train/loss", "dev/recall")


PLANTED = """
import os
import signal

_training = {kind}.{method}
CALLS = []


def _killing(self, *given):
    CALLS.append(1)
    if len(CALLS) == 30 and os.environ.pop("KILLED", ""):
        os.kill(os.getpid(), signal.SIGKILL)
    return _training(self, *given)


{kind}.{method} = _killing
"""
"""Text that kills the OS process in the 30th step, where the environment asks for it."""


@pytest.mark.row("C82", "C83")
def test_the_project_in_the_style_of_thexp(start: Start, see: See, tmp_path: Path) -> None:
    project = copy_project("thexp", tmp_path)
    shutil.copy(EXAMPLES / "01_digits" / "digits.npz", project)
    planted = PLANTED.format(kind="MyTrainer", method="train_batch")
    text = (project / "digits.py").read_text(encoding="utf-8")
    text = text.replace("random.seed_all(0)", f"{planted}\n\nrandom.seed_all(0)")
    (project / "digits.py").write_text(text, encoding="utf-8")
    script = ("-m", "assay.compat", "digits.py", "--optim.lr=0.1")

    start(*script, ends=-signal.SIGKILL, variables={"KILLED": "1"})
    (cut,) = runs_in(project / "experiment")
    start("-m", "assay", "resume", str(cut.path))
    done = start(*script)
    runs = (str(view.path) for view in runs_in(project / "experiment"))
    diff = start(
        "-m", "assay", "diff", *runs, ends=1
    )  # the kept model is in the folder of the code

    killed, whole = runs_in(project / "experiment")
    check_resumed(killed, whole, "train/loss", "eval/acc", "test/acc")
    assert whole.tag == "digits_optim.lr=0.1" and "lr = 0.1" in whole.config_text
    assert (
        f"test {{'test/acc': {read_series(whole.folder.metrics)['test/acc'].values[-1]}"
        in done.stdout
    )
    assert (project / "models" / "model.0000000.pth.json").is_file()  # the best
    assert ", 48 steps |" in (whole.path / "report" / "report.md").read_text(encoding="utf-8")
    assert "No difference in config, metrics and environment." in diff.stdout
    see(project / "experiment", killed, "train/loss", "eval/acc")


@pytest.mark.row("D22", "D24")
def test_the_project_in_the_style_of_flame(start: Start, see: See, tmp_path: Path) -> None:
    project = copy_project("flame", tmp_path)
    shutil.copy(EXAMPLES / "01_digits" / "digits.npz", project)
    with (project / "process.py").open("a", encoding="utf-8") as file:
        file.write(PLANTED.format(kind="SupervisedProcess", method="training_step"))
    script = ("-m", "assay.compat", "main.py", "--epochs", "4")

    start(*script, ends=-signal.SIGKILL, variables={"KILLED": "1"})
    start("-m", "assay", "resume", "last")
    done = start(*script)
    diff = start("-m", "assay", "diff", *(view.id for view in runs_in(project)))

    killed, whole = runs_in(project)
    check_resumed(killed, whole, "train/loss", "val/acc")
    assert whole.best is not None and whole.best.metric == "val/acc"
    assert "epochs = 4" in whole.config_text
    last = done.stdout.splitlines()[-1]
    assert last.startswith("test ") and float(last.split()[1]) > 0.6
    assert "val/acc" not in diff.stdout
    see(project, killed, "train/loss", "val/acc")


@pytest.mark.row("E60", "E58")
def test_the_project_in_the_style_of_libai(start: Start, see: See, tmp_path: Path) -> None:
    project = copy_project("libai", tmp_path)
    (project / "data").mkdir()
    shutil.copy(EXAMPLES / "01_digits" / "digits.npz", project / "data")
    (project / "kill.py").write_text(KILL, encoding="utf-8")
    with (project / "configs" / "config.py").open("a", encoding="utf-8") as file:
        file.write("\nfrom kill import Kill\n\nplugins = [LazyCall(Kill)(step=30)]\n")
    train = ("-m", "assay", "run", "configs/config.py", "--user-dir", ".", "--device", "cpu")

    start(*train, "optim.lr=0.02", ends=-signal.SIGKILL, variables={"KILLED": "1"})
    start("-m", "assay", "resume", "last")
    start(*train, "optim.lr=0.02")
    tested = start("-m", "assay", "test", "last")
    diff = start("-m", "assay", "diff", *(view.id for view in runs_in(project)[:2]))

    killed, whole, _ = runs_in(project)
    check_resumed(killed, whole, "train/loss", "test/small")
    assert whole.best is not None and whole.best.metric == "test/small"
    assert "test/small" in tested.stdout + tested.stderr
    assert "test/small" not in diff.stdout
    see(project, killed, "train/loss", "test/small")


@pytest.mark.row("B20", "B26")
def test_the_script_in_the_style_of_2021(start: Start, see: See, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    project = copy_project("framework", tmp_path)
    text = (project / "relations.py").read_text(encoding="utf-8")
    planted = (
        'if epoch == 2 and os.environ.pop("KILLED", ""):\n        os.kill(os.getpid(), 9)\n    '
    )
    text = text.replace("torch.manual_seed(epoch)", f"{planted}torch.manual_seed(epoch)")
    (project / "relations.py").write_text(text, encoding="utf-8")
    script = ("-m", "assay.compat", "relations.py", "--epochs", "4")

    start(*script, ends=-signal.SIGKILL, variables={"KILLED": "1"})
    resumed = start(*script).stdout
    _, ended = runs_in(project)
    weights = (project / "cache" / "last.pth.tar").read_bytes()
    shutil.rmtree(project / "cache")
    whole = start(*script).stdout
    diff = start("-m", "assay", "diff", ended.id, runs_in(project)[2].id, ends=1).stdout

    assert "loading checkpoint! 2" in resumed
    assert (project / "cache" / "last.pth.tar").read_bytes() == weights
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]
    assert float(whole.split()[-1]) > 0.9
    view = runs_in(project)[2]
    config = view.config_text
    assert "epochs = 4" in config and "max_seq_len = 10" in config and "hidden_size = 16" in config
    assert {"saved/best.pth", "saved/last.pth.tar"} <= {each.name for each in view.artifacts}
    assert "epochs" not in diff  # the configs are alike
    see(project, view, "train loss", "dev accuracy")
