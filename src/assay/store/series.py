"""Curves out of `metrics.bin`: rows without numpy, series with it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import ArgumentError, RecordError
from assay.core.regular_file import read_bytes
from assay.formats import metrics_file, metrics_reader
from assay.formats.frames import Damage
from assay.formats.metrics_file import Chunk, KeySet, Rewind, Row, Rows
from assay.formats.metrics_reader import Vectors
from assay.store.vectors import FAST, ONE_BY_ONE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Source = Path | str | bytes | memoryview

MAX_BYTES = 16 << 30
"""A billion points of one metric. What is larger is damaged, or made to fill the memory of whoever
looks."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric as numpy arrays of equal length, each branch in the order of logging.

    `branches` is 0 for points on the curve, else the attempt that went back behind them. `axis` is
    the metric that is the x axis of this one, "" for the step; `axis_values` are its values, None
    with "".
    """

    name: str
    steps: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]
    branches: NDArray[np.int64]
    axis: str = ""
    axis_values: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def xs(self) -> NDArray[np.float64]:
        """Values of the x axis: those of `axis`, else the steps."""
        return self.steps.astype(float) if self.axis_values is None else self.axis_values

    def reduce(self, buckets: int = 2000) -> Reduced:
        """Return the curve in at most `buckets` equal ranges of steps, with extremes.

        No spike is lost. Points have to be in the order of their steps: of one branch, as `metric`
        gives them.
        """
        return _reduce(self, buckets)


@dataclass(frozen=True, slots=True)
class Reduced:
    """Curve with fewer points: first step, count, extremes and last value of each range of steps.

    A nan is no extreme; where a range holds nothing else, all three are nan. A range without points
    is left out.
    """

    name: str
    steps: NDArray[np.int64]
    counts: NDArray[np.int64]
    lows: NDArray[np.float64]
    highs: NDArray[np.float64]
    lasts: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(slots=True)
class Block:
    """All rows of one key set in file order, by column."""

    keys: KeySet
    steps: array[int] = field(default_factory=lambda: array("q"))
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    branches: array[int] = field(default_factory=lambda: array("q"))
    columns: list[array[float]] = field(default_factory=list)
    _back: tuple[int, int, int] | None = None
    """The step that the last attempt went back to, its number, and how many rows were there."""
    unplaced: int = 0
    """Number of the first rows without a place: those of an older file, in order by time."""
    _places: list[Sequence[int]] = field(default_factory=list)
    _is_split: bool = False
    """Whether rows are on another branch than 0."""

    def __post_init__(self) -> None:
        self.columns = [array("d") for _ in self.keys.names]

    def add(
        self,
        steps: Sequence[int],
        times_ns: Sequence[int],
        columns: Iterable[Sequence[float]],
        branch: int,
        places: int | Sequence[int],
        *,
        is_placed: bool = True,
    ) -> None:
        """Add rows at the end; `places` in the order of logging, or that of the first.

        The arrays of the first rows become those of the block. Rows that are not placed are in
        order by time, and by their places where times are equal.
        """
        rows = len(steps)
        if self._back is not None and not branch and self._back[0] in steps:
            self._repeat(*self._back)
        self.steps = _join_arrays(self.steps, steps)
        self.times_ns = _join_arrays(self.times_ns, times_ns)
        self.branches = _join_arrays(self.branches, array("q", [branch]) * rows)
        self._is_split |= branch != 0
        self._places.append(range(places, places + rows) if isinstance(places, int) else places)
        if not is_placed:
            self.unplaced = len(self.steps)
        self.columns = list(map(_join_arrays, self.columns, columns))

    @property
    def orders(self) -> array[int]:
        """Places of the rows in the order in which they were logged."""
        return array("q", chain.from_iterable(self._places))

    @property
    def last_key(self) -> tuple[bool, int, int]:
        """Key that orders the last rows of several blocks, as all rows are ordered."""
        is_placed = len(self.steps) > self.unplaced
        return is_placed, 0 if is_placed else self.times_ns[-1], self._places[-1][-1]

    def leave(self, step: int, attempt: int) -> None:
        """Move what lies behind `step` to a branch of its own, as after a resume."""
        if self.steps and max(self.steps) > step:
            for i, each in enumerate(self.steps):
                if each > step and not self.branches[i]:
                    self.branches[i] = attempt
                    self._is_split = True
        self._back = (step, attempt, len(self.steps))

    def _repeat(self, step: int, attempt: int, rows: int) -> None:
        """Leave a row of the same step behind that was logged again after a resume."""
        self._back = None
        for i, each in enumerate(self.steps[:rows]):
            if each == step and not self.branches[i]:
                self.branches[i] = attempt
                self._is_split = True

    def on_curve(self) -> Block:
        """The rows of the current branch only."""
        if not self._is_split:
            return self
        keep = [not branch for branch in self.branches]
        kept = Block(self.keys)
        kept.steps.extend(compress(self.steps, keep))
        kept.times_ns.extend(compress(self.times_ns, keep))
        kept._places.append(array("q", compress(self.orders, keep)))
        kept.unplaced = sum(keep[: self.unplaced])
        kept.branches.frombytes(bytes(8 * len(kept.steps)))
        for new, old in zip(kept.columns, self.columns, strict=True):
            new.extend(compress(old, keep))
        return kept


@dataclass(frozen=True, slots=True)
class MetricsContents:
    """Rows of a file by key set, and the parts of the file that could not be read."""

    blocks: list[Block]
    damages: tuple[Damage, ...] = ()


def read_contents(source: Source, *, vectors: Vectors = ONE_BY_ONE) -> MetricsContents:
    """Return all rows of a file (path or bytes) with their branches; none for a missing file."""
    data, where = _data(source)
    gathered = Gathered(where)
    for item in metrics_reader.read_rows(data, where=where, vectors=vectors):
        gathered.add(item)
    return gathered.contents()


class Gathered:
    """Rows put together to blocks in file order; RecordError for too many metrics."""

    def __init__(self, where: str = "metrics.bin") -> None:
        self._where = where
        self._columns = 0
        self._blocks: dict[KeySet, Block] = {}
        self._damages: list[Damage] = []
        self._order = 0
        self._placed: list[Sequence[int]] = []
        """Places that `_order` may lie in front of: long columns are searched only if need be."""

    def add(self, item: Rows | Row | Rewind | Chunk | Damage) -> None:
        match item:
            case Rows(keys=keys):
                self._block(keys).add(item.steps, item.times_ns, item.columns, 0, self._behind())
                self._order += len(item.steps)
            case Chunk(keys=keys):
                block = self._block(keys)
                is_placed = item.places is not None
                places = self._behind() if item.places is None else item.places
                rows = (item.steps, item.times_ns, item.columns)
                block.add(*rows, item.branch, places, is_placed=is_placed)
                self._order += len(item.steps)
                if item.places is not None:
                    self._placed.append(item.places)
            case Row(keys=keys):
                block = self._block(keys)
                values = [[value] for value in item.values]
                block.add([item.step], [item.time_ns], values, 0, self._behind())
                self._order += 1
            case Rewind(step=step, attempt=attempt):
                for block in self._blocks.values():
                    block.leave(step, attempt)
            case Damage():
                self._damages.append(item)

    def _behind(self) -> int:
        """Return the place behind all rows so far: that of what is logged next."""
        self._order = max(self._order, *(1 + max(places) for places in self._placed), 0)
        self._placed.clear()
        return self._order

    def _block(self, keys: KeySet) -> Block:
        if keys not in self._blocks:
            self._columns += len(keys.names)
            metrics_file.check_columns(self._columns, where=self._where)
            self._blocks[keys] = Block(keys)
        return self._blocks[keys]

    def contents(self) -> MetricsContents:
        return MetricsContents(list(self._blocks.values()), tuple(self._damages))


def read_series(
    source: Source, *, names: Iterable[str] | None = None, branches: bool = False
) -> dict[str, Series]:
    """Return curves by metric name: all or the existing of `names`, left branches on request."""
    return series_of(read_contents(source, vectors=FAST), names=names, branches=branches)


def series_of(
    contents: MetricsContents, *, names: Iterable[str] | None = None, branches: bool = False
) -> dict[str, Series]:
    """Return the curves of read rows, which they may share memory with: add no row meanwhile."""
    parts = parts_by_name(
        contents.blocks if branches else (block.on_curve() for block in contents.blocks)
    )
    wanted = parts.keys() if names is None else [name for name in names if name in parts]
    rows: dict[tuple[int, ...], _Rows] = {}
    found = {}
    for name in wanted:
        blocks = [block for block, _ in parts[name]]
        key = tuple(map(id, blocks))
        if key not in rows:
            rows[key] = _rows(blocks)
        found[name] = _series(name, parts[name], rows[key])
    return found


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of blocks in the order of logging: one for all metrics that are in the same blocks.

    `order` is that of their values, None where these come as they are.
    """

    steps: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    branches: NDArray[np.int64]
    order: NDArray[np.int64] | None


def _rows(blocks: Sequence[Block]) -> _Rows:
    import numpy as np  # here: a list of runs must not pay for it

    def whole(arrays: list[array[int]]) -> NDArray[np.int64]:
        return _join([np.frombuffer(each, dtype=np.int64) for each in arrays])

    steps = whole([block.steps for block in blocks])
    times = whole([block.times_ns for block in blocks])
    branches = whole([block.branches for block in blocks])
    if len(blocks) == 1:
        return _Rows(steps, times, branches, None)
    order = np.lexsort((whole([block.orders for block in blocks]), _by_time(blocks, times)))
    return _Rows(steps[order], times[order], branches[order], order)


def _series(name: str, parts: Sequence[tuple[Block, int]], rows: _Rows) -> Series:
    import numpy as np

    values = _join([np.frombuffer(block.columns[i], dtype=np.float64) for block, i in parts])
    # One axis for all: points from before it was said what the axis is lie at their step.
    axes = [block.keys.axis for block, _ in parts]
    names = [
        block.keys.names[at] if at is not None and at != i else ""
        for at, (block, i) in zip(axes, parts, strict=True)
    ]
    axis = next(filter(None, reversed(names)), "")
    axis_values = None
    if axis:
        columns = [
            block.columns[block.keys.axis]
            if known == axis and block.keys.axis is not None
            else block.steps
            for known, (block, _) in zip(names, parts, strict=True)
        ]
        axis_values = np.concatenate([np.asarray(each, dtype=np.float64) for each in columns])
    if rows.order is not None:
        values = values[rows.order]
        axis_values = axis_values[rows.order] if axis_values is not None else None
    return Series(name, rows.steps, rows.times_ns, values, rows.branches, axis, axis_values)


def _by_time(blocks: Sequence[Block], times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the times of rows that have no place; all others come behind, in their order."""
    import numpy as np

    ends = np.cumsum([len(block.steps) for block in blocks])
    keys = np.full(len(times_ns), np.iinfo(np.int64).max)
    for block, end in zip(blocks, ends.tolist(), strict=True):
        first = end - len(block.steps)
        keys[first : first + block.unplaced] = times_ns[first : first + block.unplaced]
    return keys


def _join(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """One after the other; one alone is not copied."""
    import numpy as np

    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _reduce(series: Series, buckets: int) -> Reduced:
    import numpy as np

    steps = series.steps
    values = series.values
    total = len(series)
    if buckets < 1:
        raise ArgumentError("A curve is reduced to at least one range", inside=("buckets",))
    if total and np.any(steps[1:] < steps[:-1]):
        order = np.argsort(steps, kind="stable")
        steps = steps[order]
        values = values[order]
    if total > buckets:
        edges = np.linspace(float(steps[0]), float(steps[-1]) + 1, buckets + 1)[:-1]
        # Whole numbers, as steps are: else all of them are made floats first. The limit is the last
        # float below 2^63.
        first_steps = np.ceil(np.minimum(edges, 2.0**63 - 1024)).astype(np.int64)
        first_steps[0] = steps[0]  # a float may lie above it
        starts = np.unique(np.searchsorted(steps, first_steps))
        starts = starts[starts < total]  # of many points at few steps the last ranges hold none
    else:
        starts = np.arange(total)
    ends = np.append(starts[1:], total) if total else starts
    counts = (ends - starts).astype(np.int64)
    if not total:
        empty = np.empty(0)
        return Reduced(series.name, steps[starts], counts, empty, empty, empty)
    lowest = np.fmin.reduceat(values, starts)
    highest = np.fmax.reduceat(values, starts)
    return Reduced(series.name, steps[starts], counts, lowest, highest, values[ends - 1])


def _join_arrays(numbers: array[Any], more: Sequence[Any]) -> array[Any]:
    """Return an array with more numbers at its end; none is copied that is in one already."""
    if not numbers and isinstance(more, array) and more.typecode == numbers.typecode:
        return more
    if isinstance(more, memoryview) and more.itemsize == numbers.itemsize:
        # Many times as fast as number by number.
        numbers.frombytes(more.cast("B") if more.c_contiguous else more.tobytes())
    else:
        numbers.extend(more)
    return numbers


def parts_by_name(blocks: Iterable[Block]) -> dict[str, list[tuple[Block, int]]]:
    """By metric name, the blocks that hold some of it and the column it has there."""
    parts: dict[str, list[tuple[Block, int]]] = {}
    for block in blocks:
        if block.steps:
            for i, name in enumerate(block.keys.names):
                parts.setdefault(name, []).append((block, i))
    return parts


def _data(source: Source) -> tuple[bytes | memoryview, str]:
    if isinstance(source, bytes | memoryview):
        return source, "metrics.bin"
    try:
        return read_bytes(source, MAX_BYTES), str(source)
    except FileNotFoundError:
        return b"", str(source)
    except OSError as error:
        raise RecordError(
            f"The metrics cannot be read: {error.strerror or error}.", where=str(source)
        ) from error
