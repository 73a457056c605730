"""Runs that are drawn together: their metrics, their names, the keys in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.query.columns import COLUMNS
from assay.query.naming import SHORT_CELLS, ShownName, count_values, fit_names, name_together

if TYPE_CHECKING:
    from assay.query.catalog import Catalog


@dataclass(frozen=True, slots=True)
class ShownRuns:
    """Facts of runs that are drawn together, by id: `names`, and the same in few cells.

    `keys` differ between them, those with most values first; `values` are those of one key.
    """

    metrics: list[str]
    names: Mapping[str, ShownName]
    short: Mapping[str, str]
    keys: list[str]
    values: Mapping[str, Any]


def describe_shown(catalog: Catalog, runs: Sequence[str], key: str = "") -> ShownRuns:
    """Return the facts of runs that are drawn together, with the values of a key or metric."""
    selection = catalog.select_ids(runs)
    ids, tags = selection.values([COLUMNS["id"], COLUMNS["tag"]])
    configs, defaults = selection.configs()
    counts = count_values(configs, defaults)
    names = name_together(configs, defaults, [tag or "" for tag in tags], ids)
    keys = sorted(counts, key=lambda each: (-counts[each], each))
    values: list[Any] = []
    if key:
        column = catalog.column(key)
        (cells,) = selection.values([column])
        values = list(map(column.spell, cells))
    return ShownRuns(
        metrics=selection.metrics(),
        names=dict(zip(ids, names, strict=True)),
        short=dict(zip(ids, fit_names(names, SHORT_CELLS), strict=True)),
        keys=list(map(catalog.names().of_key, keys)),
        values=dict(zip(ids, values, strict=False)),
    )
