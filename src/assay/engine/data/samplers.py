"""Orders other than a shuffle: weighted, balanced, by length, subset; functions of seed and epoch.

A sampler is given to a `Loader`, which asks it for an order. Samplers of torch are taken as well:
they are asked for the indices of a whole epoch under a key, and must give the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from assay.core.errors import InputError, did_you_mean
from assay.engine.data.plan import Order, Plan, digest_values
from assay.engine.data.randomness import epoch_followers, set_epoch
from assay.engine.numerics.seed import ORDER, restore_generators, seed_all, stream_key

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Sampler(Protocol):
    """Says in which order the samples of a data set come."""

    def order(self, dataset: Any, *, seed: int, batch_size: int) -> Order: ...


class Weighted:
    """Sampler by weight: weight 2 is drawn twice as often as 1; `num_samples` defaults to all.

    `weights` is a sequence, or the name of an attribute of the data set. Without `replacement` each
    comes once at most, the heavy ones earlier (Efraimidis & Spirakis, "Weighted random sampling
    with a reservoir", 2006).
    """

    def __init__(
        self,
        weights: Sequence[float] | str,
        *,
        num_samples: int | None = None,
        replacement: bool = True,
    ) -> None:
        self.weights = weights
        self.num_samples = num_samples
        self.replacement = replacement

    def order(self, dataset: Any, *, seed: int, batch_size: int) -> Order:
        weights = _values("weights", self.weights, dataset).astype(np.float64)
        if not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
            raise InputError("Weights must be finite, none below 0, and their sum above 0.")
        count = len(weights) if self.num_samples is None else self.num_samples
        if self.replacement:
            return _ByWeight(weights, count, seed)
        able = int(np.count_nonzero(weights))
        if self.num_samples is not None and count > able:
            raise InputError(
                f"{count} samples cannot be drawn without replacement: only {able} have a weight "
                "above 0.",
                fix="Set replacement = true, or a smaller num_samples.",
            )
        return _WithoutReplacement(weights, min(count, able), seed)


class Balanced:
    """Sampler that draws all classes equally often, and all samples of a class equally often.

    `labels` is a sequence of whole numbers or words, or the name of an attribute of the data set.
    An epoch has `num_samples` samples, by default as many as the data set.
    """

    def __init__(
        self, labels: Sequence[Any] | str = "labels", *, num_samples: int | None = None
    ) -> None:
        self.labels = labels
        self.num_samples = num_samples

    def order(self, dataset: Any, *, seed: int, batch_size: int) -> Order:
        labels = _values("labels", self.labels, dataset)
        count = len(labels) if self.num_samples is None else self.num_samples
        return _ByClass(labels, count, seed)


class ByLength:
    """Batch sampler that groups samples of similar length, to save padding; order is shuffled.

    `lengths` is a sequence, or the name of an attribute of the data set. Of every `window` batches
    of a shuffle the samples are sorted by length and dealt out: a larger window pads less and
    shuffles less.
    """

    def __init__(self, lengths: Sequence[int] | str = "lengths", *, window: int = 50) -> None:
        if window < 1:
            raise InputError(f"The window of ByLength is {window} batches; it must be at least 1.")
        self.lengths = lengths
        self.window = window

    def order(self, dataset: Any, *, seed: int, batch_size: int) -> Order:
        lengths = _values("lengths", self.lengths, dataset)
        return _Grouped(lengths, batch_size, self.window, seed)

    def longest_first(self, dataset: Any) -> Subset:
        """Return a sampler with the longest samples first, which need the most memory."""
        lengths = _values("lengths", self.lengths, dataset)
        return Subset(np.argsort(lengths, kind="stable")[::-1].tolist(), shuffle=False)


class Subset:
    """Sampler of a part of the data: `indices`, or `start` to `stop`; fractions are shares of all.

    Shuffled unless `shuffle` is false.
    """

    def __init__(
        self,
        indices: Sequence[int] | None = None,
        *,
        start: float = 0,
        stop: float | None = None,
        shuffle: bool = True,
    ) -> None:
        self.indices = indices
        self.start = start
        self.stop = stop
        self.shuffle = shuffle

    def order(self, dataset: Any, *, seed: int, batch_size: int) -> Order:
        chosen = self._choose_indices(len(dataset))
        plan = Plan(len(chosen), seed=seed, shuffle=self.shuffle)
        return _Chosen(chosen, plan)

    def _choose_indices(self, n: int) -> Ints:
        """Return the indices of the part; InputError for one that is not among the `n` samples."""
        if self.indices is None:
            start = _place(self.start, n)
            stop = n if self.stop is None else _place(self.stop, n)
            return np.arange(start, min(stop, n), dtype=np.int64)
        chosen = np.asarray(self.indices, dtype=np.int64)
        wrong = chosen[(chosen < 0) | (chosen >= n)]
        if len(wrong):
            raise InputError(
                f"Subset names the sample {wrong[0]}, but there are {n} (0 to {n - 1})."
            )
        return chosen


def _place(where: float, n: int) -> int:
    """Return a position: a number as it is, a fraction as a share of `n`."""
    if isinstance(where, int) or where > 1:
        return int(where)
    return round(where * n)


class _Chosen:
    def __init__(self, chosen: Ints, plan: Plan) -> None:
        self.n = len(chosen)
        self._choose_indices = chosen
        self._plan = plan

    def identity(self, epoch: int) -> dict[str, Any]:
        return {**self._plan.identity(epoch), "indices": digest_values(self._choose_indices)}

    def indices(self, epoch: int, start: int, count: int) -> Ints:
        return self._choose_indices[self._plan.indices(epoch, start, count)]


class _ByWeight:
    def __init__(self, weights: Floats, n: int, seed: int) -> None:
        self.n = n
        self._ends = np.cumsum(weights)
        self._seed = seed

    def identity(self, epoch: int) -> dict[str, Any]:
        return {"order": "by weight", "weights": digest_values(self._ends), "seed": self._seed}

    def indices(self, epoch: int, start: int, count: int) -> Ints:
        positions = np.arange(start, min(start + count, self.n), dtype=np.uint64)
        drawn = uniform(stream_key(self._seed, ORDER, epoch, 1), positions) * self._ends[-1]
        # right: a sample of weight 0 has no room of its own
        places: Ints = np.searchsorted(self._ends, drawn, side="right").astype(np.int64)
        return np.minimum(places, len(self._ends) - 1)


class _Epochwise:
    """An order that is made for an epoch at a time, and kept until another is asked for."""

    n: int

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._indices: Ints = np.empty(0, dtype=np.int64)

    def indices(self, epoch: int, start: int, count: int) -> Ints:
        if epoch != self._epoch:
            self._indices = self._draw_indices(epoch)
            self._epoch = epoch
        return self._indices[start : start + count]

    def _draw_indices(self, epoch: int) -> Ints:
        raise NotImplementedError


class _WithoutReplacement(_Epochwise):
    def __init__(self, weights: Floats, n: int, seed: int) -> None:
        super().__init__()
        self.n = n
        self._weights = weights
        self._seed = seed

    def _draw_indices(self, epoch: int) -> Ints:
        counters = np.arange(len(self._weights), dtype=np.uint64)
        drawn = uniform(stream_key(self._seed, ORDER, epoch, 2), counters)
        with np.errstate(divide="ignore"):
            # Exponential clocks with these rates: the first to ring are drawn.
            waits = -np.log1p(-drawn) / self._weights
        return np.argsort(waits, kind="stable")[: self.n].astype(np.int64)


class _ByClass:
    def __init__(self, labels: npt.NDArray[Any], n: int, seed: int) -> None:
        self.n = n
        self._seed = seed
        _, which = np.unique(labels, return_inverse=True)
        by_class = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which))
        self._members = np.split(by_class, ends[:-1])
        self._labels = digest_values(which)

    def identity(self, epoch: int) -> dict[str, Any]:
        # Rounds are counted through all epochs, by the number of samples of one.
        return {"order": "balanced", "labels": self._labels, "samples": self.n, "seed": self._seed}

    def indices(self, epoch: int, start: int, count: int) -> Ints:
        # Each round holds every class once; a class draws its samples in a new order each time.
        classes = len(self._members)
        stop = min(start + count, self.n)
        if stop <= start:
            return np.empty(0, dtype=np.int64)
        # Rounds are counted through all epochs: a class of few samples goes on where the epoch
        # before ended.
        at = np.arange(start, stop, dtype=np.int64)
        rounds_per_epoch = -(-self.n // classes)
        rounds = at // classes + epoch * rounds_per_epoch
        first = rounds[0]
        turns = self._turns(first, rounds[-1])
        which = turns[rounds - first, at % classes]
        out = np.empty(len(at), dtype=np.int64)
        for number in range(classes):
            mine = np.flatnonzero(which == number)
            out[mine] = self._samples_of(number, rounds[mine])
        return out

    def _turns(self, first: int, last: int) -> Ints:
        """Return the order of the classes in the rounds `first` to `last`, a row for each round."""
        classes = len(self._members)
        rounds = np.arange(first, last + 1, dtype=np.int64)
        cells = rounds[:, None] * classes + np.arange(classes)
        counters = cells.astype(np.uint64).ravel()
        drawn = uniform(stream_key(self._seed, ORDER, 3), counters)
        return np.argsort(drawn.reshape(cells.shape), axis=1)

    def _samples_of(self, number: int, rounds: Ints) -> Ints:
        """Return the sample that a class gives in each round: all of its samples, then all anew."""
        members = self._members[number]
        count = len(members)
        seed = _as_signed(stream_key(self._seed, ORDER, 4, number))
        plan = Plan(count, seed=seed, shuffle=True)
        cycles, places = np.divmod(rounds, count)
        found = np.empty(len(rounds), dtype=np.int64)
        for cycle in np.unique(cycles):
            order = members[plan.indices(int(cycle), 0, count)]
            these = cycles == cycle
            found[these] = order[places[these]]
        return found


class _Grouped:
    def __init__(self, lengths: Ints, batch_size: int, window: int, seed: int) -> None:
        self.n = len(lengths)
        self._lengths = lengths
        self._batch_size = batch_size
        self._window = window * batch_size
        self._plan = Plan(self.n, seed=seed, shuffle=True)
        self._seed = seed

    def identity(self, epoch: int) -> dict[str, Any]:
        return {
            "order": "by length",
            "lengths": digest_values(self._lengths),
            "batch_size": self._batch_size,
            "window": self._window // self._batch_size,
            "seed": self._seed,
        }

    def indices(self, epoch: int, start: int, count: int) -> Ints:
        stop = min(start + count, self.n)
        first = start // self._window * self._window
        windows = [self._window_at(epoch, begin) for begin in range(first, stop, self._window)]
        none = np.empty(0, dtype=np.int64)
        indices = np.concatenate([none, *windows])
        return indices[start - first : stop - first]

    def _window_at(self, epoch: int, begin: int) -> Ints:
        """Return the indices of the window that begins at a position."""
        size = self._batch_size
        indices = self._plan.indices(epoch, begin, self._window)
        by_length = np.argsort(self._lengths[indices], kind="stable")
        indices = indices[by_length]
        whole = len(indices) // size
        batches = indices[: whole * size].reshape(whole, size)
        rest = indices[whole * size :]
        counters = np.arange(whole, dtype=np.uint64)
        drawn = uniform(stream_key(self._seed, ORDER, epoch, begin, 5), counters)
        turns = np.argsort(drawn, kind="stable")
        return np.concatenate([batches[turns].ravel(), rest])


class Listed(_Epochwise):
    """Order of a torch sampler or any iterable of indices, iterated once an epoch under a key.

    `batches`: it gives lists of indices, each of them a batch. InputError when it gives another
    order the second time: then nobody could go on in the middle of an epoch.
    """

    def __init__(
        self, sampler: Iterable[Any], *, seed: int, name: str, batches: bool = False
    ) -> None:
        super().__init__()
        self._sampler = sampler
        self._seed = seed
        self._name = name
        self._in_batches = batches
        self._is_checked = False
        self._followers: list[Any] | None = None
        self._ends: Ints = np.empty(0, dtype=np.int64)  # of each batch of the epoch
        self.n = len(self.indices(0, 0, 0x7FFFFFFF))
        self.batches_per_epoch = len(self._ends)
        self.batch_size = int(max(np.diff(self._ends, prepend=0), default=1))

    def identity(self, epoch: int) -> dict[str, Any]:
        return {
            "order": type(self._sampler).__name__,
            "indices": digest_values(self.indices(epoch, 0, 0x7FFFFFFF)),
        }

    def length(self, epoch: int) -> int:
        """Return the number of samples of an epoch."""
        return len(self.indices(epoch, 0, 0x7FFFFFFF))

    def num_batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        self.indices(epoch, 0, 0)
        return len(self._ends)

    def batches(self, epoch: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (first position, indices) of each batch of an epoch."""
        indices = self.indices(epoch, 0, 0x7FFFFFFF).tolist()
        begin = 0
        for end in self._ends.tolist():
            yield begin, indices[begin:end]
            begin = end

    def _draw_indices(self, epoch: int) -> Ints:
        listed = self._list_indices(epoch)
        if not self._in_batches:
            return np.asarray([int(index) for index in listed], dtype=np.int64)
        self._ends = np.cumsum([len(batch) for batch in listed], dtype=np.int64)
        return np.asarray([int(index) for batch in listed for index in batch], dtype=np.int64)

    def _list_indices(self, epoch: int) -> list[Any]:
        first = self._ask_sampler(epoch)
        if not self._is_checked and self._ask_sampler(epoch) != first:
            raise InputError(
                f"{self._name}: {type(self._sampler).__name__} gives another order each time it is "
                "asked, so a run"
                " could not go on exactly.",
                fix=(
                    "Draw from torch, numpy or random without a generator of your own: they are "
                    "keyed by the epoch."
                ),
            )
        self._is_checked = True
        return first

    def _ask_sampler(self, epoch: int) -> list[Any]:
        value = stream_key(self._seed, ORDER, epoch, 6)
        if self._followers is None:
            self._followers = epoch_followers(self._sampler)
        set_epoch(self._followers, epoch, again=True)  # which may be how it begins anew
        # A batch sampler has a sampler inside.
        for each in (self._sampler, getattr(self._sampler, "sampler", None)):
            generator = getattr(each, "generator", None)
            if callable(manual_seed := getattr(generator, "manual_seed", None)):
                manual_seed(value)
        with restore_generators():
            seed_all(value)
            return list(self._sampler)


def order_of(sampler: Any, dataset: Any, *, seed: int, batch_size: int, name: str) -> Order:
    """Return the order of `sampler` over a data set; `name` is used in error messages."""
    make: Callable[..., Order] | None = getattr(sampler, "order", None)
    if callable(make):
        return make(dataset, seed=seed, batch_size=batch_size)
    if not isinstance(sampler, Iterable):
        raise InputError(
            f"{name}: a {type(sampler).__name__} gives no indices.",
            fix=(
                "Give one of assay.engine (Weighted, Balanced, ByLength, Subset), or a sampler of "
                "torch."
            ),
        )
    return Listed(sampler, seed=seed, name=name)


def uniform(value: int, counters: npt.NDArray[np.uint64]) -> Floats:
    """Numbers in [0, 1), one for each counter, under a 64-bit key.

    The finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number
    generators", 2014), twice.
    """
    x = counters * np.uint64(0x9E3779B97F4A7C15)
    x += np.uint64(value)
    for _ in range(2):
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        x += np.uint64(value)
    mantissas = x >> np.uint64(11)
    return mantissas.astype(np.float64) * 2.0**-53


def _values(what: str, given: Any, dataset: Any) -> npt.NDArray[Any]:
    """Return one value per sample: as given, or the data set's attribute of that name."""
    if isinstance(given, str):
        if not hasattr(dataset, given):
            attributes = getattr(dataset, "__dict__", {})
            known = [name for name in attributes if not name.startswith("_")]
            fix = f'Give {what} = "NAME" of an attribute, or the values.'
            raise InputError(
                f"{type(dataset).__name__} has no `{given}`, where the {what} of its samples would "
                "be.",
                fix=did_you_mean(given, known) or fix,
            )
        given = getattr(dataset, given)
    values = np.asarray(given)
    if values.ndim != 1 or len(values) != len(dataset):
        shape = " x ".join(map(str, values.shape)) or "one"
        raise InputError(
            f"There are {shape} {what} for {len(dataset)} samples; it takes one for each."
        )
    return values


def _as_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
