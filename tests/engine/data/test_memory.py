"""Data that remember what they loaded: a run resumed in another process is bit-equal, or said not to be."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from assay.engine import Engine, Loader, chain
from assay.engine.data import streams
from assay.engine.data.adopt import as_source
from assay.engine.data.audit import audit
from assay.engine.data.fresh_process import CopyError, call_in_copies
from assay.engine.data.map_style import SequenceWrapper
from assay.engine.data.source import Source
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.loop.engine_state import restore
from engine.toys import kept, same_bits, supervised

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


class InDictAtTimes(InDict):
    """Draws for some samples alone, and not for the first that is loaded."""

    def sample(self, index: int) -> Tensor:
        return super().sample(index) if index % 4 == 2 else torch.full((4,), index / SIZE)


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


CACHE: dict[int, Tensor] = {}


class InModule(Base):
    def sample(self, index: int) -> Tensor:
        return CACHE.setdefault(index, drawn(index))


class InClass(Base):
    cache: ClassVar[dict[int, Tensor]] = {}

    def sample(self, index: int) -> Tensor:
        return self.cache.setdefault(index, drawn(index))


def memoized(function: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
    values: dict[int, Tensor] = {}

    def call(index: int) -> Tensor:
        if index not in values:
            values[index] = function(index)
        return values[index]

    return call


class InClosure(Base):
    def __init__(self) -> None:
        self.call = memoized(drawn)

    def sample(self, index: int) -> Tensor:
        return self.call(index)


class InTensor(Base):
    def __init__(self) -> None:
        self.rows = torch.full((SIZE, 4), float("nan"))

    def sample(self, index: int) -> Tensor:
        if self.rows[index].isnan().any():
            self.rows[index] = drawn(index)
        return self.rows[index].clone()


class InTwoCalls(Base):
    """Draws for a sample once, and moves it a bit at each call."""

    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def sample(self, index: int) -> Tensor:
        return self.cache.setdefault(index, drawn(index)) + torch.rand(4)


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


class Harder(Base):
    """A curriculum by the number of samples loaded so far."""

    count = 0

    def sample(self, index: int) -> Tensor:
        type(self).count += 1
        return torch.full((4,), index / SIZE) + 0.01 * type(self).count


class Negatives(Base):
    """Draws a partner for each sample, and keeps it."""

    def __init__(self) -> None:
        self.partner: dict[int, int] = {}

    def sample(self, index: int) -> Tensor:
        partner = self.partner.setdefault(index, random.randrange(SIZE))
        return torch.tensor([index, partner, index, partner]) / SIZE


class Sticky(Base):
    """Draws its statistics at the first sample that it loads."""

    mean: Tensor | None = None

    def sample(self, index: int) -> Tensor:
        if self.mean is None:
            self.mean = torch.rand(4)
        return torch.full((4,), index / SIZE) - self.mean


class ByProcess(Base):
    def sample(self, index: int) -> Tensor:
        return torch.full((4,), index + os.getpid() % 9973 / 9973)


class ByClock(Base):
    def sample(self, index: int) -> Tensor:
        return torch.full((4,), index + time.perf_counter() % 1)


class Together(Base):
    """Batches at once, cached by their first index."""

    def __init__(self) -> None:
        self.cache: dict[int, Any] = {}

    def __getitems__(self, indices: list[int]) -> list[Any]:
        shift = self.cache.setdefault(indices[0], torch.rand(4))
        return [(torch.full((4,), i / SIZE) + shift, torch.ones(2)) for i in indices]


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


class OwnAtTimes(Own):
    """Draws for a few samples alone."""

    def sample(self, index: int) -> Tensor:
        return super().sample(index) if index % 8 == 2 else torch.full((4,), index / SIZE)


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


REMEMBERING = {
    InDict: "InDict.cache",
    InDictAtTimes: "InDictAtTimes.cache",
    InLruCache: "MODULE.InLruCache.sample",
    InFunction: "MODULE.remembered",
    InModule: "MODULE.CACHE",
    InClass: "MODULE.InClass.cache",
    InClosure: "InClosure.call(values)",
    InTensor: "InTensor.rows",
    InTwoCalls: "InTwoCalls.cache",
    Before: "",
    Counting: "",
    Harder: "",
    Negatives: "Negatives.partner",
    Sticky: "Sticky.mean",
    Together: "Together.cache",
}
DRAWING = [Unseeded, ByProcess, ByClock]
HARMLESS = [Base, Augmented, CachedRead, Derived, Own, OwnAtTimes, Given, Statistics, Opened]


# -------------------------------------------------------------------------------- other than by index


class Samples(IterableDataset[Any]):
    def __init__(self, data: Base) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return (self.data[i] for i in range(SIZE))


class Batches:
    """An iterable of batches."""

    def __init__(self, data: Base) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        samples = (self.data[i] for i in range(SIZE))
        while batch := list(itertools.islice(samples, 4)):
            yield tuple(map(torch.stack, zip(*batch, strict=True)))


class Continued(Batches):
    """Begins an epoch where the last one was left."""

    start = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            self.start += 1
            yield batch[0] + self.start, batch[1]


def stream(data: Base) -> StreamLoader:
    stages = [SequenceWrapper(range(SIZE)), streams.Map(data.__getitem__, random=True)]
    return StreamLoader(chain([*stages, streams.Batch(4)]), seed=3)


WAYS: dict[str, Callable[[Base], Any]] = {
    "loader": lambda data: Loader(data, batch_size=4, shuffle=True, seed=3),
    "batches": Batches,
    "iterable": lambda data: DataLoader(Samples(data), batch_size=4),
    "continued": Continued,
    "stream": stream,
}


def source_of(data: Any) -> Source:
    return as_source(data, seed=3)


def train(make: Callable[[], Any], part: Any = None) -> tuple[Any, Any]:
    """Train two epochs of four steps, or the rest after `part`; return it after step 6, and at the end."""
    runs = Engine(supervised(), make(), epochs=2, seed=3)
    parts: list[Any] = []

    @runs.on("step_end")
    def keep() -> None:
        if runs.state.step == 6:
            parts.append(kept(runs))

    if part is not None:
        restore(runs, part)
    runs.run()
    return (parts or [None])[0], kept(runs)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Import here what torch imports at a first step; copies of this process would each do so."""
    train(lambda: WAYS["loader"](Base()))


def resumes_exactly(make: Callable[[], Any]) -> bool:
    """Whether a run resumed in another OS process ends with the bits of one that was not interrupted."""
    ((part, whole),) = call_in_copies(partial(train, make))
    ((_, resumed),) = call_in_copies(partial(train, make, part))
    return same_bits(resumed, whole)


@pytest.mark.filterwarnings("ignore:data.train. a sample is another one")
@pytest.mark.parametrize(
    "kind", [*REMEMBERING, *DRAWING, *HARMLESS], ids=lambda kind: kind.__name__
)
def test_what_is_said_of_a_data_set_that_remembers_is_true(kind: type[Base]) -> None:
    def make() -> Any:
        return WAYS["loader"](kind())

    claim = source_of(make()).exactness()

    assert resumes_exactly(make) == (claim == "exact (plan)") == (kind in HARMLESS)
    if kind in REMEMBERING and kind not in (Before, Counting, Harder):
        place = REMEMBERING[kind].replace("MODULE", __name__)
        start = "not exact: what is loaded depends on what was loaded before"
        assert claim.startswith(f"{start}: {kind.__name__} remembers in {place}, and a resumed run")


def test_a_collate_that_remembers_is_named() -> None:
    calls = itertools.count()

    def shifted(samples: list[Any]) -> Tensor:
        return torch.stack([x for x, _ in samples]) + next(calls)

    claim = Loader(Base(), batch_size=4, collate=shifted).exactness()

    assert claim.startswith("not exact: what is loaded depends on what was loaded before: collate ")


@pytest.mark.parametrize("way", ["batches", "iterable", "continued", "stream"])
@pytest.mark.parametrize("kind", [InDict, InFunction, Sticky, Unseeded, Augmented, Base])
def test_what_is_said_of_batches_that_remember_is_true(kind: type[Base], way: str) -> None:
    def make() -> Any:
        return WAYS[way](kind())

    claim = source_of(make()).exactness()

    assert resumes_exactly(make) == claim.startswith("exact")
    assert claim.startswith("exact") == (kind in HARMLESS and way != "continued")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_audit_finds_what_a_data_set_remembers(workers: int) -> None:
    loader = Loader(InDict(), batch_size=4, shuffle=True, workers=workers)

    result = audit(loader, split="train")

    assert result.problems and dict(result.facts)["exactness"] == "not exact"
    assert "resume" not in dict(result.facts)


def test_the_audit_of_evaluated_data_that_remember_finds_nothing() -> None:
    """An evaluation always loads the same epoch, so a resumed one draws the same."""
    result = audit(Loader(InDict(), batch_size=4, split="valid"), split="valid")

    assert result.problems == () and dict(result.facts)["exactness"] == "exact (plan)"


def test_a_trial_leaves_the_data_set_as_it_was() -> None:
    data = InDict()

    Loader(data, batch_size=4).exactness()

    assert data.cache == {}


class Broken(Base):
    def sample(self, index: int) -> Tensor:
        raise OSError(f"no file {index}")


def test_what_cannot_be_tried_is_called_unknown() -> None:
    claims = [
        Loader(Broken(), batch_size=4).exactness(),
        source_of(Batches(Broken())).exactness(),
    ]

    for claim in claims:
        assert claim.startswith("unknown: it could not be loaded in a copy of this OS process: OSE")


def test_a_copy_that_hangs_or_dies_is_given_up() -> None:
    with pytest.raises(CopyError, match="not loaded within 0 s"):
        call_in_copies(lambda: time.sleep(60), limit_s=0.2)
    with pytest.raises(CopyError, match="died"):
        call_in_copies(lambda: os._exit(3))


def test_nothing_that_a_copy_prints_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    assert call_in_copies(lambda: print("loading") or 1, lambda: 2) == [1, 2]

    assert capfd.readouterr() == ("", "")
