"""Inputs and outputs of a model, found in the calls of its process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine import OwnLoss, Supervised
from assay.engine.export.interface import (
    FlatModel,
    InputSlot,
    Interface,
    ModelCall,
    ShapeSurvey,
    find_interface,
)
from assay.engine.loop.process import Process


class Pair(nn.Module):
    """Two inputs, one of them inside a mapping, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(
        self, images: Mapping[str, Tensor], scale: Tensor, power: int = 1
    ) -> dict[str, Tensor]:
        scores = self.linear(images["left"]) * scale[:, None] ** power
        return {"scores": scores, "best": scores.argmax(1)}


class PairProcess(Process):
    def __init__(self) -> None:
        self.model = Pair()

    def forward_step(self, batch: Any) -> Any:
        out = self.model({"left": batch["x"]}, batch["s"], power=2)
        return out["scores"].mean(), {**out, "target": batch["y"]}


BATCH = {"x": torch.randn(4, 3), "s": torch.ones(4), "y": torch.zeros(4)}


def test_the_inputs_are_what_the_process_gives_its_model_by_the_names_of_its_parameters() -> None:
    process = PairProcess()

    interface = find_interface(process, process.model, BATCH)

    assert list(interface.example) == ["images_left", "scale"]
    assert list(interface.expected) == ["scores", "best"]
    assert interface.constants == {"power": 2}


def test_a_flat_model_gives_what_the_model_gives_for_the_same_batch() -> None:
    process = PairProcess()
    interface = find_interface(process, process.model, BATCH)

    outputs = FlatModel(process.model, interface)(*interface.example.values())

    assert outputs.keys() == interface.expected.keys()
    assert torch.equal(outputs["scores"], interface.expected["scores"])


def test_inference_says_the_inputs_where_the_process_has_it() -> None:
    process = Supervised(nn.Linear(3, 2), nn.CrossEntropyLoss())
    batch = (torch.randn(4, 3), torch.zeros(4, dtype=torch.long))

    interface = find_interface(process, process.model, batch)

    assert list(interface.example) == ["input"] and list(interface.expected) == ["output"]
    assert interface.call == ((InputSlot(0),), {})


class Needy(nn.Module):
    """It makes its own input of the target, as models of sequences to sequences do."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if labels is None:
            raise ValueError("no labels")
        return {"logits": x + labels, "loss": (x + labels).mean()}


def test_validation_says_the_inputs_of_a_model_that_needs_the_target() -> None:
    process = OwnLoss(Needy())

    interface = find_interface(
        process, process.model, {"x": torch.ones(4, 3), "labels": torch.ones(4, 3)}
    )

    assert list(interface.example) == ["x", "labels"]


def test_a_process_that_never_calls_its_model_is_refused_with_what_to_do() -> None:
    process = Supervised(nn.ModuleDict({"body": nn.Linear(3, 2)}), None)
    process.inference_step = lambda batch: process.model["body"](batch[0])  # type: ignore[index,method-assign]
    process.validation_step = process.inference_step  # type: ignore[method-assign]

    with pytest.raises(InputError, match="does not call ModuleDict as a whole") as caught:
        find_interface(process, process.model, (torch.ones(4, 3), None))
    assert "--module" in caught.value.fix


def survey(*shapes: tuple[int, ...], samples: list[int]) -> dict[int, str]:
    seen = ShapeSurvey()
    for shape, count in zip(shapes, samples, strict=True):
        given, gave = torch.zeros(shape), torch.zeros(shape)
        seen.see(ModelCall({"x": given}, gave, gave), count)
    whole = Interface(call=((), {}), example={"x": torch.zeros(shapes[0])}, expected={})
    return dict(seen.complete(whole).axes["x"])


def test_the_axis_of_the_samples_is_found_wherever_it_is() -> None:
    assert survey((8, 3), (5, 3), samples=[8, 5]) == {0: "batch"}
    assert survey((7, 8), (7, 5), samples=[8, 5]) == {1: "batch"}
    assert survey((8, 8), samples=[8]) == {0: "batch"}
    assert survey((8, 8), (5, 8), samples=[8, 5]) == {0: "batch"}


def test_axes_that_change_from_batch_to_batch_are_dynamic_too() -> None:
    assert survey((8, 12), (8, 9), samples=[8, 8]) == {0: "batch", 1: "x_1"}
    assert survey((16, 2), (10, 2), samples=[8, 5]) == {0: "x_0"}
