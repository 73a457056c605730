"""Runs as observations: which of them count, and what to say of them wherever their numbers stand.

Runs that finished count; where none did, all do, and that is said. Runs of one config and one seed
are one observation, with the mean of their values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from assay.query.columns import COLUMNS, Column, show_value
from assay.store.cells import Cell, to_cell
from assay.store.conditions import Field
from assay.store.summaries import mean

if TYPE_CHECKING:
    from assay.query.catalog import Selection

SEED = Column("config.seed", Field("config", "seed"))
SETTING = Column("config", Field("run", "group"))
"""Key of runs that differ in nothing but their seed."""

_Run = TypeVar("_Run")


@dataclass(frozen=True, slots=True)
class Observations:
    """Value of each observation by the first of its runs, and why other runs are left out.

    `repeats` are runs of an observation behind its first; they are in its mean.
    """

    values: Mapping[str, float]
    repeats: tuple[str, ...]
    left_out: Mapping[str, str]
    warnings: tuple[str, ...]


def choose_counted(runs: Sequence[_Run], status: Callable[[_Run], object]) -> Sequence[_Run]:
    """Return the runs whose numbers count: those that finished.

    A failed repeat would pull the mean of the others. Where none has finished all count, since each
    is all that there is.
    """
    return [run for run in runs if status(run) == "finished"] or runs


def read_observations(selection: Selection, column: Column) -> Observations:
    """Return what runs observed of a column of numbers; nan and inf are left out."""
    facts = [COLUMNS["id"], COLUMNS["status"], SETTING, SEED, column]
    ids, statuses, settings, seeds, cells = selection.values(facts)
    counted = choose_counted(range(len(ids)), lambda place: statuses[place])
    places: dict[tuple[Any, Cell], list[int]] = {}
    left_out: dict[str, str] = {}
    for place, (run, cell) in enumerate(zip(ids, cells, strict=True)):
        if place not in counted:
            left_out[run] = statuses[place]
        elif cell is None:
            left_out[run] = f"no {column.name}"
        elif not is_finite(cell):
            left_out[run] = f"{column.name} {show_value(cell)}"
        else:
            seed = run if seeds[place] is None else to_cell(seeds[place])
            places.setdefault((settings[place], seed), []).append(place)
    values, repeats = {}, []
    for same in places.values():
        first, *others = same
        values[ids[first]] = mean([float(cells[place]) for place in same])
        repeats += [ids[place] for place in others]
    repeated = [show_value(seeds[same[0]]) for same in places.values() if len(same) > 1]
    warnings = [describe_unfinished(statuses)]
    warnings += [f"runs of one seed are one observation: {_name_seeds(repeated)}"] * bool(repeated)
    if len(values) > 1 and len(set(values.values())) == 1:
        warnings.append(f"all {len(values)} values are the same, so the deviation is 0")
    return Observations(values, tuple(repeats), left_out, tuple(filter(None, warnings)))


def merge_repeats(values: Mapping[str, Any], observed: Mapping[str, Any]) -> list[float]:
    """Return the finite values of runs, of those that are one observation the mean.

    `observed` tells by run which observation it is of.
    """
    found: dict[Any, list[float]] = {}
    for run, value in values.items():
        if run in observed and is_finite(value):
            found.setdefault(observed[run], []).append(float(value))
    return list(map(mean, found.values()))


def describe_members(
    settings: Sequence[Any], seeds: Sequence[Any], statuses: Sequence[str]
) -> list[str]:
    """Return what is to be said of the mean and deviation of runs, each of which counts there."""
    counted = choose_counted(range(len(statuses)), lambda place: statuses[place])
    times = Counter(
        (settings[place], to_cell(seeds[place])) for place in counted if seeds[place] is not None
    )
    told = []
    for (_, seed), count in times.items():
        if count > 1:
            often = "twice" if count == 2 else f"{count} times"
            told.append(
                f"seed {seed if isinstance(seed, int) else show_value(seed)} counts {often}"
            )
    return [*filter(None, [describe_unfinished(statuses)]), *told]


def describe_unfinished(statuses: Sequence[str]) -> str:
    """Return that none of the runs finished, and what they came to; "" where one did."""
    if not statuses or "finished" in statuses:
        return ""
    found = Counter(statuses)
    parts = (f"{count} {status}" for status, count in found.items())
    runs = "its run has not" if len(statuses) == 1 else f"none of its {len(statuses)} runs has"
    return f"{runs} finished: {', '.join(parts)}"


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that a mean can be made of."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _name_seeds(seeds: Sequence[str]) -> str:
    known = list(dict.fromkeys(seeds))
    return f"seed{'s' * (len(known) > 1)} {', '.join(known)}"
