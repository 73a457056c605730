"""Deterministic switch: ops without a deterministic form are named, torch's flags restored."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.numerics.precision import deterministic, limits
from engine.toys import engine, net, same_bits, supervised, weights_of


class Putting(nn.Module):
    """An op of which torch knows no deterministic form, on any device."""

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.numel())
        return x.clone().put_(places, x.flatten().clone())


@pytest.mark.row("A82")
def test_an_op_without_a_deterministic_form_is_named_with_its_module() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Tanh(), Putting()), nn.Linear(8, 2))
    runs = engine(supervised(model))

    with pytest.raises(InputError) as caught, deterministic(model):
        runs.run()

    assert "`put_`" in caught.value.what and "deterministic is true" in caught.value.what
    assert caught.value.where == "1.1 (Putting)"
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.row("A33")
def test_inside_the_flags_of_torch_and_cublas_are_set_and_afterwards_what_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    with deterministic(net()):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"

    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_off_it_changes_nothing_and_on_it_lets_everything_else_pass() -> None:
    weights = []
    for enabled in (True, False):
        runs = engine(supervised(net()))
        with deterministic(runs.process.model, enabled=enabled):
            assert torch.are_deterministic_algorithms_enabled() == enabled
            runs.run()
        weights.append(weights_of(runs.process.model))

    assert same_bits(*weights)


def test_other_errors_stay_what_they_are_and_settings_of_before_come_back() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.raises(RuntimeError, match="size mismatch"), deterministic(net()):
            raise RuntimeError("size mismatch")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_is_at_fault_outside_of_the_model_is_not_put_down_to_it() -> None:
    with pytest.raises(InputError) as caught, deterministic(net()):
        Putting()(torch.ones(3))

    assert "backward" in caught.value.where


@pytest.mark.row("E52")
@pytest.mark.parametrize(
    ("device", "deterministic", "seeded", "is_told"),
    [
        ("cuda", False, True, True),
        ("cuda:1", False, True, True),
        ("mps", False, True, True),
        ("cuda", True, True, False),
        ("cuda", False, False, False),
        ("cpu", False, True, False),
        ("cpu", True, True, False),
    ],
)
def test_that_a_seed_may_not_be_enough_is_told_only_where_it_is_so(
    device: str, deterministic: bool, seeded: bool, is_told: bool
) -> None:
    told = limits(torch.device(device), deterministic=deterministic, seeded=seeded)

    assert bool(told) == is_told
    assert not told or ("deterministic = true" in told and device.split(":")[0] in told)
