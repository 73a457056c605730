"""Optimizer state by name: saved, loaded into a fresh optimizer, it goes on bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.optimizer_state import (
    idle_optimizer,
    load_optimizer_state,
    may_fuse,
    optimizer_state,
)
from assay.engine.checkpoint.saver import Saver

Make = Callable[[nn.Module], Optimizer]


class Net(nn.Module):
    """Parameters that are only matrices, as some optimizers want them, unless `bias`."""

    def __init__(self, *, bias: bool = True, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4, sparse=sparse)
        self.first = nn.Linear(4, 4, bias=bias)
        self.second = nn.Linear(4, 3, bias=bias)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.tanh(self.first(self.embedding(words))))
        return out


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    """Update after update, on data that depends on the step alone."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        words = torch.randint(0, 6, (8,), generator=generator)

        def closure(words: torch.Tensor = words) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = (model(words) ** 2).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)


def weights(model: nn.Module) -> list[list[Any]]:
    return [parameter.detach().view(torch.int32).tolist() for parameter in model.parameters()]


def whole_and_resumed(
    make: Make, folder: Path, model: Callable[[], nn.Module] = Net
) -> tuple[Any, Any]:
    """Weights after six steps, and after three, a checkpoint, and three more in fresh objects."""
    torch.manual_seed(0)
    whole = model()
    start = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    train(whole, make(whole), range(6))

    first, again = model(), model()
    first.load_state_dict(start)
    optimizer = make(first)
    train(first, optimizer, range(3))
    saver = Saver(folder)
    saver.save(
        {"model": first.state_dict(), "optimizer": optimizer_state(optimizer, first)}, Where(step=3)
    )
    parts = saver.load()
    again.load_state_dict(parts["model"])
    optimizer = make(again)
    load_optimizer_state(optimizer, again, parts["optimizer"])
    train(again, optimizer, range(3, 6))
    return weights(whole), weights(again)


OPTIMIZERS: dict[str, Make] = {
    "Adadelta": lambda m: torch.optim.Adadelta(m.parameters(), lr=0.5),
    "Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=0.1),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1, lr_decay=0.1),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.1, amsgrad=True),
    "Adam, capturable rate": lambda m: torch.optim.Adam(
        m.parameters(), lr=torch.tensor(0.1), foreach=False
    ),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.1),
    "AdamW, fused": lambda m: torch.optim.AdamW(m.parameters(), lr=0.1, fused=True),
    "AdamW, groups": lambda m: torch.optim.AdamW(
        [
            {"params": m.first.parameters(), "lr": 0.2},
            {"params": [*m.embedding.parameters(), *m.second.parameters()]},
        ],  # type: ignore[list-item]
        lr=0.1,
        betas=(0.8, 0.9),
    ),
    "AdamW, names": lambda m: torch.optim.AdamW(m.named_parameters(), lr=0.1),
    "Adamax": lambda m: torch.optim.Adamax(m.parameters(), lr=0.1),
    "ASGD": lambda m: torch.optim.ASGD(m.parameters(), lr=0.1, t0=2),
    "LBFGS": lambda m: torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=3),
    "LBFGS, line search": lambda m: torch.optim.LBFGS(
        m.parameters(), max_iter=3, line_search_fn="strong_wolfe"
    ),
    "NAdam": lambda m: torch.optim.NAdam(m.parameters(), lr=0.1),
    "RAdam": lambda m: torch.optim.RAdam(m.parameters(), lr=0.1),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.1, centered=True, momentum=0.5),
    "Rprop": lambda m: torch.optim.Rprop(m.parameters(), lr=0.1),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "SGD, plain": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_for_bit_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(OPTIMIZERS[name], tmp_path)

    assert resumed == whole


def test_an_optimizer_of_matrices_goes_on_bit_for_bit(tmp_path: Path) -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")

    whole, resumed = whole_and_resumed(
        lambda model: torch.optim.Muon(model.parameters(), lr=0.1),
        tmp_path,
        lambda: Net(bias=False),
    )

    assert resumed == whole


def test_an_optimizer_of_sparse_gradients_goes_on_bit_for_bit(tmp_path: Path) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(6, 4, sparse=True)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.embedding(words)
            return out

    whole, resumed = whole_and_resumed(
        lambda m: torch.optim.SparseAdam(m.parameters(), lr=0.1), tmp_path, Words
    )

    assert resumed == whole


def test_every_optimizer_of_torch_is_tested_here() -> None:
    there = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }

    assert there <= {name.split(",")[0] for name in OPTIMIZERS} | {"Muon", "SparseAdam"}


@pytest.mark.parametrize("fused", [False, True])
def test_weights_that_lie_channels_last_go_on_bit_for_bit(fused: bool, tmp_path: Path) -> None:
    def images() -> nn.Module:
        class Images(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

            def forward(self, words: torch.Tensor) -> torch.Tensor:
                out: torch.Tensor = self.conv(
                    torch.sin(torch.arange(8 * 75.0) * words.sum()).reshape(8, 3, 5, 5)
                )
                return out

        return Images()

    whole, resumed = whole_and_resumed(
        lambda m: torch.optim.AdamW(m.parameters(), lr=0.1, fused=fused), tmp_path, images
    )

    assert resumed == whole


# ------------------------------------------------------------------------------------------------------------- by name


def trained(*, seed: int = 0) -> tuple[Net, Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, optimizer, range(2))
    return model, optimizer


def test_state_is_named_as_in_the_model() -> None:
    model, optimizer = trained()

    saved = optimizer_state(optimizer, model)

    names = [name for name, _ in model.named_parameters()]
    assert list(saved["state"]) == names
    assert [group["params"] for group in saved["groups"]] == [names]
    assert torch.equal(
        saved["state"]["first.bias"]["exp_avg"], optimizer.state[model.first.bias]["exp_avg"]
    )


def test_state_finds_its_parameter_whatever_their_order() -> None:
    model, optimizer = trained()
    saved = optimizer_state(optimizer, model)
    other = torch.optim.Adam([*reversed(list(model.parameters()))], lr=0.5)

    load_optimizer_state(other, model, saved)

    for name, parameter in model.named_parameters():
        assert torch.equal(
            other.state[parameter]["exp_avg"], optimizer.state[parameter]["exp_avg"]
        ), name
    assert other.param_groups[0]["lr"] == 0.1
    assert [id(p) for p in other.param_groups[0]["params"]] == [
        id(p) for p in reversed(list(model.parameters()))
    ]


def test_settings_find_their_group_whatever_their_order() -> None:
    model = Net()
    weights, biases = (
        [model.first.weight, model.second.weight],
        [model.first.bias, model.second.bias],
    )
    optimizer = torch.optim.SGD(
        [{"params": weights, "lr": 0.1}, {"params": biases, "lr": 0.2}], weight_decay=0.5
    )
    swapped = torch.optim.SGD(
        [{"params": biases[::-1], "lr": 9.0}, {"params": weights[::-1], "lr": 9.0}]
    )

    load_optimizer_state(swapped, model, optimizer_state(optimizer, model))

    assert [(group["lr"], group["weight_decay"]) for group in swapped.param_groups] == [
        (0.2, 0.5),
        (0.1, 0.5),
    ]
    assert swapped.param_groups[0]["params"] == biases[::-1]


def test_parameters_that_are_not_of_the_model_are_told_by_their_place() -> None:
    model, extra = nn.Linear(1, 1), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [extra]}], lr=0.1)

    saved = optimizer_state(optimizer, model)

    assert [group["params"] for group in saved["groups"]] == [["weight", "bias"], ["group1.0"]]


def test_state_of_other_parameters_is_refused_by_their_names() -> None:
    model, optimizer = trained()
    saved = optimizer_state(optimizer, model)
    fewer = torch.optim.Adam([p for name, p in model.named_parameters() if name != "first.bias"])
    before = fewer.state_dict()

    with pytest.raises(CheckpointError, match=r"trains other parameters: first\.bias\."):
        load_optimizer_state(fewer, model, saved)

    assert fewer.state_dict() == before


def test_state_of_other_groups_is_refused() -> None:
    model, optimizer = trained()
    saved = optimizer_state(optimizer, model)
    split = torch.optim.Adam(
        [{"params": model.first.parameters()}, {"params": [*model.second.parameters()]}]
    )
    split.add_param_group({"params": model.embedding.parameters()})

    with pytest.raises(
        CheckpointError, match=r"no group of these parameters: first\.bias, first\.weight\."
    ):
        load_optimizer_state(split, model, saved)


def test_an_idle_optimizer_can_be_stepped_and_does_nothing() -> None:
    optimizer = idle_optimizer()

    optimizer.step()
    optimizer.zero_grad()

    assert [group["lr"] for group in optimizer.param_groups] == [0.0]


def test_an_update_is_fused_where_torch_can_and_nobody_says_otherwise() -> None:
    class Own(torch.optim.AdamW):
        """One that may do anything in its update."""

    model, sparse = nn.Linear(1, 1), nn.Embedding(2, 2, sparse=True)
    odd = nn.ParameterList([nn.Parameter(torch.zeros(1, dtype=torch.complex64))])
    elsewhere = nn.Linear(1, 1, device="meta")

    assert may_fuse(torch.optim.AdamW, model, {"type", "lr"})
    assert may_fuse(torch.optim.SGD, model, ())
    for kind in (torch.optim.NAdam, Own, torch.optim.Adam(model.parameters()), dict):
        assert not may_fuse(kind, model, ())
    for written in ("fused", "foreach", "capturable", "differentiable"):
        assert not may_fuse(torch.optim.AdamW, model, {written})
    for other in (sparse, odd, elsewhere):
        assert not may_fuse(torch.optim.AdamW, other, ())


@pytest.mark.parametrize(
    ("before", "after"), [("AdamW", "SGD"), ("SGD", "AdamW"), ("Adam", "Adagrad"), ("Rprop", "SGD")]
)
def test_the_state_of_another_class_is_refused(before: str, after: str) -> None:
    model = Net()
    saved = optimizer_state(getattr(torch.optim, before)(model.parameters(), lr=0.1), model)

    with pytest.raises(CheckpointError, match=f"not of {after}, which has ") as caught:
        load_optimizer_state(getattr(torch.optim, after)(model.parameters(), lr=0.1), model, saved)

    assert "assay run CONFIG --from RUN" in caught.value.fix


def test_a_state_of_an_older_torch_or_under_another_scheduler_is_taken() -> None:
    model = Net()
    first = torch.optim.AdamW(model.parameters(), eps=1e-4)
    torch.optim.lr_scheduler.OneCycleLR(first, 0.1, total_steps=9)
    cycled = optimizer_state(first, model)
    older = optimizer_state(torch.optim.AdamW(model.parameters(), eps=1e-4), model)
    del older["groups"][0]["decoupled_weight_decay"]

    for state in (cycled, older):
        optimizer = torch.optim.AdamW(model.parameters())
        torch.optim.swa_utils.SWALR(optimizer, 0.01)
        load_optimizer_state(optimizer, model, state)

        assert optimizer.param_groups[0]["eps"] == 1e-4
