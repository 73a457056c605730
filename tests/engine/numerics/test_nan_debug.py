"""The first non-finite value is found in its module, parameter or data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.engine import Loader, MultiOptimizerStep, NonFiniteError, OptimizerStep, Process
from assay.engine.numerics.nan_debug import NOWHERE, first_non_finite
from engine.toys import engine, points, same_bits, supervised, weights_of


class Through(nn.Module):
    """Passes on its input; `forward_by` and `backward_by` change what goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_by = self.backward_by = 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.forward_by
        if self.backward_by != 1.0:
            x = Times.apply(x, self.backward_by)  # type: ignore[no-untyped-call]
        return x


class Times(torch.autograd.Function):
    """One forward, a factor backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.factor, None


class Residual(nn.Module):
    """Adds something between its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.added = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) + self.added)  # type: ignore[no-any-return]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Through()), nn.Linear(4, 2))


def where(spoil: Callable[[Any], None], *, network: nn.Module | None = None, **given: Any) -> str:
    process = supervised(network or model(), **given)
    runs = engine(process, Loader(points(16), batch_size=8, accumulate=2))
    runs.on("step_end")(lambda state: state.step == 1 and spoil(process))
    before: list[Any] = []
    runs.on("step_end")(lambda: before.append(weights_of(process.model)))

    with pytest.raises(NonFiniteError) as caught:
        runs.run()

    assert runs.state.step == 1
    assert all(weight.grad is None for weight in process.model.parameters())
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in process.model.modules()
    )
    return caught.value.where


def set_on(name: str, attribute: str, value: float) -> Callable[[Any], None]:
    return lambda process: setattr(process.model.get_submodule(name), attribute, value)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (set_on("1.1", "forward_by", math.inf), "the output of 1.1 (Through) (inf)"),
        (set_on("1.1", "forward_by", math.nan), "the output of 1.1 (Through) (nan)"),
        (
            set_on("1.1", "backward_by", math.nan),
            "the gradient that 1.1 (Through) passes back (nan)",
        ),
        (
            lambda process: setattr(process, "criterion", Spoilt()),
            "the output of criterion (Spoilt) (nan)",
        ),
    ],
)
def test_the_module_is_named(spoil: Callable[[Any], None], expected: str) -> None:
    assert where(spoil) == expected


class Spoilt(nn.Module):
    reduction = "mean"

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        return (pred - target).square().mean() * math.nan


def test_what_is_computed_between_modules_is_told_by_the_next_one() -> None:
    torch.manual_seed(0)
    spoil = set_on("", "added", math.nan)

    told = where(spoil, network=Residual())

    assert (
        told
        == "what comes to second (Linear), from the code between it and the module before (nan)"
    )


@dataclass
class Hidden:
    states: Tensor


class Encodes(nn.Module):
    factor = 1.0

    def forward(self, x: Tensor) -> Hidden:
        return Hidden(x * self.factor)


class Gives(nn.Module):
    """A model whose encoder gives a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encodes()
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(x).states)  # type: ignore[no-any-return]


def test_a_module_that_gives_a_dataclass_is_named() -> None:
    def spoil(process: Any) -> None:
        process.model.encoder.factor = math.nan

    told = where(spoil, network=Gives())

    assert told == "the output of encoder (Encodes) (nan)"


def test_the_parameter_whose_gradient_breaks_is_named() -> None:
    network = model()
    spoil = lambda process: process.model[2].bias.register_hook(lambda grad: grad / 0.0)  # noqa: E731

    assert where(spoil, network=network).startswith("the gradient of 2.bias")


class Penalized(Process):
    """Cross entropy, whose labels may all be ignored, with a penalty that has a gradient."""

    def __init__(self, kind: str) -> None:
        self.model = model()
        self.backward: Any = OptimizerStep(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.kind = kind
        if kind == "of several optimizers":
            self.backward = MultiOptimizerStep({"one": self.backward})

    def forward_step(self, batch: Any) -> Any:
        pred = self.model(batch[0])
        labels = torch.full((len(pred),), -100)
        loss = nn.functional.cross_entropy(pred, labels) + pred.square().mean()
        losses = {"one": loss}
        return loss if self.kind == "alone" else losses, {}


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("alone", "the loss,"),
        ("by name", "the loss one,"),
        ("of several optimizers", "the loss one,"),
    ],
)
def test_a_loss_of_finite_outputs_is_named_where_it_is_not_finite(
    kind: str, said: str, deferred: bool
) -> None:
    runs = engine(Penalized(kind), deferred=deferred)

    with pytest.raises(NonFiniteError, match="nan at step 1") as caught:
        runs.run()

    assert caught.value.where == f"{said} from outputs of modules that are finite (nan)"


def test_data_that_is_not_finite_is_told_by_its_place() -> None:
    data = points(16)
    data.tensors[1][13, 0] = math.inf
    runs = engine(supervised(), Loader(data, batch_size=8, accumulate=2))

    with pytest.raises(NonFiniteError) as caught:
        runs.run()

    assert (
        caught.value.where
        == "the data: batch[1] of micro-batch 2 holds inf, in sample 13 of data.train"
    )
    assert "that sample" in caught.value.fix


def test_a_value_that_does_not_come_again_is_said_to_have_another_cause() -> None:
    process = supervised()

    assert first_non_finite(process, lambda: None) == NOWHERE


def test_the_step_draws_the_same_when_it_is_done_again() -> None:
    """Dropout that drops all but one value: only the same draw spoils the step once more."""

    class Rare(nn.Module):
        drawn: list[float]

        def forward(self, x: Tensor) -> Tensor:
            draw = torch.rand(()).item()
            self.drawn.append(draw)
            return x * (math.nan if len(self.drawn) > 2 and draw == self.drawn[2] else 1.0)

    rare = Rare()
    rare.drawn = []
    process = supervised(nn.Sequential(nn.Linear(4, 2), rare))
    before = weights_of(process.model)

    with pytest.raises(NonFiniteError) as caught:
        runs = engine(process)
        runs.run()

    assert rare.drawn[2] == rare.drawn[3] and len(rare.drawn) == 4
    assert caught.value.where == "the output of 1 (Rare) (nan)"
    assert not same_bits(weights_of(process.model), before)  # two steps were taken


class Masked(nn.Module):
    """Adds a mask of the batch to its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.pick, self.factor = nn.Linear(4, 2), Pick(), 1.0

    def forward(self, batch: Tensor) -> Tensor:
        return self.pick(self.scores(batch[:, :4]), batch[:, 4:]) * self.factor  # type: ignore[no-any-return]


class Pick(nn.Module):
    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores + mask).softmax(1)


def test_a_mask_of_minus_infinity_is_not_blamed() -> None:
    process = supervised(Masked())
    mask = torch.tensor([[0.0, -math.inf]]).expand(16, 2)
    data = torch.utils.data.TensorDataset(
        torch.cat([points(16).tensors[0], mask], 1), torch.zeros(16, 2)
    )
    runs = engine(process, Loader(data, batch_size=8))
    runs.on("step_end")(lambda: setattr(process.model, "factor", math.nan))

    with pytest.raises(NonFiniteError) as caught:
        runs.run()

    assert caught.value.where == "the output of model (Masked) (nan)"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_is_looked_into_as_well() -> None:
    network = model()
    network.compile(backend="eager")

    assert (
        where(set_on("1.1", "forward_by", math.nan), network=network)
        == "the output of 1.1 (Through) (nan)"
    )
    assert network._compiled_call_impl is not None
