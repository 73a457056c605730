"""Objects with the methods of a process and no base class, and the order of the calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine import Accuracy, Engine, Evaluate, OptimizerStep, evaluate
from engine.toys import engine, loader, net, same_bits, supervised, weights_of


class Plain:
    """The supervised process of the older system, written without anything of assay."""

    def __init__(
        self, model: nn.Module, criterion: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer
        self.calls: list[str] = []

    def training_step(self, batch: Any) -> Any:
        self.calls.append("training_step")
        loss, output = self.forward_step(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return output

    def validation_step(self, batch: Any) -> Any:
        self.calls.append("validation_step")
        with torch.no_grad():
            _, output = self.forward_step(batch)
        return output

    def forward_step(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        inputs, target = batch
        pred = self.model(inputs)
        loss = self.criterion(pred, target)
        return loss, {"pred": pred, "target": target, "loss": loss}

    def update(self) -> None:
        self.calls.append("update")
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, mode: bool = True) -> None:
        self.calls.append("train" if mode else "eval")
        self.model.train(mode=mode)


def plain() -> Plain:
    model = net()
    return Plain(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


@pytest.mark.row("D25", "D12")
def test_an_object_with_the_methods_trains_as_a_process_does() -> None:
    duck, reference = plain(), supervised()
    handlers = Evaluate({"valid": loader(6, 4)}).handlers()

    state = engine(duck, handlers=handlers).run()
    expected = engine(reference, handlers=Evaluate({"valid": loader(6, 4)}).handlers()).run()

    assert same_bits(weights_of(duck.model), weights_of(reference.model))
    assert state.state_dict() == expected.state_dict() and state.loss == expected.loss


@pytest.mark.row("D18")
def test_the_calls_of_a_training_and_of_an_evaluation_are_those_of_the_docs() -> None:
    duck = plain()

    engine(duck, loader(24, 8), epochs=1).run()
    training, duck.calls = duck.calls, []
    evaluate(engine(duck).process, loader(24, 8), split="valid")

    assert training == ["train", *["training_step", "update"] * 3]
    assert duck.calls == ["eval", *["validation_step"] * 3]


def test_one_that_sums_gradients_over_micro_batches_is_refused() -> None:
    with pytest.raises(
        InputError, match="Plain updates the weights for each batch, but 2 are one step"
    ):
        engine(plain(), loader(20, 8, accumulate=2)).run()


@pytest.mark.row("D25")
@pytest.mark.parametrize("accumulate", [1, 4])
def test_one_that_uses_the_backward_of_the_engine_is_taken_as_it_is(accumulate: int) -> None:
    class Complete(Plain):
        def __init__(self) -> None:
            given = plain()
            super().__init__(given.model, given.criterion, given.optimizer)
            self.backward = OptimizerStep(given.optimizer)

        def training_step(self, batch: Any) -> Any:
            loss, output = self.forward_step(batch)
            self.backward(loss)
            return output

        def update(self, step: int) -> bool:  # type: ignore[override]
            return self.backward.update(step)

        def eval(self) -> None:
            self.train(False)

    duck, reference = Complete(), supervised()

    runs = engine(duck, loader(20, 8, accumulate=accumulate))
    runs.run()
    engine(reference, loader(20, 8, accumulate=accumulate)).run()

    assert runs.process is duck  # type: ignore[comparison-overlap]
    assert same_bits(weights_of(duck.model), weights_of(reference.model))


def test_the_criterion_of_an_object_is_that_of_the_process() -> None:
    duck = plain()

    assert engine(duck).process.criterion is duck.criterion  # type: ignore[attr-defined]


def test_forward_step_alone_is_enough() -> None:
    class Forward:
        def __init__(self) -> None:
            self.model = net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

        def forward_step(self, batch: Any) -> Any:
            return nn.functional.mse_loss(self.model(batch[0]), batch[1]), None

    thing, reference = Forward(), supervised()
    engine(thing).run()
    engine(reference).run()

    assert same_bits(weights_of(thing.model), weights_of(reference.model))


@pytest.mark.row("D15")
@pytest.mark.parametrize("kind", [dict, tuple])
def test_an_output_may_be_a_mapping_or_a_tuple_and_both_are_measured(kind: type) -> None:
    class Classes(Plain):
        metrics: Any

        def forward_step(self, batch: Any) -> Any:
            pred, target = self.model(batch[0]), batch[1].argmax(1)
            loss = nn.functional.cross_entropy(pred, target)
            return loss, {"pred": pred, "target": target, "loss": loss} if kind is dict else (
                pred,
                target,
                loss,
            )

    given = plain()
    duck = Classes(given.model, given.criterion, given.optimizer)
    duck.metrics = {"acc": Accuracy()}

    state = Engine(
        duck, loader(), epochs=1, handlers=Evaluate({"valid": loader(10, 4)}).handlers()
    ).run()

    inputs, targets = loader(10, 10).dataset.tensors  # type: ignore[attr-defined]
    with torch.no_grad():
        right = duck.model(inputs).argmax(1).eq(targets.argmax(1)).float().mean()
    assert state.metrics["valid/acc"] == pytest.approx(float(right))
