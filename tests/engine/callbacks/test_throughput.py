"""Where the time goes: once an epoch, and all of it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.ports import MemoryRecorder
from assay.engine import Evaluate, Memory, Save, Saver, Throughput
from assay.engine.callbacks import resources
from engine.toys import engine, hard_net, loader, same_bits, supervised, weights_of

STEP = ("data", "move", "forward", "backward", "optimizer")
PARTS = (*STEP, "evaluation", "checkpoint", "logging", "other")


def recorded(tmp_path: Path, every: str = "1 epoch", **given: Any) -> MemoryRecorder:
    recorder = MemoryRecorder()
    runs = engine(recorder=recorder, **given)
    runs.bus.extend(Evaluate({"valid": loader(10, 4)}, every=every).handlers())
    runs.bus.extend(Save(Saver(tmp_path), every=every).handlers())
    runs.bus.extend(Throughput().handlers())
    runs.run()
    return recorder


@pytest.mark.row("C74")
@pytest.mark.parametrize("every", ["1 epoch", "1 step", "2 steps"])
def test_the_parts_of_an_epoch_sum_up_to_its_time(
    every: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    clock = resources.perf_counter

    def watched() -> float:
        asked.append(clock())
        return asked[-1]

    monkeypatch.setattr(resources, "perf_counter", watched)
    recorder = recorded(tmp_path, every)

    walls = [after - before for before, after in itertools.pairwise(asked)]
    for epoch, wall in enumerate(walls[:2]):
        values = {name: recorder.curve(f"time/{name}_s")[epoch] for name in PARTS}
        assert {step for step, _ in values.values()} == {3 * (epoch + 1)}
        assert sum(value for _, value in values.values()) == pytest.approx(wall)
        assert all(value >= 0 for _, value in values.values())
        # A checkpoint is written after all handlers: that of the end of an epoch is of the next.
        none = {"move", "other", *(["checkpoint"] if every == "1 epoch" and not epoch else [])}
        assert {name for name in PARTS if values[name][1] <= 0} <= none
        assert recorder.curve("speed/steps_per_s")[epoch][1] == pytest.approx(3 / wall)
        assert recorder.curve("speed/samples_per_s")[epoch][1] == pytest.approx(20 / wall)
        assert recorder.curve("speed/eta_s")[epoch][1] == pytest.approx((1 - epoch) * wall)


def test_the_end_of_a_run_within_an_epoch_counts_as_one_and_an_empty_one_does_not(
    tmp_path: Path,
) -> None:
    assert [step for step, _ in recorded(tmp_path / "a", steps=5).curve("speed/steps_per_s")] == [
        3,
        5,
    ]
    assert [step for step, _ in recorded(tmp_path / "b", steps=3).curve("speed/steps_per_s")] == [3]


@pytest.mark.row("C74")
def test_memory_is_recorded_by_what_it_is_for() -> None:
    model, recorder = hard_net(), MemoryRecorder()
    runs = engine(
        supervised(model, optimizer=torch.optim.AdamW(model.parameters())), recorder=recorder
    )
    runs.bus.extend(Memory().handlers())

    runs.run()

    weights = sum(weight.numel() for weight in model.parameters()) * 4 / 2**20
    assert recorder.curve("memory/weights_mib") == [(3, weights), (6, weights)]
    ((_, gathered), _) = recorder.curve("memory/optimizer_mib")
    assert 2 * weights < gathered < 3 * weights  # two moments, and a step count for each
    assert recorder.curve("memory/buffers_mib")[0][1] == (8 + 8) * 4 / 2**20 + 8 / 2**20
    assert recorder.curve("memory/process_mib")[0][1] > 10
    assert Memory("never").handlers() == []


@pytest.mark.parametrize("accumulate", [1, 4])
def test_operations_are_counted_once_and_change_nothing(accumulate: int) -> None:
    """A linear layer takes 2 operations for each weight and sample, twice that in backward."""

    def trained(flops: bool | None) -> tuple[dict[str, Any], MemoryRecorder]:
        model, recorder = hard_net(), MemoryRecorder()
        runs = engine(supervised(model), loader(accumulate=accumulate), recorder=recorder, epochs=3)
        runs.bus.extend(Throughput(flops=flops, peak_tflops=0.5).handlers())
        runs.run()
        return weights_of(model), recorder

    (plain, nothing), (counted, recorder) = trained(None), trained(True)

    assert same_bits(plain, counted)
    assert nothing.curve("speed/tflops") == []  # not on a CPU, unless asked for
    a_sample = 2 * (4 * 8 + 8 * 2) * 2 + 2 * 8 * 2  # the first layer has no gradient for its inputs
    for number in range(3):
        seconds = sum(recorder.curve(f"time/{name}_s")[number][1] for name in STEP)
        ((_, rate), (_, share)) = (
            recorder.curve(f"speed/{name}")[number] for name in ("tflops", "mfu")
        )
        assert rate == pytest.approx(a_sample * 20 / seconds / 1e12, rel=1e-6)
        assert share == pytest.approx(2 * rate)


def test_what_is_not_known_of_a_device_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "Some Other GPU"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: next(names))

    assert [resources.peak_tflops(torch.device("cuda")) for _ in range(3)] == [989.0, 312.0, None]
    assert resources.peak_tflops(torch.device("cpu")) is None
