"""Audit of one epoch: each sample loaded once, and the same with other workers and ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np
import torch

from assay.core.errors import InputError
from assay.engine.data.adopt import as_source
from assay.engine.data.batches import size_of
from assay.engine.data.loader import Loader
from assay.engine.data.randomness import Fetch, private_generators
from assay.engine.data.source import Source, Window
from assay.engine.data.workers import Task, Workers
from assay.engine.numerics.structures import fields_of

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
    return _of_batches(source, split, accumulate, is_once=isinstance(data, Iterator))


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
    first_s, rate = speed(window for window in loader.windows(0, 0))
    loader.close()
    others = 0 if workers else 2
    tasks = list(loader.tasks(0, 0))
    whole = _seen(_described(loader, workers, tasks))
    again = _seen(_described(loader, others, tasks))
    middle = loader.steps_per_epoch // 2
    rest = _seen(_described(loader, workers, loader.tasks(0, middle)))
    counted = f"data.{split} is not the same with {workers} and {others} workers"
    resumed = f"data.{split} is not the same from its middle on"
    problems = _compared(whole.at, again.at, counted)
    problems += _compared(_from(whole.at, rest.at), rest.at, resumed)
    index_at = {position: index for position, (index, _) in whole.at.items()}
    dealt, odd = _dealt(loader, index_at)
    counts = Counter(index_at.values())
    size = len(loader.dataset)
    facts = [("samples", _coverage(counts, size, _left_out(loader)))]
    if not problems:
        facts.append(("workers", f"{workers} and {others} load the same"))
    if len(problems) < 2 and middle:
        facts.append(("resume", f"from batch {middle} on it is the same"))
    if dealt:
        facts.append(("processes", dealt))
    problems += odd
    problems += _outside(split, counts, size)
    facts.append(("exactness", loader.exactness() if not problems else "not exact"))
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
            share = loader.changed(rank=rank, ranks=RANKS, workers=0)
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


def _of_batches(source: Source, split: str, accumulate: int, *, is_once: bool) -> Audit:
    seen = _Seen()
    samples = batches = windows = 0
    begun = perf_counter()
    first_s = 0.0
    for number, window in enumerate(source.windows(0, 0)):
        first_s = first_s or perf_counter() - begun
        windows += 1
        samples += window.samples
        batches += len(window.batches)
        for place, found, batch in _digests(window, number, accumulate):
            _add(seen, {place: found}, batch, number)
    seconds = perf_counter() - begun - first_s
    problems: list[str] = []
    facts = [("exactness", source.exactness())]
    if windows > 1 and not is_once:
        middle = windows // 2
        rest: dict[int, tuple[Any, int]] = {}
        for number, window in enumerate(source.windows(0, middle), middle):
            rest |= {place: found for place, found, _ in _digests(window, number, accumulate)}
        differs = f"data.{split} is not the same when it is gone through again"
        problems += _compared(_from(seen.at, rest), rest, differs)
        if not problems:
            facts.append(("resume", f"from batch {middle * accumulate} on it is the same"))
    facts += _shapes(seen)
    problems += _bad(split, seen)
    return Audit(
        split=split,
        samples=samples,
        batches=batches,
        facts=tuple(facts),
        problems=tuple(problems),
        first_batch_s=first_s,
        batches_per_s=(batches - 1) / seconds if batches > 1 and seconds > 0 else 0.0,
    )


def _digests(
    window: Window, number: int, accumulate: int
) -> Iterator[tuple[int, tuple[int, int], Any]]:
    """Yield place, window number with digest, and batch for each batch of a window."""
    for i, batch in enumerate(window.batches):
        yield number * accumulate + i, (number, digest(batch)), batch


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
        return [(index, digest(sample)) for index, sample in numbered], seen


def _described(loader: Loader, workers: int, tasks: Iterable[Task]) -> Iterator[tuple[int, Any]]:
    """Yield (position, description) of each batch."""
    numbered = _NumberedBatches if hasattr(loader.dataset, "__getitems__") else _Numbered
    fetch = Fetch(
        numbered(loader.dataset),
        collate=_Describe(loader.collate),
        randomness=loader.randomness,
        seed=loader.seed,
        split=loader.split,
    )
    tasks = list(tasks)
    positions = [position for _, position, _ in tasks]
    if not workers:
        yield from zip(positions, (fetch(*task) for task in tasks), strict=True)
        return
    pool = Workers(fetch, workers)
    try:
        yield from zip(positions, pool.run(tasks), strict=True)
    finally:
        pool.close()


def _seen(described: Iterable[tuple[int, Any]]) -> _Seen:
    whole = _Seen()
    for position, (samples, part) in described:
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


def leaves(batch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors, arrays and plain values of a batch or sample, by name."""
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(batch, tuple) and hasattr(batch, "_fields"):
        yield from leaves(dict(zip(batch._fields, batch, strict=True)), name)
    elif isinstance(batch, list | tuple) and any(
        not isinstance(item, str | int | float) for item in batch
    ):
        for i, value in enumerate(batch):
            yield from leaves(value, f"{name}[{i}]")
    elif (fields := fields_of(batch)) is not None:
        yield from leaves({field: getattr(batch, field) for field in fields}, name)
    else:
        yield name, batch


def digest(sample: Any) -> int:
    """32 bits that say whether two samples are the same; what is no value counts by its type."""
    value = 0
    for name, leaf in leaves(sample):
        value = crc32(name.encode(), value)
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu()
            if (
                leaf.dtype in (torch.bfloat16, torch.complex32)
                or leaf.dtype.is_complex
                or leaf.dtype.itemsize == 1
            ):
                leaf = leaf.contiguous().reshape(-1).view(torch.uint8)
            leaf = leaf.numpy()
        if isinstance(leaf, np.ndarray):
            value = crc32(
                np.ascontiguousarray(leaf).tobytes(),
                crc32(f"{leaf.dtype}{leaf.shape}".encode(), value),
            )
        elif isinstance(
            leaf, bool | int | float | complex | str | bytes | list | tuple | None | np.generic
        ):
            value = crc32(repr(leaf).encode("utf-8", "surrogatepass"), value)
        else:
            value = crc32(type(leaf).__qualname__.encode(), value)
    return value


# ------------------------------------------------------------------------------------ what it means


def _from(whole: Mapping[int, Any], rest: Mapping[int, Any]) -> dict[int, Any]:
    first = min(rest, default=0)
    return {position: value for position, value in whole.items() if position >= first}


def _compared(one: Mapping[int, Any], other: Mapping[int, Any], problem: str) -> list[str]:
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
