"""Claims about foreign loaders are true: what is called exact is bit-equal after a resume."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import get_worker_info as worker_info

from assay.core.errors import InputError
from assay.engine import Engine, Evaluate, Loader, Supervised
from assay.engine.data.adopt import as_source
from assay.engine.data.source import Replayed, ReplayedStream
from assay.engine.loop.engine_state import capture_state, restore, unlike
from engine.toys import kept, net, same_bits

SIZE = 40


class Samples:
    """Numbers, with noise from all three generators; `own`: from one of the data set's as well."""

    def __init__(self, *, noise: bool = True, own: bool = False) -> None:
        self.noise = noise
        self.own = np.random.default_rng(0) if own else None

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.full((4,), index / SIZE)
        if self.noise:
            x = x + torch.rand(4) + random.random() + float(np.random.rand())
        if self.own is not None:
            x = x + float(self.own.random())
        return x, torch.full((2,), index / SIZE)


class Stream(IterableDataset[Any]):
    """The same, one after another; each worker gives its share."""

    def __init__(self, **how: bool) -> None:
        self.samples = Samples(**how)

    def __iter__(self) -> Iterator[Any]:
        info = worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.samples[i] for i in range(number, SIZE, count))


class Own(DataLoader[Any]):
    """One that iterates in a way of its own."""

    def __iter__(self) -> Any:
        return super().__iter__()


class Wild:
    """Batches that nobody can load again."""

    def __iter__(self) -> Iterator[Any]:
        rng = np.random.default_rng()
        for _ in range(10):
            x = torch.tensor(rng.random((4, 4)), dtype=torch.float32)
            yield x, x[:, :2]


MADE: list[DataLoader[Any]] = []


@pytest.fixture(autouse=True)
def workers_of_torch_are_gone() -> Iterator[None]:
    """Shut down persistent workers.

    torch waits 5 s for each of them once their loader is garbage.
    """
    yield
    for each in MADE:
        if hasattr(each._iterator, "_shutdown_workers"):
            each._iterator._shutdown_workers()  # type: ignore[attr-defined]
            each._iterator = None
    MADE.clear()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def weighted() -> Any:
    return WeightedRandomSampler(torch.arange(1.0, SIZE + 1), SIZE, generator=seeded())  # type: ignore[arg-type]


def loader(kind: Any = DataLoader, data: Any = None, **how: Any) -> Any:
    MADE.append(kind(Samples() if data is None else data, **{"batch_size": 4, **how}))
    return MADE[-1]


WORKERS: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
PLAIN = Samples(noise=False)
BATCHES = BatchSampler(RandomSampler(range(SIZE), generator=seeded()), 4, drop_last=True)
REPLAYED, LIST = "not tried (replayed)", "exact (a list)"
LOADERS: dict[str, tuple[Callable[[], Any], str]] = {
    "shuffled": (lambda: loader(shuffle=True), "exact (plan)"),
    "generator": (lambda: loader(shuffle=True, generator=seeded()), "exact (plan)"),
    "sampler": (lambda: loader(sampler=weighted()), "exact (plan)"),
    "batch sampler": (lambda: DataLoader(Samples(), batch_sampler=BATCHES), "exact (plan)"),  # type: ignore[arg-type]
    "workers": (lambda: loader(shuffle=True, num_workers=2), "exact (plan)"),
    "workers that stay": (
        lambda: loader(shuffle=True, generator=seeded(), **WORKERS),
        "exact (plan)",
    ),
    "own generator": (
        lambda: loader(data=Samples(own=True)),
        "exact (plan)",
    ),
    "another loader": (lambda: loader(Own, shuffle=True, generator=seeded()), REPLAYED),
    "another loader, workers": (lambda: loader(Own, shuffle=True, num_workers=2), REPLAYED),
    "another loader, own generator": (lambda: loader(Own, Samples(own=True)), REPLAYED),
    "stream": (lambda: loader(data=Stream()), REPLAYED),
    "stream, workers": (
        lambda: loader(data=Stream(), num_workers=2),
        "not tried (replayed; each of 2 workers gives its share by get_worker_info)",
    ),
    "a list": (lambda: [(torch.full((4, 4), i / 10), torch.ones(4, 2)) for i in range(10)], LIST),
}
GOES_OTHERWISE: dict[str, tuple[Callable[[], Any], str]] = {
    "another loader, workers that stay and draw": (
        lambda: loader(Own, shuffle=True, **WORKERS),
        REPLAYED,
    ),
    "wild": (Wild, REPLAYED),
}


def engine(data: Any) -> Engine:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Engine(Supervised(model, nn.MSELoss(), optimizer), data, epochs=2, seed=3)


def claimed(data: Any) -> str:
    """How exact a run on these data says to be."""
    source = as_source(data, seed=3)
    claim = source.exactness()
    if isinstance(source, Loader):
        source.close()
    return claim


def ends(make: Callable[[], Any]) -> list[bool]:
    """Return whether a run resumed in epoch 1, and in 2, ends with an uninterrupted run's bits."""
    parts: dict[int, Any] = {}
    whole = engine(make())

    def keep() -> None:
        if whole.state.step in (4, 13):
            parts[whole.state.step] = kept(whole)

    whole.on("step_end")(keep)
    whole.run()
    found = []
    for step, part in parts.items():
        random.seed(step)
        np.random.seed(step)
        torch.manual_seed(step)
        resumed = engine(make())
        restore(resumed, part)
        resumed.run()
        found.append(same_bits(capture_state(resumed), capture_state(whole)))
    return found


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_says_its_rule_and_goes_on_exactly(name: str) -> None:
    make, claim = LOADERS[name]

    assert claimed(make()) == claim
    assert all(ends(make))


@pytest.mark.parametrize("name", GOES_OTHERWISE)
def test_of_what_does_not_go_on_exactly_nothing_is_promised(name: str) -> None:
    make, claim = GOES_OTHERWISE[name]

    assert claimed(make()) == claim
    assert not all(ends(make))


OF_WORKERS = "not tried (state_dict, which lacks the generators of its workers)"
STATEFUL = {
    "": ({}, "exact (state_dict)"),
    "workers": ({"data": PLAIN, "num_workers": 2}, OF_WORKERS),
    "workers that draw": ({"num_workers": 2}, OF_WORKERS),
}
THOROUGH = {"workers", "workers that draw"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in THOROUGH else ())
        for name in STATEFUL
    ],
)
def test_what_is_said_of_a_loader_of_torchdata_is_true(name: str) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    how, claim = STATEFUL[name]

    def make() -> Any:
        return loader(stateful, shuffle=True, **how)

    assert claimed(make()) == claim
    assert all(ends(make)) == (name != "workers that draw")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four archives of ten samples."""
    webdataset = pytest.importorskip("webdataset")
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as archive:
            for i in range(10):
                x = np.full(4, (10 * shard + i) / SIZE, dtype=np.float32)
                archive.write({"__key__": f"{shard}-{i}", "x.npy": x, "y.npy": x[:2]})
    return str(folder / "{0..3}.tar")


def archives(shards: str, stage: str = "", **how: Any) -> Any:
    import webdataset

    data = webdataset.WebDataset(shards, shardshuffle=False)
    if stage:
        data = data.compose(getattr(webdataset, stage)(20))
    data = (
        data.decode()
        .to_tuple("x.npy", "y.npy")
        .map_tuple(torch.from_numpy, torch.from_numpy)
        .batched(4)
    )
    return webdataset.WebLoader(data, batch_size=None, **how)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    ("stage", "how", "is_exact"),
    [
        ("", {}, True),
        ("", {"num_workers": 2}, True),
        ("shuffle", {}, False),
        # each epoch has the order of the first
        pytest.param("detshuffle", {"num_workers": 2}, True, marks=pytest.mark.thorough),
    ],
)
def test_archives_are_replayed_and_nothing_is_promised(
    shards: str, stage: str, how: dict[str, Any], is_exact: bool
) -> None:
    def make() -> Any:
        return archives(shards, stage, **how)

    assert claimed(make()).startswith("not tried (replayed")
    assert all(ends(make)) == is_exact


# ----------------------------------------------------------------------------------------------- DataLoaders as Loaders


def test_a_data_loader_keeps_its_settings_as_a_loader() -> None:
    def prepare(number: int) -> None: ...

    made = as_source(
        loader(
            num_workers=2,
            prefetch_factor=5,
            persistent_workers=True,
            timeout=7,
            worker_init_fn=prepare,
            multiprocessing_context="spawn",
            collate_fn=list,
            drop_last=True,
        ),
        seed=9,
    )

    assert isinstance(made, Loader)
    pool = made._pool
    assert pool is not None
    assert (pool.count, pool.prefetch, pool.limit_s, pool.init) == (2, 5, 7, prepare)
    assert (pool.start_method, made._persistent, made.collate, made.seed, made.drop_last) == (
        "spawn",
        True,
        list,
        9,
        True,
    )


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("size", [38, 40])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_data_loader_gives_as_many_windows_of_the_same_sizes(
    accumulate: int, size: int, drop_last: bool
) -> None:
    data: Any = DataLoader(range(size), batch_size=4, drop_last=drop_last)  # type: ignore[arg-type]
    plain = Replayed(data, accumulate=accumulate)
    made = as_source(data, accumulate=accumulate)

    assert isinstance(made, Loader)
    assert made.steps_per_epoch == plain.steps_per_epoch
    for ours, theirs in zip(made.windows(0, 0), plain.windows(0, 0), strict=True):
        assert [batch.tolist() for batch in ours.batches] == [
            batch.tolist() for batch in theirs.batches
        ]


class Keys:
    """Samples by name, which no order of numbers reaches."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: str) -> str:
        return key


class Changing(Samples):
    def set_epoch(self, epoch: int) -> None: ...


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Keys(), sampler=["a", "b", "c", "d"], batch_size=2),  # type: ignore[arg-type]
        lambda: loader(Own),
        lambda: loader(data=Changing()),
        lambda: loader(data=Stream()),
        lambda: DataLoader(Samples(), batch_size=None),  # type: ignore[arg-type]
    ],
    ids=["keys", "own iteration", "another data set each epoch", "stream", "no batches"],
)
def test_what_a_loader_cannot_do_is_left_as_it_is(make: Callable[[], Any]) -> None:
    assert type(as_source(make())) in (Replayed, ReplayedStream)


# ------------------------------------------------------------------------------------------------ samples, one by one


def test_samples_that_nobody_makes_batches_of_are_refused_with_the_way_to_do_it() -> None:
    for refused in (lambda: engine(Stream()), lambda: Evaluate({"valid": Stream()})):
        with pytest.raises(
            InputError, match="Stream is an IterableDataset, which gives samples"
        ) as caught:
            refused()
        assert "DataLoader(dataset, batch_size=64)" in caught.value.fix

    assert engine(DataLoader(Stream(), batch_size=8)).run().step == 10
    assert engine(DataLoader(Stream(), batch_size=None)).state.max_steps is None


def test_nothing_is_tried_before_somebody_asks(tmp_path: Path) -> None:
    touched: list[int] = []

    class Counted(Samples):
        def __getitem__(self, index: int) -> Any:
            touched.append(index)
            return super().__getitem__(index)

    source = as_source(loader(Own, Counted()))

    assert touched == [] and source.steps_per_epoch == 10


# ------------------------------------------------------------------------------- a state that waits


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_state_of_data_that_waits_for_the_first_batch_is_the_one_that_was_loaded(
    workers: int,
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make() -> Any:
        return loader(stateful, PLAIN, shuffle=True, num_workers=workers)

    parts: list[Any] = []
    whole = engine(make())
    whole.on("step_end")(lambda: parts.append(kept(whole)))
    whole.run()

    for part in (parts[3], parts[9], parts[-1]):
        resumed = engine(make())
        restore(resumed, part)
        assert unlike(resumed, part) == []
