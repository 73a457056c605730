"""Names of runs and groups that are shown together: by what differs between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from assay.core.terminal import cell_count, elide
from assay.query.columns import MISSING, show_apart
from assay.store.cells import identify

_MOST_KEYS = 6
_LEAST_COMMON = 6
_SHORT_TAG = 12
_LEFT_OUT = "..."
_MISSING = "-"  # as `show_apart` writes it


@dataclass(frozen=True, slots=True)
class ShownName:
    """Name of a run or group among others: `w64 lr=0.01 width=64`.

    `tag` is one that all its members share, "" where it tells nothing. `settings` have the keys,
    shortened to what tells them apart, and values; `more` keys differ as well. `id` tells apart
    what nothing else does.
    """

    tag: str
    settings: tuple[tuple[str, str], ...]
    more: int = 0
    id: str = ""

    def __str__(self) -> str:
        return self.write()

    def write(self, *, tag: bool = True, keys: bool = True) -> str:
        """Return the name, without its tag or its keys where space is short."""
        more = f"(+{self.more} keys)" if self.more else ""
        values = [f"{key}={value}" if keys else value for key, value in self.settings]
        return " ".join(filter(None, [self.tag if tag else "", *values, self.id, more]))


def name_together(
    configs: Sequence[Mapping[str, Any]],
    defaults: Sequence[Mapping[str, Any]],
    tags: Sequence[str],
    ids: Sequence[str],
    *,
    without: Iterable[str] = (),
) -> list[ShownName]:
    """Return the names of runs or groups, each of which no other one has.

    `tags` are "" where the members of a group have several; keys in `without` name nothing. Where
    more than six keys differ, those with most values that tell all apart are named, and the number
    of the others.
    """
    counts = count_values(configs, defaults)
    keys = sorted(counts.keys() - set(without))
    tells = len(set(tags)) > 1
    shown_tags = [tag if tells else "" for tag in tags]
    chosen = keys if len(keys) <= _MOST_KEYS else _choose(keys, counts, configs, shown_tags)
    short = shorten_keys(chosen)
    columns = [zip(repeat(short[key]), _spell_all(configs, key)) for key in chosen]
    rows = list(zip(*columns, strict=True)) if columns else [()] * len(configs)
    names = [
        ShownName(tag, row, len(keys) - len(chosen))
        for tag, row in zip(shown_tags, rows, strict=True)
    ]
    texts = list(map(str, names))
    counts_of_texts = Counter(texts)
    named = []
    for name, text, tag, own in zip(names, texts, tags, ids, strict=True):
        if counts_of_texts[text] == 1 and text:
            named.append(name)
        elif len(texts) == 1 and tag:
            named.append(ShownName(tag, ()))
        else:
            named.append(ShownName(name.tag or tag, name.settings, name.more, own))
    return named


def count_values(
    configs: Sequence[Mapping[str, Any]], defaults: Sequence[Mapping[str, Any]] = ()
) -> dict[str, int]:
    """Return how many values each key has that differs between configs, without tag and desc.

    `configs` have the `defaults` that each took. A key that some run lacks differs where another
    one wrote it: a default comes and goes with what it belongs to.
    """
    taken = defaults or [{}] * len(configs)
    found = {}
    for key in dict.fromkeys(key for config in configs for key in config):
        having = [config for config in configs if key in config]
        count = len({identify(config[key]) for config in having})
        if len(having) < len(configs):
            pairs = zip(configs, taken, strict=True)
            count += any(key in config and key not in own for config, own in pairs)
        if count > 1 and key not in ("tag", "desc"):
            found[key] = count
    return found


SHORT_CELLS = 28
"""Cells of a name where space is short: in a row, a legend."""


def fit_names(names: Sequence[ShownName], width: int) -> list[str]:
    """Return names of at most `width` cells, if they stay apart; what is common goes first.

    First the tag goes, then the keys, the tag too, then what the values of a key have in common.
    What differs is never cut, though it takes more; a long tag is, where all stay apart.
    """
    values = [_without_missing(name) for name in names]
    clipped = [replace(name, tag=elide(name.tag, _SHORT_TAG)) for name in values]
    forms = [
        list(map(str, names)),
        [name.write(tag=False) for name in names],
        [name.write(keys=False) for name in clipped],
        [name.write(tag=False, keys=False) for name in values],
        [name.write(tag=False, keys=False) for name in names],
    ]
    known = [each for each in forms if _are_apart(each)] or forms[:1]
    fitting = (each for each in known if max(map(cell_count, each), default=0) <= width)
    found = next(fitting, known[-1])
    if max(map(cell_count, found), default=0) <= width:
        return found
    lists = [[value for _, value in name.settings] for name in names]
    columns = [_without_common(cells) for cells in zip(*lists, strict=True)]
    if not columns:
        return found
    shorter = [
        " ".join(filter(None, [*cells, name.id]))
        for cells, name in zip(zip(*columns, strict=True), names, strict=True)
    ]
    return shorter if _are_apart(shorter) else found


def _are_apart(texts: Sequence[str]) -> bool:
    return len(set(texts)) == len(texts) and all(texts)


def _without_missing(name: ShownName) -> ShownName:
    """Return a name without the keys that its run lacks."""
    settings = tuple(pair for pair in name.settings if pair[1] != _MISSING)
    return replace(name, settings=settings)


def shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the shortest end of each key that no other one ends in.

    >>> shorten_keys(["optimizer.lr", "a.model.width", "b.model.width"])
    {'optimizer.lr': 'lr', 'a.model.width': 'a.model.width', 'b.model.width': 'b.model.width'}
    """
    found = {}
    for key in keys:
        ends = shorten_ends(key)
        taken = [other for other in keys if other != key]
        found[key] = next(
            (end for end in ends if not any(f".{other}".endswith(f".{end}") for other in taken)),
            key,
        )
    return found


def shorten_ends(key: str) -> list[str]:
    """Return the ends of a key, the shortest first."""
    parts = key.split(".")
    return [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]


def _choose(
    keys: Sequence[str],
    counts: Mapping[str, int],
    configs: Sequence[Mapping[str, Any]],
    tags: Sequence[str],
) -> list[str]:
    """Return the keys with most values, as few as tell all apart, at most six."""
    chosen: list[str] = []
    for key in sorted(keys, key=lambda key: (-counts[key], key))[:_MOST_KEYS]:
        columns = [_spell_all(configs, each) for each in chosen]
        if chosen and len(set(zip(tags, *columns, strict=True))) == len(configs):
            break
        chosen.append(key)
    return sorted(chosen)


def _spell_all(configs: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return show_apart([config.get(key, MISSING) for config in configs])


def _without_common(values: Sequence[str]) -> list[str]:
    """Return values without a long beginning and end that all of them have."""
    first = _common_start(values)
    last = _common_start([value[len(first) :][::-1] for value in values])[::-1]
    head = _LEFT_OUT if len(first) >= _LEAST_COMMON else first
    tail = _LEFT_OUT if len(last) >= _LEAST_COMMON else last
    return [f"{head}{value[len(first) : len(value) - len(last)]}{tail}" for value in values]


def _common_start(values: Sequence[str]) -> str:
    low, high = min(values), max(values)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((i for i, (one, other) in pairs if one != other), len(low))]
