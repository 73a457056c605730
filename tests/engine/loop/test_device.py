"""Devices by name, threads by the size of the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.core.devices import cores
from assay.core.errors import InputError
from assay.engine.loop.device import (
    SMALL_MODEL,
    pick_device,
    pick_threads,
    place,
    use_threads,
)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def of_size(num_parameters: int) -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.empty(num_parameters, device="meta"))
    return model


def test_the_cpu_is_always_here(no_gpu: None) -> None:
    assert pick_device("cpu") == pick_device(None) == torch.device("cpu")


def test_an_accelerator_is_taken_when_there_is_one(two_gpus: None) -> None:
    assert pick_device(None) == pick_device("cuda") == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert pick_device("cpu") == torch.device("cpu")


def test_a_gpu_that_is_not_here_is_refused(two_gpus: None) -> None:
    with pytest.raises(
        InputError, match=r"no device .cuda:2.: this machine has 2\.\n  fix: Use cuda:0 to cuda:1"
    ):
        pick_device("cuda:2")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps"])
def test_a_kind_of_device_that_is_not_here_is_refused(no_gpu: None, name: str) -> None:
    with pytest.raises(InputError, match=f"no {name.partition(':')[0]} device") as caught:
        pick_device(name)

    assert "cpu" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "fix"),
    [("gpu", "`cuda`"), ("cuda0", "`cuda`"), ("tpu", "cpu"), ("", "cpu, cuda"), ("CPU", "`cpu`")],
)
def test_a_device_that_does_not_exist_is_refused_with_the_nearest(name: str, fix: str) -> None:
    with pytest.raises(InputError, match=f"no device {name!r}") as caught:
        pick_device(name)

    assert fix in caught.value.fix


@pytest.mark.parametrize("name", ["cpu:x", "cpu:", "cpu:-2"])
def test_a_number_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="There is no device"):
        pick_device(name)


def test_a_small_model_gets_one_thread_and_a_large_one_all_cores() -> None:
    assert pick_threads("auto", of_size(SMALL_MODEL)) == 1
    assert pick_threads("auto", of_size(SMALL_MODEL + 1)) == cores()
    assert pick_threads(3, of_size(1)) == 3


@pytest.mark.parametrize(("ranks", "threads"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_the_ranks_of_a_machine_share_its_cores(
    ranks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.engine.loop.device.cores", lambda: 8)

    assert pick_threads("auto", of_size(SMALL_MODEL + 1), ranks=ranks) == threads
    assert pick_threads(5, of_size(SMALL_MODEL + 1), ranks=ranks) == 5


def test_threads_are_given_to_torch() -> None:
    use_threads(2, of_size(1))
    assert torch.get_num_threads() == 2

    use_threads("auto", of_size(1))
    assert torch.get_num_threads() == 1


def test_every_module_of_a_process_is_placed() -> None:
    class Owner:
        def __init__(self) -> None:
            self.model = nn.Linear(2, 2)
            self.criterion = nn.CrossEntropyLoss(weight=torch.ones(2))
            self.name = "owner"

    owner = Owner()

    place(owner, torch.device("meta"))

    assert {
        tensor.device.type for tensor in (*owner.model.parameters(), owner.criterion.weight)
    } == {"meta"}  # type: ignore[union-attr]
    assert owner.name == "owner"


def test_a_misspelt_device_is_told_which_was_meant() -> None:
    with pytest.raises(InputError, match="There is no device 'cude'") as caught:
        pick_device("cude")

    assert caught.value.fix == "did you mean `cuda`?"
