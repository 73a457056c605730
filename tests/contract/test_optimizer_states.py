"""Every optimizer and scheduler of torch resumes from a checkpoint with the same bits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler, swa_utils

from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from assay.engine.checkpoint.saver import Saver

GIVEN: dict[str, list[dict[str, Any]]] = {
    "Adam": [
        {"amsgrad": True},
        {"fused": True},
        {"lr": torch.tensor(0.01)},
        {"betas": (0.8, 0.9), "capturable": False},
    ],
    "AdamW": [{"foreach": True}, {"fused": True, "weight_decay": 0.1}],
    "SGD": [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "fused": True}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
    "LBFGS": [{"max_iter": 3, "line_search_fn": "strong_wolfe"}],
}
MADE: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.01, anneal_epochs=4),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.ConstantLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[3],
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def classes(module: Any, base: type) -> dict[str, type]:
    found = {
        name: each
        for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, base)
    }
    return {
        name: each for name, each in found.items() if each is not base and not name.startswith("_")
    }


OPTIMIZERS = classes(torch.optim, Optimizer)
SCHEDULERS = classes(lr_scheduler, lr_scheduler.LRScheduler) | classes(
    swa_utils, lr_scheduler.LRScheduler
)
SCHEDULERS.pop("LRScheduler", None)
CASES = [(name, given) for name in OPTIMIZERS for given in [{}, *GIVEN.get(name, [])]]


class Flat(nn.Module):
    """Model of 2-d weights only, as some optimizers want, in embeddings, for sparse gradients."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(6, 3, sparse=sparse)
        self.out = nn.Embedding(6, 3, sparse=sparse)

    def forward(self, indices: Tensor) -> Tensor:
        return (self.table(indices) * self.out(indices)).square().mean()


def trained(name: str, given: dict[str, Any]) -> tuple[nn.Module, Optimizer]:
    model = Flat(sparse=name == "SparseAdam")
    copies = {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in given.items()
    }
    return model, OPTIMIZERS[name](model.parameters(), **{"lr": 0.05, **copies})


def train(model: nn.Module, optimizer: Optimizer, *steps: int) -> None:
    for step in steps:
        indices = torch.arange(step, step + 4) % 6

        def closure(indices: Tensor = indices) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(indices)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize("way", ["by name", "as torch has it"])
@pytest.mark.parametrize(
    ("name", "given"), CASES, ids=[f"{name}-{'-'.join(given)}" for name, given in CASES]
)
def test_every_optimizer_goes_on_from_a_checkpoint_with_the_same_bits(
    name: str, given: dict[str, Any], way: str, tmp_path: Path
) -> None:
    whole, optimizer = trained(name, given)
    train(whole, optimizer, 0, 1, 2)
    own = optimizer.state_dict() if way == "as torch has it" else optimizer_state(optimizer, whole)
    saver = Saver(tmp_path)
    saver.save({"model": whole.state_dict(), "optimizer": own}, Where(step=3))
    train(whole, optimizer, 3, 4, 5)

    parts = saver.load()
    resumed, again = trained(name, given)
    resumed.load_state_dict(parts["model"])
    if way == "as torch has it":
        again.load_state_dict(parts["optimizer"])
    else:
        load_optimizer_state(again, resumed, parts["optimizer"])
    train(resumed, again, 3, 4, 5)

    assert digest_state(resumed.state_dict()) == digest_state(whole.state_dict())
    assert digest_state(optimizer_state(again, resumed)) == digest_state(
        optimizer_state(optimizer, whole)
    )
    untrained = Flat(sparse=False)
    assert digest_state(untrained.state_dict()) != digest_state(whole.state_dict())


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_goes_on_from_a_checkpoint_with_the_same_rates(
    name: str, tmp_path: Path
) -> None:
    def made() -> tuple[Optimizer, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
        return optimizer, MADE[name](optimizer)

    def rates(optimizer: Optimizer, scheduler: Any, steps: int) -> list[Any]:
        out = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            out.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        return out

    optimizer, scheduler = made()
    rates(optimizer, scheduler, 4)
    saver = Saver(tmp_path)
    saver.save_checkpoint(4, {"optimizer": optimizer, "scheduler": scheduler})
    expected = rates(optimizer, scheduler, 4)

    other, again = made()
    saver.load(into={"optimizer": other, "scheduler": again})

    assert rates(other, again, 4) == expected
    assert len({rate for rate, _ in [*expected, *rates(*made(), 4)]}) > 1
