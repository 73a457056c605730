"""Loader of streams: batches made here or in workers, with an exact position after each."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import get_worker_info

from assay.core.errors import InputError
from assay.engine.data.batches import collate as default
from assay.engine.data.batches import refuse_none, size_of
from assay.engine.data.source import Window
from assay.engine.data.streams.stream import Cursor, Pass, Position, Stream
from assay.engine.data.workers import Workers
from assay.engine.numerics.seed import restore_generators

logger = logging.getLogger("assay")

_COLLATE = -1
"""Lane of the draws of `collate`, whose number is that of the position it is at."""


class StreamLoader:
    """Batches of a stream, for training (`windows`) and evaluation (iteration over epoch 0).

    A list, as `streams.Batch` makes it, is a list of samples, and is collated; anything else is a
    batch as it is. `accumulate` batches make one optimizer step. With `workers`, or on
    several `ranks`, the stream has to have a `SplitByWorker`. Where the run is in its data is the
    position of each worker's stream, a few numbers.

    Raises InputError for a stream that every worker would give whole.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        seed: int | None = None,
        split: str = "train",
        accumulate: int = 1,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if workers < 0:
            raise InputError(f"data.{split}.workers is {workers}; it cannot be negative.")
        if accumulate < 1:
            raise InputError(f"accumulate is {accumulate}; it must be at least 1.")
        if max(workers, 1) * ranks > 1 and not stream.is_sharded:
            raise InputError(
                f"data.{split} is a stream that {max(workers, 1) * ranks} workers would each give "
                "whole.",
                fix="Put streams.SplitByWorker into the chain, early, or load with workers = 0.",
            )
        self.stream = stream
        self.is_seeded = seed is not None
        self.seed = seed or 0
        self.split = split
        self.accumulate = accumulate
        self.workers = workers
        self.collate = collate or getattr(stream, "collate_fn", None) or default
        self.rank = rank
        self.ranks = ranks
        self._state: dict[str, Any] | None = None
        self._epoch = 0  # that was begun last

    def exactness(self) -> str:
        replayed = self.stream.replayed_stages()
        if replayed:
            return f"not tried (replayed: {', '.join(replayed)} skips items)"
        return "exact (position)"

    @property
    def steps_per_epoch(self) -> int | None:
        return self.steps_in(self._epoch)

    def steps_in(self, epoch: int) -> int | None:
        """Return the number of windows of an epoch; None if nobody can know."""
        self._epoch = epoch
        ways = [self._way(epoch, shard) for shard in range(max(self.workers, 1))]
        lengths = [self.stream.length(way) for way in ways]
        known = [length for length in lengths if length is not None]
        return -(-sum(known) // self.accumulate) if len(known) == len(lengths) else None

    def __len__(self) -> int:
        steps = self.steps_per_epoch
        if steps is None:
            raise TypeError(f"nobody knows the length of data.{self.split}")
        return steps

    def with_seed(self, seed: int) -> StreamLoader:
        """Set the seed and return this loader."""
        self.seed, self.is_seeded = seed, True
        return self

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of epoch 0."""
        with closing(self._batches(0, _StartPositions(self.workers))) as batches:
            for batch, _ in batches:
                yield batch

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        """Yield the windows of one epoch from number `start` on."""
        at, skip = self._start(epoch, start)
        with closing(self._batches(epoch, at)) as batches:
            step = start - skip
            while taken := list(islice(batches, self.accumulate)):
                step += 1
                self._state = {"epoch": epoch, "step": step, **taken[-1][1].plain()}
                if step <= start:
                    continue
                sizes = [size_of(batch) for batch, _ in taken]
                yield Window(
                    [batch for batch, _ in taken], sum(sizes), sizes if len(sizes) > 1 else None
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last window."""
        return dict(self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the position; InputError if the state is of other workers or ranks."""
        if state and (state["workers"], state["ranks"]) != (self.workers, self.ranks):
            raise InputError(
                f"data.{self.split} is a stream that was split over {state['workers']} workers of "
                f"{state['ranks']}"
                f" ranks, not {self.workers} of {self.ranks}.",
                fix=(
                    "Go on with as many. The order of a data set with items by index does not "
                    "depend on them."
                ),
            )
        self._state = dict(state) or None

    def _start(self, epoch: int, start: int) -> tuple[_StartPositions, int]:
        """Return the start positions, and the number of windows to drop from there."""
        state = self._state
        if start and state is not None and (state["epoch"], state["step"]) == (epoch, start):
            return _StartPositions(self.workers, state["positions"], state["turn"]), 0
        if start:
            logger.warning(
                "data.%s: no position is kept for step %d; its batches are made again",
                self.split,
                start,
            )
        return _StartPositions(self.workers), start

    def _way(self, epoch: int, shard: int) -> Pass:
        workers = max(self.workers, 1)
        return Pass(
            seed=self.seed,
            split=self.split,
            epoch=epoch,
            shard=self.rank * workers + shard,
            shards=self.ranks * workers,
        )

    def _batches(self, epoch: int, at: _StartPositions) -> Generator[tuple[Any, _Reached]]:
        """Yield each batch with the position after it."""
        reached = _Reached(list(at.positions), at.turn, self.workers, self.ranks)
        if self.workers:
            return self._batches_of_workers(epoch, at, reached)
        return self._batches_here(epoch, at, reached)

    def _batches_here(
        self, epoch: int, at: _StartPositions, reached: _Reached
    ) -> Generator[tuple[Any, _Reached]]:
        """Yield the batches, loaded in this OS process, whose generators stay as they were."""
        way = self._way(epoch, 0)
        with restore_generators():
            cursor = self.stream.open(way, at.positions[0])
        with closing(cursor):
            while True:
                with restore_generators():
                    try:
                        batch = _batch_of(next(cursor), cursor, way, self.collate)
                    except StopIteration:
                        return
                reached.positions[0] = cursor.position()
                yield batch, reached

    def _batches_of_workers(
        self, epoch: int, at: _StartPositions, reached: _Reached
    ) -> Generator[tuple[Any, _Reached]]:
        """Yield the batches that the worker processes send, in turn."""
        ways = [self._way(epoch, shard) for shard in range(self.workers)]
        shards = _Shards(self.stream, ways, at, self.collate)
        pool = Workers(
            shards,
            self.workers,
            split=self.split,
            about=self.stream,
            seed=self.seed,
            warn=warnings.warn,
        )
        try:
            for batch, shard, position, tensors_of in pool.run():
                if tensors_of:
                    _warn_of_tensors(tensors_of)
                reached.positions[shard] = position
                reached.turn = (shard + 1) % self.workers
                yield batch, reached
        finally:
            pool.close()


class _StartPositions:
    """Start position of each worker's stream, and the worker whose turn it is."""

    def __init__(
        self, workers: int, positions: Sequence[Position | None] | None = None, turn: int = 0
    ) -> None:
        self.positions = positions or [None] * max(workers, 1)
        self.turn = turn


@dataclass(slots=True)
class _Reached:
    positions: list[Position | None]
    turn: int
    workers: int
    ranks: int

    def plain(self) -> dict[str, Any]:
        return {
            "positions": list(self.positions),
            "turn": self.turn,
            "workers": self.workers,
            "ranks": self.ranks,
        }


class _Shards:
    """Iterable in each worker: yields each batch of a shard with its shard and position.

    torch asks its workers in turn, from the first one on; so the first takes the shard whose turn
    it is.
    """

    def __init__(
        self,
        stream: Stream,
        ways: Sequence[Pass],
        at: _StartPositions,
        collate: Callable[[list[Any]], Any],
    ) -> None:
        self.stream = stream
        self.ways = ways
        self.at = at
        self.collate = collate

    def __iter__(self) -> Iterator[tuple[Any, int, Position, str]]:
        worker = get_worker_info()
        assert worker is not None
        shard = (worker.id + self.at.turn) % len(self.ways)
        told = False
        way = self.ways[shard]
        with closing(self.stream.open(way, self.at.positions[shard])) as cursor:
            for item in cursor:
                has_tensors = not told and shard == 0 and _holds_tensor(item)
                told = True
                batch = _batch_of(item, cursor, way, self.collate)
                yield batch, shard, cursor.position(), self._maker() if has_tensors else ""

    def _maker(self) -> str:
        return next(iter(self.stream.makers()), type(self.stream).__name__)


def _batch_of(item: Any, cursor: Cursor, way: Pass, collate: Callable[[list[Any]], Any]) -> Any:
    """Return the batch of an item: of a list of samples, what `collate` makes of it."""
    if not isinstance(item, list):
        return item
    way.draw_under(_COLLATE, crc32(repr(cursor.position()).encode()))
    try:
        return collate(item)
    except Exception as error:
        refuse_none(item, ["A sample of the stream"] * len(item), error)
        raise


def _holds_tensor(item: Any) -> bool:
    if isinstance(item, Mapping):
        return any(map(_holds_tensor, item.values()))
    if isinstance(item, list | tuple):
        return any(map(_holds_tensor, item[:8]))
    return isinstance(item, torch.Tensor)


_told: set[str] = set()


def _warn_of_tensors(maker: str) -> None:
    if maker not in _told:
        _told.add(maker)
        warnings.warn(
            f"{maker} makes tensors in a loader worker: give numpy arrays, and let collate make "
            "one tensor of a batch.",
            stacklevel=2,
        )
