"""Where a model is split, and what a process keeps of it: no other process is needed to see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from assay.core.errors import InputError
from assay.core.keys import read_section
from assay.core.sections import ParallelSection
from assay.engine import Engine, Loader, OptimizerStep, Supervised
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.pipeline_stages import (
    drop_weights,
    keep_weights,
    merge_states,
    pipeline_parts,
    split_model,
)
from assay.engine.parallel.process_group import Mesh, init_mesh


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.norm = nn.BatchNorm1d(4)

    def pipeline_split(self) -> list[Any]:
        return [self.letters, *self.blocks, (self.scores, "norm", "letters")]

    def scores(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x) @ self.letters.weight.T
        return found


def named(stages: Any) -> list[list[str]]:
    return [[part.name for part in stage] for stage in stages]


def test_the_parts_of_a_sequential_within_another_are_parts_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))

    assert [part.name for part in pipeline_parts(model)] == ["0", "1.0", "1.1"]


def test_the_layers_and_the_norm_of_a_transformer_encoder_are_its_parts_and_compute_the_same() -> (
    None
):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4), enable_nested_tensor=False)
    parts = pipeline_parts(model)
    x = whole = torch.randn(3, 5, 4)

    for part in parts:
        x = part.run(x)

    assert [part.name for part in parts] == ["layers.0", "layers.1", "norm"]
    assert torch.equal(x, model(whole))


def test_a_function_with_what_it_uses_is_a_part_and_may_share_weights_with_another() -> None:
    made = split_model(Net(), 2)

    assert named(made.stages) == [
        ["letters", "blocks.0", "blocks.1"],
        ["blocks.2", "blocks.3", "scores"],
    ]
    assert made.weights(0) & made.weights(1) == {"letters.weight"}
    assert "norm.running_mean" in made.weights(1)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages_are_as_even_as_parts_in_a_row_allow(stages: int) -> None:
    sizes = [5, 1, 3, 2, 7, 4]
    model = nn.Sequential(*(nn.Linear(size, 1, bias=False) for size in sizes))

    made = split_model(model, stages)

    largest = max(sum(made.sizes[name] for name in made.weights(stage)) for stage in range(stages))
    assert largest == {1: 22, 2: 11, 3: 9, 4: 7}[stages]
    assert [name for stage in named(made.stages) for name in stage] == [str(i) for i in range(6)]


def test_a_stage_begins_where_the_config_says() -> None:
    assert named(split_model(Net(), 3, ["blocks.3", "scores"]).stages)[1:] == [
        ["blocks.3"],
        ["scores"],
    ]


@pytest.mark.parametrize(
    ("split", "text"),
    [
        (["blocks.9"], "no stage can begin with 'blocks.9'"),
        (["letters"], "no stage can begin with 'letters'"),
        (["blocks.1", "blocks.2"], "split names 2 parts; 2 stages begin with 1 after the first"),
    ],
)
def test_a_split_that_does_not_fit_the_model_is_told(split: list[str], text: str) -> None:
    with pytest.raises(InputError, match=text):
        split_model(Net(), 2, split)


def test_a_model_that_does_not_say_where_it_may_be_split_is_told_how() -> None:
    with pytest.raises(
        InputError, match=r"does not say where a pipeline may split it\.\n  fix: Give it a method"
    ):
        pipeline_parts(nn.Linear(2, 2))


def test_a_model_that_leaves_out_a_weight_or_names_one_too_many_is_told() -> None:
    class Less(Net):
        def pipeline_split(self) -> list[Any]:
            return [self.letters, *self.blocks[:3], (self.scores, "norm")]

    class Wrong(Net):
        def pipeline_split(self) -> list[Any]:
            return [self.letters, *self.blocks, (self.scores, "nrom")]

    with pytest.raises(InputError, match=r"leaves out blocks\.3\.bias, blocks\.3\.weight"):
        pipeline_parts(Less())
    with pytest.raises(InputError, match=r"no 'nrom' in Wrong\.\n  fix: did you mean `norm`"):
        pipeline_parts(Wrong())


def test_more_stages_than_parts_with_weights_and_a_frozen_stage_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(
        InputError, match=r"The model has 2 parts with weights, too few for 3 stages"
    ):
        split_model(model, 3)
    model[0].requires_grad_(False)
    with pytest.raises(
        InputError, match=r"Stage 0 of the pipeline \(0, 1\) has no weights that are trained"
    ):
        split_model(model, 2)


def test_what_is_kept_of_a_model_has_its_names_and_takes_a_state_of_the_whole() -> None:
    model = Net()
    whole = {name: value.clone() for name, value in model.state_dict().items()}

    elsewhere = keep_weights(model, split_model(model, 2).weights(1))

    assert list(model.state_dict()) == [
        name for name in whole if not name.startswith(("blocks.0", "blocks.1"))
    ]
    assert elsewhere == {f"blocks.{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")}
    for parameter in model.parameters():
        parameter.data.zero_()
    model.load_state_dict(whole)
    assert torch.equal(model.letters.weight, whole["letters.weight"])
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(
            {name: value for name, value in whole.items() if name != "norm.weight"}
        )


def test_states_of_stages_become_that_of_the_whole_and_come_apart_again() -> None:
    order = {"a": 0, "b": 1, "c": 2}
    first = {
        "state": {"a": 1, "b": 2},
        "groups": [{"lr": 0.1, "params": ["a"]}, {"lr": 0.2, "params": ["b"]}],
        "n": 7,
    }
    last = {"state": {"c": 3, "a": 1}, "groups": [{"lr": 0.1, "params": ["c", "a"]}], "n": 8}

    whole = merge_states([first, last], order)

    assert list(whole["state"].items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert whole["groups"] == [{"lr": 0.1, "params": ["a", "c"]}, {"lr": 0.2, "params": ["b"]}]
    assert whole["n"] == 7
    assert drop_weights(whole, {"c"}) == first
    assert drop_weights(whole, {"b"})["groups"] == [{"lr": 0.1, "params": ["a", "c"]}]


@pytest.fixture(params=[0, 1], ids=["first stage", "last stage"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Two processes of which there is one."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=2)
    yield init_mesh(Layout(pipeline=2), torch.device("cpu"))
    dist.destroy_process_group()


def engine_of(mesh: Mesh, process: type[Supervised] = Supervised, *, accumulate: int = 2) -> Engine:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    partition_model(model, mesh)
    data = [(torch.ones(2), torch.ones(1)) for _ in range(8)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(
        process(model, nn.MSELoss(), optimizer), Loader(data, batch_size=8, accumulate=accumulate)
    )
    join_data_parallel(engine, mesh.ranks)
    assert mesh.pipeline is not None
    mesh.pipeline.join(engine)
    return engine


def test_a_model_is_split_among_processes_that_are_not_there(mesh: Mesh) -> None:
    engine = engine_of(mesh)
    pipeline = mesh.pipeline
    assert pipeline is not None

    own = ["0.weight", "0.bias"] if pipeline.is_first else ["2.weight", "2.bias"]
    assert [name for name, _ in engine.process.model.named_parameters()] == own
    assert pipeline.lines == [
        "pipeline: 2 stages (1f1b), 2 micro-batches in a step: each process waits for 33% of it",
        "  stage 0 (pipeline rank 0)  0, 1  9 parameters",
        "  stage 1 (pipeline rank 1)  2     4 parameters",
    ]


def test_part_of_a_model_cannot_be_called_alone(mesh: Mesh) -> None:
    engine = engine_of(mesh)

    with pytest.raises(
        InputError, match="Sequential is split into stages: it can be called in forward_step only"
    ):
        engine.process.model(torch.ones(1, 2))


def test_a_step_with_too_few_micro_batches_shows_the_arithmetic(mesh: Mesh) -> None:
    with pytest.raises(
        InputError, match=r"A step has 1 micro-batch \(8 = 1 accumulate x 8\); 1f1b keeps 2 stages"
    ):
        engine_of(mesh, accumulate=1)


def test_an_optimizer_that_differentiates_by_itself_is_refused(mesh: Mesh) -> None:
    class Own(OptimizerStep):
        def __call__(self, loss: Any) -> None:
            loss.backward()

    class Odd(Supervised):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.backward = Own(given[2])

    with pytest.raises(InputError, match="Own differentiates losses itself"):
        engine_of(mesh, Odd)


def test_a_process_that_never_calls_its_model_is_told_on_the_first_stage(mesh: Mesh) -> None:
    class Never(Supervised):
        def forward_step(self, batch: Any) -> Any:
            return batch[0].sum(), {}

    if mesh.at("pipeline") == 0:
        with pytest.raises(InputError, match="Never does not call its model"):
            engine_of(mesh, Never).run()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"pipeline": 2, "stages": 3}, "3 stages cannot be divided evenly among 2 processes"),
        (
            {"pipeline": 2, "stages": 4},
            "4 stages are 2 for each of 2 processes; schedule = '1f1b' has one",
        ),
        (
            {"pipeline": 2, "stages": 2, "schedule": "interleaved"},
            "schedule = 'interleaved' wants several",
        ),
    ],
)
def test_stages_that_do_not_come_out_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Layout.of(read_section(ParallelSection, settings))


def test_a_schedule_knows_its_micro_batches_and_how_long_processes_wait() -> None:
    interleaved = Layout(pipeline=4, schedule="interleaved")
    with pytest.raises(InputError, match=r"accumulate can be 8 or 12"):
        interleaved.check_micro_batches(11)
    interleaved.check_micro_batches(8)
    Layout(pipeline=4, schedule="gpipe").check_micro_batches(1)

    # As in Narayanan et al., arXiv 2104.04473: (p - 1) / m of the ideal time, and a v-th of it with
    # v stages each.
    assert Layout(pipeline=4).waiting(8) == pytest.approx(3 / 11)
    assert interleaved.waiting(8) == pytest.approx(1.5 / 9.5)


@pytest.mark.parametrize(
    ("rank", "schedule", "blocks"),
    [
        (0, "1f1b", ["letters", "blocks.0", "blocks.1"]),
        # The function at the end uses the weight of the embedding by its name.
        (2, "1f1b", ["blocks.2", "blocks.3"]),
        (0, "interleaved", ["letters", "blocks.2", "blocks.3"]),
        (2, "interleaved", ["blocks.0", "blocks.1"]),
    ],
)
def test_blocks_that_a_stage_calls_are_gathered_alone(
    rank: int, schedule: Any, blocks: list[str]
) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    try:
        layout = Layout(pipeline=2, shard=2, schedule=schedule)
        mesh = init_mesh(layout, torch.device("cpu"))
        model = Net()
        section = ParallelSection(shard_blocks=["letters", "blocks.*"])

        partition_model(model, mesh, section)

        assert list(mesh.ranks.sharding.blocks) == blocks
    finally:
        dist.destroy_process_group()
