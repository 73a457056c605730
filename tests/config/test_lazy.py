from __future__ import annotations

import copy
import pickle

import pytest

from assay.build import instantiate
from assay.config import L, LazyCall
from assay.config.lazy import Call, Section, target_of


@pytest.mark.row("E06")
def test_a_call_is_described_now_and_built_later() -> None:
    import torch

    described = L("torch.nn.Sequential")(
        LazyCall(torch.nn.Linear)(in_features=2, out_features=3, bias=False), L(torch.nn.ReLU)()
    )
    torch.manual_seed(0)
    built = instantiate(described)
    torch.manual_seed(0)
    direct = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.ReLU())

    assert repr(built) == repr(direct)
    assert torch.equal(built[0].weight, direct[0].weight)
    assert repr(described) == (
        "L('torch.nn.Sequential')("
        "L('torch.nn.Linear')(in_features=2, out_features=3, bias=False), L('torch.nn.ReLU')())"
    )


@pytest.mark.row("E07")
def test_late_arguments_are_given_when_it_is_built() -> None:
    import torch

    weight = torch.nn.Parameter(torch.zeros(2))

    optimizer = instantiate(L("torch.optim.SGD")(lr=0.5), params=[weight])

    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["params"] == [weight]
    with pytest.raises(ValueError, match="Nesterov momentum requires") as caught:
        refused = L("torch.optim.SGD")(lr=0.1, nesterov=True, params=[])
        instantiate({"type": "torch.nn.Sequential", "args": [refused]})
    assert any("torch.optim.SGD" in note and "args.0" in note for note in caught.value.__notes__)
    assert caught.traceback[-1].name == "__init__"


def test_keys_are_attributes_too() -> None:
    model = L("model.Net")(width=1, head=Section(bias=True))

    model.width += 1
    model.head.bias = False
    model["depth"] = 3
    model.update({"act": "relu"}, drop=0.1)
    model |= {"x": 1}
    del model.x

    assert model == {
        "type": "model.Net",
        "width": 2,
        "head": {"bias": False},
        "depth": 3,
        "act": "relu",
        "drop": 0.1,
    }
    assert model.setdefault("width", 5) == 2
    assert isinstance(model, Call)
    with pytest.raises(AttributeError, match="did you mean `width`"):
        _ = model.widht
    with pytest.raises(AttributeError, match=r"write \['items'\]"):
        model.items = []
    with pytest.raises(TypeError, match="`type` cannot be written as an argument"):
        L("model.Net")(type="x")


def test_copies_share_nothing_and_know_where_they_were_written() -> None:
    model = L("model.Net")(widths=[1], head=L("model.Head")(bias=True))
    model.depth = 2

    deep, flat = copy.deepcopy(model), model.copy()
    deep.head.bias = False
    deep.widths.append(2)
    flat.depth = 3

    assert model == {
        "type": "model.Net",
        "widths": [1],
        "head": {"type": "model.Head", "bias": True},
        "depth": 2,
    }
    assert isinstance(deep.head, Call)
    assert deep._spot == model._spot
    assert deep._spots == model._spots
    assert pickle.loads(pickle.dumps(model)) == model


def test_a_target_is_named_as_people_import_it() -> None:
    import torch

    from assay.engine import Supervised

    assert target_of(torch.nn.Linear) == "torch.nn.Linear"
    assert target_of(torch.optim.AdamW) == "torch.optim.AdamW"
    assert target_of(torch.nn.functional.relu) == "torch.nn.functional.relu"
    assert target_of(torch.nn.Embedding.from_pretrained) == "torch.nn.Embedding.from_pretrained"
    assert target_of(Supervised) == "assay.engine.Supervised"
    assert target_of(pickle.Pickler) == "_pickle.Pickler"
