"""Tensors in structures of any class: each is found, with the way that leads to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from assay.engine.data.batches import digest_sample, leaves, size_of
from assay.engine.data.instance import Instance, has_parts, part_names, part_of
from assay.engine.data.shapes import shape_of
from assay.engine.numerics.nan_debug import in_the_data
from assay.engine.numerics.structures import map_values, tensors_by_path, tensors_in, values_in
from assay.engine.parallel.pipeline_stages import shapes_of


@dataclass(slots=True)
class Slotted:
    x: Tensor


@dataclass
class Plain:
    x: Tensor


class Pair(NamedTuple):
    x: Tensor


class InSlots:
    __slots__ = ("empty", "x")

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Below(InSlots):
    __slots__ = ()


class Own:
    def __init__(self, x: Tensor) -> None:
        self.x = x


class SlottedMapping(Mapping[str, Tensor]):
    __slots__ = ("_items",)

    def __init__(self, x: Tensor) -> None:
        self._items = {"x": x}

    def __getitem__(self, key: str) -> Tensor:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def namespace(x: Tensor) -> SimpleNamespace:
    return SimpleNamespace(x=x)


CLASSES = [Slotted, Plain, Pair, InSlots, Below, Own, SlottedMapping, namespace, lambda x: {"x": x}]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: [each], Own, Slotted])
def test_a_tensor_is_found_in_an_object_of_any_class(kind: Any, wrap: Any) -> None:
    x = torch.ones(2)

    found = list(tensors_by_path(wrap(kind(x)), ("batch",), in_objects=True))

    assert [tensor is x for _, tensor in found] == [True]
    assert found[0][0][0] == "batch" and found[0][0][-1] in ("x", 0)


def test_the_attributes_of_a_class_of_its_own_are_left_alone_unless_asked_for() -> None:
    assert list(tensors_by_path(Own(torch.ones(2)))) == []


def instance(x: Tensor) -> Instance:
    return Instance(x=x)


STRUCTURES = [Slotted, Plain, Pair, SlottedMapping, namespace, instance, lambda x: {"x": x}]


@pytest.mark.parametrize("kind", STRUCTURES)
def test_all_that_goes_through_a_batch_sees_the_same_in_it(kind: Any) -> None:
    x = torch.arange(6.0).reshape(3, 2)
    batch = kind(x)

    assert [tensor is x for tensor in tensors_in([batch])] == [True]
    assert [name for name, _ in leaves(batch)] == ["x"]
    assert size_of(batch) == 3
    assert "float32 [3, 2]" in shape_of(batch)
    doubled = map_values(batch, lambda tensor: 2 * tensor)
    assert [tensor.tolist() for tensor in tensors_in(doubled)] == [(2 * x).tolist()]
    assert digest_sample(batch) == digest_sample(kind(x.clone())) != digest_sample(kind(x + 1))
    assert "['x']" in in_the_data([kind(x / 0)], lambda _: ()).replace("[0]", "['x']")
    assert has_parts(batch) and part_names(batch) == ("x",) and part_of(batch, "x") is x
    assert shapes_of(batch) == (((3, 2), torch.float32),)


def test_values_of_any_kind_are_found_and_replaced() -> None:
    found = {"a": [1, "b"], "c": Pair(2)}  # type: ignore[arg-type]

    assert list(values_in(found, int)) == [1, 2]
    assert map_values(found, str, int) == {"a": ["1", "b"], "c": Pair("2")}  # type: ignore[arg-type]


def test_values_of_any_kind_are_replaced_in_an_instance_too() -> None:
    x = torch.ones(2)

    found = map_values([Instance(a=1, x=x)], str, int)[0]

    assert found.a == "1" and found.x is x
