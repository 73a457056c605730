"""`log` of a process: weighted means over a step and a split, read from the device once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Supervised, evaluate
from assay.engine.metrics.means import LoggedMeans
from assay.engine.numerics.deferred import fetch_means
from engine.toys import engine, loader, net, points, same_bits, supervised, weights_of


class Logs(Supervised):
    """Logs the mean of its inputs."""

    weight: float | None = None

    def forward_step(self, batch: Any) -> Any:
        self.log("aux", batch[0].mean(), self.weight)
        return super().forward_step(batch)


def logs(**given: Any) -> Logs:
    model = net()
    return Logs(
        model,
        torch.nn.MSELoss(),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        **given,
    )


def test_a_step_of_several_micro_batches_has_the_mean_over_its_samples() -> None:
    recorder = MemoryRecorder()
    engine(logs(), loader(20, 12, accumulate=4), epochs=1, recorder=recorder).run()

    inputs = points(20).tensors[0].double()  # a window of 3, 3, 3, 3 samples, and one of 3, 3, 2
    expected = [float(inputs[:12].mean()), float(inputs[12:].mean())]
    assert [step for step, _ in recorder.curve("train/aux")] == [1, 2]
    assert [value for _, value in recorder.curve("train/aux")] == pytest.approx(expected, rel=1e-6)


def test_a_weight_that_is_given_counts() -> None:
    recorder, process = MemoryRecorder(), logs()
    process.weight = 1.0
    train = [[part[:2] for part in points(8).tensors], points(8).tensors]
    engine(process, train, accumulate=2, epochs=1, recorder=recorder).run()

    inputs = points(8).tensors[0]
    expected = float((inputs[:2].mean() + inputs.mean()) / 2)
    assert recorder.curve("train/aux") == [(1, pytest.approx(expected, rel=1e-6))]


def test_an_evaluation_has_means_of_its_own() -> None:
    process = logs()
    runs = engine(process, epochs=1, recorder=MemoryRecorder())
    runs.run()
    process.log("aux", 100.0)

    results, _ = evaluate(process, loader(20, 12), split="valid")

    inputs = points(20).tensors[0].double()
    assert results["valid/aux"] == pytest.approx(float(inputs.mean()), rel=1e-6)
    assert process.logged is runs.logged and runs.logged.take_means("train") == {"train/aux": 100.0}


def test_logging_changes_no_bit_of_the_training() -> None:
    results = []
    for process in (logs(), supervised()):
        engine(process, recorder=MemoryRecorder()).run()
        results.append(weights_of(process.model))

    assert same_bits(*results)


def test_a_process_that_nobody_runs_may_log_too() -> None:
    logs().forward_step(points(4).tensors)


def test_more_than_one_number_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'aux' was logged with the shape \(3,\)") as caught:
        LoggedMeans().add("aux", torch.zeros(3))

    assert "value.mean()" in caught.value.fix


def test_sums_are_taken_with_their_weights_and_fetched_as_means() -> None:
    logged = LoggedMeans()

    logged.add("a", 1.0)
    logged.add("b", torch.tensor(4.0), weight=2)
    sums = logged.take()

    assert sums == {"a": (1.0, 1.0), "b": (8.0, 2.0)}
    assert fetch_means(sums) == {"a": 1.0, "b": 4.0}
    assert logged.take() == {}


def test_an_engine_on_a_device_records_what_waits_before_it_saves_and_at_the_end() -> None:
    runs = Engine(supervised(), loader(), epochs=1, device="meta")

    fetched = [
        handler.event.value for handler in runs.bus.order() if handler.name == "Engine.fetch"
    ]

    assert fetched == ["run_end", "checkpoint_begin", "exception"]


def test_a_value_keeps_no_graph_alive() -> None:
    logged = LoggedMeans()
    weight = torch.ones((), requires_grad=True)

    logged.add("aux", weight * 2)

    assert logged.take_means("train") == {"train/aux": 2.0}
