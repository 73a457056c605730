"""Named fields of a sample and of a batch, with where each belongs."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.core.errors import InputError
from assay.engine import DistTensorData, Instance, Loader, Process
from assay.engine.data.batches import collate, size_of, to_device
from assay.engine.data.instance import Placement
from engine.toys import engine, points


def sample(number: int = 0, size: int = 3) -> Instance:
    return Instance(
        inputs=DistTensorData(torch.full((size,), float(number))),
        labels=DistTensorData(torch.tensor(number), placement_idx=-1),
        text=f"number {number}",
    )


@pytest.mark.row("E22")
def test_four_samples_are_stacked_field_by_field() -> None:
    batch = Instance.stack([sample(number) for number in range(4)])

    assert (len(batch), size_of(batch)) == (4, 4)
    assert batch.inputs.shape == (4, 3) and batch["labels"].tolist() == [0, 1, 2, 3]
    assert batch.get("text") == ["number 0", "number 1", "number 2", "number 3"]
    assert batch.has("labels") and not batch.has("label") and batch.get("label", 7) == 7
    assert batch.to("meta").inputs.device.type == "meta" and batch.inputs.device.type == "cpu"
    assert repr(batch.on_stage(1, 2)) == "Instance(labels=(4,) torch.int64)"


@pytest.mark.row("E22")
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (
            sample(1, size=2),
            r"The field 'inputs' of sample 2 is \(2,\) torch.float32, that of sample 0 is \(3,\)",
        ),
        (Instance(**{**sample(), "extra": 1}), "Sample 2 has a field 'extra' and sample 0 has not"),
        (
            Instance(inputs=torch.zeros(3), labels=torch.tensor(1)),
            "Sample 0 has a field 'text' and sample 2 has not",
        ),
        (
            Instance(**{**sample(), "text": torch.zeros(())}),
            r"The field 'text' of sample 2 is \(\) torch.float32",
        ),
        (
            Instance(**{**sample(), "inputs": torch.zeros(3).long()}),
            "The field 'inputs' of sample 2 is .* torch.int64",
        ),
        (Instance(**sample()), "The field 'labels' of sample 2 is placed otherwise"),
    ],
)
def test_a_field_that_is_not_the_same_in_all_samples_is_named(odd: Instance, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Instance.stack([sample(), sample(), odd])


def test_a_field_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean `labels`"):
        _ = sample().label
    with pytest.raises(KeyError, match="did you mean `labels`"):
        sample()["label"]
    with pytest.raises(InputError, match="nothing to stack"):
        Instance.stack([])


@pytest.mark.row("E23")
def test_each_field_knows_the_stage_that_needs_it() -> None:
    batch = Instance.stack([sample(number) for number in range(4)])

    assert batch.placement("labels") == Placement(stage=-1, split=0)
    assert [list(batch.on_stage(stage, 3).keys()) for stage in range(3)] == [
        ["inputs", "text"],
        [],
        ["labels"],
    ]
    assert list(batch.on_stage(0, 1).keys()) == ["inputs", "labels", "text"]
    assert batch.on_stage(2, 3).placement("labels") == Placement(stage=-1, split=0)
    with pytest.raises(InputError, match="There is no stage 2 among 2"):
        Instance(x=DistTensorData(torch.zeros(1), placement_idx=2)).on_stage(0, 2)
    with pytest.raises(KeyError, match="no field"):
        batch.placement("label")


def test_an_instance_is_copied_and_sent_to_other_processes_whole() -> None:
    for again in (copy.deepcopy(sample(5)), pickle.loads(pickle.dumps(sample(5)))):
        assert again.labels == 5 and again.placement("labels").stage == -1


def test_a_batch_of_anything_else_is_collated_as_torch_does() -> None:
    assert collate([(torch.tensor(1), 2), (torch.tensor(3), 4)])[1].tolist() == [2, 4]


class Model(nn.Module):
    """Takes its fields by name, and computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return (self.layer(inputs) - labels).square().mean()


class ByName(Process):
    def __init__(self, model: nn.Module, backward: Any) -> None:
        self.model, self.backward = model, backward

    def forward_step(self, batch: Any) -> Any:
        loss = self.model(**batch)
        return loss, {"loss": loss.detach()}


class Named:
    randomness = "none"

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Instance:
        inputs, labels = self.data[index]
        return Instance(inputs=inputs, labels=DistTensorData(labels, placement_idx=-1))


def test_a_data_set_of_instances_trains_a_model_that_takes_them_by_name() -> None:
    from assay.engine import OptimizerStep

    torch.manual_seed(0)
    model = Model()
    process = ByName(model, OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.05)))
    runs = engine(process, Loader(Named(points(20)), batch_size=8), epochs=5)
    losses: list[float] = []
    runs.on("step_end")(lambda state: losses.append(state.loss))

    runs.run()

    assert runs.state.samples == 100
    assert losses[-1] < losses[0]
    assert to_device(Instance(x=torch.zeros(2)), torch.device("meta")).x.device.type == "meta"


def test_a_field_may_have_any_name() -> None:
    assert dict(Instance(self=1, cls=2, fields=3)._fields) == {"self": 1, "cls": 2, "fields": 3}
