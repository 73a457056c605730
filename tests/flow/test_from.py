"""Runs begun from another's weights, or from the checkpoint before a damaged one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from assay.compose import Launch, RunResult, resume, train
from assay.compose import test as evaluated
from assay.config import open_config
from assay.core.errors import CheckpointError, ConfigError, InputError
from assay.core.facts import Warned
from assay.engine import save_weights
from assay.engine.checkpoint.folder import load_parts
from assay.engine.checkpoint.saver import Saver
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.store.series import read_series
from flow.test_train import only_run

pytestmark = pytest.mark.slow


def begin(toy: Path, origin: str = "", *overrides: str, steps: int | None = None) -> RunResult:
    config = open_config(toy / "toy.toml", list(overrides), user_dir=None)
    result = train(config, Launch(device="cpu", quiet=True, weights_from=origin, max_steps=steps))
    if result.exception is not None:
        raise result.exception
    return result


def weights(folder: Path) -> dict[str, Any]:
    """Without the running statistics, which every forward pass changes."""
    return {
        name: value
        for name, value in load_parts(folder)["model"].items()
        if "weight" in name or "bias" in name
    }


def saver_of(result: RunResult) -> Saver:
    assert result.record_dir is not None
    return Saver(result.record_dir / "checkpoints")


@pytest.fixture
def parent(toy: Path, monkeypatch: pytest.MonkeyPatch) -> RunResult:
    """A run of two epochs whose best checkpoint is not its newest."""
    monkeypatch.chdir(toy)
    result = begin(toy, "", "train.epochs=2", "checkpoint.best.mode=min")
    assert saver_of(result).find("best").step < saver_of(result).find().step
    return result


@pytest.mark.row("C70", "E43", "F09")
@pytest.mark.parametrize("checkpoint", ["@best", "@final", "@latest", "", "a folder"])
def test_a_run_begins_with_the_weights_of_another_and_nothing_else(
    checkpoint: str, toy: Path, parent: RunResult
) -> None:
    saver = saver_of(parent)
    if checkpoint == "a folder":
        source = saver.folder / saver.find("best").name
        address = str(source)
    else:
        source = saver.folder / saver.find(checkpoint.removeprefix("@") or "best").name
        address = f"{parent.id}{checkpoint}"

    result = begin(toy, address, "optimizer.lr=1e-30", steps=1)

    assert result.record_dir is not None
    file = run_file.read(result.record_dir)
    assert file.parent == f"{parent.id}@{source.name}"
    assert file.newest.launch["from"] == address
    begun = load_parts(result.record_dir / "checkpoints" / "step-000000001")
    for name, value in weights(source).items():
        assert torch.equal(begun["model"][name], value)  # a rate of next to nothing leaves them
    assert {float(each["step"]) for each in begun["optimizer"]["state"].values()} == {
        1.0
    }  # updates, not one more
    assert (begun["state"]["step"], begun["state"]["epoch"], begun["state"]["samples"]) == (1, 0, 8)
    assert list(read_series(result.record_dir / "metrics")["train/loss"].steps) == [1]


@pytest.mark.thorough
@pytest.mark.row("C70")
def test_the_command_takes_a_run_to_begin_with_and_other_parameters(
    assay, toy: Path, parent: RunResult
) -> None:
    ran = assay(
        "run",
        "toy.toml",
        "--from",
        f"{parent.id}@best",
        "optimizer.lr=1e-4",
        "--max-steps",
        "1",
        "--tag",
        "again",
    )

    assert ran.returncode == 0, ran.stderr
    (run,) = [path for path in (toy / "runs").iterdir() if path.name.endswith("-again")]
    assert run_file.read(run).parent == f"{parent.id}@{saver_of(parent).best()}"
    assert "lr = 0.0001" in (run / "config.toml").read_text()
    wrong = assay("run", "toy.toml", "--from", f"{parent.id}@7")
    assert wrong.returncode == 2
    assert "has no checkpoint `7`" in wrong.stderr and "Traceback" not in wrong.stderr


@pytest.mark.row("E43")
def test_a_file_of_weights_will_do_and_what_does_not_fit_starts_nothing(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    layers = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )
    model = nn.Module()
    model.layers = layers
    save_weights(model, toy / "net.safetensors")
    torch.save(model.state_dict(), toy / "net.pth")
    save_weights(layers, toy / "other.safetensors")

    with pytest.raises(InputError, match="pickles, which can run code"):
        begin(toy, "net.pth")
    with pytest.raises(InputError, match="does not fit the model"):
        begin(toy, "other.safetensors")
    with pytest.raises(InputError, match="no project here"):
        begin(toy, "nothing")
    assert not (toy / "runs").exists()

    result = begin(toy, "net.safetensors", "optimizer.lr=1e-30", steps=1)

    assert result.record_dir is not None
    begun = load_parts(result.record_dir / "checkpoints" / "step-000000001")["model"]
    assert torch.equal(begun["layers.0.weight"], layers[0].weight)
    assert run_file.read(result.record_dir).parent == ""


@pytest.mark.row("E43")
def test_a_config_can_say_where_its_weights_come_from(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    layers = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )
    torch.save({"state_dict": layers.state_dict(), "epoch": 3}, toy / "net.pth.tar")
    save_weights(nn.Sequential(*layers[:4], nn.Linear(8, 5)), toy / "other.safetensors")

    def begun(*overrides: str) -> Any:
        result = begin(toy, "", "optimizer.lr=1e-30", *overrides, steps=1)
        assert result.record_dir is not None
        return load_parts(result.record_dir / "checkpoints" / "step-000000001")["model"], result

    weights, first = begun(
        'load_weights={ path = "net.pth.tar", rename = { "^" = "layers." }, pickled = true }'
    )
    assert torch.equal(weights["layers.0.weight"], layers[0].weight)
    assert torch.equal(weights["layers.4.bias"], layers[4].bias)

    from_run, again = begun(f"load_weights=run:{first.id}@latest")
    assert torch.equal(from_run["layers.0.weight"], layers[0].weight)
    assert again.record_dir is not None
    assert run_file.read(again.record_dir).parent == f"{first.id}@step-000000001"
    with pytest.raises(InputError, match="does not fit the model"):
        begin(toy, "", "load_weights=other.safetensors")
    partly, result = begun(
        'load_weights={ path = "other.safetensors", rename = { "^" = "layers." }, strict = false }'
    )
    assert torch.equal(partly["layers.0.weight"], layers[0].weight)
    assert partly["layers.4.bias"].shape == (2,)
    assert result.record_dir is not None
    told = "other.safetensors: not loaded, of another shape there: layers.4.bias"
    assert told in (result.record_dir / "log.txt").read_text()

    one = evaluated(
        "toy.toml",
        Launch(device="cpu", quiet=True),
        overrides=[f"load_weights=run:{first.id}@latest"],
    )
    other = evaluated("toy.toml", Launch(device="cpu", quiet=True), weights=f"{first.id}@latest")
    assert one.value == other.value and one.value


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("load_weights=nothing", "no project here"),
        ("load_weights=3", "load_weights"),
        ("load_weights.rename.a=3", "load_weights.rename.a"),
        ("load_weights.pathh=a", "unknown key `load_weights.pathh`"),
    ],
)
def test_what_names_no_weights_starts_nothing(
    written: str, message: str, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)

    with pytest.raises((InputError, ConfigError)) as caught:
        begin(toy, "", written)

    assert message in str(caught.value)
    assert not (toy / "runs").exists()


def test_a_damaged_newest_checkpoint_is_passed_over_and_that_is_said(
    toy: Path, parent: RunResult, caplog: pytest.LogCaptureFixture
) -> None:
    saver = saver_of(parent)
    steps = [manifest.step for manifest in saver.complete()[0]]
    newest = saver.folder / saver.find("latest").name
    whole = (newest / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    launch = Launch(device="cpu", quiet=True)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not what was written"):
        resume(f"{parent.id}@latest", ["train.epochs=3"], launch)

    result = resume(parent.id, ["train.epochs=3"], launch)

    assert result.status == "finished"
    message = f"{newest.name} is no checkpoint: The checkpoint is damaged: model.safetensors is not what was written."
    message += f" The run resumes at step {steps[-2]}."
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [message]
    run = only_run(toy)
    told = [
        each.fact.message
        for each in read_events(run / "events.jsonl")
        if isinstance(each.fact, Warned)
    ]
    assert told == [message]
    file = run_file.read(run)
    assert (file.newest.from_step, file.newest.to_step) == (steps[-2], 24)
    assert list(read_series(run / "metrics")["train/loss"].steps) == list(range(1, 25))
    assert (saver.folder / f"{newest.name}.left-1").is_dir()


def test_a_damaged_checkpoint_can_be_gone_on_from_if_that_is_asked_for(
    toy: Path, parent: RunResult
) -> None:
    saver = saver_of(parent)
    newest = saver.find("latest")
    path = saver.folder / newest.name / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    result = resume(parent.id, ["train.epochs=3"], Launch(device="cpu", quiet=True), verify=False)

    assert result.status == "finished"
    assert run_file.read(only_run(toy)).newest.from_step == newest.step
