"""`BatchDigest`: equal curves are equal data, for any kind of batch; two checkpoints compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import BatchDigest, Engine, Instance, Loader, OptimizerStep, Process, Saver
from assay.engine.checkpoint.folder import differing
from engine.toys import net


class Deaf(Process):
    """Has a loss that no batch changes, so that a batch may be anything."""

    def __init__(self) -> None:
        self.model = net()
        self.backward = OptimizerStep(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def forward_step(self, batch: Any) -> tuple[torch.Tensor, Any]:
        return torch.stack([parameter.sum() for parameter in self.model.parameters()]).sum(), None


def curve(batches: list[Any], *, accumulate: int = 1) -> tuple[list[float], list[str]]:
    """The digest of each step, and the warnings."""
    recorder = MemoryRecorder()
    handlers = BatchDigest().handlers()
    Engine(Deaf(), batches, accumulate=accumulate, recorder=recorder, handlers=handlers).run()
    told = [fact.message for fact in recorder.facts if isinstance(fact, Warned)]
    return [value for name, _, value in recorder.points if name == "data/digest"], told


def test_the_same_batches_give_the_same_numbers_and_a_bit_or_an_order_gives_others() -> None:
    a, b = torch.arange(4.0), torch.arange(4.0).nextafter(torch.tensor(9.0))

    found, _ = curve([a, a, b])

    assert found[0] == found[1] != found[2]
    assert all(value == int(value) and 0 <= value < 2**48 for value in found)
    assert curve([a, b], accumulate=2)[0] != curve([b, a], accumulate=2)[0]


def test_a_batch_of_a_class_counts_by_its_tensors_and_one_without_any_is_told_once() -> None:
    one, other = (Instance(x=torch.full((2,), value)) for value in (1.0, 2.0))

    found, told = curve([one, one, other])

    assert found[0] == found[1] != found[2] and not told
    assert curve([_Odd(), _Odd()])[1] == [
        "data/digest does not say what is in a batch: a _Odd holds no tensors."
    ]


def orders(**options: Any) -> tuple[list[float], list[float]]:
    """The curves of the order and of the content of two epochs of six samples."""
    recorder = MemoryRecorder()
    data = options.pop("data", [torch.full((2,), float(i)) for i in range(6)])
    train = Loader(data, batch_size=2, **options)
    Engine(Deaf(), train, epochs=2, recorder=recorder, handlers=BatchDigest().handlers()).run()
    order, content = (
        [value for name, _, value in recorder.points if name == f"data/{kind}"]
        for kind in ("order", "digest")
    )
    return order, content


def test_other_samples_have_another_order_and_other_content_has_the_same() -> None:
    order, content = orders(shuffle=True, seed=1)
    changed = [torch.full((2,), float(i) + 0.5) for i in range(6)]

    assert len(order) == len(content) == 6
    assert orders(shuffle=True, seed=1) == (order, content)
    assert orders(shuffle=True, seed=1, data=changed)[0] == order
    assert orders(shuffle=True, seed=1, data=changed)[1] != content
    assert orders(shuffle=True, seed=2)[0] != order


def test_the_order_of_a_sampler_is_not_asked_for() -> None:
    order, content = orders(sampler=[5, 4, 3, 2, 1, 0])

    assert order == [] and content


class _Odd:
    def __len__(self) -> int:
        return 1


def test_two_checkpoints_are_compared_part_by_part_and_what_differs_is_named(
    tmp_path: Path,
) -> None:
    saver = Saver(tmp_path, keep=9)
    model = torch.nn.Linear(2, 1)
    for step in (1, 2, 3):
        if step == 3:
            with torch.no_grad():
                model.bias.add_(1)
        saver.save_checkpoint(step, {"model": model, "counts": {"seen": [1, 2, min(step, 2)]}})
    first, second, third = (each.path for each in saver.find_checkpoints())

    assert differing(first, first) == {"counts": [], "model": []}
    assert differing(first, second) == {"counts": ["seen.2"], "model": []}
    assert differing(second, third) == {"counts": [], "model": ["bias"]}
