"""Loader of map-style data: samples at positions of an order, each loaded under its own key."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, TensorDataset

from assay.core.errors import InputError
from assay.core.schema import LOADER_CLASHES
from assay.engine.data.ahead import pinned_ahead
from assay.engine.data.batch_size import batch_size as divided
from assay.engine.data.batches import collate as collate_samples
from assay.engine.data.batches import pin
from assay.engine.data.plan import Order, Plan, blocks, identity_of, samples_in
from assay.engine.data.randomness import Fetch, MapDataset, Randomness, randomness_of
from assay.engine.data.samplers import Listed, order_of
from assay.engine.data.source import Window
from assay.engine.data.workers import StartMethod, Task, Workers
from assay.engine.numerics.seed import checked_seed, restore_generators

Part = tuple[int, list[int]]
"""Position of the first sample, indices."""

_MAY_CLASH = ("batch_size", "sampler", "batch_sampler", "shuffle", "micro_batch_size")


def is_dataset(source: object) -> bool:
    """Return True for a map-style data set: a length and items by index."""
    return (
        hasattr(source, "__len__")
        and hasattr(source, "__getitem__")
        and not isinstance(source, IterableDataset)
    )


class Loader:
    """Batches of a map-style data set, for training (`windows`) and evaluation (iteration).

    `batch_size` is the number of samples per optimizer step; `micro_batch_size` or `accumulate`
    splits it, and both of them give it where it is left out. The order depends on (seed, epoch)
    alone, the randomness of a sample on (seed, split, epoch, position): where a run is in its data
    is one integer, and how many workers load it changes nothing.

    `randomness` says how loading draws: "sample" keys torch, numpy and `random` before each sample,
    "batch" before each batch, "none" promises that nothing is drawn and keys nothing. The default
    is "none" for a `TensorDataset`, "batch" for data sets with `__getitems__`, else "sample"; a
    data set may say so itself by an attribute `randomness`. Generators inside the data set are
    keyed too, and whatever in it has a `set_rng(key)` is given the key.

    `sampler`: another order (`Weighted`, `Balanced`, `ByLength`, `Subset`, or one of torch).
    `batch_sampler`: gives the indices of each batch; then `accumulate` batches make an optimizer
    step. `workers` processes load `prefetch` batches each ahead and stay for all epochs if
    `persistent_workers`; `timeout_s` is how long a batch may take (0 for ever, None for half an
    hour), `worker_init` is called in each with its number, `start_method` is
    how they are started. `pin_memory` counts where there is CUDA.

    `rank` of `ranks` loads a share: micro-batches are dealt out in turn, so that N ranks load what
    one rank with N times as many micro-batches would, and no sample is left out, padded or given
    twice.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        batch_size: int | None = None,
        seed: int | None = None,
        split: str = "train",
        shuffle: bool | None = None,
        accumulate: int | None = None,
        micro_batch_size: int | None = None,
        drop_last: bool = False,
        randomness: Randomness | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        sampler: Any = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        workers: int = 0,
        prefetch: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool = False,
        timeout_s: float | None = None,
        worker_init: Callable[[int], object] | None = None,
        start_method: StartMethod | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._options = {
            name: value for name, value in locals().items() if name not in ("self", "dataset")
        }
        _check_dataset(dataset, split)
        _check_options(self._options)
        self.dataset = dataset
        self.rank = rank
        self.ranks = ranks
        self.is_seeded = seed is not None
        self.seed = seed = checked_seed(seed or 0)
        self.split = split
        self.drop_last = drop_last
        self.workers = workers
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self.collate = collate or getattr(dataset, "collate_fn", None) or collate_samples
        self.randomness: Randomness = randomness or randomness_of(dataset)
        self.epoch = 0
        self.warn: Callable[[str], None] = _warn
        self._began = 0  # the epoch of the newest windows
        self._resumed: dict[str, Any] | None = None
        # a rank that has fewer micro-batches of a window than others repeats one, of size 0
        self.fills = False
        self._accumulate = accumulate or 1
        self._lists: Listed | None = None
        if batch_sampler is not None:
            name = f"data.{split}.batch_sampler"
            self._lists = Listed(batch_sampler, seed=seed, name=name, batches=True)
            accumulate = self._accumulate
            batch_size = self._lists.batch_size * accumulate
        self.sizes = divided(
            batch_size, micro=micro_batch_size, accumulate=accumulate, ranks=ranks, split=split
        )
        self.sampler = sampler
        self.order = self._order_of(sampler, shuffle=bool(shuffle))
        self.batch_size = self.sizes.whole
        self.micro_batch_size = self.sizes.micro
        self.fetch = Fetch(
            dataset, collate=self.collate, randomness=self.randomness, seed=seed, split=split
        )
        is_plain = self.collate is collate_samples
        self._tensors = dataset if is_plain and type(dataset) is TensorDataset else None
        self._new_pool = partial(
            Workers,
            self.fetch,
            workers,
            split=split,
            about=dataset,
            seed=seed,
            prefetch=prefetch,
            timeout_s=timeout_s,
            init=worker_init,
            start_method=start_method,
            warn=_warner(weakref.ref(self)),
        )
        self._pool = self._new_pool() if workers else None
        self._persistent = persistent_workers

    def _order_of(self, sampler: Any, *, shuffle: bool) -> Order:
        """Return the order of the samples: that of a sampler, else the plan of the seed."""
        if self._lists is not None:
            return self._lists
        if sampler is None:
            return Plan(len(self.dataset), seed=self.seed, shuffle=shuffle)
        return order_of(
            sampler,
            self.dataset,
            seed=self.seed,
            batch_size=self.sizes.whole,
            name=f"data.{self.split}.sampler",
        )

    def exactness(self) -> str:
        return "exact (plan)"

    @property
    def steps_per_epoch(self) -> int:
        if self._lists is not None:
            return -(-self._lists.batches_per_epoch // self._accumulate)
        return self._steps_of(self.order.n)

    def steps_in(self, epoch: int) -> int:
        """Return the number of windows of an epoch: a sampler may give more or fewer in each."""
        self._begin(epoch)
        if self._lists is not None:
            return -(-self._lists.num_batches(epoch) // self._accumulate)
        return self._steps_of(samples_in(self.order, epoch))

    def _begin(self, epoch: int) -> None:
        """Make another order where the data set, told of the epoch, has another length in it."""
        if isinstance(self.order, Plan) and self.fetch.tell(epoch):
            n = len(self.dataset)
            if n != self.order.n:
                self.order = Plan(n, seed=self.order.seed, shuffle=self.order.shuffle)

    def _steps_of(self, samples: int) -> int:
        full, rest = divmod(samples, self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __len__(self) -> int:
        return self.steps_per_epoch

    @property
    def arithmetic(self) -> str:
        """`64 = 4 accumulate x 16`, for the start of a run."""
        return str(self.sizes)

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        """Yield the windows of one epoch from number `start` on; the last may be smaller."""
        self._begin(epoch)
        self._began, self._resumed = epoch, None
        return self._windows(epoch, self._cuts(epoch, start))

    def windows_after(self, epoch: int, samples: int) -> Iterator[Window]:
        """Yield the windows of an epoch of which `samples` were seen."""
        self._begin(epoch)
        self._began, self._resumed = epoch, None
        return self._windows(epoch, self._cuts_from(epoch, samples))

    def state_dict(self) -> dict[str, Any]:
        """Return what the order of the epoch is a function of: the position is in the run's.

        A state that was loaded stays until an epoch begins.
        """
        return self._resumed or identity_of(self.order, self._began)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._resumed = dict(state)

    def check_order(self, epoch: int) -> None:
        """Raise InputError if a resumed epoch has another order than before.

        Samples seen are counted by their position: others would be lost, and some seen twice.
        """
        before, self._resumed = self._resumed, None
        if before is None:
            return
        self._begin(epoch)
        self._began = epoch
        now = identity_of(self.order, epoch)
        for name in before | now:
            if before.get(name) != now.get(name):
                values = f"was {before.get(name)} and is {now.get(name)}"
                raise InputError(
                    f"data.{self.split} cannot be resumed within epoch {epoch + 1}: the order of"
                    f" its samples depends on `{name}`, which {values}.",
                    fix="Finish the epoch with the old value; a change can begin with the next.",
                )

    def tasks(self, epoch: int, start: int) -> Iterator[Task]:
        """Yield the tasks (epoch, position, indices) of the windows from number `start` on."""
        return ((epoch, *part) for cut in self._cuts(epoch, start) for part in cut)

    def indices(self, epoch: int, samples: int, number: int) -> list[int]:
        """Return the indices of micro-batch `number` of this rank after `samples` samples."""
        cut = next(self._cuts_from(epoch, samples), [])
        own = self._own(cut)
        if number >= len(own):
            return []
        _, indices = own[number]
        return indices

    def own_tasks(self, epoch: int) -> Iterator[Task]:
        """Yield the tasks of an epoch that are for this rank."""
        return ((epoch, *part) for cut in self._cuts(epoch, 0) for part in self._own(cut))

    def steps_after(self, samples: int, *, epoch: int) -> int:
        """Return the number of windows left of an epoch of which `samples` were seen."""
        self._begin(epoch)
        if self._lists is not None:
            return sum(1 for _ in self._cuts_from(epoch, samples))
        return self._steps_of(max(0, samples_in(self.order, epoch) - samples))

    def steps_to(self, samples: int) -> int | None:
        """Return the number of windows, from the start of an epoch, that hold so many samples.

        None for batches of a sampler, which may be of any size.
        """
        kept = self.order.n // self.batch_size * self.batch_size
        size = kept if self.drop_last else self.order.n
        if self._lists is not None or not size:
            return None
        epochs, rest = divmod(samples, size)
        return epochs * self.steps_per_epoch + -(-rest // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; `windows` takes its epoch as an argument."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one epoch (see `set_epoch`), not split into micro-batches.

        Of several ranks each gives every so many-th batch of `batch_size / ranks` samples.
        """
        size = self.batch_size // self.ranks
        parts = (
            self._lists.batches(self.epoch)
            if self._lists is not None
            else blocks(self.order, self.epoch, 0, size)
        )
        least = size if self.drop_last else 1
        full = (part for part in parts if len(part[1]) >= least)
        yield from self._load_batches(
            (self.epoch, *part) for part in islice(full, self.rank, None, self.ranks)
        )

    def with_options(self, **options: Any) -> Loader:
        """Return another loader of the same data with these options changed."""
        return Loader(self.dataset, **(self._options | options))

    def with_seed(self, seed: int) -> Loader:
        """Return another loader of the same data, under a seed."""
        return self.with_options(seed=seed)

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()

    def _windows(self, epoch: int, cuts: Iterator[list[Part]]) -> Iterator[Window]:
        begun: deque[list[Part]] = deque()

        def tasks() -> Iterator[Task]:
            for cut in cuts:
                begun.append(cut)
                yield from ((epoch, *part) for part in self._own(cut))

        batches = self._load_batches(tasks())
        for first in batches:
            while not self._own(begun[0]):
                yield self._window(begun.popleft(), ())
            cut = begun.popleft()
            own = len(self._own(cut))
            yield self._window(cut, (first,) if own == 1 else [first, *islice(batches, own - 1)])
        while begun:
            yield self._window(begun.popleft(), ())

    def _window(self, cut: list[Part], batches: Sequence[Any]) -> Window:
        sizes = [len(indices) for _, indices in cut]
        if self.ranks == 1:
            return Window(batches, sum(sizes), sizes if len(cut) > 1 else None, len(cut))
        own = sizes[self.rank :: self.ranks]
        own += [0] * (len(self._own(cut)) - len(own))
        return Window(batches, sum(sizes), own, -(-len(cut) // self.ranks))

    def _own(self, cut: list[Part]) -> list[Part]:
        """Return the micro-batches of a window that belong to this rank."""
        own = cut[self.rank :: self.ranks]
        if self.fills and len(own) * self.ranks < len(cut):
            return own + cut[:1]
        return own

    def _cuts(self, epoch: int, start: int) -> Iterator[list[Part]]:
        """Yield the micro-batches of each window of an epoch, from number `start` on."""
        if self._lists is None:
            yield from self._cuts_from(epoch, start * self.batch_size)
            return
        yield from self._cut_lists(
            islice(self._lists.batches(epoch), start * self._accumulate, None)
        )

    def _cut_lists(self, parts: Iterator[Part]) -> Iterator[list[Part]]:
        """Yield the micro-batches of each window, of the batches of a batch sampler."""
        while cut := list(islice(parts, self._accumulate)):
            if self.ranks == 1:
                yield cut
            else:
                yield [piece for part in cut for piece in _pieces(part, self.ranks)]

    def _cuts_from(self, epoch: int, sample: int) -> Iterator[list[Part]]:
        if self._lists is not None:
            left = (
                (max(begin, sample), indices[max(0, sample - begin) :])
                for begin, indices in self._lists.batches(epoch)
            )
            yield from self._cut_lists(part for part in left if part[1])
            return
        micro = self.micro_batch_size
        for position, indices in blocks(self.order, epoch, sample, self.batch_size):
            if self.drop_last and len(indices) < self.batch_size:
                return
            yield [(position + i, indices[i : i + micro]) for i in range(0, len(indices), micro)]

    def _load_here(self, task: Task) -> Any:
        """Load a batch in this OS process; leave its global generators as they were."""
        epoch, position, indices = task
        if self._tensors is not None:
            return _rows(self._tensors, indices)
        if self.randomness == "none":
            return self.fetch(epoch, position, indices)
        with restore_generators():
            return self.fetch(epoch, position, indices)

    def _load_batches(self, tasks: Iterable[Task]) -> Iterator[Any]:
        if self._pool is None:
            batches: Iterator[Any] = map(self._load_here, tasks)
            yield from map(pin, batches) if self.pin_memory else batches
            return
        # Somebody may iterate twice at once: who comes second gets processes of its own.
        pool = self._new_pool() if self._pool.is_busy else self._pool
        running = pool.run(tasks)
        batches = pinned_ahead(running) if self.pin_memory else running
        try:
            yield from batches
        finally:
            batches.close()
            running.close()
            if pool is not self._pool or not self._persistent:
                pool.close()


def _pieces(part: Part, count: int) -> list[Part]:
    """Split a batch into `count` pieces, one for each rank; fewer if it has fewer samples."""
    position, indices = part
    size = -(-len(indices) // count)
    return [(position + i, indices[i : i + size]) for i in range(0, len(indices), size)]


def _rows(dataset: TensorDataset, indices: Sequence[int]) -> list[torch.Tensor]:
    """Fetch the rows of a TensorDataset at once, equal to what it would give item by item."""
    where = torch.tensor(indices)
    return [tensor.index_select(0, where) for tensor in dataset.tensors]


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def _warner(loader: weakref.ref[Loader]) -> Callable[[str], None]:
    """Return a function that calls the loader's `warn` without keeping the loader alive."""

    def warn(message: str) -> None:
        found = loader()
        if found is not None:
            found.warn(message)

    return warn


def _check_dataset(dataset: object, split: str) -> None:
    if not is_dataset(dataset):
        raise InputError(
            f"data.{split}: {type(dataset).__name__} has no length or no items by index.",
            fix="Give a map-style data set (__len__ and __getitem__).",
        )


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise InputError for options that exclude each other, and for numbers out of range."""
    split = options["split"]
    given = {name for name in _MAY_CLASH if options[name] is not None}
    if options["drop_last"]:
        given.add("drop_last")
    for one, other, why in LOADER_CLASHES:
        if one in given and other in given:
            raise InputError(
                f"data.{split}: {one} and {other} do not go together: {why}.",
                fix="Leave one of them out.",
            )
    workers = options["workers"]
    if workers < 0:
        raise InputError(f"data.{split}.workers is {workers}; it must be at least 0.")
    prefetch = options["prefetch"]
    if prefetch < 1:
        raise InputError(f"data.{split}.prefetch is {prefetch}; it must be at least 1.")
    rank, ranks = options["rank"], options["ranks"]
    if not 0 <= rank < ranks:
        raise InputError(
            f"data.{split}: there is no rank {rank} of {ranks}; they are counted from 0."
        )


def planned_indices(source: object, epoch: int, samples: int, number: int) -> list[int] | None:
    """Return the indices of micro-batch `number` after `samples` samples of an epoch.

    None where only the sampler knows them: to ask it may change its state.
    """
    if isinstance(source, Loader) and isinstance(source.order, Plan):
        return source.indices(epoch, samples, number)
    return None
