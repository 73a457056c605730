"""Parameter groups by rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from assay.core.errors import ArgumentError, InputError
from assay.core.ports import MemoryRecorder
from assay.engine import OptimizerStep, Supervised, WarmupLinear
from assay.engine.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from assay.engine.optim.groups import Groups, describe_groups
from engine.toys import engine, net


class RootNorm(nn.Module):
    """A normalisation layer that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 4)
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.MultiheadAttention(4, 1))
        self.norm = RootNorm()
        self.head = nn.Linear(4, 3, bias=False)
        self.head.weight = self.embed.weight


def grouped(*rules: dict[str, Any], model: nn.Module | None = None) -> dict[str, dict[str, Any]]:
    """The settings of each parameter by its name."""
    model = model or Net()
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        name_of[id(parameter)]: {
            key: value for key, value in group.items() if key not in ("params", "name")
        }
        for group in Groups(model, rules=rules)
        for parameter in group["params"]
    }


def test_norm_and_bias_are_known_by_their_kind() -> None:
    found = grouped({"kind": ["norm", "bias"], "weight_decay": 0.0})

    decayed = {name for name, settings in found.items() if not settings}
    assert decayed == {
        "embed.weight",
        "encoder.0.weight",
        "encoder.2.in_proj_weight",
        "encoder.2.out_proj.weight",
    }
    assert all(settings in ({}, {"weight_decay": 0.0}) for settings in found.values())
    assert len(found) == len(list(Net().parameters()))


def test_all_rules_count_and_a_later_one_over_an_earlier_one() -> None:
    found = grouped(
        {"match": "encoder.*", "lr": 0.1, "weight_decay": 0.5},
        {"kind": "norm", "weight_decay": 0.0},
        {"match": ["encoder.1.bias", "norm.*"], "lr": 0.2},
    )

    assert found["encoder.0.bias"] == {"lr": 0.1, "weight_decay": 0.5}
    assert found["encoder.1.weight"] == {"lr": 0.1, "weight_decay": 0.0}
    assert found["encoder.1.bias"] == {"lr": 0.2, "weight_decay": 0.0}
    assert found["norm.weight"] == {"weight_decay": 0.0, "lr": 0.2}
    assert found["embed.weight"] == {}


def test_a_shared_parameter_is_found_by_each_of_its_names() -> None:
    assert grouped({"match": "head.*", "lr": 0.3})["embed.weight"] == {"lr": 0.3}


def test_frozen_parts_are_in_no_group_and_get_no_gradient() -> None:
    model = Net()
    model.norm.weight.requires_grad_(False)

    found = grouped(
        {"match": "encoder.*", "frozen": True},
        {"match": "*.in_proj_*", "frozen": False},
        model=model,
    )

    assert set(found) == {"embed.weight", "encoder.2.in_proj_weight", "encoder.2.in_proj_bias"}
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == set(
        found
    )
    with pytest.raises(InputError, match="nothing to train"):
        grouped({"match": "*", "frozen": True})


@pytest.mark.parametrize(
    ("rule", "inside", "said", "fix"),
    [
        (
            {"match": "encodr.*", "lr": 1.0},
            ("rules", 1, "match"),
            "No parameter .* 'encodr",
            "`encoder.*`",
        ),
        (
            {"match": ["*", "zzz"], "lr": 1.0},
            ("rules", 1, "match"),
            "fits 'zzz'",
            "there are: embed.weight",
        ),
        ({"kind": "nrom", "lr": 1.0}, ("rules", 1, "kind"), "no kind 'nrom'", "`norm`"),
        ({"kind": 3, "lr": 1.0}, ("rules", 1, "kind"), "text or a list", ""),
        ({"lr": 1.0}, ("rules", 1), "chooses nothing", "match"),
        ({"kind": "norm"}, ("rules", 1), "does nothing", "weight_decay"),
        ({"kind": "norm", "frozen": "yes"}, ("rules", 1, "frozen"), "true or false", ""),
    ],
)
def test_a_rule_that_is_wrong_is_told_with_its_place(
    rule: dict[str, Any], inside: tuple[Any, ...], said: str, fix: str
) -> None:
    with pytest.raises(ArgumentError, match=said) as caught:
        Groups(Net(), rules=[{"kind": "bias", "lr": 0.1}, rule])

    assert caught.value.inside == inside
    assert fix in caught.value.fix


def test_a_setting_that_the_optimizer_lacks_is_refused_where_torch_takes_any_word() -> None:
    groups = Groups(Net(), rules=[{"kind": "bias", "weigth_decay": 0.0}])
    optimizer = torch.optim.AdamW(groups)

    with pytest.raises(ArgumentError, match="AdamW has no setting 'weigth_decay'") as caught:
        groups.check(optimizer)

    assert caught.value.inside == ("rules", 0, "weigth_decay")
    assert caught.value.fix == "did you mean `weight_decay`?"
    Groups(Net(), rules=[{"kind": "bias", "betas": (0.5, 0.9), "frozen": False}]).check(optimizer)


def test_the_sizes_of_groups_are_told() -> None:
    model = Net()
    rules = [
        {"kind": ["norm", "bias"], "weight_decay": 0.0},
        {"match": "encoder.2.*", "frozen": True},
    ]
    optimizer = torch.optim.AdamW(Groups(model, rules=rules), lr=1e-3)

    assert describe_groups({"": optimizer}, model) == [
        "group 1 of 2: lr 0.001, weight_decay 0.01: 28 parameters (embed.weight, encoder.0.weight)",
        "group 2 of 2: lr 0.001, weight_decay 0: 16 parameters"
        " (encoder.0.bias, encoder.1.weight, encoder.1.bias and 1 more)",
        "not trained: 80 parameters (encoder.2.in_proj_weight, encoder.2.in_proj_bias,"
        " encoder.2.out_proj.weight and 1 more)",
    ]


@pytest.mark.row("C74")
def test_groups_do_to_the_weights_what_groups_by_hand_do() -> None:
    def trained(by_rules: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
        by_hand = [
            {"params": [model[0].weight]},
            {"params": [model[0].bias, model[1].weight, model[1].bias], "weight_decay": 0.0},
        ]
        rules = [{"kind": ["norm", "bias"], "weight_decay": 0.0}]
        params: Any = Groups(model, rules=rules) if by_rules else by_hand
        optimizer = torch.optim.AdamW(params, lr=0.1, weight_decay=0.5)
        for _ in range(5):
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(True), trained(False), strict=True))


def test_the_state_of_groups_is_kept_by_name() -> None:
    rules = [{"kind": ["norm", "bias"], "weight_decay": 0.0}]
    model, again = Net(), Net()
    optimizer = torch.optim.AdamW(Groups(model, rules=rules), lr=0.1)
    sum(parameter.sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    other = torch.optim.AdamW(Groups(again, rules=rules), lr=0.1)

    load_optimizer_state(other, again, optimizer_state(optimizer, model))

    assert [group["weight_decay"] for group in other.param_groups] == [0.01, 0.0]
    assert torch.equal(
        other.state[again.norm.weight]["exp_avg"], optimizer.state[model.norm.weight]["exp_avg"]
    )


# ------------------------------------------------------------------------------------------------------------- the record


@pytest.mark.parametrize("deferred", [False, True])
def test_each_group_with_a_rate_of_its_own_has_a_curve_of_it(deferred: bool) -> None:
    model = net()
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(
        [
            {"params": [weights[0]]},
            {"params": [weights[1]], "lr": 0.2, "name": "head"},
            {"params": [weights[2]], "lr": 0.1, "weight_decay": 0.1},
            {"params": [weights[3]], "lr": 0.4},
        ],
        lr=0.1,
    )
    process = Supervised(model, nn.CrossEntropyLoss(), optimizer)
    process.backward = OptimizerStep(optimizer, schedule=WarmupLinear(warmup_steps=2))
    recorder = MemoryRecorder()

    engine(process, steps=4, recorder=recorder, deferred=deferred).run()

    curves = {name for name, _, _ in recorder.points if name.startswith("train/lr")}
    assert curves == {"train/lr", "train/lr/head", "train/lr/4"}
    rates = [rate for _, rate in recorder.curve("train/lr")]
    assert len(rates) == 4 and rates[-1] > 0
    for name, factor in (("head", 2), ("4", 4)):
        own = [rate for _, rate in recorder.curve(f"train/lr/{name}")]
        assert own == pytest.approx([factor * rate for rate in rates])


def test_groups_by_rules_are_named_by_their_rules() -> None:
    groups = Groups(Net(), rules=[{"match": ["encoder.*"], "lr": 0.1}, {"kind": "norm", "lr": 0.2}])

    assert {group["name"] for group in groups} == {"encoder.*", "encoder.*, norm", "rest"}
