"""The configs that one file asks for, as `assay check --list` shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from assay.cli.terminal import paint
from assay.config import (
    Config,
    Node,
    Table,
    changed_keys,
    config_hash,
    expand,
    plain,
    seedless_hash,
)
from assay.config.sweep import sweep_of
from assay.config.variants import ALL, variants_of
from assay.core.formatting import count
from assay.core.terminal import elide, visible
from assay.formats.json_codec import dumps
from assay.query.diff import write_value

WIDTH = 80
_NAME_WIDTH = 24
SHOWN_DIGITS = 16

Hashed = Callable[[Config], Table | None]
"""The tree of a config to hash; None when its targets were not looked at."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Variation of one config: its name, its hashes ("" without signatures), and changed keys."""

    config: Config
    name: str
    hash: str
    seedless_hash: str
    changes: tuple[tuple[str, Node | None, Node | None], ...]  # key, before, after

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return {
            "name": self.name,
            "variant": self.config.variant,
            "point": self.config.point,
            "hash": self.hash,
            "seedless_hash": self.seedless_hash,
            "changes": [
                {
                    "key": key,
                    "before": None if before is None else plain(before),
                    "after": None if after is None else plain(after),
                    **({"removed": True} if after is None else {}),
                }
                for key, before, after in self.changes
            ],
        }


def rows(config: Config, hashed: Hashed, *, variant: str | None = None) -> list[Variation]:
    """Return a row for the base, for each variant, then for each point of the sweep.

    With a `variant` ("all": each), these are of the variant alone, as a run of it would be.
    """
    named = [] if variant is None else [variant]
    made = [] if named else [config]
    if named or variants_of(config.written)[0]:
        made += expand(config, named or [ALL], sweep=False)
    if sweep_of(config.written)[0] is not None:
        made += [each for each in expand(config, named) if each.point]
    return [_row(config, each, hashed(each)) for each in made]


def plain_variations(found: Sequence[Variation]) -> list[dict[str, Any]]:
    """Plain data that any reader of JSON takes."""
    data = json.loads(dumps([_spell_dates(row.to_json()) for row in found]))
    assert isinstance(data, list)
    return data


def variation_lines(
    found: Sequence[Variation], file: str, *, variant: str | None, color: bool
) -> Iterator[str]:
    """Return a block for each config with name, hash and changes, at most 80 columns wide.

    Below them stands how to run the variants, and the points, of the listed `variant`.
    """
    wide = min(max(len(row.name) for row in found), _NAME_WIDTH)
    for row in found:
        name = elide(row.name, wide).ljust(wide)
        digits = f"  {row.hash[:SHOWN_DIGITS]}" if row.hash else ""
        head = f"{paint(name, 'bold', on=color)}{paint(digits, 'dim', on=color)}"
        changes = [_change(*each) for each in row.changes]
        room = WIDTH - wide - len(digits) - 2
        if not changes:
            yield head.rstrip()
        elif len("  ".join(changes)) <= room:
            yield f"{head}  {'  '.join(changes)}"
        else:
            yield head.rstrip()
            yield from (f"  {elide(each, WIDTH - 2)}" for each in changes)
    points = sum(bool(row.config.point) for row in found)
    variants = sum(bool(row.config.variant and not row.config.point) for row in found)
    if variants:
        alone = " --no-sweep" if points else ""
        yield f"\n{count(variants, 'variant')}: assay run {file} --variant {variant or ALL}{alone}"
    if points:
        of_variant = f" --variant {variant}" if variant else ""
        head = "" if variants else "\n"
        yield f"{head}{count(points, 'point')}: assay run {file}{of_variant}"


def _row(base: Config, config: Config, tree: Table | None) -> Variation:
    changes: tuple[tuple[str, Node | None, Node | None], ...]
    if config.point:
        changes = tuple((key, None, node) for key, node in config.assigned)
    else:
        changes = tuple(
            (one.key, one.before, one.after) for one in changed_keys(base.root, config.root)
        )
    return Variation(
        config=config,
        name=config.name or "base",
        hash=config_hash(tree) if tree is not None else "",
        seedless_hash=seedless_hash(tree) if tree is not None else "",
        changes=changes,
    )


def _change(key: str, _before: Node | None, after: Node | None) -> str:
    return visible(f"{key} removed" if after is None else f"{key} = {write_value(after)}")


def _spell_dates(value: Any) -> Any:
    """Dates as text."""
    match value:
        case dict():
            return {key: _spell_dates(item) for key, item in value.items()}
        case list():
            return [_spell_dates(item) for item in value]
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else value
