"""A criterion gets its arguments by name from the batch and from what the model returns."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from assay.core.errors import InputError
from assay.engine import Accuracy, Instance, Supervised, evaluate
from assay.engine.optim.criterion import CriterionCall, is_by_position
from engine.toys import engine, net, points, same_bits, weights_of

PREDICTED, TARGET, MASK = object(), object(), object()


def bound(
    criterion: Callable[..., Any],
    batch: Any,
    *,
    pred: Any = PREDICTED,
    targets: tuple[Any, ...] = (TARGET,),
    names: tuple[str, ...] = ("label",),
    **arguments: str,
) -> Any:
    """What a criterion is called with; `label` is the target of the process, `image` its input."""
    call = CriterionCall(criterion, arguments, inputs=("image",), targets=names)
    return returned(call, pred, targets, batch)


def returned(call: CriterionCall, *given: Any) -> Any:
    """What the criterion returns for what it is called with."""
    args, named = call.bind(*given)
    return call.criterion(*args, **named)


BATCH = {"image": "image", "label": TARGET, "mask": MASK}


def focal(pred: Any, label: Any, mask: Any) -> Any:
    return pred, label, mask


@pytest.mark.parametrize(
    "criterion",
    [
        lambda pred, label, mask: (pred, label, mask),
        lambda mask, label, pred: (pred, label, mask),
        lambda y_true, y_pred, mask: (y_pred, y_true, mask),
        lambda scores, label, mask: (scores, label, mask),
        lambda scores, truth, mask: (scores, truth, mask),
        lambda scores, truth, margin=1.0, mask=None: (scores, truth, mask),
        lambda *, mask, output, target: (output, target, mask),
        lambda scores, /, label, *, mask: (scores, label, mask),
        lambda input, label, **more: (input, label, MASK),
    ],
)
@pytest.mark.row("B25")
def test_arguments_get_the_fields_of_their_names_and_the_rest_goes_by_position(
    criterion: Callable[..., Any],
) -> None:
    assert bound(criterion, BATCH) == (PREDICTED, TARGET, MASK)


@pytest.mark.parametrize("kind", ["mapping", "dataclass", "named tuple", "instance"])
def test_batch_and_output_of_any_kind_with_names_will_do(kind: str) -> None:
    @dataclass
    class Parts:
        one: Any
        other: Any

    kinds: dict[str, Callable[..., Any]] = {
        "mapping": dict,
        "dataclass": Parts,
        "named tuple": namedtuple("Pair", "one other"),
        "instance": Instance,
    }
    batch, output = kinds[kind](one=1, other=2), {"boxes": 3, "logits": 4}

    def criterion(logits: Any, other: Any, boxes: Any) -> Any:
        return logits, other, boxes

    call = CriterionCall(criterion, {}, inputs=("one",))
    assert returned(call, output, (), batch) == (4, 2, 3)


def test_a_criterion_of_no_names_gets_prediction_and_target_by_position() -> None:
    assert bound(lambda x, y: (x, y), [1, TARGET]) == (PREDICTED, TARGET)
    assert bound(lambda *given: given, [1, TARGET]) == (PREDICTED, TARGET)
    assert bound(lambda x, y=None: (x, y), [1, TARGET]) == (PREDICTED, TARGET)
    two = bound(lambda x, y, z: (x, y, z), [1, 2, 3], targets=(2, 3), names=("a", "b"))
    assert two == (PREDICTED, 2, 3)


def test_the_whole_output_goes_to_a_parameter_that_is_called_as_no_field_of_it() -> None:
    output = {"boxes": 1, "classes": 2}

    assert bound(lambda outputs, label: (outputs, label), BATCH, pred=output) == (output, TARGET)


def test_what_the_process_calls_the_input_is_the_prediction_for_a_parameter_input() -> None:
    batch = {"input": 1, "target": TARGET}
    call = CriterionCall(lambda input, target: (input, target), {}, inputs=("input",))

    assert returned(call, PREDICTED, (TARGET,), batch) == (PREDICTED, TARGET)


def test_arguments_can_be_said() -> None:
    def criterion(a: Any, b: Any, c: Any = None) -> Any:
        return a, b, c

    assert bound(criterion, BATCH, b="pred", a="target") == (TARGET, PREDICTED, None)
    assert bound(criterion, BATCH, c="mask") == (PREDICTED, TARGET, MASK)
    output = {"logits": 1, "mask": 2}
    assert bound(criterion, BATCH, pred=output, a="logits", b="output.mask", c="batch.mask") == (
        1,
        2,
        MASK,
    )


@pytest.mark.parametrize(
    ("criterion", "output", "said", "fix"),
    [
        (
            lambda pred, label, masc: 0,
            PREDICTED,
            "needs `masc`: the batch has image, label, mask; the model returned a tensor",
            "did you mean `mask`?",
        ),
        (
            lambda logit, label: 0,
            {"logits": 1},
            "needs `logit`: the batch has image, label, mask; the model returned logits",
            "did you mean `logits`?",
        ),
        (
            lambda pred, label, mask: 0,
            {"pred": 1, "mask": 2},
            "`mask` of <lambda> may be the output of the model or the field `mask` of the batch",
            'mask = "output.mask"',
        ),
        (lambda label, mask: 0, PREDICTED, "not what the model returns", 'NAME = "pred"'),
        (lambda pred: 0, PREDICTED, "not the target, and nothing of the batch", "criterion_args"),
    ],
)
@pytest.mark.row("B25")
def test_a_name_that_fits_nothing_is_told_with_what_there_is(
    criterion: Any, output: Any, said: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        bound(criterion, BATCH, pred=output)

    assert said in caught.value.what and fix in caught.value.fix


def test_a_field_that_may_be_the_prediction_is_told() -> None:
    with pytest.raises(InputError, match="may be the prediction") as caught:
        bound(lambda logits, label: 0, {**BATCH, "logits": 1})

    assert 'logits = "pred" }, or "batch.logits"' in caught.value.fix


def test_an_argument_or_a_source_that_is_not_there_is_told() -> None:
    with pytest.raises(InputError, match="focal takes no argument `maks`") as caught:
        bound(focal, BATCH, maks="mask")
    assert caught.value.where == "[process] criterion_args.maks"
    assert caught.value.fix == "did you mean `mask`?"

    with pytest.raises(InputError, match="`mask` of focal is to be `maks`") as caught:
        bound(focal, BATCH, mask="maks")
    assert caught.value.fix == "did you mean `mask`?"


class Own(nn.CrossEntropyLoss):
    def forward(self, pred: Tensor, label: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(pred, label)


class Kept(nn.CrossEntropyLoss):
    """A criterion of torch with another constructor."""


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        (nn.CrossEntropyLoss(), True),
        (Kept(), True),
        (F.mse_loss, True),
        (partial(F.cross_entropy, label_smoothing=0.1), True),
        (Own(), False),
        (focal, False),
    ],
)
def test_criteria_of_torch_are_called_by_position(criterion: Any, expected: bool) -> None:
    assert is_by_position(criterion) is expected


# --------------------------------------------------------------------------------- in a process


class WeightedFocal(nn.Module):
    """Focal loss (Lin et al. 2017) with settings, and three arguments of its call."""

    def __init__(self, alpha: float, gamma: float) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.tensor(alpha, dtype=torch.float64))
        self.register_buffer("gamma", torch.tensor(gamma, dtype=torch.float64))

    def forward(self, weight: Tensor, label: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        right = logits.log_softmax(1).gather(1, label[:, None])[:, 0]
        each = -self.alpha * (1 - right.exp()) ** self.gamma * right  # type: ignore[operator]
        return (each * weight).sum(), weight.sum()


class Named(nn.Module):
    """A model that returns its output by name."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(dtype=torch.float64)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(x), "norm": x.norm()}


def samples(size: int = 20) -> dict[str, Tensor]:
    inputs, _ = points(size, dtype=torch.float64).tensors
    weight = torch.arange(1, size + 1, dtype=torch.float64)
    return {"image": inputs, "label": inputs.sum(1).gt(0).long(), "weight": weight}


def cut(batch: Mapping[str, Tensor], *sizes: int) -> list[dict[str, Tensor]]:
    parts = {name: value.split(list(sizes)) for name, value in batch.items()}
    return [{name: each[i] for name, each in parts.items()} for i in range(len(sizes))]


def trained(batches: list[dict[str, Tensor]], accumulate: int = 1) -> Supervised:
    model = Named()
    process = Supervised(
        model,
        WeightedFocal(alpha=0.25, gamma=2.0),
        torch.optim.SGD(model.parameters(), lr=0.1),
        input="image",
        target="label",
        metrics={"acc": Accuracy()},
    )
    engine(process, batches, accumulate=accumulate, epochs=3).run()
    return process


@pytest.mark.row("B25")
def test_a_weight_that_is_bound_by_name_counts_the_same_however_the_batch_is_cut() -> None:
    whole, parts = trained([samples()]), trained(cut(samples(), 12, 8), accumulate=2)

    one, other = weights_of(whole.model), weights_of(parts.model)
    assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-12) for name in one)
    untrained = Named().state_dict()
    assert not same_bits(one, untrained)
    results, _ = evaluate(whole, [samples()], split="valid")
    in_parts, _ = evaluate(whole, cut(samples(), 3, 17), split="valid")
    assert results.keys() == {"valid/loss", "valid/acc"}
    assert in_parts == pytest.approx(results, rel=1e-12)


def test_the_output_holds_the_fields_of_the_model_and_its_prediction() -> None:
    output = trained([samples()]).validation_step(samples())

    assert output.keys() == {"logits", "norm", "pred", "target", "loss"}
    assert output["pred"] is output["logits"]
    inferred = trained([samples()]).inference_step({"image": samples()["image"]})
    assert inferred.keys() == {"logits", "norm", "pred"}


def test_a_target_may_be_left_out_where_the_criterion_has_all_by_name() -> None:
    def criterion(logits: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(logits, label)

    metrics = {"acc": Accuracy()}
    named = Supervised(Named(), criterion, input="image", metrics=metrics)  # type: ignore[arg-type]

    results, _ = evaluate(named, [samples()], split="valid")

    assert results.keys() == {"valid/loss", "valid/acc"}


def test_a_criterion_of_torch_takes_fields_that_are_said() -> None:
    said = Supervised(
        Named(),
        nn.CrossEntropyLoss(),
        input="image",
        target="label",
        criterion_args={"input": "logits", "target": "label"},
    )

    output = said.validation_step(samples())

    expected = F.cross_entropy(output["logits"], samples()["label"])
    assert torch.equal(output["loss"], expected)


def test_a_criterion_that_is_replaced_is_bound_anew() -> None:
    process = Supervised(net(dtype=torch.float64), focal, input="image", target="label")  # type: ignore[arg-type]
    process.criterion = lambda label, pred: (pred, label)
    batch = samples()

    with torch.no_grad():
        loss, output = process.forward_step(batch)

    assert torch.equal(loss[0], output["pred"]) and loss[1] is batch["label"]
