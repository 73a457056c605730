"""Optimizers as people write them: a resumed run has equal bits, or is refused before step 1."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError
from assay.engine import Engine, Memory, Save, Saver
from assay.engine.checkpoint.state_trials import try_optimizer_state
from engine.toys import engine, loader, net, supervised, weights_of

Made = Any


class Plain(Optimizer):
    """Base of those that differ in what they keep: `factor` changes with it."""

    def __init__(self, params: Any, lr: float = 0.1, **group: Any) -> None:
        super().__init__(params, {"lr": lr, **group})

    def factor(self, group: dict[str, Any], parameter: Tensor) -> float:
        return 1.0

    def begin(self) -> None: ...

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.begin()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rate = group["lr"] * self.factor(group, parameter)
                    parameter.add_(parameter.grad, alpha=-rate)


class GlobalStep(Plain):
    """A global step in the state, under a text, from the first step on."""

    def begin(self) -> None:
        self.state["step"] = self.state.get("step", 0) + 1

    def factor(self, group: Any, parameter: Tensor) -> float:
        return float(1 / self.state["step"])


class GlobalTensors(Plain):
    """Tensors and a history in the state, under texts and tuples."""

    def begin(self) -> None:
        self.state["scale"] = self.state.get("scale", torch.ones(())) * 0.9
        self.state["past", 1] = [*self.state.get(("past", 1), []), len(self.state)]

    def factor(self, group: Any, parameter: Tensor) -> float:
        return float(self.state["scale"]) / len(self.state["past", 1])


class InGroups(Plain):
    """Counters and histories in the groups, nested state by parameter."""

    def begin(self) -> None:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group.setdefault("past", deque(maxlen=3)).append(group["k"])

    def factor(self, group: Any, parameter: Tensor) -> float:
        own = self.state[parameter]
        own["seen"] = own.get("seen", 0) + 1
        own["nested"] = [torch.zeros_like(parameter), {"x": own["seen"]}, None, (1, 2)]
        return 1 / (sum(group["past"]) + own["nested"][1]["x"])


class Lookahead(Optimizer):
    """Slow weights kept beside those of another optimizer, with a state_dict of its own."""

    def __init__(self, base: Optimizer, k: int = 3, alpha: float = 0.5) -> None:
        self.base, self.k, self.alpha, self.n = base, k, alpha, 0
        super().__init__(base.param_groups, base.defaults)
        self.param_groups = base.param_groups
        self.slow = [[p.detach().clone() for p in g["params"]] for g in self.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.base.step()
        self.n += 1
        if self.n % self.k == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for p, q in zip(group["params"], slow, strict=True):
                    q.add_(p - q, alpha=self.alpha)
                    p.copy_(q)

    def state_dict(self) -> dict[str, Any]:
        return {**self.base.state_dict(), "slow": self.slow, "n": self.n}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.slow, self.n = state_dict["slow"], state_dict["n"]
        self.base.load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.param_groups = self.base.param_groups


class Forgetful(Lookahead):
    """One that says nothing of its slow weights."""

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)
        self.param_groups = self.base.param_groups


class TwoStates(Lookahead):
    """One whose state_dict has neither of torch's keys."""

    def state_dict(self) -> dict[str, Any]:
        return {"fast": self.base.state_dict(), "slow": self.slow, "n": self.n}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.slow, self.n = state_dict["slow"], state_dict["n"]
        self.base.load_state_dict(state_dict["fast"])
        self.param_groups = self.base.param_groups


class ByIdentity(Lookahead):
    """One whose keys are addresses of parameters, as a published Lookahead has them."""

    def state_dict(self) -> dict[str, Any]:
        slow = {
            id(p): q
            for group, row in zip(self.param_groups, self.slow, strict=True)
            for p, q in zip(group["params"], row, strict=True)
        }
        return {"fast": self.base.state_dict(), "slow": slow, "n": self.n}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.n = state_dict["n"]
        self.base.load_state_dict(state_dict["fast"])
        self.param_groups = self.base.param_groups
        for group, row in zip(self.param_groups, self.slow, strict=True):
            for p, q in zip(group["params"], row, strict=True):
                q.copy_(state_dict["slow"].get(id(p), q))


class Attribute(Plain):
    """A counter as an attribute."""

    t = 0

    def begin(self) -> None:
        self.t += 1

    def factor(self, group: Any, parameter: Tensor) -> float:
        return 1 / self.t


class OwnBuffers(Plain):
    """Momentum in a list beside the state."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.buffers = [torch.zeros_like(p) for g in self.param_groups for p in g["params"]]

    def begin(self) -> None:
        parameters = [p for g in self.param_groups for p in g["params"]]
        for buffer, parameter in zip(self.buffers, parameters, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(buffer.mul_(0.9).add_(parameter.grad))


class Noisy(Plain):
    """A step that draws from torch, which is keyed."""

    def factor(self, group: Any, parameter: Tensor) -> float:
        return 1 + float(torch.rand(()))


class OwnGenerator(Plain):
    """A step that draws from a generator of its own."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.draw = torch.Generator().manual_seed(0)

    def factor(self, group: Any, parameter: Tensor) -> float:
        return 1 + float(torch.rand((), generator=self.draw))


class Unloadable(Plain):
    """One that does not take what it gives."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise ValueError("param_groups of another kind")


class Restarting(torch.optim.Adam):
    """Adam of torch with restarts, counted in the groups."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            if group["count"] % 4 == 0:
                self.state.clear()
        return super().step(closure)


class Nested(Forgetful):
    """A wrapper around a wrapper: both say what they keep."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.base.state_dict(), "mine": [self.slow, self.n]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.slow, self.n = state_dict["mine"]
        self.base.load_state_dict(state_dict["inner"])
        self.param_groups = self.base.param_groups


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


EXACT: dict[str, Callable[[nn.Module], Made]] = {
    "global step": lambda m: GlobalStep(m.parameters()),
    "global tensors": lambda m: GlobalTensors(m.parameters()),
    "in groups": lambda m: InGroups(m.parameters()),
    "lookahead": lambda m: Lookahead(momentum(m)),
    "lookahead, rarely": lambda m: Lookahead(momentum(m), k=9),
    "two states": lambda m: TwoStates(momentum(m)),
    "nested": lambda m: Nested(Lookahead(torch.optim.Adam(m.parameters()), k=2)),
    "noisy": lambda m: Noisy(m.parameters()),
    "restarting": lambda m: Restarting(m.parameters()),
}
REFUSED: dict[str, Callable[[nn.Module], Made]] = {
    "forgetful": lambda m: Forgetful(momentum(m)),
    "forgetful, rarely": lambda m: Forgetful(momentum(m), k=9),
    "by identity": lambda m: ByIdentity(momentum(m)),
    "attribute": lambda m: Attribute(m.parameters()),
    "own buffers": lambda m: OwnBuffers(m.parameters()),
    "own generator": lambda m: OwnGenerator(m.parameters()),
    "unloadable": lambda m: Unloadable(m.parameters()),
}


def trained(make: Callable[[nn.Module], Made], folder: Path, *, stop_at: int = 0) -> Engine:
    model = net()
    runs = engine(supervised(model, optimizer=make(model)), loader(), epochs=4)
    runs.bus.extend(Save(Saver(folder), every="1 step").handlers())
    runs.bus.extend(Memory().handlers())
    runs.on("step_end")(lambda: runs.state.step == stop_at and runs.stop("left", interrupts=True))
    runs.resume(Saver(folder))
    runs.run()
    return runs


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("step", [1, 4])
def test_all_that_an_optimizer_gives_of_its_state_resumes(
    name: str, step: int, tmp_path: Path
) -> None:
    whole = trained(EXACT[name], tmp_path / "whole")
    trained(EXACT[name], tmp_path / "left", stop_at=step)
    resumed = trained(EXACT[name], tmp_path / "left")

    assert resumed.state.step == whole.state.step == 12
    mine, theirs = weights_of(resumed.process.model), weights_of(whole.process.model)
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", REFUSED)
def test_a_state_that_would_be_lost_is_refused_before_the_first_step(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        trained(REFUSED[name], tmp_path)

    assert type(REFUSED[name](net())).__name__ in str(caught.value)
    assert caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_trying_an_optimizer_changes_nothing_of_it(tmp_path: Path) -> None:
    model = net()
    optimizer = InGroups(model.parameters())
    optimizer.register_step_post_hook(lambda *_: pytest.fail("a hook was called"))
    before, draw = weights_of(model), torch.get_rng_state()

    try_optimizer_state(optimizer, "optimizer")

    assert not optimizer.state
    assert "k" not in optimizer.param_groups[0]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in weights_of(model).items())
    assert torch.equal(torch.get_rng_state(), draw)


class Uncopied(Plain):
    """One that nobody can copy."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.stream: Iterator[int] = (number for number in range(3))


class Needy(Plain):
    """One that works within a training only."""

    def begin(self) -> None:
        raise RuntimeError("no process group")


@pytest.mark.parametrize("kind", [Uncopied, Needy])
def test_what_cannot_be_tried_is_not_refused(kind: type[Plain]) -> None:
    try_optimizer_state(kind(net().parameters()), "optimizer")
