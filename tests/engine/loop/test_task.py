"""Task: data by split, meta data, and one way to evaluate any model that learns it."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
import torch

from assay.core.errors import InputError
from assay.engine import Accuracy, Task
from assay.engine.loop.task import meta_of
from engine.toys import points


def test_a_data_set_or_its_factory_is_given_by_split_and_made_once() -> None:
    made: list[int] = []

    def make(size: int) -> Any:
        made.append(size)
        return points(size)

    task = Task({"train": points(20), "valid": functools.partial(make, 10), "stream": [1, 2]})

    assert len(task.dataset("train")) == 20 and made == []
    assert task.dataset("valid") is task.dataset("valid") and made == [10]
    assert task.dataset("stream") == [1, 2]


def test_a_split_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match="no data for the split 'vaild'") as caught:
        Task({"train": [], "valid": []}).dataset("vaild")
    assert "`valid`" in caught.value.fix


def test_meta_data_is_written_whatever_it_is_made_of() -> None:
    task = Task(
        meta={"classes": ("cat", "dog"), "vectors": torch.eye(2), "sizes": np.array([1, 2])}
    )

    found = json.loads(meta_of(task))

    assert found == {
        "classes": ["cat", "dog"],
        "vectors": [[1.0, 0.0], [0.0, 1.0]],
        "sizes": [1, 2],
    }
    with pytest.raises(InputError, match=r"'meta.tokenizer' holds a object"):
        meta_of(Task(meta={"tokenizer": object()}))
    assert meta_of(object()) == b"{}\n"


def test_a_task_has_its_own_metrics_and_pipes_or_none() -> None:
    assert (Task().metrics, Task().pipes, Task().meta) == ({}, [], {})
    assert list(Task(metrics={"acc": Accuracy()}).metrics) == ["acc"]
