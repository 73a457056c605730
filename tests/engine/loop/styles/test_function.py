"""step(batch): its return values, their records, and errors when it does half of the work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import Accuracy, Engine, Evaluate, NonFiniteError, StepFunction
from engine.toys import loader, net, same_bits, weights_of


def trained(make: Any, **given: Any) -> tuple[dict[str, Any], MemoryRecorder]:
    model, recorder = net(), MemoryRecorder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    runs = Engine(
        StepFunction(make(model, optimizer), model, optimizer),
        loader(),
        epochs=2,
        recorder=recorder,
        **given,
    )
    runs.run()
    return weights_of(model), recorder


def returns(form: Any) -> Any:
    return lambda model, optimizer: lambda batch: form(mse_loss(model(batch[0]), batch[1]), batch)


FORMS = [
    lambda loss, batch: loss,
    lambda loss, batch: {"loss": loss, "aux": 3.0},
    lambda loss, batch: (loss, {"pred": batch[1]}),
    lambda loss, batch: (loss * batch[1].numel(), batch[1].numel()),
    lambda loss, batch: ((loss * batch[1].numel(), batch[1].numel()), {"pred": batch[1]}),
]


@pytest.mark.parametrize(
    "form", FORMS, ids=["loss", "mapping", "with output", "sum and weight", "both"]
)
def test_it_may_return_its_loss_in_any_form(form: Any) -> None:
    expected, _ = trained(returns(FORMS[0]))

    weights, recorder = trained(returns(form))

    assert all(
        torch.allclose(weights[name], expected[name], rtol=0, atol=1e-6) for name in expected
    )
    assert len(recorder.curve("train/loss")) == 6


def test_other_numbers_that_it_returns_are_recorded() -> None:
    def many(loss: Any, batch: Any) -> dict[str, Any]:
        return {
            "loss": loss,
            "aux": 3.0,
            "mean": batch[0].mean(),
            "pred": batch[0],
            "size": 4,
            "name": "x",
        }

    _, recorder = trained(returns(many))

    assert {name for name, _, _ in recorder.points} == {
        "epoch",
        "train/loss",
        "train/lr",
        "train/aux",
        "train/mean",
    }
    assert [value for _, value in recorder.curve("train/aux")] == [3.0] * 6


def whole(model: Any, optimizer: Any) -> Any:
    def step(batch: Any) -> Any:
        optimizer.zero_grad()
        loss = mse_loss(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss if returned else None

    returned = True
    return step


def test_it_may_do_everything_itself() -> None:
    expected, reference = trained(returns(FORMS[0]))

    weights, recorder = trained(whole)

    assert same_bits(weights, expected) and recorder.points == reference.points


def test_half_of_the_work_is_told() -> None:
    def half(model: Any, optimizer: Any) -> Any:
        def step(batch: Any) -> Any:
            loss = mse_loss(model(batch[0]), batch[1])
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        return step

    with pytest.raises(
        InputError, match=r"step called loss.backward\(\), and made no step with it"
    ):
        trained(half)


def test_nothing_at_all_is_told() -> None:
    with pytest.raises(InputError, match="gave no loss, called no backward"):
        trained(lambda model, optimizer: lambda batch: None)


def test_a_bad_loss_stops_before_the_update_or_says_that_it_was_made() -> None:
    with pytest.raises(NonFiniteError, match=r"The loss is nan at step 1\."):
        trained(returns(lambda loss, batch: loss * float("nan")))

    def step(model: Any, optimizer: Any) -> Any:
        return lambda batch: whole(model, optimizer)(batch) * float("nan")

    with pytest.raises(NonFiniteError, match="at step 1, and <lambda> updated the weights with it"):
        trained(step)


def test_the_fix_of_an_update_made_with_bad_data_does_not_speak_of_the_weights_of_before() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    bad = [(torch.full((2, 4), float("nan")), torch.zeros(2, 2))]

    with pytest.raises(NonFiniteError, match=r"the data: batch\[0\] holds nan") as caught:
        Engine(StepFunction(whole(model, optimizer), model, optimizer), bad).run()

    assert caught.value.fix.startswith("Mend or leave out that sample; or leave the update to")
    assert "weights are still" not in caught.value.fix and "skip" not in caught.value.fix


def test_it_is_evaluated_by_pairs_or_by_a_function_of_its_own() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def judge(batch: Any) -> dict[str, Any]:
        assert not torch.is_grad_enabled()
        return {
            "pred": model(batch[0]),
            "target": batch[1].argmax(1),
            "loss": mse_loss(model(batch[0]), batch[1]),
        }

    process = StepFunction(
        lambda batch: mse_loss(model(batch[0]), batch[1]),
        model,
        optimizer,
        validate=judge,
        metrics={"acc": Accuracy()},
    )
    runs = Engine(
        process, loader(), epochs=1, handlers=Evaluate({"valid": loader(6, 4)}).handlers()
    )

    assert runs.run().metrics.keys() == {"valid/acc", "valid/loss"}


def test_a_bare_function_asks_for_its_model() -> None:
    with pytest.raises(InputError, match="Which model step trains is unknown") as caught:

        def step(batch: Any) -> Any: ...

        Engine(step, loader(), epochs=1)

    assert "StepFunction(step, model, optimizer)" in caught.value.fix


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (net(), "Sequential is a model"),
        (object(), "object cannot be trained"),
        (3, "int cannot be"),
    ],
)
def test_what_is_written_in_no_style_is_told_with_the_styles(thing: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Engine(thing, loader(), epochs=1)

    assert "Supervised" in caught.value.fix or "train_batch" in caught.value.fix
