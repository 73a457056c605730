"""Tensors in structures of any class: each is found, with the way that leads to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from assay.engine.numerics.structures import tensors_by_path


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
