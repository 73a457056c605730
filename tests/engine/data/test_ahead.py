"""The next window is on its way while the one before is at work: one, and never more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from assay.engine import OptimizerStepBase, Process
from assay.engine.data.ahead import ahead
from assay.engine.data.source import Window
from engine.toys import engine, net, points

META = torch.device("meta")


class Counted:
    """Windows of one batch, and how many were drawn."""

    def __init__(self, count: int) -> None:
        self.count, self.drawn = count, 0

    def __iter__(self) -> Iterator[Window]:
        for number in range(self.count):
            self.drawn += 1
            yield Window(({"x": torch.full((2,), number), "name": str(number)},), 2)


def test_each_window_comes_in_order_with_its_tensors_on_the_device() -> None:
    windows = list(ahead(Counted(3), META))

    assert [window.batches[0]["name"] for window in windows] == ["0", "1", "2"]
    assert all(window.batches[0]["x"].device == META and window.samples == 2 for window in windows)
    assert list(ahead([], META)) == []


def test_one_window_is_drawn_ahead_and_none_after_the_last_that_is_wanted() -> None:
    source, seen, took = Counted(10), [], []
    seconds: list[float] = took
    for window in ahead(
        source, torch.device("cpu"), is_last=lambda: len(seen) == 3, took=seconds.append
    ):
        seen.append(window.batches[0]["name"])
        if len(seen) < 4:
            assert source.drawn == len(seen) + 1
        if len(seen) == 4:
            break

    assert source.drawn == 4 and len(took) == 4


class Stream:
    """Stream that computes nothing: events have the numbers of what it was given before."""

    def __init__(self, *_: Any) -> None:
        self.events = 0
        self.waits: list[int] = []

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...

    def record_event(self) -> int:
        self.events += 1
        return self.events

    def wait_event(self, event: int) -> None:
        self.waits.append(event)


def test_a_computation_waits_for_the_copy_of_its_own_window_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copying, current = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: copying)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    begun = [
        (copying.events, list(current.waits))
        for _ in ahead((Window(({},), 2) for _ in range(3)), torch.device("cuda"))
    ]

    # As the first window is computed, the second is copied: it waits for event 1 of 2.
    assert begun == [(2, [1]), (3, [1, 2]), (3, [1, 2, 3])]


class Meta(Process):
    """Computes on a device where nothing is computed, so that no number can be read."""

    def __init__(self) -> None:
        self.model = net().to("meta")
        self.backward = NoStep()
        self.devices: list[str] = []

    def forward_step(self, batch: Any) -> Any:
        self.devices.append(batch[0].device.type)
        return self.model(batch[0]).sum(), {}


class NoStep(OptimizerStepBase):
    """Takes no step."""

    non_finite = "ignore"

    def __init__(self) -> None:
        self.optimizers = {}

    def begin(self, sizes: Any) -> None: ...

    def __call__(self, loss: Any) -> None:
        loss.backward()

    def update(self, step: int) -> bool:
        return True


@pytest.mark.row("C58")
@pytest.mark.parametrize("steps", [2, 3, 5])
def test_an_engine_elsewhere_draws_no_window_that_it_does_not_use(steps: int) -> None:
    data = points(20)
    drawn: list[int] = []

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(
                zip(*(tensor.split(8) for tensor in data.tensors), strict=True)
            ):
                drawn.append(number)
                yield batch

    process: Any = Meta()
    runs = engine(process, Batches(), steps=steps, device="meta")

    assert runs.run().step == steps
    assert process.devices == ["meta"] * steps
    assert drawn == [0, 1, 2, 0, 1][:steps] and runs.seconds["move"] > 0
