"""How a model is divided along the tensor axis: which plan counts, and what cannot be divided."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from assay.core.errors import InputError
from assay.core.sections import ParallelSection
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import Mesh, init_mesh
from assay.engine.parallel.tensor_parallel import check_plan, tensor_plan_of
from engine.parallel.launching import answers
from warm_python import Run


class Told(nn.Module):
    """A model that says how it is divided."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)

    def tensor_plan(self) -> dict[str, Any]:
        return {"up": "colwise", "down": "rowwise"}


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """Four processes of which there is one."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield init_mesh(Layout(tensor=4), torch.device("cpu"))
    dist.destroy_process_group()


def placements(model: nn.Module) -> dict[str, Any]:
    return {
        name: each.placements[0]
        for name, each in model.named_parameters()
        if isinstance(each, DTensor)
    }


def test_a_model_is_divided_among_processes_that_are_not_there(mesh: Mesh) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    whole = model[0].weight.detach().clone()

    partition_model(model, mesh)

    assert placements(model)["0.weight"] == Shard(0)
    assert placements(model)["2.weight"] == Shard(1)
    assert torch.equal(model[0].weight.to_local(), whole[2:4])
    assert (model(torch.zeros(5, 4)) + 0).shape == (5, 3)


def test_a_layer_that_does_not_get_its_part_of_the_features_says_so(mesh: Mesh) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    partition_model(model, mesh, ParallelSection(tensor_plan={"1": "rowwise"}))

    with pytest.raises(
        InputError, match=r"1 is divided as 'rowwise' and takes 2 of 8 features; it got 8"
    ):
        model(torch.zeros(5, 4))


def test_a_plan_that_is_given_counts_before_that_of_the_model() -> None:
    assert tensor_plan_of(Told()) == {"up": "colwise", "down": "rowwise"}
    assert tensor_plan_of(Told(), {"up": "colwise_gather_output"}) == {
        "up": "colwise_gather_output"
    }


def test_the_plan_of_a_part_is_that_of_the_model_under_its_name() -> None:
    model = nn.ModuleDict(
        {"first": Told(), "second": nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))}
    )

    assert tensor_plan_of(model) == {
        "first.up": "colwise",
        "first.down": "rowwise",
        "second.0": "colwise",
        "second.2": "rowwise",
    }


@pytest.mark.parametrize(
    "between",
    [nn.LayerNorm(6), nn.PReLU(), nn.BatchNorm1d(6), nn.Softmax(-1)],
    ids=lambda each: type(each).__name__,
)
def test_linear_layers_with_more_than_an_activation_between_them_are_no_pair(
    between: nn.Module,
) -> None:
    with pytest.raises(InputError, match="how a Sequential is divided"):
        tensor_plan_of(nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 4)))


def test_of_an_encoder_of_torch_the_layers_after_attention_are_divided() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    plan = tensor_plan_of(nn.ModuleDict({"encoder": encoder, "head": nn.Linear(8, 2)}))

    assert plan == {
        f"encoder.layers.{i}.{name}": how
        for i in (0, 1)
        for name, how in (("linear1", "colwise"), ("linear2", "rowwise"))
    }


def test_a_model_without_a_plan_is_told_how_to_give_one() -> None:
    with pytest.raises(InputError) as caught:
        tensor_plan_of(nn.Conv2d(1, 1, 1))

    assert "how a Conv2d is divided among processes is not known" in str(caught.value)
    assert "tensor_plan()" in str(caught.value)
    assert "[parallel.tensor_plan]" in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"upp": "colwise"}, "did you mean `up`"),
        ({"up": "collwise"}, "did you mean `colwise`"),
        ({"up": 3}, "'up' is a int"),
    ],
)
def test_a_name_or_a_word_that_is_not_known_is_told_with_the_nearest(
    plan: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        tensor_plan_of(Told(), plan)


@pytest.mark.parametrize(
    ("model", "size", "told"),
    [
        (
            Told(),
            5,
            r"tensor = 5 does not divide up.out_features = 24: 24 / 5 = 4.8.\n  fix: tensor can be 2 or 4",
        ),
        (
            Told(),
            8,
            r"tensor = 8 does not divide heads = 4: 4 / 8 = 0.5.\n  fix: tensor can be 2 or 4",
        ),
        (
            Told(heads=6),
            4,
            r"tensor = 4 does not divide heads = 6: 6 / 4 = 1.5.\n  fix: tensor can be 2, 3 or 6",
        ),
    ],
)
def test_features_and_heads_that_do_not_divide_are_told_with_the_arithmetic(
    model: nn.Module, size: int, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        check_plan(model, tensor_plan_of(model), size)


def test_a_layer_that_is_none_or_is_used_twice_is_not_divided() -> None:
    tied = nn.ModuleDict({"words": nn.Embedding(6, 4), "scores": nn.Linear(4, 6, bias=False)})
    tied["scores"].weight = tied["words"].weight
    with pytest.raises(InputError, match=r"scores.weight is words.weight too"):
        check_plan(tied, tensor_plan_of(tied, {"scores": "colwise"}), 2)

    with pytest.raises(InputError, match=r"norm is a LayerNorm"):
        check_plan(nn.ModuleDict({"norm": nn.LayerNorm(4)}), {"norm": "colwise"}, 2)


def test_the_plan_that_a_model_of_transformers_carries_is_used() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)

    plan = tensor_plan_of(model)

    assert plan["model.layers.0.self_attn.q_proj"] == "colwise"
    assert plan["model.layers.0.mlp.down_proj"] == "rowwise"
    assert plan["lm_head"] == "colwise_gather_output"
    with pytest.raises(InputError, match=r"self_attn.config.num_key_value_heads = 1: 1 / 2 = 0.5"):
        check_plan(model, plan, 2)
    model.lm_head.weight = model.model.embed_tokens.weight
    assert "lm_head" not in tensor_plan_of(model)


@pytest.mark.thorough
@pytest.mark.slow
def test_divided_models_compute_what_they_do_as_a_whole(tmp_path: Path, warm: Run) -> None:
    script = Path(__file__).with_name("models.py")
    results_of = answers(script, tmp_path, 2, warm=warm)
    models = runpy.run_path(str(script))

    for results in results_of:
        assert results.keys() == models["CASES"].keys()
        for name, case in models["CASES"].items():
            expected = models["found"](*case, None)
            assert results[name].keys() == expected.keys()
            for what, values in expected.items():
                assert results[name][what] == pytest.approx(values, rel=1e-10, abs=1e-12), (
                    name,
                    what,
                )
