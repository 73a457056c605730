"""`assay summary` and `assay graph`: what goes through the first step of a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from assay.cli.main import commands
from assay.compose.flow import flow
from assay.config import open_config
from assay.core.errors import ConfigError, InputError
from assay.engine import Loader
from assay.engine.flow import flow_of, shape_of
from assay.engine.pipes import SequenceWrapper, StreamLoader, chain, itr, lst
from engine.toys import engine, loader, points, supervised

pytestmark = pytest.mark.slow


@pytest.mark.row("B34", "B01")
def test_layers_and_stages_are_printed_with_shapes_parameters_and_operations(assay, toy: Path) -> None:
    summary = assay("summary", "toy.toml", "model.width=16")
    graph = assay("graph", "toy.toml", "model.width=16")

    assert summary.returncode == graph.returncode == 0, summary.stderr + graph.stderr
    lines = [line.split() for line in summary.stdout.splitlines()]
    assert lines[0] == ["layer", "kind", "gives", "params", "FLOPs"]
    assert ["model", "Net", "float32", "[8,", "2]", "0", f"{2 * 8 * (4 * 16 + 16 * 2):,}"] in lines
    assert ["0", "Linear", "float32", "[8,", "16]", "80", f"{2 * 8 * 4 * 16:,}"] in lines
    assert "146 parameters, 146 trained" in summary.stdout
    said = [line.split(maxsplit=2) for line in graph.stdout.splitlines()]
    assert [name for name, *_ in said] == [
        *("source", "batch", "model", "model.layers", "process.criterion", "output", "metric", "optimizer")
    ]
    assert said[0][1:] == ["Points", "(float32 [4], int64 [])"]
    assert said[1][1:] == ["Loader", "[float32 [8, 4], int64 [8]]"]
    assert said[2][1:] == ["Net", "float32 [8, 4] -> float32 [8, 2]"]
    assert said[4][1:] == ["CrossEntropyLoss", "float32 [8, 2], int64 [8] -> float32 []"]
    assert not (toy / "runs").exists()


def test_both_are_there_as_data_and_refuse_what_a_run_would_refuse(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy)

    # Through the group: click keeps the help option of the first context that a command meets in this process.
    summary, graph = (CliRunner().invoke(commands, [name, "toy.toml", "--json"]) for name in ("summary", "graph"))

    assert json.loads(summary.stdout)["samples"] == 8
    assert json.loads(graph.stdout)[1]["name"] == "batch"
    for name in ("summary", "graph"):
        assert isinstance(CliRunner().invoke(commands, [name]).exception, InputError)
        wrong = CliRunner().invoke(commands, [name, "toy.toml", "model.widht=3"]).exception
        assert isinstance(wrong, ConfigError) and "did you mean `width`?" in str(wrong)


def test_what_is_shared_counts_once_and_what_is_not_called_says_so() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.second.weight = self.first.weight
            self.out = nn.Linear(4, 2)
            self.out.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.second(self.first(self.first(x))))  # type: ignore[no-any-return]

    found = flow_of(engine(supervised(Tied()), loader(20, 8, accumulate=2), steps=1))

    by_name = {layer.name: layer for layer in found.layers}
    assert (by_name["model.first"].params, by_name["model.second"].params) == (20, 4)
    assert (by_name["model.out"].params, by_name["model.out"].trained) == (10, 8)
    assert by_name["model.unused"].gave == "" and by_name["model.first"].gave == "float32 [4, 4]"
    assert by_name["model.first"].flops == 2 * 4 * 4 * 4
    assert found.params == sum(p.numel() for p in Tied().parameters()) and found.samples == 4
    assert [stage.gives for stage in found.stages if stage.name == "model.unused"] == ["not called"]


@pytest.mark.row("B01")
@pytest.mark.parametrize("is_stream", [False, True])
def test_each_pipe_of_a_chain_is_a_stage(*, is_stream: bool) -> None:
    kind: Any = itr if is_stream else lst
    named = kind.Map(lambda sample: {"x": sample[0] * 2, "y": sample[1]})
    pair = kind.Map(lambda sample: (sample["x"], sample["y"]))
    pipes = [SequenceWrapper(points(20)), named, pair]
    train = StreamLoader(chain([*pipes, itr.Batch(8)])) if is_stream else Loader(chain(pipes), batch_size=8)

    stages = flow_of(engine(supervised(), train, steps=1)).stages

    gives = [stage.gives for stage in stages]
    at = gives.index("{x: float32 [4], y: float32 [2]}")
    assert gives[at + 1] == "(float32 [4], float32 [2])" and stages[0].name == "source"
    assert next(stage.gives for stage in stages if stage.name == "batch").count("[8, ") == 2


def test_a_large_structure_is_cut() -> None:
    assert shape_of([torch.ones(1)] * 8) == f"[{'float32 [1], ' * 6}and 2 more]"
    assert shape_of({"a": None}) == "{a: NoneType}"


def test_what_cannot_train_is_told_as_ever(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy)

    with pytest.raises(InputError):
        flow(open_config(toy / "toy.toml", ["data.train.batch_size=1000", "data.train.drop_last=true"], user_dir=None))
