"""Runs that are alike as one line each: which of them count, means and deviations."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from assay.core.errors import InputError, choose
from assay.core.formatting import number
from assay.formats.json_codec import dumps
from assay.query.columns import COLUMNS, Column
from assay.query.naming import SHORT_CELLS, ShownName, fit_names, name_together
from assay.query.observations import SETTING, Members, choose_counted, describe_equal
from assay.query.selection import Selection
from assay.query.significance import sample_deviation
from assay.store.cells import Cell, from_cell, identify, in_order, is_equal, to_cell
from assay.store.summaries import mean

BY_CONFIG = "config"
"""The grouping of runs that differ in nothing but their seed."""

_COUNTS = ("epoch", "step")
"""Metrics that are the same in all repeats by design."""
_OF_NEWEST = ("tag", "created", "age")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation (n - 1) of several runs; `std` is None for one run."""

    mean: float
    std: float | None
    count: int

    def __str__(self) -> str:
        if self.std is None or self.std != self.std:
            return number(self.mean)
        # As many digits as the deviation is known to: its first two.
        digits = 1 - int(f"{self.std:.1e}".partition("e")[2]) if 0 < self.std < math.inf else 9
        if abs(digits) > 8 or not math.isfinite(self.mean) or abs(self.mean) >= 1e9:
            return f"{number(self.mean)} ± {self.std:.2g}"
        digits = max(0, digits)
        return f"{self.mean:z.{digits}f} ± {self.std:.{digits}f}"


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that are alike in `key`, the newest first; `finished` of them finished.

    `tag` is the one that all of them have, "" for several; `name` says how they differ from all
    groups of the question, `short` the same in few cells. `cells` has for each column a Spread of
    the numbers of the runs that count, the value that these share, or None. `warnings` say what to
    know before the means are believed.
    """

    key: tuple[Any, ...]
    tag: str
    name: ShownName
    short: str
    ids: tuple[str, ...]
    finished: int
    cells: tuple[Any, ...]
    warnings: tuple[str, ...] = ()


def compute_spread(values: Sequence[float]) -> Spread:
    """Return mean and sample standard deviation.

    >>> str(compute_spread([0.981, 0.985, 0.983])), str(compute_spread([1.0]))
    ('0.9830 ± 0.0020', '1')
    """
    count = len(values)
    middle = mean(values) if all(map(math.isfinite, values)) else sum(values) / count
    if count == 1 or not math.isfinite(middle):
        return Spread(middle, None if count == 1 else math.nan, count)
    return Spread(middle, sample_deviation(values), count)


def merge_values(values: Sequence[Any], *, is_setting: bool = False) -> Any:
    """Return the spread of measured numbers, or the value of a setting that all runs share."""
    if is_setting and all(is_equal(value, values[0]) for value in values):
        return values[0]
    known = [value for value in values if value is not None]
    if known and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in known
    ):
        return compute_spread([float(value) for value in known])
    return known[0] if known and all(is_equal(value, known[0]) for value in known) else None


def is_number(value: Any) -> bool:
    """Return whether a value counts as a number, which a boolean does not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Grouping:
    """Groups of selected runs, by the values of columns that they share.

    `ignored` are keys of the config, or patterns such as `*.fold`, in which runs of one config may
    differ beside the seed.
    """

    def __init__(
        self, selection: Selection, by: Sequence[Column], *, ignored: Collection[str] = ()
    ) -> None:
        """InputError for an ignored key that no run has."""
        self._selection = selection
        self._members: dict[tuple[Cell, ...], list[int]] = {}
        asked = [SETTING if column.name == BY_CONFIG else column for column in by]
        self._by = asked
        self._ignored: Sequence[str] = ()
        facts = [COLUMNS[name] for name in ("id", "tag", "status")]
        self._ids, self._tags, self._statuses, *lists = selection.values([*facts, *asked])
        if ignored:
            configs = self._shorten_configs(ignored)
            lists = [
                [config or own for config, own in zip(configs, values, strict=True)]
                if column is SETTING
                else values
                for column, values in zip(asked, lists, strict=True)
            ]
        # With the ids: without a column all runs are one group.
        for place, (_, *key) in enumerate(zip(self._ids, *lists, strict=True)):
            self._members.setdefault(tuple(map(to_cell, key)), []).append(place)
        self._keys = list(self._members)

    def __len__(self) -> int:
        return len(self._keys)

    def sort(self, name: str, column: Column | None, *, descending: bool) -> None:
        """Order the groups by a column: by the mean if it has numbers, else by the newest run.

        By `tag`, `created` and `age` the newest run orders, by `runs` their number.
        """
        pairs: list[tuple[Any, tuple[Cell, ...]]] = []
        (values,) = self._selection.values([column]) if column is not None else ([],)
        for key in self._keys:
            within = self._members[key]
            if column is None:
                pairs.append((len(within), key))
            elif name in _OF_NEWEST:
                pairs.append((values[within[0]], key))
            else:
                known = [values[place] for place in self._choose(key)]
                pairs.append((_order_of(known), key))
        self._keys = in_order(pairs, descending=descending)

    def newest(self, offset: int, limit: int | None) -> Selection:
        """Return the newest run of some of the groups in their order."""
        keys = self._keys[offset:][:limit]
        return self._selection.at([self._members[key][0] for key in keys])

    def groups(self, columns: Sequence[Column], offset: int, limit: int | None) -> list[RunGroup]:
        """Return some of the groups in their order."""
        keys = self._keys[offset:][:limit]
        within = [place for key in keys for place in self._members[key]]
        shown = self._selection.at(within)
        cells_of = [dict(zip(within, values, strict=True)) for values in shown.values(columns)]
        facts = Members.of(shown)
        end = 0
        found = []
        for key in keys:
            name, short = self._names[key]
            members = self._members[key]
            counted = self._choose(key)
            pairs = zip(columns, cells_of, strict=True)
            cells = tuple(_merge(column, values, members, counted) for column, values in pairs)
            begin, end = end, end + len(members)
            told = facts.at(range(begin, end)).describe(are_merged=False)
            told += _describe_constants(columns, cells)
            ids = tuple(self._ids[place] for place in members)
            finished = sum(self._statuses[place] == "finished" for place in members)
            group = RunGroup(
                tuple(map(from_cell, key)),
                self._tag(key),
                name,
                short,
                ids,
                finished,
                cells,
                tuple(told),
            )
            found.append(group)
        return found

    def _tag(self, key: tuple[Cell, ...]) -> str:
        """Return the tag that all runs of a group have, "" for several."""
        tags = {self._tags[place] or "" for place in self._members[key]}
        return tags.pop() if len(tags) == 1 else ""

    @cached_property
    def _names(self) -> dict[tuple[Cell, ...], tuple[ShownName, str]]:
        """Names of all groups by what their newest runs have, whole and short."""
        keys = self._keys
        newest = self._selection.at([self._members[key][0] for key in keys])
        configs: list[dict[str, Any]] = [{} for _ in keys]
        defaults: list[dict[str, Any]] = []
        without = {"seed", *self._ignored}
        if SETTING in self._by:
            configs, defaults = newest.configs()
        if self._ignored:
            for copies in newest.items("copy"):
                without |= {key for key, source in copies.items() if source in self._ignored}
        for i, column in enumerate(self._by):
            for config, key in zip(configs, keys, strict=True):
                if column is not SETTING and column.name != "tag" and key[i] is not None:
                    config[column.name] = from_cell(key[i])
        names = name_together(
            configs,
            defaults,
            list(map(self._tag, keys)),
            newest.ids(),
            without=without,
        )
        pairs = zip(names, fit_names(names, SHORT_CELLS), strict=True)
        return dict(zip(keys, pairs, strict=True))

    def _choose(self, key: tuple[Cell, ...]) -> Sequence[int]:
        return choose_counted(self._members[key], lambda place: self._statuses[place])

    def _shorten_configs(self, ignored: Collection[str]) -> list[str]:
        """Return the config of each run as text, without seed, ignored keys and their copies.

        "" for a run without a config.
        """
        self._ignored = _match_keys(ignored, self._selection.catalog.names().config)
        left_out = {"seed", *self._ignored}
        configs = zip(self._selection.configs()[0], self._selection.items("copy"), strict=True)
        return [
            dumps(
                [
                    (key, repr(identify(config[key])))
                    for key in sorted(config)
                    if not left_out.intersection((key, sources.get(key)))
                ]
            )
            if config
            else ""
            for config, sources in configs
        ]


def _describe_constants(columns: Sequence[Column], cells: Sequence[Any]) -> list[str]:
    """Return the measured metrics of which several runs came to the very same value."""
    told = [
        describe_equal(cell.count, cell.std, column.name)
        for column, cell in zip(columns, cells, strict=True)
        if isinstance(cell, Spread) and column.kind == "metric" and column.name not in _COUNTS
    ]
    return list(filter(None, told))


def _merge(
    column: Column, cells: Mapping[int, Any], members: Sequence[int], counted: Sequence[int]
) -> Any:
    """Return the cell of a group; a moment in it is that of the newest run."""
    if column.name in ("created", "age"):
        return cells[members[0]]
    return merge_values([cells[place] for place in counted], is_setting=column.kind == "config")


def _match_keys(patterns: Collection[str], known: Sequence[str]) -> list[str]:
    found = []
    for pattern in patterns:
        matching = [name for name in known if fnmatchcase(name, pattern)]
        if not matching:
            what = f"No run has a key `{pattern}` in its config."
            raise InputError(what, fix=choose(pattern, known, "keys are"))
        found += matching
    return found


def _order_of(values: Sequence[Any]) -> Any:
    """Return what a group is sorted by: the mean of its numbers, else its newest value."""
    known = [value for value in values if value is not None]
    cell = merge_values(known)
    if isinstance(cell, Spread):
        return cell.mean
    return known[0] if known else None
