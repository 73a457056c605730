"""A probe keeps what modules gave; a profile keeps what they did."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn

from assay.core.errors import InputError, RecordError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, Probe, Profile
from engine.toys import engine, loader, net, points, supervised


class Attends(nn.Module):
    """An encoder whose attention gives a pair, and something with names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList(
            [nn.ModuleDict({"attn": nn.MultiheadAttention(4, 2)}) for _ in range(2)]
        )
        self.named = Named()
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.encoder:
            x, _ = block["attn"](x, x, x)
        return self.out(self.named(x)["twice"])  # type: ignore[no-any-return]


class Named(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"twice": 2 * x, "size": len(x)}


def probed(
    probe: Any, model: nn.Module | None = None, train: Any = None, **given: Any
) -> tuple[Engine, Any]:
    recorder = MemoryRecorder()
    runs = engine(supervised(model or Attends()), train, recorder=recorder, **given)
    runs.bus.extend(probe.handlers())
    return runs, recorder


@pytest.mark.row("A79")
def test_what_the_named_modules_gave_at_the_chosen_steps_is_saved() -> None:
    runs, recorder = probed(Probe("encoder.*attn", [2, 5]))
    expected: dict[int, Tensor] = {}

    @runs.on("step_begin", priority=-1)  # before the probe listens
    def _(engine: Engine, state: Any) -> None:
        if state.step + 1 == 2:
            batch = list(loader())[1][0]
            expected[2] = (
                engine.process.model.encoder[0]["attn"](batch, batch, batch)[1].detach().clone()
            )

    runs.run()

    assert list(recorder.artifacts) == [
        "probe/step-000000002.safetensors",
        "probe/step-000000005.safetensors",
    ]
    found = load(recorder.artifacts["probe/step-000000002.safetensors"])
    assert found.keys() == {f"encoder.{block}.attn/{part}" for block in (0, 1) for part in (0, 1)}
    assert torch.equal(found["encoder.0.attn/1"], expected[2])


def test_every_call_of_a_step_is_kept_with_inputs_if_asked_for() -> None:
    train = Loader(points(), batch_size=8, accumulate=2)
    runs, recorder = probed(Probe(["out", "named"], [1], inputs=True), train=train)

    runs.run()

    found = load(recorder.artifacts["probe/step-000000001.safetensors"])
    names = {"out", "out<0", "named/twice", "named<0"}
    assert found.keys() == names | {"out#1", "out#1<0", "named#1/twice", "named#1<0"}
    assert torch.equal(found["named#1/twice"], 2 * found["named#1<0"])
    assert torch.equal(found["named#1/twice"], found["out#1<0"])


@dataclass
class Hidden:
    states: Tensor
    count: int


class Gives(nn.Module):
    """A model whose encoder gives a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encodes()
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(x).states)  # type: ignore[no-any-return]


class Encodes(nn.Module):
    def forward(self, x: Tensor) -> Hidden:
        return Hidden(x.tanh(), len(x))


def test_the_tensors_of_a_dataclass_are_kept_by_the_names_of_its_fields() -> None:
    runs, recorder = probed(Probe("encoder", [1], inputs=True), Gives())

    runs.run()

    found = load(recorder.artifacts["probe/step-000000001.safetensors"])
    assert found.keys() == {"encoder/states", "encoder<0"}
    assert torch.equal(found["encoder/states"], found["encoder<0"].tanh())


def test_what_is_written_into_afterwards_was_kept_before() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(inplace=True))
    torch.manual_seed(0)
    runs, recorder = probed(Probe(["0", "1"], [1]), model)

    runs.run()

    found = load(recorder.artifacts["probe/step-000000001.safetensors"])
    assert (found["0"] < 0).any() and torch.equal(found["1"], found["0"].relu())


def test_a_pattern_that_fits_nothing_is_told_before_the_first_step_and_silence_after_it() -> None:
    runs, _ = probed(Probe("encoder.*atn", [5]))
    with pytest.raises(InputError, match="no module of the model is called 'encoder"):
        runs.run()
    assert runs.state.step == 0

    runs, recorder = probed(Probe("encoder", [1]))  # a list, which nobody calls
    runs.run()
    assert "gave a tensor; nothing was saved" in next(
        f.message for f in recorder.facts if isinstance(f, Warned)
    )

    with pytest.raises(InputError, match="1 is the first"):
        Probe("0", [0])


@pytest.mark.parametrize(("start", "steps", "name"), [(1, 2, "2-3"), (4, 9, "5-6")])
def test_a_profile_holds_the_operators_of_its_steps(start: int, steps: int, name: str) -> None:
    runs, recorder = probed(Profile(start, steps), net())

    runs.run()

    assert list(recorder.artifacts) == [
        f"profile/steps-{name}.json.gz",
        f"profile/steps-{name}.txt",
    ]
    trace = json.loads(gzip.decompress(recorder.artifacts[f"profile/steps-{name}.json.gz"]))
    operators = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    assert operators.count("aten::mse_loss") == 2
    assert "aten::mse_loss" in recorder.artifacts[f"profile/steps-{name}.txt"].decode()


def test_what_cannot_be_kept_is_a_warning_and_the_training_goes_on() -> None:
    class Full(MemoryRecorder):
        def artifact(self, source: bytes, name: str) -> str:
            raise RecordError("The artifact cannot be kept: the disk is full.")

    runs, _ = probed(Probe("0", [1]), net())
    runs.recorder = Full()

    assert runs.run().step == 6
    (fact,) = runs.recorder.facts
    assert (
        isinstance(fact, Warned)
        and "step-000000001.safetensors was not kept: The artifact" in fact.message
    )


def test_a_profile_that_never_begins_leaves_nothing() -> None:
    runs, recorder = probed(Profile(100), net())

    runs.run()

    assert recorder.artifacts == {}
    with pytest.raises(InputError, match="steps 0"):
        Profile(1, 0)
