"""Runs as observations: which of them count, and what to say of them wherever their numbers stand.

Runs that finished count; where none did, all do, and that is said. Runs of one config and one seed
are one observation, with the mean of their values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from assay.query.columns import COLUMNS, Column, show_value
from assay.query.selection import Selection
from assay.store.cells import Cell, from_cell, to_cell
from assay.store.conditions import Field
from assay.store.summaries import mean

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


@dataclass(frozen=True, slots=True)
class Members:
    """Facts of runs by which their numbers are judged, each in the order of the runs.

    `changed` has the settings that a resume changed, in words, by key.
    """

    ids: Sequence[str]
    settings: Sequence[Any]
    seeds: Sequence[Any]
    statuses: Sequence[str]
    changed: Sequence[Mapping[str, str]]

    @classmethod
    def of(cls, selection: Selection) -> Members:
        """Return the facts of selected runs."""
        facts = [COLUMNS["id"], SETTING, SEED, COLUMNS["status"]]
        ids, settings, seeds, statuses = selection.values(facts)
        return cls(ids, settings, seeds, statuses, selection.items("changed"))

    def at(self, places: Sequence[int]) -> Members:
        """Return the facts of the runs at these places."""
        return Members(
            [self.ids[place] for place in places],
            [self.settings[place] for place in places],
            [self.seeds[place] for place in places],
            [self.statuses[place] for place in places],
            [self.changed[place] for place in places],
        )

    @property
    def counted(self) -> Sequence[int]:
        """Places of the runs whose numbers count."""
        return choose_counted(range(len(self.ids)), self.statuses.__getitem__)

    def observe(self, place: int) -> tuple[Any, Cell]:
        """Return the observation that a run is of: its config and seed, or itself without one."""
        seed = self.seeds[place]
        return self.settings[place], self.ids[place] if seed is None else to_cell(seed)

    def describe(self, *, are_merged: bool) -> list[str]:
        """Return what to know before the mean of these runs is believed.

        `are_merged` says that runs of one config and seed are one observation of it.
        """
        told = [describe_unfinished(self.statuses), self._describe_uncounted()]
        counts = Counter(
            self.observe(place) for place in self.counted if self.seeds[place] is not None
        )
        seeds = {from_cell(seed): count for (_, seed), count in counts.items() if count > 1}
        if are_merged and seeds:
            told.append(f"runs of one seed are one observation: {_name_seeds(seeds)}")
        elif seeds:
            told += [f"seed {show_value(seed)} counts {_times(seeds[seed])}" for seed in seeds]
        return [*filter(None, told), *self._describe_changed()]

    def _describe_uncounted(self) -> str:
        left_out = set(range(len(self.ids))) - set(self.counted)
        if not left_out:
            return ""
        runs = "1 run does" if len(left_out) == 1 else f"{len(left_out)} runs do"
        return f"{runs} not count: {_count_statuses(self.statuses[place] for place in left_out)}"

    def _describe_changed(self) -> Iterator[str]:
        """Yield the settings that a resume changed in runs that count."""
        texts = Counter(
            (key, text) for place in self.counted for key, text in self.changed[place].items()
        )
        for (key, text), count in texts.items():
            part = "" if count == len(self.counted) else f" in {count} of {len(self.counted)} runs"
            yield f"a resume changed {key}{part}: {text}"


def describe_equal(count: int, deviation: float | None, name: str = "") -> str:
    """Return that several values of a mean are all the same, "" where they are not."""
    if count < 2 or deviation != 0:
        return ""
    of = f" of {name}" if name else ""
    return f"all {count} values{of} are the same, so the deviation is 0"


def choose_counted(runs: Sequence[_Run], status: Callable[[_Run], object]) -> Sequence[_Run]:
    """Return the runs whose numbers count: those that finished.

    A failed repeat would pull the mean of the others. Where none has finished all count, since each
    is all that there is.
    """
    return [run for run in runs if status(run) == "finished"] or runs


def read_observations(selection: Selection, column: Column) -> Observations:
    """Return what runs observed of a column of numbers; nan and inf are left out."""
    members = Members.of(selection)
    (cells,) = selection.values([column])
    counted = set(members.counted)
    places: dict[tuple[Any, Cell], list[int]] = {}
    left_out: dict[str, str] = {}
    for place, (run, cell) in enumerate(zip(members.ids, cells, strict=True)):
        if place not in counted:
            left_out[run] = members.statuses[place]
        elif cell is None:
            left_out[run] = f"no {column.name}"
        elif not is_finite(cell):
            left_out[run] = f"{column.name} {show_value(cell)}"
        else:
            places.setdefault(members.observe(place), []).append(place)
    means = [mean([float(cells[place]) for place in same]) for same in places.values()]
    firsts = [members.ids[same[0]] for same in places.values()]
    repeats = [members.ids[place] for same in places.values() for place in same[1:]]
    is_equal = len(means) > 1 and len(set(means)) == 1
    warnings = members.describe(are_merged=True)
    warnings += filter(None, [describe_equal(len(means), 0.0 if is_equal else None)])
    values = dict(zip(firsts, means, strict=True))
    return Observations(values, tuple(repeats), left_out, tuple(warnings))


def merge_repeats(values: Mapping[str, Any], observed: Mapping[str, Any]) -> list[float]:
    """Return the finite values of runs, of those that are one observation the mean.

    `observed` tells by run which observation it is of.
    """
    found: dict[Any, list[float]] = {}
    for run, value in values.items():
        if run in observed and is_finite(value):
            found.setdefault(observed[run], []).append(float(value))
    return list(map(mean, found.values()))


def describe_unfinished(statuses: Sequence[str]) -> str:
    """Return that none of the runs finished, and what they came to; "" where one did."""
    if not statuses or "finished" in statuses:
        return ""
    runs = "its run has not" if len(statuses) == 1 else f"none of its {len(statuses)} runs has"
    return f"{runs} finished: {_count_statuses(statuses)}"


def _count_statuses(statuses: Iterable[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(Counter(statuses).items()))


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that a mean can be made of."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _name_seeds(seeds: Collection[Any]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(show_value, seeds))}"
