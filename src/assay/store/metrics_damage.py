"""Damage of a run's curves, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from assay.core import metrics_reader
from assay.core.errors import RecordError
from assay.core.frames import Damage
from assay.core.regular_file import read_bytes
from assay.core.run_file import Summary
from assay.store.series import MAX_BYTES, summaries

_NAMED = 3


def metrics_damage(path: Path, expected: Mapping[str, Summary] | None) -> str:
    """One sentence about what cannot be read of `metrics.bin`, "" when all of it can.

    `expected` are the summaries of a run that has ended, which tell what is missing; None for one
    that has not, whose last row may have been cut off when it was killed.
    """
    try:
        data = read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        return "metrics.bin is missing." if expected else ""
    except OSError as error:
        return f"metrics.bin cannot be read: {error.strerror or error}."
    try:
        places = [
            each for each in metrics_reader.damages(data) if expected is not None or not each.torn
        ]
        lost = _lost(data, expected, is_damaged=bool(places)) if expected else ""
    except RecordError as error:
        return f"metrics.bin cannot be read: {error.what}"
    if not places:
        return f"metrics.bin is not what was written: {lost} are not there." if lost else ""
    told = (
        f": {lost} cannot be read."
        if lost
        else ". No point is lost."
        if expected is not None
        else "."
    )
    return f"metrics.bin is damaged {_where(places)}{told}"


def _where(places: list[Damage]) -> str:
    size = sum(each.end - each.offset for each in places)
    if len(places) == 1:
        return f"at byte {places[0].offset} ({size} bytes)"
    return f"in {len(places)} places ({size} bytes, the first at byte {places[0].offset})"


def _lost(data: bytes, expected: Mapping[str, Summary], *, is_damaged: bool) -> str:
    """Count the missing points by metric; of an undamaged file only what can be counted quickly."""
    counts = metrics_reader.points_on_curve(data)
    if counts is None:
        if not is_damaged:
            return ""
        counts = {name: each.count for name, each in summaries(data).items()}
    missing = [
        (name, each.count - counts.get(name, 0), each.count) for name, each in expected.items()
    ]
    missing = [(name, lost, of) for name, lost, of in missing if lost > 0]
    said = [f"{lost} of {of} points of {name}" for name, lost, of in missing[:_NAMED]]
    if len(missing) > _NAMED:
        said.append(f"points of {len(missing) - _NAMED} more metrics")
    return ", ".join(said)
