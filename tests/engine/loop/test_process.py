"""Templates of a process, which interpret a batch, and the errors for wrong ones."""

from __future__ import annotations

import random
import weakref
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import (
    Accuracy,
    Engine,
    Evaluate,
    Instance,
    OptimizerStep,
    Process,
    Supervised,
    evaluate,
)
from assay.engine.loop.bus import on
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import engine, hard_net, loader, net, points, same_bits, supervised, weights_of


def batch(size: int = 4) -> list[Tensor]:
    return list(points(size).tensors)


# ----------------------------------------------------------------------------------------------------------- templates


@pytest.mark.row("D13")
def test_a_training_step_gives_gradients_and_changes_no_weight() -> None:
    process = supervised()
    before = weights_of(process.model)
    process.backward.begin(None)

    output = process.training_step(batch())

    assert same_bits(weights_of(process.model), before)
    assert all(parameter.grad is not None for parameter in process.model.parameters())
    assert output.keys() == {"pred", "target", "loss"}


def test_an_output_that_nobody_reads_is_gone_before_the_backward_pass() -> None:
    kept: list[Any] = []

    class Watched(Supervised):
        def forward_step(self, batch: Any) -> Any:
            loss, output = super().forward_step(batch)
            self.seen = weakref.ref(output["pred"])
            return loss, output

    class Looks(OptimizerStep):
        def __call__(self, loss: Any) -> None:
            kept.append(process.seen() is not None)

    model = net()
    backward = Looks(torch.optim.SGD(model.parameters()))
    process = Watched(model, nn.MSELoss(), backward=backward)

    assert process.training_step(batch()) is not None
    process.keeps_output = False
    assert process.training_step(batch()) is None

    assert kept == [True, False]


def test_on_an_accelerator_an_output_is_kept_for_handlers_and_steps_of_others() -> None:
    class Own(Supervised):
        def training_step(self, batch: Any) -> Any:
            return super().training_step(batch)

    def needs(kind: type[Supervised] = Supervised, device: str = "cuda", **more: Any) -> bool:
        model = net()
        process = kind(model, nn.MSELoss(), torch.optim.SGD(model.parameters()))
        return Engine(process, loader(4, 2), device=device, **more).needs_output

    evaluation = Evaluate({"valid": loader(4, 2)}).handlers()
    assert needs(device="cpu") and needs(Own)
    assert not needs() and not needs(handlers=evaluation)
    assert needs(handlers=[on("step_end")(lambda state: None)])


@pytest.mark.row("D14")
def test_a_validation_step_gives_an_output_without_graph_and_no_gradients() -> None:
    class Attached(Supervised):
        def forward_step(self, batch: Any) -> Any:
            inputs, target = batch
            pred = self.model(inputs)
            return self.criterion(pred, target), {"pred": pred}

    model = net()
    process = Attached(model, nn.MSELoss(), torch.optim.SGD(model.parameters()))
    process.eval()

    output = process.validation_step(batch())

    assert not output["pred"].requires_grad and output["pred"].grad_fn is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.row("D17")
def test_eval_is_train_of_false() -> None:
    process = supervised(hard_net())

    process.eval()
    after_eval = [module.training for module in process.model.modules()]
    process.train()
    after_train = [module.training for module in process.model.modules()]
    process.train(False)

    assert not any(after_eval) and all(after_train)
    assert [module.training for module in process.model.modules()] == after_eval


@pytest.mark.row("D17")
def test_what_a_process_declares_about_its_modes_is_kept_to() -> None:
    """Running statistics stay frozen, from the beginning and after an evaluation."""

    class Frozen(Supervised):
        def train(self, mode: bool = True) -> None:
            super().train(mode)
            self.model[1].eval()  # type: ignore[operator, index]

    model = hard_net()
    process = Frozen(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    before = model[1].running_mean.clone()  # type: ignore[operator, union-attr]

    engine(process).run()

    assert torch.equal(model[1].running_mean, before)  # type: ignore[arg-type]
    assert model[0].training


class Told(Process):
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        self.model = net()
        self.backward = OptimizerStep(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.told: list[str] = []

    def forward_step(self, batch: Any) -> Any:
        self.told.append("forward_step")
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        return loss, (loss.detach(),)

    def training_step(self, batch: Any) -> Any:
        self.told.append("training_step")
        return super().training_step(batch)

    def validation_step(self, batch: Any) -> Any:
        self.told.append("validation_step")
        return super().validation_step(batch)

    def update(self, step: int) -> bool:
        self.told.append(f"update {step}")
        return super().update(step)

    def train(self, mode: bool = True) -> None:
        self.told.append(f"train {mode}")
        super().train(mode)


@pytest.mark.row("D18")
def test_training_calls_train_then_a_step_for_each_micro_batch_then_one_update() -> None:
    process = Told()

    state = engine(process, loader(10, 8, accumulate=2), epochs=1).run()

    two = ["training_step", "forward_step"] * 2
    assert process.told == [
        "train True",
        *two,
        "update 0",
        "training_step",
        "forward_step",
        "update 1",
    ]
    assert isinstance(state.output, tuple)


@pytest.mark.row("D18")
def test_evaluation_calls_eval_then_a_validation_step_for_each_batch() -> None:
    process = Told()

    results, samples = evaluate(process, loader(6, 4), split="valid")

    assert process.told == ["train False", *(["validation_step", "forward_step"] * 2)]
    assert (results, samples) == ({}, 6)  # a tuple has no `loss` by name, and there are no metrics


class Pair(nn.Module):
    """A criterion that gives a sum and its weight."""

    def forward(self, pred: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        error = (pred - target).square()
        return error.sum(), torch.tensor(error.numel())


def test_a_criterion_may_give_a_sum_and_its_weight() -> None:
    def trained(criterion: nn.Module) -> tuple[dict[str, Any], dict[str, float]]:
        model = net(dtype=torch.float64)
        process = Supervised(model, criterion, torch.optim.SGD(model.parameters(), lr=0.1))
        data = points(20, dtype=torch.float64).tensors
        train = [[part[:8] for part in data], [part[8:] for part in data]]
        output = engine(process, train, accumulate=2, epochs=3).run().output
        loss = output["loss"] if isinstance(output["loss"], tuple) else (output["loss"],)
        assert not any(part.requires_grad for part in loss)
        results, _ = evaluate(process, [data], split="valid")
        return weights_of(model), results

    (pair, measured), (mean, expected) = trained(Pair()), trained(nn.MSELoss())

    assert all(torch.allclose(pair[name], mean[name], rtol=0, atol=1e-12) for name in mean)
    assert measured == pytest.approx(expected, rel=1e-12)


def test_supervised_without_an_optimizer_is_enough_to_evaluate() -> None:
    process = Supervised(net(), nn.CrossEntropyLoss(), metrics={"acc": Accuracy()})
    inputs, _ = points(6).tensors

    results, _ = evaluate(process, [(inputs, torch.tensor([0, 1, 0, 1, 0, 1]))], split="test")

    assert results.keys() == {"test/loss", "test/acc"}


def test_any_pair_of_input_and_target_will_do() -> None:
    Named = namedtuple("Named", ["x", "y"])
    inputs, target = batch()

    outputs = [
        supervised().forward_step(kind)[1]
        for kind in ((inputs, target), [inputs, target], Named(inputs, target))
    ]

    assert all(same_bits(output, outputs[0]) for output in outputs)


# --------------------------------------------------------------------------------------------- batches with named parts


@dataclass
class Pixels:
    image: Any
    label: Any
    place: Any = 0


Triple = namedtuple("Triple", "image label place")


@pytest.mark.parametrize(
    ("input", "target", "made"),
    [
        ("image", "label", lambda x, y: {"image": x, "label": y, "place": 0}),
        ("image", "label", lambda x, y: Pixels(x, y)),
        ("image", "label", lambda x, y: Triple(x, y, 0)),
        ("image", "label", lambda x, y: SimpleNamespace(image=x, label=y)),
        ("image", "label", lambda x, y: Instance(image=x, label=y)),
        (1, 2, lambda x, y: (0, x, y)),
        (1, 0, lambda x, y: [y, x]),
    ],
    ids=["mapping", "dataclass", "named tuple", "namespace", "instance", "tuple", "list"],
)
def test_the_parts_of_a_batch_may_be_named(input: Any, target: Any, made: Any) -> None:
    model, given = net(), batch()
    expected = Supervised(model, nn.MSELoss()).validation_step(given)
    process = Supervised(model, nn.MSELoss(), input=input, target=target)

    output = process.validation_step(made(*given))

    assert same_bits(output, expected)
    assert same_bits(process.inference_step(made(*given)), {"pred": expected["pred"]})
    assert same_bits(process.inference_step(given[0]), {"pred": expected["pred"]})


def test_several_inputs_and_targets_are_several_arguments() -> None:
    class Two(nn.Module):
        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return one + other

    given = {
        "a": torch.ones(3, 2),
        "b": torch.ones(3, 2),
        "near": torch.zeros(3, 2),
        "far": torch.ones(3, 2),
    }
    process = Supervised(Two(), nn.TripletMarginLoss(), input=["a", "b"], target=["near", "far"])

    output = process.validation_step(given)

    expected = nn.functional.triplet_margin_loss(
        torch.full((3, 2), 2.0), given["near"], given["far"]
    )
    assert output["loss"] == expected
    assert output["target"] == (given["near"], given["far"])


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        (
            {"image": 1, "lable": 2},
            "has no 'label'; it is a mapping of image, lable",
            "did you mean `lable`?",
        ),
        ((1, 2), "has no 'label'; it is a tuple of 2", "Name a part that it has."),
    ],
)
def test_a_part_that_a_batch_has_not_is_named(given: Any, what: str, fix: str) -> None:
    process = Supervised(nn.Identity(), nn.MSELoss(), input="image", target="label")

    with pytest.raises(InputError) as caught:
        process.forward_step(given)

    assert what in caught.value.what and fix in caught.value.fix


def test_one_of_two_names_is_not_enough() -> None:
    with pytest.raises(InputError, match="which part of a batch is the input only"):
        Supervised(net(), nn.MSELoss(), input="image")


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("given", "shown", "fix"),
    [
        (None, "a NoneType", "Return such pairs"),
        (torch.zeros(2, 3), "a Tensor", "Return such pairs"),
        (
            {"image": 1, "label": 2},
            "a mapping of image, label",
            'input = "image", target = "label"',
        ),
        ((1, 2, 3), "a tuple of 3", "input = 0, target = 1"),
        (Pixels(1, 2, 3), "a Pixels of image, label, place", 'input = "image", target = "label"'),
        (
            Instance(x=torch.ones(2), y=torch.ones(2)),
            "a Instance of x, y",
            'input = "x", target = "y"',
        ),
        ([1], "a list of 1", "Return such pairs"),
    ],
)
def test_a_batch_that_is_no_pair_is_told_by_what_it_is(given: Any, shown: str, fix: str) -> None:
    with pytest.raises(InputError, match="batches of \\(input, target\\); this one is") as caught:
        supervised().forward_step(given)

    assert caught.value.what.endswith(f"{shown}.")
    assert fix in caught.value.fix and "Process" in caught.value.fix


def test_a_model_that_gives_more_than_a_tensor_is_named() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(InputError, match="Two gave a tuple of 2") as caught:
        Supervised(Two(), nn.MSELoss()).forward_step(batch())

    assert "tensor alone" in caught.value.fix


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "a NoneType"),
        (torch.ones(2), "a Tensor"),
        ({"loss": 1.0}, "a mapping of loss"),
        ((1, 2, 3), "a tuple of 3"),
        ([1.0, {}], "a list of 2"),
    ],
)
@pytest.mark.parametrize("step", ["training_step", "validation_step"])
def test_a_forward_step_that_returns_no_pair_is_told_what_it_returned(
    returned: Any, shown: str, step: str
) -> None:
    class Wrong(Supervised):
        def forward_step(self, batch: Any) -> Any:
            return returned

    with pytest.raises(InputError, match="it must return the pair \\(loss, output\\)") as caught:
        getattr(Wrong(net(), nn.MSELoss()), step)(batch())

    assert f"forward_step returned {shown};" in caught.value.what
    assert caught.value.where == "Wrong.forward_step"
    assert "return loss, {" in caught.value.fix


def test_a_forward_step_that_detaches_its_loss_is_told_in_its_first_step() -> None:
    class Detached(Supervised):
        def forward_step(self, batch: Any) -> Any:
            loss, output = super().forward_step(batch)
            return loss.detach(), output  # type: ignore[union-attr]

    model = net()

    with pytest.raises(InputError, match="The loss has no gradient") as caught:
        engine(Detached(model, nn.MSELoss(), torch.optim.SGD(model.parameters()))).run()

    assert "detached" in caught.value.fix


def test_a_criterion_that_keeps_every_sample_apart_is_told_the_shape() -> None:
    model = net()

    with pytest.raises(InputError, match=r"The loss has the shape \(8, 2\)"):
        engine(
            Supervised(model, nn.MSELoss(reduction="none"), torch.optim.SGD(model.parameters()))
        ).run()


# ---------------------------------------------------------------------------------------------------------- batch hook


class Mixup:
    """Mixes each sample with another one (Zhang et al. 2018); draws from all three generators."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def __call__(self, batch: Any) -> Any:
        inputs, target = batch
        share = 0.5 * (random.random() + float(np.random.rand()))
        order = torch.randperm(len(inputs))
        self.drawn.append(share)
        return inputs.lerp(inputs[order], share), target.lerp(target[order], share)


def mixed(hook: Any, *, dropped: list[Tensor] | None = None, **given: Any) -> Any:
    model = hard_net()
    if dropped is not None:
        model[3].register_forward_hook(lambda _module, _inputs, output: dropped.append(output == 0))
    process = supervised(model, batch_hook=hook)
    return engine(process, loader(24, 8, accumulate=2), **given)


@pytest.mark.row("E26")
def test_a_batch_hook_is_called_once_for_each_micro_batch_and_never_in_an_evaluation() -> None:
    hook = Mixup()
    runs = mixed(hook, epochs=2)
    runs.bus.extend(Evaluate({"valid": loader(10, 4)}, every="1 step").handlers())

    runs.run()

    assert runs.state.step == 6
    assert len(hook.drawn) == runs.state.micro_step == 12
    assert len(set(hook.drawn)) == 12


def test_what_a_batch_hook_draws_depends_on_the_micro_step_alone() -> None:
    whole, parts, hooks = mixed(Mixup(), steps=6), mixed(Mixup(), steps=4), [Mixup(), Mixup()]
    whole.run()
    random.seed(1), np.random.seed(1)
    parts.run()
    goes_on = mixed(hooks[1], steps=6)
    restore(goes_on, capture_state(parts))
    goes_on.run()

    assert same_bits(weights_of(goes_on.process.model), weights_of(whole.process.model))
    assert hooks[1].drawn == whole.process.batch_hook.drawn[-len(hooks[1].drawn) :]


def test_a_batch_hook_changes_no_other_draw() -> None:
    seen: list[list[Tensor]] = [[], []]
    inside: list[Any] = []
    for hook, dropped in zip(
        (None, lambda batch: inside.append(torch.rand(1)) or batch), seen, strict=True
    ):
        mixed(hook, dropped=dropped, steps=3).run()

    assert len(inside) == 6
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_a_method_of_a_process_can_be_its_batch_hook_and_must_return_the_batch() -> None:
    class Mixing(Supervised):
        def batch_hook(self, batch: Any) -> Any:  # type: ignore[override]
            return None

        def __init__(self, model: nn.Module) -> None:
            self.model, self.criterion, self.metrics = model, nn.MSELoss(), {}
            self.backward = OptimizerStep(torch.optim.SGD(model.parameters()))

    with pytest.raises(InputError, match="The batch_hook returned nothing"):
        engine(Mixing(net())).run()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"model": nn.Linear}, "The model of Supervised is the class Linear, not an object of it."),
        ({"criterion": nn.MSELoss}, "The criterion of Supervised is the class MSELoss"),
        ({"criterion": nn.MSELoss}, r"fix: Write MSELoss\(...\)."),
        ({"criterion": "mse"}, "The criterion of Supervised cannot be called: it is 'mse'."),
        ({"optimizer": torch.optim.SGD}, "The optimizer of Supervised is the class SGD"),
        ({"optimizer": 0.1}, "The optimizer of Supervised is no optimizer: it is 0.1."),
    ],
)
def test_a_part_of_another_kind_is_refused_when_it_is_given(
    given: dict[str, Any], text: str
) -> None:
    model = net()
    parts = {
        "model": model,
        "criterion": nn.MSELoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }

    with pytest.raises(InputError, match=text):
        Supervised(**{**parts, **given})


class Scaled(nn.MSELoss):
    """Criterion with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        return super().forward(pred * self.scale, target)


@pytest.mark.parametrize("fault", ["criterion", "model", ""])
def test_a_parameter_that_gets_gradients_and_is_in_no_optimizer_is_told_once(fault: str) -> None:
    model, criterion = hard_net(), Scaled()
    teacher = hard_net()  # it gets no gradients
    own = [*model.parameters(), *criterion.parameters()]
    left = {"criterion": [criterion.scale], "model": list(model[-1].parameters()), "": []}[fault]
    trained = [each for each in own if not any(each is one for one in left)]
    process = Supervised(model, criterion, torch.optim.SGD(trained, lr=0.01))
    process.teacher = teacher  # type: ignore[attr-defined]
    recorder = MemoryRecorder()

    engine(process, recorder=recorder).run()

    told = [fact.message for fact in recorder.facts if isinstance(fact, Warned)]
    last = len(model) - 1
    names = {"criterion": "criterion.scale", "model": f"model.{last}.weight, model.{last}.bias"}
    expected = [f"No optimizer has {names[fault]}, though the loss"] if fault else []
    assert [message.partition(" gives")[0] for message in told] == expected


class Centre(nn.Module):
    """Module that learns the mean of what it sees in training mode, with a part that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.frozen = nn.Dropout(0.5).eval()

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(target.detach().mean(), 0.5)
        return (self.frozen(pred) - target).square().mean()


class Taught(Supervised):
    """Process with a teacher beside its model, not put into eval mode."""

    def __init__(self, centre: Centre) -> None:
        model = net()
        super().__init__(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
        self.teachers = [centre]

    def forward_step(self, batch: Any) -> Any:
        loss, output = super().forward_step(batch)
        self.teachers[0](batch[1], batch[1])
        return loss, output


@pytest.mark.parametrize("place", ["criterion", "teacher"])
def test_no_module_of_a_process_learns_from_what_is_evaluated_and_each_keeps_its_mode(
    place: str,
) -> None:
    centre = Centre()
    process = supervised() if place == "criterion" else Taught(centre)
    if place == "criterion":
        process.criterion = centre

    means, seen = [], []
    runs = engine(process, handlers=Evaluate({"valid": loader(split="valid")}).handlers())
    runs.on("step_end")(lambda: means.append(float(centre.mean)))
    runs.on("eval_begin")(lambda: seen.append((centre.training, float(centre.mean))))
    runs.on("eval_end")(lambda: seen.append((centre.training, float(centre.mean))))
    evaluate(process, loader(split="valid"), split="valid")
    assert float(centre.mean) == 0 and centre.training
    runs.run()

    assert seen == [(False, mean) for mean in (means[2], means[2], means[5], means[5])]
    assert (centre.training, centre.frozen.training) == (True, False)
    assert len(set(means)) == 6


def test_the_eval_of_a_process_has_the_last_word_on_modes() -> None:
    class WithDropout(Supervised):
        def eval(self) -> None:
            super().eval()
            self.dropout.train()

    model = hard_net()
    process = WithDropout(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    process.dropout = nn.Dropout()
    modes = []
    runs = engine(process, handlers=Evaluate({"valid": loader(split="valid")}).handlers())
    runs.on("eval_step_end")(lambda: modes.append((model.training, process.dropout.training)))

    runs.run()

    assert set(modes) == {(False, True)}
