"""Rehearsals of a config: `assay check --rehearse`, `run --rehearse`, `summary` and `graph`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from assay.cli.main import commands
from assay.core.errors import AssayError, ConfigError, InputError
from assay.query.run import RunView
from examples import EXAMPLES

pytestmark = pytest.mark.slow

SHIFTED = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8, more=0, classes=2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width))
        self.head = nn.Linear(width + more, classes)

    def forward(self, x):
        return self.head(self.body(x))
"""


@pytest.fixture
def net(toy: Path) -> Path:
    """The toy project with a model whose head may be too wide."""
    (toy / "shifted.py").write_text(SHIFTED)
    return toy


SHIFTED_NET = ["model.type=shifted.Net"]


def said_of(*arguments: str) -> Result:
    """Run a command in this process as part of its group.

    click keeps the help option of the first context.
    """
    return CliRunner().invoke(commands, list(arguments))


@pytest.mark.thorough
@pytest.mark.row("B34", "B01")
def test_layers_and_stages_are_printed_with_shapes_parameters_and_flops(assay, toy: Path) -> None:
    summary = assay("check", "--show", "layers", "toy.toml", "model.width=16")
    graph = assay("check", "--show", "batch", "toy.toml", "model.width=16")

    assert summary.returncode == graph.returncode == 0, summary.stderr + graph.stderr
    lines = [line.split() for line in summary.stdout.splitlines()]
    assert lines[0] == ["layer", "kind", "gives", "params", "FLOPs"]
    assert ["model", "Net", "float32", "[8,", "2]", "0", f"{2 * 8 * (4 * 16 + 16 * 2):,}"] in lines
    assert ["0", "Linear", "float32", "[8,", "16]", "80", f"{2 * 8 * 4 * 16:,}"] in lines
    assert "146 parameters, 146 trained" in summary.stdout
    said = [line.split(maxsplit=2) for line in graph.stdout.splitlines()]
    assert [name for name, *_ in said] == [
        *("source", "batch", "model", "model.layers", "process.criterion", "output", "metric"),
        "optimizer",
    ]
    assert said[0][1:] == ["Points", "(float32 [4], int64 [])"]
    assert said[1][1:] == ["Loader", "[float32 [8, 4], int64 [8]]"]
    assert said[2][1:] == ["Net", "float32 [8, 4] -> float32 [8, 2]"]
    assert said[4][1:] == ["CrossEntropyLoss", "float32 [8, 2], int64 [8] -> float32 []"]
    assert not (toy / "runs").exists()


def test_both_are_there_as_data_and_refuse_what_a_run_would_refuse(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)

    views = ("layers", "batch")
    summary, graph = (said_of("check", "--show", it, "toy.toml", "--json") for it in views)

    assert json.loads(summary.stdout)["samples"] == 8
    assert json.loads(graph.stdout)[1]["name"] == "batch"
    for view in views:
        assert isinstance(said_of("check", "--show", view).exception, InputError)
        wrong = said_of("check", "--show", view, "toy.toml", "model.widht=3").exception
        assert isinstance(wrong, ConfigError) and "did you mean `width`?" in str(wrong)


def test_a_report_says_what_a_step_needs_in_eighty_columns_and_records_nothing(
    assay, toy: Path
) -> None:
    said = assay("check", "toy.toml", "--rehearse", "--memory", "1GB")

    assert said.returncode == 0, said.stderr
    facts = {line.split()[0]: line for line in said.stdout.splitlines() if line.startswith("  ")}
    assert said.stdout.startswith("fine  toy.toml")
    assert "74, all trained" in facts["parameters"]
    assert "[float32 [8, 4], int64 [8]]" in facts["batch"]
    assert {"memory", "FLOPs", "largest", "checkpoints"} <= facts.keys()
    assert all(len(line) <= 80 for line in said.stdout.splitlines())
    assert not (toy / "runs").exists() and not (toy / ".assay").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "kind", "module"),
    [
        (["model.more=1"], "shape", "model.head (Linear)"),
        (["model.classes=1"], "value", "process.criterion (CrossEntropyLoss)"),
        (["process.criterion.type=torch.nn.MSELoss"], "shape", "process.criterion (MSELoss)"),
    ],
)
def test_a_mistake_ends_with_code_2_and_names_the_module(
    assay, net: Path, overrides: list[str], kind: str, module: str
) -> None:
    said = assay("check", "toy.toml", *SHIFTED_NET, *overrides, "--rehearse")
    data = assay("check", "toy.toml", *SHIFTED_NET, *overrides, "--rehearse", "--json")

    assert (said.returncode, data.returncode) == (2, 2)
    first = said.stdout.split("\n\n")[0].strip() if "fine" not in said.stdout else ""
    assert first.startswith(f"{kind}  ")
    (finding,) = json.loads(data.stdout)["rehearsal"]["findings"]
    assert (finding["kind"], finding["module"]) == (kind, module)


STEPS = """\
from torch import nn

def weighted(model):
    def step(batch):
        inputs, labels, weights = batch
        return (nn.functional.cross_entropy(model(inputs), labels, reduction="none") * weights).mean()

    return step


class Weighted:
    def __init__(self, split):
        from points import Points

        self.points = Points(split)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return (*self.points[i], 1.0)
"""


STEPS_CONFIG = """\
[model]
type = "net.Net"
width = 8
[data.train]
source = { type = "steps.Weighted", split = 0 }
batch_size = 8
[data.valid]
source = { type = "steps.Weighted", split = 1 }
batch_size = 16
[process]
type = "steps.weighted"
[optimizer]
type = "torch.optim.SGD"
lr = 0.1
[train]
epochs = 1
"""


@pytest.mark.thorough
def test_a_step_function_whose_batches_nobody_can_evaluate_is_found_before_it_trains(
    assay, toy: Path
) -> None:
    (toy / "steps.py").write_text(STEPS)
    (toy / "toy.toml").write_text(STEPS_CONFIG)

    for command in (("check", "toy.toml", "--rehearse"), ("run", "toy.toml", "--rehearse")):
        said = assay(*command)

        assert said.returncode == 2, said.stderr
        words = " ".join((said.stdout + said.stderr).split())
        assert "How step evaluates a batch that is no pair (input, target) is unknown." in words
    assert not (toy / "runs").exists()


@pytest.mark.thorough
def test_a_run_is_rehearsed_first_and_leaves_no_record_when_it_would_fail(assay, net: Path) -> None:
    said = assay("run", "toy.toml", *SHIFTED_NET, "model.more=1", "--rehearse")

    assert said.returncode == 2
    assert "in:    model.head (Linear)" in said.stderr
    assert "shifted.py:11  return self.head(self.body(x))" in said.stderr
    assert not (net / "runs").exists()


@pytest.mark.thorough
def test_a_rehearsal_changes_no_bit_of_the_run_after_it(assay, toy: Path) -> None:
    runs = []
    for extra in ((), ("--rehearse",)):
        done = assay("run", "toy.toml", "--quiet", "--max-steps", "6", *extra)
        assert done.returncode == 0, done.stderr
        (newest,) = {*(toy / "runs").iterdir()} - {run.path for run in runs}
        runs.append(RunView(newest))

    assert "rehearsed" in done.stderr
    first, second = (run.checkpoints[-1].manifest for run in runs)
    assert first is not None and second is not None
    assert first.digest == second.digest


def rehearsed(assay: Any, *arguments: str) -> dict[str, Any]:
    said = assay("check", "toy.toml", "--rehearse", "--json", *arguments)
    assert said.returncode == 0, said.stdout + said.stderr
    report: dict[str, Any] = json.loads(said.stdout)["rehearsal"]
    return report


@pytest.mark.thorough
def test_a_layout_is_that_of_one_rank_of_many(assay, net: Path) -> None:
    wide = [*SHIFTED_NET, "model.width=64"]
    alone = rehearsed(assay, *wide)
    sharded = rehearsed(assay, *wide, "--layout", "shard=4")
    divided = rehearsed(assay, *wide, "--layout", "data=2,tensor=2")

    assert sharded["layout"] == {"shard": 4} and divided["layout"] == {"data": 2, "tensor": 2}
    whole = alone["memory"]["weights_bytes"]
    assert sharded["memory"]["weights_bytes"] == pytest.approx(whole / 4, rel=0.05)
    assert sharded["memory"]["optimizer_bytes"] == pytest.approx(
        alone["memory"]["optimizer_bytes"] / 4, rel=0.1
    )
    assert divided["memory"]["weights_bytes"] < 0.7 * whole
    assert divided["flops_per_step"] == pytest.approx(alone["flops_per_step"] / 4, rel=0.1)
    assert (alone["samples"], sharded["samples"], divided["samples"]) == (8, 2, 4)
    for report in (sharded, divided):
        assert report["parameters"] == alone["parameters"]
        assert report["disk"]["checkpoint_bytes"] == alone["disk"]["checkpoint_bytes"]


def test_what_a_rank_sends_is_counted_from_the_collectives_of_its_step(assay, net: Path) -> None:
    """Of gradients each of n ranks sends 2 (n - 1) / n, once in a step however it accumulates."""
    speeds = ["--bandwidth", "data=1kB,disk=1kB"]

    report = rehearsed(
        assay, "--layout", "data=4", "data.train.batch_size=16", "train.accumulate=2", *speeds
    )

    gradients = 4 * report["trained"]
    presence = 4 * 6  # of each of six tensors, whether the rank has a gradient
    sent = round((gradients + presence) * 2 * 3 / 4)
    assert report["traffic"] == [
        {"axis": "data", "collectives": 1, "sent_bytes": sent, "seconds": sent / 1000}
    ]
    assert report["disk"]["seconds"] == report["disk"]["checkpoint_bytes"] / 1000


@pytest.mark.thorough
def test_weights_that_are_sharded_are_sent_for_every_micro_batch(assay, net: Path) -> None:
    """Weights are gathered for the forward and the backward pass, gradients are scattered."""
    wide = [*SHIFTED_NET, "model.width=64", "--layout", "shard=2", "data.train.batch_size=16"]

    one, three, four = (rehearsed(assay, *wide, f"train.accumulate={n}") for n in (1, 4, 8))

    sent = [report["traffic"][0]["sent_bytes"] for report in (one, three, four)]
    assert sent[0] == pytest.approx(3 * 4 * one["parameters"] / 2, rel=0.35)
    assert sent[1:] == pytest.approx([4 * sent[0], 8 * sent[0]], rel=0.001)


def test_gradients_in_half_precision_are_half_of_what_is_sent_of_them(assay, net: Path) -> None:
    wide = [*SHIFTED_NET, "model.width=64", "data.train.batch_size=16", "--layout"]
    half = "parallel.gradient_precision=bf16"

    by_data = [rehearsed(assay, *wide, "data=4", *more) for more in ([], [half])]
    by_shard = [rehearsed(assay, *wide, "shard=2", *more) for more in ([], [half])]

    data, shard = (
        [report["traffic"][0]["sent_bytes"] for report in reports]
        for reports in (by_data, by_shard)
    )
    assert data[1] == data[0] / 2
    assert shard[1] == pytest.approx(shard[0] * 5 / 6, rel=0.05)  # weights are gathered twice


def test_weights_gathered_in_half_precision_are_half_of_what_is_gathered_and_wanted_everywhere(
    assay, net: Path
) -> None:
    wide = [*SHIFTED_NET, "model.width=64", "--layout", "shard=2"]
    half = ["train.precision=bf16", "evaluate.precision=bf16"]
    gathered = "parallel.shard_precision=bf16"

    by_autocast, by_gathering = (
        rehearsed(assay, *wide, *half),
        rehearsed(assay, *wide, *half, gathered),
    )
    refused = assay("check", "toy.toml", "--rehearse", *wide, half[0], gathered)
    started = assay("run", "toy.toml", "parallel.shard=2", *half[1:], gathered)

    sent = [report["traffic"][0]["sent_bytes"] for report in (by_autocast, by_gathering)]
    assert sent[1] < 0.75 * sent[0]  # gradients are still reduced in fp32
    for ended, section in ((refused, "evaluate"), (started, "train")):
        said = " ".join((ended.stdout + ended.stderr).split())
        assert ended.returncode == 2
        assert f'[{section}] precision is "fp32": weights that are gathered in half' in said
        assert f'[{section}] precision = "bf16"; or leave shard_precision out.' in said


def test_a_mistake_on_a_rank_of_many_is_found(assay, net: Path) -> None:
    said = assay(
        "check", "toy.toml", *SHIFTED_NET, "model.more=1", "--rehearse", "--layout", "shard=2"
    )

    assert said.returncode == 2
    assert "in:    model.head (" in said.stdout


STAGED = """\
from torch import nn


class Net(nn.Sequential):
    def __init__(self, width=256, more=0):
        layers = []
        for i in range(6):
            layers += [nn.Linear(width + more * (i == 4), width), nn.ReLU()]
        super().__init__(nn.Linear(4, width), *layers, nn.Linear(width, 2))
"""
PIPELINE = ["model.type=staged.Net", "train.accumulate=4", "data.train.batch_size=256"]
PIPELINE += ["parallel.pipeline=2", "model.width=128"]
PIPELINE += ['data.train.source={type="points.Points",split=0,size=1024}']


@pytest.mark.thorough
def test_a_pipeline_is_rehearsed_rank_by_rank(assay, toy: Path) -> None:
    (toy / "staged.py").write_text(STAGED)
    (toy / "points.py").write_text((toy / "points.py").read_text())

    said = assay("check", "toy.toml", "--rehearse", *PIPELINE)
    report = rehearsed(assay, *PIPELINE, "--memory", "80MB")
    every = rehearsed(assay, *PIPELINE, "parallel.schedule=gpipe", "train.accumulate=8")
    twice = rehearsed(assay, *PIPELINE, "parallel.schedule=interleaved")
    sharded = rehearsed(assay, *PIPELINE, "parallel.shard=2")["ranks"]

    assert "rank 0       stage 0: 0, 1, 2, 3, 4, 5, 6" in said.stdout
    first, last = report["ranks"]
    assert (first["stages"], last["stages"]) == ([0], [1])
    assert first["parameters"] + last["parameters"] == report["parameters"]
    for rank in (first, last):
        memory = rank["memory"]
        assert memory["weights_bytes"] == memory["gradients_bytes"] == 4 * rank["parameters"]
        assert memory["optimizer_bytes"] == pytest.approx(8 * rank["parameters"], rel=0.01)
    assert report["memory"] in (first["memory"], last["memory"])
    for rank, half in zip((first, last), sharded, strict=True):
        for what in ("weights_bytes", "optimizer_bytes"):
            assert half["memory"][what] == pytest.approx(rank["memory"][what] / 2, rel=0.02)
    # a micro-batch of 64 x 128 numbers each way, four times; 1 of 5 turns is spent waiting
    sent = [rank["traffic"][0]["sent_bytes"] for rank in (first, last)]
    assert sent == pytest.approx([4 * 64 * 128 * 4] * 2, rel=0.001)
    assert (report["bubble"], twice["bubble"]) == (1 / 5, 1 / 9)
    assert [rank["stages"] for rank in twice["ranks"]] == [[0, 2], [1, 3]]
    # gpipe keeps the activations of all micro-batches, 1f1b on rank 0 those of two
    assert every["ranks"][0]["memory"]["activations_bytes"] > first["memory"]["activations_bytes"]
    assert report["findings"] == every["findings"] == twice["findings"] == []


@pytest.mark.parametrize(("schedule", "tensors"), [("1f1b", 1), ("interleaved", 6)])
def test_a_rank_of_a_pipeline_keeps_what_it_receives_for_every_micro_batch(
    assay, toy: Path, schedule: str, tensors: int
) -> None:
    """Interleaved stages also keep what they send: three tensors a rank each way."""
    (toy / "staged.py").write_text(STAGED)
    (toy / "points.py").write_text((toy / "points.py").read_text())
    longer = [each for each in PIPELINE if not each.startswith(("train.acc", "data.train.batch"))]
    longer += ["train.accumulate=16", "data.train.batch_size=1024"]
    by = f"parallel.schedule={schedule}"

    few, many = (rehearsed(assay, *how, by)["ranks"] for how in (PIPELINE, longer))

    micro_batch, width = 64, 128
    for one, other in zip(few, many, strict=True):
        more = other["memory"]["activations_bytes"] - one["memory"]["activations_bytes"]
        assert more == (16 - 4) * tensors * micro_batch * width * 4


def test_a_bad_shape_in_a_pipeline_is_named_with_its_stage(assay, toy: Path) -> None:
    (toy / "staged.py").write_text(STAGED)

    said = assay("check", "toy.toml", "--rehearse", *PIPELINE, "model.more=1")

    assert said.returncode == 2
    assert "in:    model.9 (Linear), stage 1 of the pipeline" in said.stdout


@pytest.mark.thorough
def test_a_declared_batch_stands_for_data_that_are_elsewhere(assay, toy: Path) -> None:
    (toy / "elsewhere.py").write_text(
        "class Data(list):\n    def __init__(self, path):\n        raise FileNotFoundError(path)\n"
    )
    gone = 'data.train.source={type="elsewhere.Data",path="/cluster/x"}'
    batch = ["--batch", "(float32 [32, 4], int64 [32] < 2)"]

    here = assay("check", "toy.toml", gone, "--rehearse")
    report = rehearsed(assay, gone, *batch)
    wrong = assay(
        "check", "toy.toml", gone, "--rehearse", "--batch", "(float32 [32, 5], int64 [32])"
    )

    assert here.returncode and "/cluster/x" in here.stderr
    assert (report["samples"], report["findings"]) == (32, [])
    assert wrong.returncode == 2 and "model.layers.0 (Linear)" in wrong.stdout


@pytest.mark.thorough
def test_a_variant_of_the_file_can_be_rehearsed(assay, net: Path) -> None:
    with (net / "toy.toml").open("a") as file:
        file.write('\n[variants.wide]\n"model.width" = 32\n')

    assert rehearsed(assay, "--variant", "wide")["parameters"] > rehearsed(assay)["parameters"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--memory", "80"], "--memory: '80' is no size"),
        (["--layout", "dta=8"], "--layout: 'dta' is no axis"),
        (["--layout", "data"], "--layout: 'data' has no size"),
        (["--bandwidth", "dta=1GB"], "--bandwidth: 'dta' is no axis"),
        (["--bandwidth", "data=fast"], "--bandwidth: 'fast' is no size"),
        (["--layout", "pipeline=2"], "1f1b keeps 2 stages busy with one each"),
        (["--layout", "data=3"], "a batch of 8 cannot be split evenly on 3 ranks"),
        (["--batch", "float33 [3]"], "--batch cannot be read at 'float33'"),
        (["--device", "gpu"], "There is no device 'gpu'"),
        (["--shape"], "--rehearse builds the model, which --shape leaves out"),
    ],
)
def test_what_cannot_be_rehearsed_is_told(
    toy: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(toy)

    result = said_of("check", "toy.toml", "--rehearse", *arguments)

    error = result.exception
    if isinstance(error, AssayError):
        assert error.exit_code == 2 and said in error.what
    else:  # problems that are shown as a report of the config
        assert said in " ".join(result.output.split())


def test_conditions_without_a_rehearsal_are_refused(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)

    error = said_of("check", "toy.toml", "--memory", "80GB").exception

    assert isinstance(error, InputError)
    assert error.fix == "assay check --rehearse --memory 80GB"


CONFIGS = ["01_digits/digits.toml", "03_gpt/gpt.toml", "04_tagging/tagging.toml", "06_gan/gan.toml"]
CONFIGS += ["07_zoo/zoo.toml", "08_transformers/bert.toml"]


@pytest.mark.thorough
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_wrong_is_told_of_the_examples(assay, config: str) -> None:
    path = EXAMPLES / config
    if "transformers" in config:
        pytest.importorskip("transformers")

    said = assay("check", path.name, "--rehearse", "--device", "cuda", "--json", cwd=path.parent)

    assert said.returncode == 0, said.stdout + said.stderr
    report = json.loads(said.stdout)["rehearsal"]
    assert report["rung"] == "fake"
    assert report["memory"]["peak_bytes"] > 0
    assert not (path.parent / "runs").exists()
