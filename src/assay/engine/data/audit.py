"""Audit of an epoch: each sample loaded once, alike with other workers and ranks; its speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any, TypeVar

import torch

from assay.core.errors import InputError
from assay.engine.data.adopt import as_source
from assay.engine.data.batches import digest_sample, leaves, size_of
from assay.engine.data.loader import Loader
from assay.engine.data.randomness import Fetch, private_generators
from assay.engine.data.source import Source, workers_of
from assay.engine.data.workers import Task, Workers, call_in_worker
from assay.engine.numerics.structures import tensors_in

T = TypeVar("T")

RANKS = 2
"""Processes among which an epoch is dealt out, to see whether together they load all of it."""

MAX_NAMED = 5
MAX_CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Findings about one epoch of a split.

    `facts` are pairs (name, finding); `problems` are sentences.
    """

    split: str
    samples: int
    batches: int
    facts: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    first_batch_s: float
    batches_per_s: float


@dataclass(slots=True)
class _Seen:
    """Contents of one pass, by position: (index, digest) of each sample or batch."""

    at: dict[int, tuple[Any, int]] = field(default_factory=dict)
    shapes: Counter[str] = field(default_factory=Counter)
    labels: dict[str, set[int]] = field(default_factory=dict)
    bad: list[Any] = field(default_factory=list)


def audit(data: Iterable[Any], *, split: str, accumulate: int = 1, seed: int = 0) -> Audit:
    """Load one epoch of a split in several ways and compare. What loading raises is raised here."""
    source = data if isinstance(data, Source) else as_source(data, accumulate=accumulate, seed=seed)
    if isinstance(source, Loader):
        return _of_loader(source)
    return _of_batches(source, data, split, accumulate)


def speed(batches: Iterable[Any], *, seconds: float = 5.0) -> tuple[float, float]:
    """Return (seconds to the first batch, batches per second after it).

    Reads at most one epoch, and for about `seconds`.
    """
    begun = perf_counter()
    iterator = iter(batches)
    next(iterator, None)
    first = perf_counter()
    count, now = 0, first
    for _ in iterator:
        count += 1
        now = perf_counter()
        if now - first > seconds:
            break
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
    return first - begun, count / (now - first) if count else 0.0


def _of_loader(loader: Loader) -> Audit:
    split, workers = loader.split, loader.workers
    exactness = loader.exactness()
    first_s, rate = _call_apart(lambda: speed(loader.windows(0, 0)), workers)
    loader.close()
    others = 0 if workers else 2
    tasks = list(loader.tasks(0, 0))
    middle = loader.steps_per_epoch // 2
    # In the middle of the second epoch a run has a past, which it lacks when it is resumed there.
    late = list(loader.tasks(1 if split == "train" else 0, middle))
    whole, second = _passes(loader, workers, tasks, late)
    (again,) = _passes(loader, others, tasks)
    (resumed,) = _passes(loader, workers, late)
    counted = f"data.{split} is not the same with {workers} and {others} workers"
    differs = f"data.{split} is not the same from its middle on"
    problems = _compare_passes(whole.at, again.at, counted)
    problems += _compare_passes(second.at, resumed.at, differs)
    index_at = {position: index for position, (index, _) in whole.at.items()}
    dealt, odd = _dealt(loader, index_at)
    counts = Counter(index_at.values())
    size = len(loader.dataset)
    facts = [("samples", _coverage(counts, size, _left_out(loader)))]
    if not problems:
        facts.append(("workers", f"{workers} and {others} load the same"))
    if not problems and middle:
        facts.append(("resume", f"from batch {middle} on it is the same"))
    if dealt:
        facts.append(("processes", dealt))
    problems += odd
    problems += _outside(split, counts, size)
    facts.append(("exactness", exactness if not problems else "not exact"))
    facts += _shapes(whole)
    problems += _bad(split, whole)
    facts.append(("generators", _generators(loader)))
    return Audit(
        split=split,
        samples=len(whole.at),
        batches=len(tasks),
        facts=tuple(facts),
        problems=tuple(dict.fromkeys(problems)),
        first_batch_s=first_s,
        batches_per_s=rate,
    )


def _outside(split: str, counts: Counter[Any], size: int) -> list[str]:
    """Return the problem of a sampler that asks for samples that are not there."""
    if not _are_numbers(counts):
        return []
    outside = sorted(index for index in counts if not -size <= index < size)
    return [f"data.{split} asks for the sample {outside[0]}, of {size}"] if outside else []


def _generators(loader: Loader) -> str:
    """Return the random generators that a data set has of its own."""
    name = type(loader.dataset).__name__
    private = [f"{name}{way}, a {kind}" for way, kind in private_generators(loader.dataset)]
    return ", ".join(private) or "none of its own"


def _dealt(loader: Loader, whole: Mapping[int, Any]) -> tuple[str, list[str]]:
    """Return a fact about the epoch shared by `RANKS` ranks, and the problems found.

    What a sample is depends on its position and not on who loads it, so that only who is given
    which is looked at.
    """
    given: dict[int, list[int]] = {}
    for rank in range(RANKS):
        try:
            share = loader.with_options(rank=rank, ranks=RANKS, workers=0)
        except InputError:
            return f"{RANKS} cannot share a batch of {loader.batch_size}", []
        for _, position, indices in share.own_tasks(0):
            for at, index in enumerate(indices, position):
                given.setdefault(at, []).append(index)
    if all(isinstance(index, tuple) for index in whole.values()):  # batches that come ready made
        return "", []
    positions = sorted(given.keys() | whole.keys())
    wrong = [at for at in positions if at not in whole or given.get(at) != [whole[at]]]
    if not wrong:
        return f"{RANKS} are given each sample once", []
    return "", [
        f"{RANKS} processes do not load each sample of data.{loader.split} once: first at position "
        f"{wrong[0]}"
    ]


def _of_batches(source: Source, data: object, split: str, accumulate: int) -> Audit:
    is_once = isinstance(data, Iterator)
    facts = [("exactness", source.exactness())]
    epoch = 1 if split == "train" else 0
    # What can be gone through once is gone through here.
    num_workers = 1 if is_once else getattr(source, "workers", workers_of(data))

    def load(*passes: tuple[int, int]) -> list[_Pass]:
        return [_load_pass(source, epoch, start, accumulate) for epoch, start in passes]

    (whole,) = _call_apart(lambda: load((0, 0)), num_workers)
    problems: list[str] = []
    if whole.windows > 1 and not is_once:
        middle = whole.windows // 2
        _, second = _call_apart(lambda: load((0, 0), (epoch, middle)), num_workers)
        (resumed,) = _call_apart(lambda: load((epoch, middle)), num_workers)
        differs = f"data.{split} is not the same when it is gone through again"
        problems += _compare_passes(second.seen.at, resumed.seen.at, differs)
        if not problems and not facts[0][1].startswith("not exact"):
            facts.append(("resume", f"from batch {middle * accumulate} on it is the same"))
    facts += _shapes(whole.seen)
    problems += _bad(split, whole.seen)
    rate = (whole.batches - 1) / whole.rest_s if whole.batches > 1 and whole.rest_s > 0 else 0.0
    return Audit(
        split=split,
        samples=whole.samples,
        batches=whole.batches,
        facts=tuple(facts),
        problems=tuple(problems),
        first_batch_s=whole.first_s,
        batches_per_s=rate,
    )


@dataclass(slots=True)
class _Pass:
    """One pass over batches that are not made by a `Loader`: contents, counts and seconds."""

    seen: _Seen = field(default_factory=_Seen)
    samples: int = 0
    batches: int = 0
    windows: int = 0
    first_s: float = 0.0
    rest_s: float = 0.0


def _load_pass(source: Source, epoch: int, start: int, accumulate: int) -> _Pass:
    one = _Pass()
    begun = perf_counter()
    for number, window in enumerate(source.windows(epoch, start), start):
        one.first_s = one.first_s or perf_counter() - begun
        one.windows += 1
        one.samples += window.samples
        one.batches += len(window.batches)
        for i, batch in enumerate(window.batches):
            at = {number * accumulate + i: (number, digest_sample(batch))}
            _add(one.seen, at, batch, number)
    one.rest_s = perf_counter() - begun - one.first_s
    return one


# ----------------------------------------------------------------------------------------- one pass


class _Numbered:
    """The data set, each sample with its index."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return index, self.dataset[index]


class _NumberedBatches(_Numbered):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples = self.dataset.__getitems__(indices)
        if isinstance(samples, list):
            return list(zip(indices, samples, strict=True))
        return [(tuple(indices), samples)]


class _Describe:
    """In place of `collate`: what a worker tells of a batch, which is little to send."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, numbered: list[Any]) -> Any:
        first_index, first = numbered[0]
        is_ready = isinstance(first_index, tuple)
        batch = first if is_ready else self.collate([sample for _, sample in numbered])
        seen = _Seen()
        _add(seen, {}, batch, [index for index, _ in numbered])
        return [(index, digest_sample(sample)) for index, sample in numbered], seen


def _passes(loader: Loader, workers: int, *passes: Sequence[Task]) -> list[_Seen]:
    """Return the contents of passes that follow each other, in OS processes that loaded nothing."""
    return _call_apart(lambda: _describe_passes(loader, workers, passes), workers)


def _call_apart(function: Callable[[], T], workers: int) -> T:
    """Call a function that loads in a copy of this OS process, unless workers load for it."""
    value: T = function() if workers else call_in_worker(function)
    return value


def _describe_passes(loader: Loader, workers: int, passes: Iterable[Sequence[Task]]) -> list[_Seen]:
    numbered = _NumberedBatches if hasattr(loader.dataset, "__getitems__") else _Numbered
    fetch = Fetch(
        numbered(loader.dataset),
        collate=_Describe(loader.collate),
        randomness=loader.randomness,
        seed=loader.seed,
        split=loader.split,
    )
    pool = Workers(fetch, workers, split=loader.split, about=loader.dataset) if workers else None
    try:
        return [
            _join_descriptions(
                (position for _, position, _ in tasks),
                (fetch(*task) for task in tasks) if pool is None else pool.run(tasks),
            )
            for tasks in passes
        ]
    finally:
        if pool is not None:
            pool.close()


def _join_descriptions(positions: Iterable[int], described: Iterable[Any]) -> _Seen:
    """Return what the descriptions of batches say together."""
    whole = _Seen()
    for position, (samples, part) in zip(positions, described, strict=True):
        whole.at |= {position + i: sample for i, sample in enumerate(samples)}
        whole.shapes += part.shapes
        whole.bad += part.bad
        for name, labels in part.labels.items():
            whole.labels.setdefault(name, set()).update(labels)
    return whole


def _add(seen: _Seen, at: dict[int, tuple[Any, int]], batch: Any, where: Any) -> None:
    seen.at |= at
    size = size_of(batch)
    words = []
    for name, leaf in leaves(batch):
        words.append(f"{name + ' ' if name else ''}{_shape(leaf, size)}")
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            seen.bad.append(where)
        if leaf.dim() == 1 and leaf.dtype in (torch.int64, torch.int32, torch.int16):
            known = seen.labels.setdefault(name, set())
            labels = torch.unique(leaf).tolist()
            known.update(labels[: MAX_CLASSES + 1 - len(known)])
    seen.shapes[", ".join(words)] += 1


# ------------------------------------------------------------------------------------ what it means


def _compare_passes(one: Mapping[int, Any], other: Mapping[int, Any], problem: str) -> list[str]:
    for position in sorted(one.keys() | other.keys()):
        if one.get(position) != other.get(position):
            index = (one.get(position) or other[position])[0]
            return [
                f"{problem}: the first difference is the sample {index}, at position {position}"
            ]
    return []


def _coverage(counts: Mapping[Any, int], size: int, left_out: int) -> str:
    if not _are_numbers(counts):
        return f"{sum(counts.values())} batches that come ready made"
    missing = [index for index in range(size) if index not in counts]
    twice = [index for index, count in counts.items() if count > 1]
    if not missing and not twice:
        return f"each of {size:,} once"
    words = [f"{len(counts) - len(twice):,} of {size:,} once"]
    words += [f"{len(twice):,} more than once ({_few(sorted(twice))})"] if twice else []
    words += [f"{len(missing):,} never ({_few(missing)})"] if missing else []
    words += [f"{left_out:,} by drop_last"] if left_out else []
    return ", ".join(words)


def _are_numbers(counts: Mapping[Any, int]) -> bool:
    return all(isinstance(index, int) for index in counts)


def _few(items: Sequence[Any]) -> str:
    shown = ", ".join(map(str, islice(items, MAX_NAMED)))
    return f"{shown}, ..." if len(items) > MAX_NAMED else shown


def _left_out(loader: Loader) -> int:
    return loader.order.n % loader.batch_size if loader.drop_last else 0


def _shapes(seen: _Seen) -> list[tuple[str, str]]:
    facts = [("batch", shape) for shape, _ in seen.shapes.most_common(MAX_NAMED)]
    if len(seen.shapes) > MAX_NAMED:
        facts.append(("batch", f"and {len(seen.shapes) - MAX_NAMED} other shapes"))
    for name, labels in seen.labels.items():
        many = "more than " if len(labels) > MAX_CLASSES else ""
        what = f"{min(labels)} to {max(labels)}, {many}{min(len(labels), MAX_CLASSES)} different"
        facts.append(("labels", f"{name} {what}".strip()))
    return facts


def _bad(split: str, seen: _Seen) -> list[str]:
    if not seen.bad:
        return []
    where = seen.bad[0]
    first = f"among the samples {_few(where)}" if isinstance(where, list) else f"in batch {where}"
    return [
        f"data.{split} holds values that are not finite in {len(seen.bad)} of its batches, first "
        f"{first}"
    ]


def _shape(leaf: Any, size: int) -> str:
    """`float32 Bx3x28x28`: B is the number of samples."""
    shape = getattr(leaf, "shape", None)
    if shape is None:
        return type(leaf).__name__
    dims = ["B" if i == 0 and dim == size else str(dim) for i, dim in enumerate(shape)]
    return f"{str(leaf.dtype).removeprefix('torch.')} {'x'.join(dims) or 'one'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Measured speed of one setting.

    `pinned` is None without CUDA; `batch_bytes` is the memory that pinning a batch locks.
    """

    workers: int | None
    pinned: bool | None
    first_batch_s: float
    batches_per_s: float
    batch_bytes: int


def bench(data: Iterable[Any], *, seconds: float, workers: Sequence[int] = ()) -> list[Speed]:
    """Measure each number of workers for about `seconds`; with CUDA also with pinned memory."""
    if not isinstance(data, Loader):
        first, rate = speed(data, seconds=seconds)
        return [
            Speed(
                workers=None,
                pinned=None,
                first_batch_s=first,
                batches_per_s=rate,
                batch_bytes=_size(data),
            )
        ]
    found = []
    for count in workers or (data.workers,):
        for pinned in (False, True) if torch.cuda.is_available() else (None,):
            loader = data.with_options(workers=count, pin_memory=bool(pinned))
            try:
                first, rate = speed((window for window in loader.windows(0, 0)), seconds=seconds)
            finally:
                loader.close()
            size = _size(
                batch
                for window in data.with_options(workers=0).windows(0, 0)
                for batch in window.batches
            )
            found.append(
                Speed(
                    workers=count,
                    pinned=pinned,
                    first_batch_s=first,
                    batches_per_s=rate,
                    batch_bytes=size,
                )
            )
    return found


def _size(batches: Iterable[Any]) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(next(iter(batches), None)))
