"""Where the time goes: once an epoch, and all of it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
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
        assert all(values[name][1] > 0 for name in PARTS if name not in ("move", "other"))
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


def make_counters(folder: Path, **microjoules: int) -> None:
    """Make or change the files that Linux has for the energy of two CPUs, and of a part of one."""
    names = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:0:0": "core"}
    for name, text in names.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "name").write_text(f"{text}\n")
        (folder / name / "max_energy_range_uj").write_text("262143328850\n")
        joules = microjoules.get(text.replace("-", "_"), 10**9)
        (folder / name / "energy_uj").write_text(f"{joules}\n")


def test_the_joules_of_all_cpus_are_recorded_also_where_a_counter_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_POWERCAP", tmp_path / "powercap")
    make_counters(tmp_path / "powercap", package_1=262_143_000_000)
    counters = resources.EnergyCounters(torch.device("cpu"))

    make_counters(tmp_path / "powercap", package_0=3 * 10**9, package_1=671_150)

    assert counters.take(60.0) == {"energy/cpu_j": pytest.approx(2001.0)}
    assert counters.take(60.0) == {}  # nothing was used: they cannot be what they seem
    make_counters(tmp_path / "powercap", package_0=4 * 10**9)
    assert counters.take(3600.0) == {}  # it may have begun anew several times


@pytest.mark.parametrize("unreadable", [True, False])
def test_a_run_records_its_energy_where_the_machine_says_it_and_nothing_elsewhere(
    unreadable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "powercap"
    monkeypatch.setattr(resources, "_POWERCAP", folder)
    make_counters(folder)
    for file in folder.glob("*/energy_uj"):
        if unreadable:
            file.unlink()
            file.mkdir()  # root reads what others may not

    class Counting(resources.EnergyCounters):
        def take(self, seconds: float) -> dict[str, float]:
            if not unreadable:
                make_counters(folder, package_0=6 * 10**9)
            return super().take(seconds)

    monkeypatch.setattr(resources, "EnergyCounters", Counting)

    recorder = recorded(tmp_path / "saved")

    found = [(name, value) for name, _, value in recorder.points if name.startswith("energy/")]
    assert found == ([] if unreadable else [("energy/cpu_j", 5000.0)])


class Nvml:
    """The part of NVIDIA's library that counts energy."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.millijoules = 5_000_000

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if handle != "GPU-0c1e":
            raise self.NVMLError
        return self.millijoules


@pytest.mark.parametrize(("uuid", "used"), [("0c1e", {"energy/gpu_j": 1.5}), ("of a MIG", {})])
def test_the_joules_of_the_gpu_are_those_that_nvml_counts(
    uuid: str, used: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(resources, "_POWERCAP", tmp_path)
    properties = SimpleNamespace(uuid=uuid)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    counters = resources.EnergyCounters(torch.device("cuda", 0))

    nvml.millijoules += 1500

    assert counters.take(1.0) == used
