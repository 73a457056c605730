"""forward(batch, needs_loss, requires_grad): alone, and under an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine import Engine, Evaluate, ModelWrapper, OptimizerStep
from engine.toys import net, points, same_bits, weights_of


def wrapper(**given: Any) -> ModelWrapper:
    model = net()
    return ModelWrapper(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), **given)


@pytest.mark.row("A50")
@pytest.mark.parametrize(
    ("needs_loss", "requires_grad"), [(False, False), (True, False), (True, True)]
)
def test_the_loss_is_there_when_asked_for_and_the_weights_learn_when_asked_to(
    needs_loss: bool, requires_grad: bool
) -> None:
    wrapped = wrapper()
    before, batch = weights_of(wrapped.model), points(6).tensors

    outputs = wrapped.forward(batch, needs_loss=needs_loss, requires_grad=requires_grad)

    assert ("loss" in outputs) is needs_loss and isinstance(outputs.get("loss", 0.0), float)
    assert same_bits(weights_of(wrapped.model), before) is not requires_grad
    assert torch.equal(outputs["target"], batch[1]) and not outputs["pred"].requires_grad


@pytest.mark.row("A50")
def test_gradients_of_no_loss_are_refused() -> None:
    wrapped = wrapper()
    before = weights_of(wrapped.model)

    with pytest.raises(InputError, match="requires_grad without needs_loss"):
        wrapped.forward(points(6).tensors, needs_loss=False, requires_grad=True)

    assert same_bits(weights_of(wrapped.model), before)


def test_alone_it_trains_as_the_same_steps_of_torch_do() -> None:
    wrapped, model = wrapper(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for i in range(3):
        batch = [part[i : i + 6] for part in points(20).tensors]
        wrapped(batch, needs_loss=True, requires_grad=True)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    assert same_bits(weights_of(wrapped.model), weights_of(model)) and wrapped.steps == 3


def test_without_a_criterion_there_is_an_output_and_a_clear_word_about_the_loss() -> None:
    wrapped = ModelWrapper(net())

    assert wrapped.forward(points(6).tensors).keys() == {"pred", "target"}
    with pytest.raises(InputError, match="has no criterion"):
        wrapped.forward(points(6).tensors, needs_loss=True)
    with pytest.raises(InputError, match="has no optimizer"):
        ModelWrapper(net(), nn.MSELoss()).forward(
            points(6).tensors, needs_loss=True, requires_grad=True
        )


def test_a_wrapper_of_ones_own_may_do_all_four_steps_itself() -> None:
    class Own:
        def __init__(self) -> None:
            self.model = net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def forward(self, batch: Any, needs_loss: bool, requires_grad: bool) -> dict[str, Any]:
            pred = self.model(batch[0])
            outputs: dict[str, Any] = {"pred": pred}
            if needs_loss:
                loss: Tensor = nn.functional.mse_loss(pred, batch[1])
                outputs["loss"] = loss.item()
            if requires_grad:
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
            return outputs

    own, ours = Own(), wrapper()
    data = [points(6).tensors, points(6, seed=1).tensors]
    states = [
        Engine(each, data, epochs=2, handlers=Evaluate({"valid": data}).handlers()).run()
        for each in (own, ours)
    ]

    assert same_bits(weights_of(own.model), weights_of(ours.model))
    assert states[0].loss == states[1].loss
    assert states[0].metrics == states[1].metrics


def test_the_settings_of_the_update_hold_under_an_engine() -> None:
    model = net()
    backward = OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1), clip_norm=0.01)
    runs = Engine(
        ModelWrapper(model, nn.MSELoss(), backward=backward), [points(6).tensors], epochs=1
    )
    before = weights_of(model)

    runs.run()

    moved = (
        sum(float((new - before[name]).square().sum()) for name, new in weights_of(model).items())
        ** 0.5
    )
    assert moved == pytest.approx(0.1 * 0.01, rel=1e-3)
