"""Plugins of a config: listed, at work, kept in checkpoints, and resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as tensors_in

import assay as library
from assay.core.facts import Changed, Evaluated
from assay.engine.checkpoint.folder import load_parts
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.query.find import find
from assay.store.artifacts import artifacts
from assay.store.blobs import FileBlobs
from assay.store.layout import RunFolder
from assay.store.series import read_series
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow

PROBED = "probe/step-000000010.safetensors"
PLUGINS = """\
plugins = [
    { type = "assay.engine.EMA", decay = 0.8 },
    { type = "assay.engine.EarlyStop", metric = "valid/acc", mode = "max", patience = 50 },
    { type = "assay.engine.SetRequiresGrad", step = 10, match = "layers.0.*" },
    { type = "assay.engine.SetValue", step = 12, key = "optimizer.lr", value = 0.05 },
    { type = "assay.engine.Norms", every = "4 steps" },
    { type = "assay.engine.Memory" },
    { type = "assay.engine.Probe", match = "layers.[02]", steps = [10] },
    { type = "assay.engine.Profile", start = 2, steps = 1 },
]
"""


@pytest.fixture
def listening(toy: Path) -> Path:
    """The toy project with every plugin of the engine."""
    config = toy / "toy.toml"
    config.write_text(PLUGINS + config.read_text())
    return toy


def test_they_are_listed_in_their_order(assay, listening: Path) -> None:
    listed = assay("check", "--show", "callbacks", "toy.toml")

    assert listed.returncode == 0, listed.stderr
    steps = [
        line.split()[-1] for line in listed.stdout.splitlines() if line.startswith("step_end ")
    ]
    assert steps[:2] == ["Probe.write", "Profile.end"] and steps.index("EMA.update") < steps.index(
        "Save"
    )
    for name in (
        "EarlyStop.judge",
        "SetRequiresGrad",
        "SetValue",
        "Norms.record",
        "Memory",
        "Throughput.record",
    ):
        assert name in listed.stdout


@pytest.mark.thorough
@pytest.mark.row("A61", "A79", "C68")
def test_a_run_with_all_of_them_ends_with_the_same_bits_when_it_was_killed(
    assay, listening: Path
) -> None:
    assert assay("run", "toy.toml").returncode == 0
    whole = only_run(listening)
    shutil.move(whole, listening.parent / "reference")
    reference = listening.parent / "reference"

    # Saved at once: which checkpoint is the newest when it dies decides which changes are told once
    # more.
    assert assay("run", "toy.toml", "checkpoint.background=false", DIE_AT="100").returncode == -9
    resumed = assay("resume", "last")

    assert resumed.returncode == 0, resumed.stderr
    run = only_run(listening)
    assert last_digest(run) == last_digest(reference)
    both = [read_series(each / "metrics") for each in (reference, run)]
    assert (
        both[0].keys()
        == both[1].keys()
        >= {"grad_norm/layers.1", "memory/weights_mib", "time/data_s", "valid/acc"}
    )
    for name in ("valid/acc", "valid/loss", "weight_norm/layers.0", "train/lr"):
        assert both[0][name].values.tolist() == both[1][name].values.tolist()
    changes = [
        each.fact for each in read_events(run / "events.jsonl") if isinstance(each.fact, Changed)
    ]
    assert [(fact.step, fact.what, fact.after) for fact in changes] == [
        (10, "requires_grad of layers.0.* (2 parameters)", "false"),
        (12, "optimizer.lr", "0.05"),
    ]
    frozen = both[1]["weight_norm/layers.0"]
    assert (
        len(set(frozen.values[frozen.steps >= 12])) == 1 and frozen.values[0] != frozen.values[-1]
    )
    assert "changed    at step 12: optimizer.lr" in assay("log", "last", "--events").stdout


@pytest.mark.thorough
def test_the_average_is_tested_and_loaded_and_artifacts_are_in_the_record(
    assay, listening: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert assay("run", "toy.toml", "checkpoint.best=null").returncode == 0
    run = only_run(listening)
    (newest,) = list((run / "checkpoints").glob("step-000000032"))
    parts = load_parts(newest)
    assert parts["EMA"]["updates"] == 32

    monkeypatch.chdir(listening)
    model = library.load_model("last", "latest")

    assert torch.equal(model.layers[4].weight, parts["EMA"]["weights"]["layers.4.weight"])
    assert not torch.equal(model.layers[4].weight, parts["model"]["layers.4.weight"])
    assert torch.equal(model.layers[1].running_mean, parts["model"]["layers.1.running_mean"])

    kept = {each.name: each.digest for each in artifacts(RunFolder(run))}
    assert kept.keys() == {f"profile/steps-3-3.{kind}" for kind in ("json.gz", "txt")} | {PROBED}
    probed = tensors_in(FileBlobs(run / "artifacts").get(kept[PROBED]))
    assert {name: tuple(tensor.shape) for name, tensor in probed.items()} == {
        "layers.0": (8, 8),
        "layers.2": (8, 8),
    }

    tested = assay("test", "last@latest", "--split", "valid")
    assert tested.returncode == 0, tested.stderr
    facts = [
        each.fact
        for folder in (run.parent).iterdir()
        for each in read_events(folder / "events.jsonl")
    ]
    at_end = [fact.metrics for fact in facts if isinstance(fact, Evaluated) and fact.step == 32]
    assert len(at_end) == 2 and at_end[0] == at_end[1]


def test_a_run_that_stops_early_is_finished_and_says_why(assay, listening: Path) -> None:
    config = listening / "toy.toml"
    config.write_text(
        config.read_text().replace('mode = "max", patience = 50', 'mode = "min", patience = 1')
    )

    stopped = assay("run", "toy.toml", "evaluate.every=1 step")

    assert stopped.returncode == 0, stopped.stderr
    file = run_file.read(only_run(listening))
    assert file.status == "finished" and file.newest.to_step < 32
    view, _ = find(str(only_run(listening)))
    ended = [each.fact for each in read_events(view.folder.events)][-1]
    assert ended.reason.startswith("early stop: valid/acc was not better than")


def test_a_wrong_argument_is_told_by_the_check(assay, listening: Path) -> None:
    config = listening / "toy.toml"
    config.write_text(
        config.read_text().replace("decay = 0.8", "decya = 0.8").replace('mode = "max", p', "p", 1)
    )

    checked = assay("check", "toy.toml")

    assert checked.returncode == 2
    assert "did you mean `decay`" in checked.stderr + checked.stdout
    assert "mode" in checked.stderr + checked.stdout


OPTIM = """
from pathlib import Path
import torch
from assay.compat.alchemy import sym_tbl
from assay.engine import on

def adamw(params, lr):
    Path("built.txt").open("a").write("optimizer\\n")
    return torch.optim.AdamW(params, lr=lr)

def constant():
    Path("built.txt").open("a").write("schedule\\n")
    from assay.engine import Constant
    return Constant()

class Asks:
    @on("eval_begin")
    def ask(self):
        sym_tbl().optimizer
"""


@pytest.mark.thorough
@pytest.mark.row("A60")
def test_a_test_builds_neither_optimizer_nor_schedule_and_says_so_to_who_asks(
    assay, toy: Path
) -> None:
    (toy / "optim.py").write_text(OPTIM)
    text = (toy / "toy.toml").read_text()
    text = text.replace("torch.optim.AdamW", "optim.adamw")
    text = text.replace('assay.engine.WarmupCosine"\nwarmup_ratio = 0.1', 'optim.constant"')
    (toy / "toy.toml").write_text(text)
    assert assay("run", "toy.toml", "train.epochs=1").returncode == 0
    assert (toy / "built.txt").read_text().split() == ["optimizer", "schedule"]

    assert assay("test", "last").returncode == 0
    assert (toy / "built.txt").read_text().split() == ["optimizer", "schedule"]

    (toy / "toy.toml").write_text('plugins = [{ type = "optim.Asks" }]\n' + text)
    assert assay("run", "toy.toml", "train.epochs=1").returncode == 0
    asked = assay("test", "last")
    assert asked.returncode != 0
    assert "optimizer" in asked.stderr and "this is a test, which does not train" in asked.stderr
    assert (toy / "built.txt").read_text().split() == ["optimizer", "schedule"] * 2
