"""Curves out of the folder `metrics`: rows by set of names, series by metric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import ArgumentError
from assay.formats.metrics_file import DamagedRows, KeySet
from assay.store.metrics_reader import ChangedError, MetricsReader, branches_of, find_repeats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


@dataclass(frozen=True, slots=True)
class Block:
    """All rows of one set of names, by column, in the order of logging.

    `places` count the calls of `log` of a record. `values` has a row for each, and a column for
    each name.
    """

    keys: KeySet
    places: NDArray[np.int64]
    steps: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    branches: NDArray[np.int64]
    values: NDArray[np.float64]

    def on_curve(self) -> Block:
        """Return the rows of the current branch only."""
        if not self.branches.any():
            return self
        keep = self.branches == 0
        return Block(
            self.keys,
            self.places[keep],
            self.steps[keep],
            self.times_ns[keep],
            self.branches[keep],
            self.values[keep],
        )


@dataclass(frozen=True, slots=True)
class MetricsContents:
    """Rows by set of names, and the parts of the files that could not be read.

    `sets` are all sets of names, also those without a row. `nameless` is the number of rows whose
    names are lost, `missing` that of the rows that were there when the run ended and are not any
    more, by number of values.
    """

    blocks: list[Block]
    sets: tuple[KeySet, ...]
    damages: tuple[DamagedRows, ...]
    damaged_names: int
    nameless: int
    missing: dict[int, int]

    def is_lost(self, name: str) -> bool:
        """Return whether a metric may have had points that cannot be read."""
        has_losses = bool(self.damages or self.missing)
        return has_losses and any(name in keys.names for keys in self.sets)


def read_contents(folder: Path | str) -> MetricsContents:
    """Return all rows of a folder of metrics with their branches; none for a missing folder."""
    while True:
        reader = MetricsReader(Path(folder))
        try:
            windows = list(reader.read(to_end=True))
        except ChangedError:
            continue
        blocks = group_blocks(reader, windows)
        missing = {
            values: rows - reader.rows.get(values, 0)
            for values, rows in reader.names.ends.items()
            if rows > reader.rows.get(values, 0)
        }
        return MetricsContents(
            blocks,
            tuple(reader.names.sets.values()),
            tuple(reader.damages),
            reader.names.damaged_lines,
            reader.nameless,
            missing,
        )


def group_blocks(reader: MetricsReader, windows: Iterable[NDArray[np.void]]) -> list[Block]:
    """Return the rows of windows by set of names."""
    import numpy as np  # here: a list of runs must not pay for it

    parts: dict[KeySet, list[NDArray[np.void]]] = {}
    for window in windows:
        for keys, rows in reader.split(window):
            parts.setdefault(keys, []).append(rows)
    wholes = [(keys, _join(rows)) for keys, rows in parts.items()]
    repeats = find_repeats(reader.names.rewinds, wholes)
    blocks = []
    for keys, rows in wholes:
        if (np.diff(rows["place"].view(np.int64)) < 0).any():  # of several threads, or attempts
            rows = rows[np.argsort(rows["place"], kind="stable")]
        branches = branches_of((keys, rows), reader.names.rewinds, repeats)
        columns = rows["values"][:, : len(keys.names)]
        places = rows["place"].astype(np.int64)
        blocks.append(Block(keys, places, rows["step"], rows["time"], branches, columns))
    return sorted(blocks, key=lambda block: int(block.places[0]))


def read_series(
    folder: Path | str, *, names: Iterable[str] | None = None, branches: bool = False
) -> dict[str, Series]:
    """Return curves by metric name: all or the existing of `names`, left branches on request."""
    return series_of(read_contents(folder).blocks, names=names, branches=branches)


def series_of(
    blocks: Iterable[Block], *, names: Iterable[str] | None = None, branches: bool = False
) -> dict[str, Series]:
    """Return the curves of rows, as copies. Metrics of the same rows share steps and times."""
    if not branches:
        blocks = [block.on_curve() for block in blocks]
    parts: dict[str, list[tuple[Block, int]]] = {}
    for block in blocks:
        if len(block.steps):
            for i, name in enumerate(block.keys.names):
                parts.setdefault(name, []).append((block, i))
    wanted = parts.keys() if names is None else [name for name in names if name in parts]
    shared: dict[tuple[int, ...], _Rows] = {}
    found = {}
    for name in wanted:
        key = tuple(id(block) for block, _ in parts[name])
        if key not in shared:
            shared[key] = _rows([block for block, _ in parts[name]])
        found[name] = _series(name, parts[name], shared[key])
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
    import numpy as np

    order = None
    if len(blocks) > 1:
        order = np.argsort(np.concatenate([block.places for block in blocks]), kind="stable")

    def whole(columns: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return columns[0].copy() if order is None else np.concatenate(columns)[order]

    return _Rows(
        whole([block.steps for block in blocks]),
        whole([block.times_ns for block in blocks]),
        whole([block.branches for block in blocks]),
        order,
    )


def _series(name: str, parts: Sequence[tuple[Block, int]], rows: _Rows) -> Series:
    import numpy as np

    values = _join([block.values[:, i] for block, i in parts])
    # One axis for all: points from before it was said what the axis is lie at their step.
    axes = [
        block.keys.names[block.keys.axis] if block.keys.axis not in (None, i) else ""
        for block, i in parts
    ]
    axis = next(filter(None, reversed(axes)), "")
    axis_values = None
    if axis:
        columns = [
            block.values[:, block.keys.names.index(axis)] if known == axis else block.steps
            for known, (block, _) in zip(axes, parts, strict=True)
        ]
        axis_values = np.concatenate([np.asarray(each, dtype=np.float64) for each in columns])
    if rows.order is not None:
        values = values[rows.order]
        axis_values = axis_values[rows.order] if axis_values is not None else None
    return Series(
        name,
        rows.steps,
        rows.times_ns,
        np.ascontiguousarray(values),
        rows.branches,
        axis,
        axis_values,
    )


def _join(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays one after the other; one alone is not copied."""
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
