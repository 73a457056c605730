"""The average of the weights: its closed form, what is evaluated, and that it goes on exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError, InputError
from assay.engine import EMA, Engine, Evaluate, Loader, Save, Saver, evaluate
from assay.engine.callbacks.ema import evaluated_weights
from assay.engine.checkpoint.folder import load_parts
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.numerics import private_torch
from engine.toys import engine, hard_net, loader, net, points, same_bits, supervised


def averaged(
    ema: EMA, model: nn.Module | None = None, **given: Any
) -> tuple[Engine, list[dict[str, Tensor]]]:
    """A run with an average, and its weights before the first and after each step."""
    runs = engine(supervised(model or net(dtype=torch.float64)), loader_of(model), **given)
    runs.bus.extend(ema.handlers())
    seen: list[dict[str, Tensor]] = []

    def look(engine: Engine) -> None:
        seen.append(
            {
                name: weight.detach().clone()
                for name, weight in engine.process.model.named_parameters()
            }
        )

    runs.on("run_begin", priority=-100)(look)
    runs.on("step_end", priority=-100)(look)
    return runs, seen


def loader_of(model: nn.Module | None) -> Any:
    return loader() if model is not None else Loader(points(dtype=torch.float64), batch_size=8)


@pytest.mark.row("C68", "C74")
def test_the_average_is_that_of_the_closed_form() -> None:
    ema = EMA(0.9)
    runs, seen = averaged(ema, steps=5)

    runs.run()

    shares = [0.9**5, *(0.1 * 0.9 ** (5 - step) for step in range(1, 6))]
    assert sum(shares) == pytest.approx(1.0)
    for name, mean in ema.weights.items():
        expected = sum(share * weights[name] for share, weights in zip(shares, seen, strict=True))
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-14)
    assert ema.updates == 5


def test_it_equals_the_average_of_torch() -> None:
    ema = EMA(0.8)
    model = net(dtype=torch.float64)
    theirs = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    theirs.update_parameters(model)  # type: ignore[no-untyped-call]  # the first one copies
    runs = engine(supervised(model), loader_of(None), steps=4)
    runs.bus.extend(ema.handlers())
    runs.on("step_end")(lambda model: theirs.update_parameters(model))

    runs.run()

    for name, mean in theirs.module.named_parameters():
        torch.testing.assert_close(ema.weights[name], mean.detach(), rtol=0, atol=1e-14)


def test_warmup_and_a_period_are_as_documented() -> None:
    ema = EMA(0.5, every=2, warmup=True)
    runs, seen = averaged(ema, steps=6)

    runs.run()

    name = "0.weight"
    mean = seen[0][name]
    for update, step in enumerate((2, 4, 6)):
        decay = min(0.5, (1 + update) / (10 + update))
        mean = decay * mean + (1 - decay) * seen[step][name]
    torch.testing.assert_close(ema.weights[name], mean, rtol=0, atol=1e-14)


@pytest.mark.row("C68")
@pytest.mark.parametrize("evaluate_average", [True, False])
def test_what_is_evaluated_can_be_chosen(evaluate_average: bool) -> None:
    ema = EMA(0.5, evaluate=evaluate_average)
    runs = engine(supervised(hard_net()), epochs=2)
    runs.bus.extend([*Evaluate({"valid": loader(10, 4)}).handlers(), *ema.handlers()])

    state = runs.run()

    model = hard_net()
    weights = runs.process.model.state_dict()
    model.load_state_dict({**weights, **ema.weights} if evaluate_average else weights)
    expected, _ = evaluate(supervised(model), loader(10, 4), split="valid")
    assert state.metrics == expected
    assert not same_bits(ema.weights["0.weight"], weights["0.weight"])


@pytest.mark.row("C68")
@pytest.mark.parametrize("step", [2, 3, 4])
def test_it_goes_on_exactly_from_a_checkpoint(step: int, tmp_path: Path) -> None:
    def saved(folder: Path) -> Engine:
        runs = engine(supervised(hard_net()), epochs=2)
        runs.bus.extend(Evaluate({"valid": loader(10, 4)}, every="2 steps").handlers())
        runs.bus.extend(Save(Saver(folder, keep=9), every="1 step").handlers())
        runs.bus.extend(EMA(0.7, warmup=True).handlers())
        return runs

    whole, resumed = saved(tmp_path / "whole"), saved(tmp_path / "resumed")
    whole.run()
    restore(resumed, load_parts(tmp_path / "whole" / f"step-{step:09d}"))
    resumed.run()

    assert same_bits(capture_state(resumed), capture_state(whole))
    assert same_bits(
        load_parts(tmp_path / "resumed" / "step-000000006"),
        load_parts(tmp_path / "whole" / "step-000000006"),
    )


def test_an_engine_that_runs_on_goes_on_with_its_average() -> None:
    ema, other = EMA(0.7), EMA(0.7)
    whole, _ = averaged(ema, steps=5)
    whole.run()

    parts, _ = averaged(other, steps=2)
    parts.run()
    parts.state.max_steps = 5
    parts.run()

    assert other.updates == 5
    assert same_bits(other.weights, ema.weights)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4, bias=False)
        self.other = nn.Linear(4, 4, bias=False)
        self.other.weight = self.one.weight
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.other(self.one(x).tanh()))  # type: ignore[no-any-return]


def test_the_evaluated_weights_of_a_checkpoint_are_the_averaged_ones(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ema = EMA(0.5)
    runs = engine(supervised(Tied()), epochs=1)
    runs.bus.extend([*Save(Saver(tmp_path)).handlers(), *ema.handlers()])
    runs.run()

    weights = evaluated_weights(tmp_path / "step-000000003")

    assert same_bits(weights, ema.weights)
    assert weights.keys() == {"one.weight", "other.weight", "out.weight", "out.bias"}
    assert torch.equal(weights["one.weight"], weights["other.weight"])
    assert not torch.equal(weights["one.weight"], runs.process.model.state_dict()["one.weight"])


@pytest.mark.parametrize("listener", [None, EMA(0.5, evaluate=False)])
def test_without_an_evaluated_average_they_are_those_of_the_model(
    listener: EMA | None, tmp_path: Path
) -> None:
    runs = engine(epochs=1)
    runs.bus.extend([*Save(Saver(tmp_path)).handlers(), *(listener.handlers() if listener else [])])
    runs.run()

    assert same_bits(
        evaluated_weights(tmp_path / "step-000000003"), runs.process.model.state_dict()
    )


def test_weights_of_16_bits_are_averaged_in_32() -> None:
    ema = EMA(0.999)
    model = net(dtype=torch.bfloat16)
    runs = engine(
        supervised(model),
        [[torch.ones(4, 4).bfloat16(), torch.ones(4, 2).bfloat16()]] * 3,
        epochs=1,
    )
    runs.bus.extend(ema.handlers())
    runs.on("eval_begin", priority=10)(lambda: None)

    runs.run()

    assert {mean.dtype for mean in ema.weights.values()} == {torch.float32}
    live = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    ema.put_in()
    assert torch.equal(model[0].weight, ema.weights["0.weight"].bfloat16())
    ema.take_out()
    assert same_bits(dict(model.named_parameters()), live)


class Waves(nn.Module):
    """Model with complex weights beside real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Parameter(torch.randn(4, 2, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = (x.to(self.mixed.dtype) @ self.mixed).abs()
        return mixed * self.scale


@pytest.mark.parametrize("deferred", [False, True])
def test_complex_weights_are_averaged_and_evaluated_as_real_ones(
    deferred: bool, tmp_path: Path
) -> None:
    ema = EMA(0.5)
    runs, seen = averaged(ema, Waves(), steps=3, deferred=deferred)
    runs.bus.extend(Save(Saver(tmp_path)).handlers())

    runs.run()

    shares = [0.125, 0.125, 0.25, 0.5]
    assert ema.weights.keys() == {"mixed", "scale"}
    for name, mean in ema.weights.items():
        expected = sum(share * weights[name] for share, weights in zip(shares, seen, strict=True))
        torch.testing.assert_close(mean, expected)
    assert same_bits(evaluated_weights(tmp_path / "step-000000003"), ema.weights)


def test_the_average_of_another_model_is_refused() -> None:
    first, _ = averaged(EMA(0.5), steps=1)
    first.run()
    parts = capture_state(first)
    parts["EMA"]["weights"]["9.weight"] = parts["EMA"]["weights"].pop("0.weight")
    second, _ = averaged(EMA(0.5), steps=2)
    restore(second, parts)

    with pytest.raises(CheckpointError, match=r"another model: 0.weight, 9.weight"):
        second.run()


def test_two_averages_cannot_both_be_evaluated() -> None:
    runs, _ = averaged(EMA(0.5), steps=1)
    runs.bus.extend(EMA(0.9).handlers())

    with pytest.raises(InputError, match="evaluate = false"):
        runs.run()


@pytest.mark.parametrize("given", [{"decay": 1.0}, {"decay": -0.1}, {"every": 0}])
def test_what_cannot_be_meant_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(given))):
        EMA(**given)


@pytest.mark.parametrize(("chunk_bytes", "at_once"), [(1, {1}), (10**6, {4})])
def test_what_an_average_computes_beside_itself_is_as_large_as_a_chunk(
    chunk_bytes: int, at_once: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def average() -> EMA:
        ema = EMA(0.9)
        averaged(ema, steps=4)[0].run()
        return ema

    whole = average()
    counts = set()
    lerp = private_torch.foreach_lerp_

    def counting(means: list[Tensor], *given: Any) -> Any:
        counts.add(len(means))
        return lerp(means, *given)

    monkeypatch.setattr(private_torch, "foreach_lerp_", counting)
    monkeypatch.setattr("assay.engine.callbacks.ema.CHUNK_BYTES", chunk_bytes)

    assert same_bits(average().weights, whole.weights)
    assert counts == at_once
