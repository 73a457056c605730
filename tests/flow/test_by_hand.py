"""Config files, registered names and injection are optional, and do not affect the weights."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Optimizer

import assay
from assay.build import Context, inject, provides, user_code
from assay.engine import Accuracy, Engine, Loader, OptimizerStep, Supervised, WarmupCosine, seed_all
from assay.engine.numerics.seed import INIT, stream_key
from assay.formats import run_file
from examples import EXAMPLES

EXAMPLE = EXAMPLES / "02_by_hand" / "train.py"

pytestmark = pytest.mark.slow


@pytest.mark.thorough
@pytest.mark.row("F12")
def test_thirty_lines_of_plain_python_train_and_keep_a_record(tmp_path: Path) -> None:
    source = EXAMPLE.read_text()
    imported = {
        node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)
    }
    assert len(source.splitlines()) <= 30
    assert not any(
        module and module.startswith(("assay.build", "assay.config")) for module in imported
    )

    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE.parents[2] / "src")}
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout.rpartition(" ")[2]) > 0.9
    (run,) = (tmp_path / "runs").iterdir()
    assert run_file.read(run).status == "finished"


@pytest.fixture
def modules(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The toy project's own modules."""
    monkeypatch.chdir(toy)
    with user_code([toy]):
        yield importlib.import_module("net"), importlib.import_module("points")


def by_hand(net: Any, points: Any) -> nn.Module:
    seed_all(stream_key(3, INIT))
    model: nn.Module = net.Net(width=8)
    optimizer = AdamW(model.parameters(), lr=1e-2, fused=True)  # as a run makes it
    backward = OptimizerStep(optimizer, schedule=WarmupCosine(warmup_ratio=0.1), clip_norm=1.0)
    process = Supervised(
        model, nn.CrossEntropyLoss(), backward=backward, metrics={"acc": Accuracy()}
    )
    data = Loader(points.Points(0, noisy=True), batch_size=8, shuffle=True, seed=3)
    Engine(process, data, epochs=4, seed=3).run()
    return model


def by_injection(net: Any, points: Any) -> nn.Module:
    class Parts:
        @provides
        def model(self) -> nn.Module:
            seed_all(stream_key(3, INIT))
            return net.Net(width=8)  # type: ignore[no-any-return]

        @provides
        def optimizer(self, model: nn.Module) -> Optimizer:
            return AdamW(model.parameters(), lr=1e-2, fused=True)

        @provides
        def backward(self, optimizer: Optimizer) -> OptimizerStep:
            return OptimizerStep(optimizer, schedule=WarmupCosine(warmup_ratio=0.1), clip_norm=1.0)

        @provides
        def process(self, model: nn.Module, backward: OptimizerStep) -> Supervised:
            return Supervised(model, nn.CrossEntropyLoss(), backward=backward)

        @provides
        def train(self) -> Loader:
            return Loader(points.Points(0, noisy=True), batch_size=8, shuffle=True, seed=3)

    @inject
    class Training:
        def __init__(self, process: Supervised, train: Loader) -> None:
            self.engine = Engine(process, train, epochs=4, seed=3)

    container = Context(Parts)
    container.get(Training).engine.run()
    return container.get(nn.Module)


@pytest.mark.thorough
@pytest.mark.row("F05")
def test_a_config_injection_and_plain_python_train_to_the_same_bits(
    toy: Path, modules: tuple[Any, Any]
) -> None:
    result = assay.run("toy.toml", check=False)
    assert result.exception is None
    weights = assay.load_model(f"{result.id}@latest").state_dict()

    for way in (by_hand, by_injection):
        other = way(*modules).state_dict()
        assert weights.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in weights.items()), way.__name__
