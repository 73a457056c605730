"""Data that remember what they loaded: the audit of the data finds them."""

from __future__ import annotations

import itertools
import random
import time
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.engine import Loader
from assay.engine.data.audit import audit

SIZE = 16


def drawn(index: int) -> Tensor:
    """A sample with augmentation by all three generators."""
    return (
        torch.full((4,), index / SIZE) + torch.rand(4) + random.random() + float(np.random.rand())
    )


class Base:
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.sample(index).float(), torch.full((2,), index / SIZE)

    def sample(self, index: int) -> Tensor:
        return drawn(index)


# ------------------------------------------------------------------------------- data that remember


class InDict(Base):
    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def sample(self, index: int) -> Tensor:
        if index not in self.cache:
            self.cache[index] = drawn(index)
        return self.cache[index]


class InLruCache(Base):
    @cache  # noqa: B019
    def sample(self, index: int) -> Tensor:
        return drawn(index)


@lru_cache
def remembered(index: int) -> Tensor:
    return drawn(index)


class InFunction(Base):
    def sample(self, index: int) -> Tensor:
        return remembered(index)


class Unseeded(Base):
    def __init__(self) -> None:
        self.cache: dict[int, float] = {}

    def sample(self, index: int) -> Tensor:
        value = self.cache.setdefault(index, np.random.default_rng().random())
        return torch.full((4,), value)


class Before(Base):
    """Mixes a sample with the one that was loaded before."""

    def __init__(self) -> None:
        self.last = torch.zeros(4)

    def sample(self, index: int) -> Tensor:
        last, self.last = self.last, torch.full((4,), index / SIZE)
        return (last + self.last) / 2


class Counting(Base):
    def __init__(self) -> None:
        self.count = itertools.count()

    def sample(self, index: int) -> Tensor:
        return torch.full((4,), index + 0.01 * next(self.count))


class Sticky(Base):
    """Draws its statistics at the first sample that it loads."""

    mean: Tensor | None = None

    def sample(self, index: int) -> Tensor:
        if self.mean is None:
            self.mean = torch.rand(4)
        return torch.full((4,), index / SIZE) - self.mean


class ByClock(Base):
    def sample(self, index: int) -> Tensor:
        return torch.full((4,), index + time.perf_counter() % 1)


# --------------------------------------------------------------------- data that remember, harmlessly


class Augmented(Base):
    """Caches what is read; draws after it."""

    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def sample(self, index: int) -> Tensor:
        raw = self.cache.setdefault(index, torch.full((4,), index / SIZE))
        return raw + torch.rand(4) + random.random()


@lru_cache
def read(index: int) -> Tensor:
    return torch.full((4,), index / SIZE)


class CachedRead(Base):
    def sample(self, index: int) -> Tensor:
        return read(index) + torch.rand(4)


class Derived(Base):
    """Caches what a generator of the index draws."""

    def __init__(self) -> None:
        self.cache: dict[int, float] = {}

    def sample(self, index: int) -> Tensor:
        return torch.full((4,), self.cache.setdefault(index, random.Random(index).random()))


class Own(Base):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def sample(self, index: int) -> Tensor:
        return torch.full((4,), float(self.rng.random()))


class Given(Base):
    """Is given its key."""

    def set_rng(self, key: int) -> None:
        self.rng = random.Random(key)

    def sample(self, index: int) -> Tensor:
        return torch.full((4,), self.rng.random())


class Statistics(Base):
    """Counts, and uses the count for nothing."""

    hits = 0

    def sample(self, index: int) -> Tensor:
        self.hits += 1
        return drawn(index)


class Opened(Base):
    """Opens its file when it is first needed."""

    def __init__(self) -> None:
        self.path = Path(__file__)
        self.file: Any = None

    def sample(self, index: int) -> Tensor:
        self.file = self.file or self.path.open("rb")
        self.file.seek(index)
        return torch.tensor(list(self.file.read(4))) / 256


REMEMBERING = [
    InDict,
    InLruCache,
    InFunction,
    Unseeded,
    Before,
    Counting,
    Sticky,
    ByClock,
]
HARMLESS = [Base, Augmented, CachedRead, Derived, Own, Given, Statistics, Opened]


@pytest.mark.parametrize("kind", [*REMEMBERING, *HARMLESS], ids=lambda kind: kind.__name__)
def test_the_audit_finds_what_a_data_set_remembers(kind: type[Base]) -> None:
    result = audit(Loader(kind(), batch_size=4, shuffle=True), split="train")

    assert (not result.problems) == (kind in HARMLESS), result.problems


def test_the_audit_finds_what_data_with_workers_remember() -> None:
    result = audit(Loader(InDict(), batch_size=4, shuffle=True, workers=2), split="train")

    assert result.problems and dict(result.facts)["exactness"] == "not exact"
    assert "resume" not in dict(result.facts)


def test_the_audit_finds_draws_of_a_data_set_that_promised_none() -> None:
    result = audit(Loader(Base(), batch_size=4, randomness="none"), split="train")

    assert result.problems


def test_the_audit_of_evaluated_data_that_remember_finds_nothing() -> None:
    """An evaluation always loads the same epoch, so a resumed one draws the same."""
    result = audit(Loader(InDict(), batch_size=4, split="valid"), split="valid")

    assert result.problems == () and dict(result.facts)["exactness"] == "exact (plan)"


def test_an_audit_leaves_the_data_set_as_it_was() -> None:
    data = InDict()

    audit(Loader(data, batch_size=4), split="train")

    assert data.cache == {}
