"""Training on a GPU: precisions, memory, and the same bits after a kill.

Without a GPU each config is rehearsed for one, on fake tensors; what only a GPU can tell is in the
names of the tests that are skipped.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import assay
from assay.engine import Engine, Loader, OptimizerStep, Supervised
from assay.proof.diverge import diverge
from assay.query.run import RunView
from examples import EXAMPLES
from flow.conftest import CONFIG, POINTS, Assay, commands

CONFIGS = {
    "plain": {},
    "bf16": {"train.precision": "bf16"},
    "fp16": {"train.precision": "fp16"},
    "recomputed": {"train.activation_checkpoint": True},
    "compiled": {"train.compile": "blocks"},
}
STEPS = 6
NEAR = 0.1
"""Share by which a rehearsed peak may miss the true one, as on a CPU."""


@pytest.fixture
def gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the GPT of the examples, larger and with fewer steps; its config is `gpt.toml`."""
    folder = Path(shutil.copytree(EXAMPLES / "03_gpt", tmp_path / "gpt"))
    text = (folder / "gpt.toml").read_text(encoding="utf-8")
    text = text.replace("width = 64", "width = 128").replace("batch_size = 32", "batch_size = 16")
    text = text.replace("epochs = 3", f"steps = {STEPS}").replace('"1 epoch"', '"3 steps"')
    (folder / "gpt.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def call(gpt: Path, warm: Any) -> Assay:
    """Runs a command in the folder of the GPT."""
    return commands(warm, gpt)


def words(name: str) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in CONFIGS[name].items()]


def rehearse(call: Assay, name: str) -> dict[str, Any]:
    """Return the memory of a step on a GPU, as `check` tells it."""
    done = call("check", "gpt.toml", *words(name), "--rehearse", "--device", "cuda", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["problems"] == [] and told["rehearsal"]["findings"] == []
    assert told["rehearsal"]["device"] == "cuda"
    memory: dict[str, Any] = told["rehearsal"]["memory"]
    return memory


def train(name: str = "plain", **given: Any) -> tuple[RunView, int]:
    """Train; return the record, and the most bytes over those before."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = assay.run("gpt.toml", overrides=CONFIGS[name] | given, device="cuda")
    return result.run, torch.cuda.max_memory_allocated() - before


def losses(run: RunView) -> list[float]:
    return [float(value) for value in run.metric("train/loss").values]


@pytest.mark.slow
def test_less_precision_and_activations_computed_again_take_less_memory_of_a_gpu_in_a_rehearsal(
    call: Assay,
) -> None:
    plain, half, again = (
        rehearse(call, name)["peak_bytes"] for name in ("plain", "fp16", "recomputed")
    )

    assert half < 0.8 * plain and again < 0.8 * plain


@pytest.mark.gpu
@pytest.mark.row("E35")
@pytest.mark.parametrize("name", ["plain", "bf16", "recomputed"])
def test_the_peak_of_a_step_is_what_the_rehearsal_has_told(
    gpt: Path, call: Assay, name: str
) -> None:
    _, peak = train(name, **{"evaluate.enabled": False})

    assert peak == pytest.approx(rehearse(call, name)["peak_bytes"], rel=NEAR)


@pytest.mark.gpu
@pytest.mark.row("E35")
def test_activations_that_are_computed_again_take_less_memory_and_give_the_same_losses(
    gpt: Path,
) -> None:
    plain, whole = train()
    again, less = train("recomputed")

    assert less < whole
    assert losses(again) == pytest.approx(losses(plain), rel=1e-5)


@pytest.mark.gpu
@pytest.mark.row("E34")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("name", ["bf16", "compiled"])
def test_losses_of_other_precisions_and_of_compiled_blocks_are_near_those_of_fp32(
    gpt: Path, name: str
) -> None:
    plain, _ = train()
    other, _ = train(name)

    assert losses(other) == pytest.approx(losses(plain), rel=0.05)


@pytest.mark.gpu
@pytest.mark.row("E34")
@pytest.mark.parametrize("name", ["plain", "bf16", "fp16"])
def test_a_killed_run_goes_on_to_the_same_bits_and_the_same_scale_of_the_loss(
    gpt: Path, call: Assay, name: str
) -> None:
    done = call("verify-resume", "gpt.toml", *words(name), "--kills", "2", "--device", "cuda")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.row("E34")
def test_the_scale_of_the_loss_is_in_the_checkpoints(gpt: Path) -> None:
    run, _ = train("fp16")

    files = (run.folder.checkpoints / f"step-{STEPS:09}").glob("*.json")
    assert all(math.isfinite(loss) for loss in losses(run))
    assert any('"scale":' in file.read_text(encoding="utf-8") for file in files)


@pytest.mark.gpu
@pytest.mark.row("A24")
def test_five_runs_in_one_process_leave_no_byte_on_the_gpu(gpt: Path) -> None:
    left = []
    for seed in range(5):
        train(seed=seed)
        gc.collect()
        left.append(torch.cuda.memory_allocated())

    assert left == [left[0]] * 5


class Sees(Supervised):
    """Supervised training that notes where its batches are."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.seen: set[str] = set()

    def forward_step(self, batch: Any) -> Any:
        self.seen |= {part.device.type for part in batch}
        return super().forward_step(batch)


@pytest.mark.gpu
@pytest.mark.row("C58")
@pytest.mark.parametrize(
    "load",
    [
        lambda data: Loader(data, batch_size=4),
        lambda data: [[torch.stack(part) for part in zip(*data, strict=True)]],
    ],
)
def test_batches_of_any_loader_are_on_the_gpu_in_the_step(load: Callable[[Any], Any]) -> None:
    model = nn.Linear(3, 2).to("cuda")
    backward = OptimizerStep(torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))
    process = Sees(model, nn.MSELoss(), backward=backward)
    data = [(torch.randn(3), torch.randn(2)) for _ in range(8)]

    Engine(process, load(data), epochs=1, device="cuda").run()

    assert process.seen == {"cuda"}


RACY = """\
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(4, width), nn.Tanh(), Races(), nn.Linear(width, 2))

class Races(nn.Module):
    def forward(self, x):
        spread = x.repeat(4096, 1).flatten()
        place = torch.zeros(len(spread), dtype=torch.long, device=x.device)
        total = torch.zeros(1, device=x.device).index_add(0, place, spread)
        return x + total * 1e-3
"""


@pytest.mark.gpu
@pytest.mark.row("F08")
def test_an_operation_of_a_gpu_that_is_never_twice_the_same_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"toy.toml": CONFIG, "points.py": POINTS, "net.py": RACY}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    runs = [assay.run("toy.toml", max_steps=4, device="cuda").run for _ in range(2)]
    verdict = diverge(*(run.id for run in runs)).verdict

    assert not verdict.equal and verdict.changed_inputs == {}
    assert verdict.difference is not None
    assert (verdict.difference.module, verdict.difference.op) == ("model.2", "aten.index_add")
