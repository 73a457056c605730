"""Exports of recorded runs: models that leave the house, with a certificate."""

from __future__ import annotations

import copy
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from assay.compose import ExportRequest, ExportResult, Launch, RunResult, export, train
from assay.config import open_config
from assay.core.errors import AssayError, InputError, MissingExtraError
from assay.engine.export import program as programs
from assay.engine.export.interface import Interface
from assay.engine.export.parity import BatchTrial
from assay.formats.onnx_model import load_onnxruntime
from assay.query.run import RunView
from examples import EXAMPLES
from flow.conftest import Assay
from web.model_server import serving

pytestmark = pytest.mark.slow

MODELS = """\
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.hidden, self.dropout, self.head = nn.Linear(4, width), nn.Dropout(), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.dropout(self.hidden(x).relu()))


class Restless(Net):
    def forward(self, x):
        return super().forward(functional.dropout(x, 0.5, training=True))


class Choosy(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        return self.gate(x)


class Gate(Net):
    def forward(self, x):
        scores = super().forward(x)
        if scores.sum() > 0:
            return scores * 2
        return scores


class Rare(Net):
    def forward(self, x):
        scores = super().forward(x)
        return torch.special.i1e(scores)


class Fixed(Net):
    def forward(self, x):
        return super().forward(x.reshape(16, 4))


class Counting(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, x):
        states, _ = self.lstm(self.embed((x.abs() * 2).long().clamp(max=4)))
        return self.head(states[:, -1])


class Guarded(Net):
    def __init__(self, token):
        super().__init__()
        assert token.startswith("hf_")


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(1, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, point, length):
        hidden = (self.left(point) * self.right(length[:, None])).tanh()
        return {"logits": self.head(hidden), "hidden": hidden}
"""
NAMED = """\
import points


class Named(points.Points):
    def __getitem__(self, i):
        point, label = super().__getitem__(i)
        return {"point": point, "length": point.norm(), "label": label}
"""
HOOKED = """\
import points
import torch
from assay.engine import Supervised


class Scaled(Supervised):
    mean = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def preprocess(self, bytes):
        return bytes.float() / 255 - self.mean

    def postprocess(self, scores):
        return {"scores": scores, "probability": scores.softmax(1)}


class Ranked(Scaled):
    def postprocess(self, scores):
        return scores.argmax(1)


class Forgetful(Scaled):
    def inference_step(self, batch):
        return {"pred": self.model(batch[0])}

    def forward_step(self, batch):
        pred = self.model(batch[0])
        return self.criterion(pred, batch[1]), {"pred": pred, "target": batch[1]}


class Bytes(points.Points):
    def __getitem__(self, i):
        point, label = super().__getitem__(i)
        return (point * 40 + 128).clamp(0, 255).byte(), label
"""
AS_BYTES = [f"data.{split}.source.type=hooked.Bytes" for split in ("train", "valid", "test")]
WITH_NAMES = [
    *("data.train.source.type=named.Named", "data.valid.source.type=named.Named"),
    *("process.input=['point','length']", "process.target=label"),
    "process.criterion_args={input='logits',target='label'}",
]


SIXTEEN = [
    *("data.train.batch_size=16", "data.train.source.size=64"),
    *("data.valid.batch_size=16", "data.valid.source.size=64"),
]


@pytest.fixture
def project(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy project with the models of this module, as the working directory."""
    monkeypatch.chdir(toy)
    (toy / "models.py").write_text(MODELS)
    (toy / "named.py").write_text(NAMED)
    (toy / "hooked.py").write_text(HOOKED)
    return toy


def record(config: Path, *overrides: str, steps: int = 3) -> RunResult:
    result = train(
        open_config(config, list(overrides), user_dir=None),
        Launch(device="cpu", quiet=True, max_steps=steps),
    )
    if result.exception is not None:
        raise result.exception
    return result


def record_toy(project: Path, model: str = "models.Net", *overrides: str) -> RunResult:
    """Record a short training of a model of the toy project that takes no arguments."""
    text = (project / "toy.toml").read_text().replace('"net.Net"\nwidth = 8', f'"{model}"')
    (project / "own.toml").write_text(text)
    return record(project / "own.toml", *overrides)


def leave(run: RunResult, target: Any = "onnx", **wanted: Any) -> ExportResult:
    return export(run.id, Path("left"), ExportRequest(target=target, **wanted))


def run_script(folder: Path) -> str:
    """Run the script of an export as people who have no assay do."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", _WITHOUT_ASSAY, str(folder / "run_model.py")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_WITHOUT_ASSAY = """\
import runpy, site, sys
site.main()
sys.modules["assay"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_onnx_runtime_reports_nothing_to_its_maker(project: Path, home: Path) -> None:
    result = leave(record_toy(project))
    assert result.folder is not None
    run_script(result.folder)

    assert not list(home.rglob("*onnxruntime*"))


def difference(folder: Path) -> float:
    """Run an ONNX model on half of the batch that lies beside it; return the largest difference."""
    onnxruntime = load_onnxruntime()
    batch = load_file(folder / "example.safetensors")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    half = {
        each.name: batch[f"input.{each.name}"][: len(batch[f"input.{each.name}"]) // 2]
        for each in session.get_inputs()
    }
    names = [each.name for each in session.get_outputs()]
    found = zip(names, session.run(names, half), strict=True)
    return max(
        float(np.abs(output - batch[f"output.{name}"][: len(output)]).max())
        for name, output in found
    )


@pytest.mark.row("B36")
def test_a_run_becomes_an_onnx_model_with_schema_batch_script_and_certificate(
    project: Path,
) -> None:
    run = record_toy(project)

    result = leave(run)

    folder = result.folder
    assert folder == project / "left"
    names = "README.md certificate.json config.toml example.safetensors model.onnx run_model.py"
    assert sorted(os.listdir(folder)) == [*names.split(), "schema.json"]
    assert difference(folder) < 1e-4
    assert "output float32 (16, 2) difference" in run_script(folder)
    schema = json.loads((folder / "schema.json").read_text())
    assert schema["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}]
    assert schema["outputs"] == [{"name": "output", "dtype": "float32", "shape": ["batch", 2]}]
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["is_within"] and certificate["batch"] > 1
    assert certificate["samples"] == 60 and certificate["split"] == "valid"
    assert certificate["recorded"].keys() == {"valid/loss", "valid/acc"}
    assert certificate["exported"]["valid/acc"] == certificate["recorded"]["valid/acc"]
    readme = (folder / "README.md").read_text()
    assert readme.startswith("---\nlibrary_name: assay\n") and '"onnx"]' in readme
    assert run.id in readme and certificate["files"]["model.onnx"] in readme
    (verdict,) = RunView(run.record_dir).verdicts
    assert verdict.question == "export" and verdict.equal
    assert certificate["files"]["model.onnx"] in verdict.note


def test_the_other_formats_run_without_assay_and_give_the_same_bits(project: Path) -> None:
    run = record_toy(project)

    for target, model in (("torch-export", "model.pt2"), ("safetensors", "model.safetensors")):
        result = export(run.id, Path(target), ExportRequest(target=target))

        assert result.folder is not None and (result.folder / model).is_file()
        assert all(each.absolute == 0 for each in result.certificate.outputs.values())
        shown = "output torch.float32 (16, 2)" if target == "torch-export" else "head.weight torch"
        assert shown in run_script(result.folder)


@pytest.mark.thorough
@pytest.mark.row("B36")
@pytest.mark.parametrize(
    ("model", "overrides", "inputs"),
    [("models.Two", WITH_NAMES, ["point", "length"]), ("models.Counting", [], ["x"])],
    ids=["two inputs of a mapping", "an LSTM"],
)
def test_onnx_equals_the_record_for_other_kinds_of_models(
    project: Path, model: str, overrides: list[str], inputs: list[str]
) -> None:
    result = leave(record_toy(project, model, *overrides))

    assert result.folder is not None and difference(result.folder) < 1e-4
    assert [each.name for each in result.schema.inputs] == inputs
    assert all(each.shape[0] == "batch" for each in result.schema.inputs)
    run_script(result.folder)


class Mixing(nn.Module):
    """Models whose samples depend on each other, each in its own way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        ways = {
            "none": lambda: x * 2,
            "mean": lambda: x - 0.9 * x.mean(0, keepdim=True),
            "neighbour": lambda: x + x.roll(1, 0) * 1e-2,
            "size": lambda: x / x.shape[0],
            "largest": lambda: x / x.abs().max(),
            "first": lambda: x + x[:1],
            "order": lambda: x.sort(0).values,
        }
        return ways[self.way]()


@pytest.mark.parametrize("way", ["none", "mean", "neighbour", "size", "largest", "first", "order"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_is_shown_to_equal_its_samples_or_why_not(way: str, size: int) -> None:
    points = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    model = Mixing(way)
    batch = {0: "batch"}
    one = Interface(
        call=((), {}),
        example={"x": points[:size]},
        expected={"y": points[:size]},
        axes={"x": batch},
        output_axes={"y": batch},
    )
    trial = BatchTrial(one, lambda inputs: {"y": model(inputs["x"])}, 1e-4)
    for part in points.split(size):
        trial.keep_samples({"x": part})

    shown, why = trial.judge()

    assert (shown, why) == (12, "") if way == "none" else (shown == 1 and "depends" in why)


def test_samples_that_are_all_the_same_or_of_a_fixed_size_show_nothing() -> None:
    point, batch = torch.ones(1, 4), {0: "batch"}
    for axes, why in [({"x": batch}, "no two different samples"), ({}, "first axis of `x`")]:
        one = Interface(
            call=((), {}),
            example={"x": point},
            expected={"y": point},
            axes=axes,
            output_axes={"y": batch},
        )
        trial = BatchTrial(one, lambda inputs: {"y": inputs["x"]}, 1e-4)
        for _ in range(5):
            trial.keep_samples({"x": point})

        assert trial.judge()[0] == 1 and why in trial.judge()[1]


@pytest.mark.thorough
@pytest.mark.row("B36")
@pytest.mark.parametrize(
    ("example", "config", "inputs"),
    [
        ("01_digits", "digits.toml", ["images"]),
        ("03_gpt", "gpt.toml", ["letters"]),
        ("08_transformers", "bert.toml", ["input_ids", "attention_mask"]),
    ],
)
def test_the_models_of_the_examples_leave_as_onnx(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    example: str,
    config: str,
    inputs: list[str],
) -> None:
    folder = Path(shutil.copytree(EXAMPLES / example, tmp_path / "example"))
    monkeypatch.chdir(folder)

    result = leave(record(folder / config, steps=5))

    assert result.folder is not None and difference(result.folder) < 1e-4
    assert [each.name for each in result.schema.inputs] == inputs
    metrics = result.certificate.exported
    assert metrics and all(
        value == pytest.approx(result.certificate.recorded[name], rel=1e-4)
        for name, value in metrics.items()
    )
    run_script(result.folder)


@pytest.mark.parametrize("target", ["torch-export", "onnx"])
def test_what_a_process_does_before_and_after_its_model_leaves_with_it(
    project: Path, target: str
) -> None:
    run = record_toy(project, "models.Net", "process.type=hooked.Scaled", *AS_BYTES)

    result = leave(run, target)

    assert result.folder is not None
    assert [each.text for each in result.schema.inputs] == ["uint8 (batch, 4)"]
    assert [each.name for each in result.schema.outputs] == ["scores", "probability"]
    certificate = result.certificate
    assert certificate.exported == pytest.approx(certificate.recorded, rel=1e-4)
    assert certificate.outputs.keys() == {"scores", "probability"}
    batch = load_file(result.folder / "example.safetensors")
    np.testing.assert_allclose(batch["output.probability"].sum(1), 1, rtol=1e-5)
    assert "With `preprocess` and `postprocess`" in (result.folder / "README.md").read_text()
    run_script(result.folder)

    weights = export(run.id, Path("weights"), ExportRequest(target="safetensors"))
    assert [each.text for each in weights.schema.inputs] == ["float32 (batch, 4)"]


def test_a_metric_of_what_postprocess_takes_away_is_not_claimed(project: Path) -> None:
    run = record_toy(project, "models.Net", "process.type=hooked.Ranked", *AS_BYTES)

    result = leave(run, "torch-export")

    assert [each.text for each in result.schema.outputs] == ["int64 (batch)"]
    assert result.certificate.is_within and result.certificate.exported == {}


def test_a_preprocess_that_the_steps_do_not_call_is_told(project: Path) -> None:
    run = record_toy(project, "models.Net", "process.type=hooked.Forgetful")

    with pytest.raises(InputError, match="Forgetful has a preprocess, and calls its model without"):
        leave(run, "torch-export")


class Wrong(nn.Module):
    """A model that is exported in the place of the right one."""

    def __init__(self, model: nn.Module, way: str) -> None:
        super().__init__()
        self.model, self.way = copy.deepcopy(model), way
        if way == "old weights":
            with torch.no_grad():
                for tensor in self.model.parameters():
                    tensor.mul_(1.01)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "dropout left on":
            x = nn.functional.dropout(x, 0.2, training=True)
        if self.way == "transposed input":
            x = x.flip(1)
        return self.model(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["dropout left on", "transposed input", "old weights"])
def test_a_wrong_export_is_refused_and_leaves_nothing_but_the_verdict(
    project: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    run = record_toy(project)
    trace = programs.trace_program
    monkeypatch.setattr(
        programs, "trace_program", lambda model, interface: trace(Wrong(model, way), interface)
    )
    before = sorted(os.listdir(project))

    result = leave(run, "torch-export")

    assert result.folder is None and not result.certificate.is_within
    assert sorted(os.listdir(project)) == before
    (verdict,) = RunView(run.record_dir).verdicts
    assert not verdict.equal and "not within its tolerance" in verdict.said


def test_a_model_beyond_the_tolerance_leaves_by_force_and_says_so(project: Path) -> None:
    run = record_toy(project, "models.Restless")

    assert leave(run, "torch-export").folder is None
    result = leave(run, "torch-export", force=True)

    assert result.folder is not None and not result.certificate.is_within
    assert "NOT within its tolerance" in (result.folder / "README.md").read_text()


def test_a_folder_that_is_there_is_refused_and_moved_away_by_force(project: Path) -> None:
    run = record_toy(project)
    (project / "left").mkdir()
    (project / "left" / "kept.txt").write_text("mine")

    with pytest.raises(InputError, match="something in this place") as caught:
        leave(run, "safetensors")
    assert caught.value.fix == "name another place, or --force moves it away"
    result = leave(run, "safetensors", force=True)

    assert result.moved is not None and (result.moved / "kept.txt").read_text() == "mine"
    assert (project / "left" / "model.safetensors").is_file()


@pytest.mark.parametrize("target", ["torch-export", "safetensors"])
def test_a_full_disk_leaves_no_half_export(
    project: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    run = record_toy(project, "models.Net", "model.width=100000")
    before = sorted(os.listdir(project))

    with limited_files(10**6), pytest.raises(AssayError, match="The export cannot be written"):
        leave(run, target)

    assert sorted(os.listdir(project)) == before


@contextmanager
def limited_files(size_bytes: int) -> Iterator[None]:
    """Inside, no file grows beyond that size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("model", "target", "what", "where"),
    [
        (
            "models.Choosy",
            "torch-export",
            "decides by the values of a tensor, which no export follows: `if scores.sum() > 0:`",
            "models.py:32, in model.gate (Gate)",
        ),
        ("models.Fixed", "torch-export", "Fixed works for one size only: batch = 16", ""),
        ("models.Rare", "onnx", "ONNX has no operation for", "models.py:40, in model (Rare)"),
    ],
    ids=["control flow by data", "one size", "an operation that ONNX lacks"],
)
def test_a_model_that_cannot_be_exported_is_refused_with_module_and_line(
    project: Path, capfd: pytest.CaptureFixture[str], model: str, target: str, what: str, where: str
) -> None:
    run = record_toy(project, model, *SIXTEEN)
    capfd.readouterr()

    with pytest.raises(InputError) as caught:
        leave(run, target)

    assert what in caught.value.what and caught.value.where.endswith(where)
    assert caught.value.fix and capfd.readouterr() == ("", "")
    assert not (project / "left").exists()


def test_a_model_of_one_size_is_exported_for_that_size(project: Path) -> None:
    never = ("evaluate.enabled=false", "checkpoint.best=none", "data.valid.source.size=40")
    run = record_toy(project, "models.Fixed", *SIXTEEN, *never)

    result = leave(run, "torch-export", static=True)

    assert result.certificate.is_within and result.certificate.samples == 32
    assert [each.shape for each in result.schema.inputs] == [(16, 4)]
    assert not result.certificate.is_whole


def test_a_last_batch_of_one_sample_goes_through_the_exported_model(project: Path) -> None:
    run = record_toy(project, "models.Net", "data.valid.source.size=33")

    result = leave(run, "torch-export")

    assert result.certificate.is_within and result.certificate.samples == 33


def test_batches_of_one_sample_make_a_model_that_takes_more(project: Path) -> None:
    sizes = ("data.valid.batch_size=1", "data.valid.source.size=3")
    result = leave(record_toy(project, "models.Net", *sizes), "torch-export")

    assert result.folder is not None
    model = torch.export.load(result.folder / "model.pt2").module()
    assert model(torch.zeros(5, 4))["output"].shape == (5, 2)


def test_a_config_in_the_place_of_a_run_is_told_apart(project: Path) -> None:
    with pytest.raises(InputError, match=r"toy.toml is a config, and an export takes a run"):
        export("toy.toml")


@pytest.mark.parametrize("target", ["onnx", "torch-export", "safetensors"])
def test_an_export_holds_no_paths_of_this_machine_and_no_secrets(
    project: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "hf_notforanybodyelse0123456789")
    run = record_toy(project, "models.Guarded", "model.token=${env:HUB_TOKEN}")

    result = leave(run, target)

    assert result.folder is not None
    for file in filter(Path.is_file, result.folder.rglob("*")):
        content = file.read_bytes()
        if file.suffix == ".pt2":
            content = b"".join(map(ZipFile(file).read, ZipFile(file).namelist()))
        assert str(project).encode() not in content, file
        assert b"site-packages" not in content, file
        assert b"notforanybodyelse" not in content, file


def test_a_part_of_a_model_is_exported_by_its_name(project: Path) -> None:
    run = record_toy(project)

    result = leave(run, "safetensors", part="hidden")

    assert [each.shape for each in result.schema.outputs] == [("batch", 8)]
    with pytest.raises(InputError, match="no module `hiden`"):
        export(run.id, Path("other"), ExportRequest(part="hiden"))


def test_an_export_to_onnx_without_its_packages_names_the_extra(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record_toy(project)

    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("assay.engine.export.program.import_module", fail)

    with pytest.raises(MissingExtraError) as caught:
        leave(run)

    assert caught.value.fix == "pip install 'assay[export]'"


def test_a_run_without_data_to_compare_on_is_refused(project: Path) -> None:
    text = (project / "toy.toml").read_text()
    begin, end = text.index("[data.valid]"), text.index("[process]")
    (project / "toy.toml").write_text(text[:begin] + text[end:].replace("valid/acc", "train/loss"))
    run = record(project / "toy.toml", "checkpoint.best=none")

    with pytest.raises(InputError, match="no data to compare the models on") as caught:
        leave(run, "safetensors")
    assert "--split: train" in caught.value.fix

    assert leave(run, "safetensors", split="train").certificate.is_within


def test_a_run_whose_code_is_gone_is_refused_by_the_name_that_is_missing(project: Path) -> None:
    run = record_toy(project)
    (project / "models.py").unlink()

    with pytest.raises(AssayError, match=r"models\.Net"):
        leave(run, "safetensors")


def test_the_command_prints_what_it_left_and_ends_with_1_for_a_refused_model(
    project: Path, assay: Assay
) -> None:
    run = record_toy(project)
    done = assay("export", run.id, "out", "--format", "safetensors")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("exported: out")
    assert lines[1] == f"weights: {run.id}@step-000000003: the best by valid/acc"
    assert lines[2].split() == ["input", "x", "float32", "(batch,", "4)"]
    assert "same outputs: largest difference 0" in done.stdout
    assert lines[-1] == "run it: python out/run_model.py"

    other = record_toy(project, "models.Restless")
    refused = assay("export", other.id, "--format", "torch-export", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["is_within"] is False


@pytest.mark.thorough
@pytest.mark.row("B38")
def test_a_run_is_exported_and_then_served(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record_toy(project)
    batch = load_file(leave(run).folder / "example.safetensors")  # type: ignore[operator]
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    monkeypatch.setenv("TMPDIR", str(rooms))

    with serving(run.id, folder=project) as server:
        assert server.said[0].startswith(f"exporting {run.id} to ONNX")
        status, answer = server.predict(batch["input.x"])
        assert status == 200
        np.testing.assert_allclose(answer["output"], batch["output.output"], rtol=1e-4)
        server.process.send_signal(signal.SIGTERM)

        assert server.process.wait(60) == 128 + signal.SIGTERM
    assert list(rooms.iterdir()) == []


@pytest.mark.thorough
def test_a_run_whose_export_is_refused_is_not_served(project: Path, assay: Assay) -> None:
    run = record_toy(project, "models.Restless")

    done = assay("serve", run.id, "--port", "0")

    assert done.returncode == 2
    assert f"{run.id} was not exported, and is not served" in done.stderr
