"""Damage of one record: the parts that cannot be read any more, and what is lost with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from assay.core.errors import AssayError, RecordError
from assay.core.regular_file import read_bytes
from assay.formats import metrics_reader, run_file
from assay.formats.event_log import read_lines
from assay.formats.frames import Damage
from assay.formats.run_file import RunFile, Status, Summary
from assay.store.artifacts import artifacts
from assay.store.best_damage import best_damage
from assay.store.layout import RunFolder
from assay.store.series import MAX_BYTES
from assay.store.summaries import summaries

MOST_CHECKED_BYTES = 1 << 30
"""Curves that take longer than a second or two to read through are not looked at for damage."""

_ENDED = ("finished", "failed", "stopped")


def damages(
    folder: RunFolder, file: RunFile | None, error: str, *, status: Status, config_text: str
) -> tuple[str, ...]:
    """Return a sentence for each damaged part of a record, the most important first.

    `file` is the content of `run.json`, None with its `error` when that cannot be read.
    """
    found = [error, _metrics(folder, file)]
    if file is not None:
        found.append(best_damage(folder, file, file.summaries if status in _ENDED else {}))
    for path in (folder.events, folder.edits):
        found.append(_lines(path, may_be_cut=status not in _ENDED))
    try:
        tomllib.loads(config_text)
    except (ValueError, RecursionError) as problem:
        found.append(f"config.toml cannot be read: {problem}")
    else:
        found.append(describe_altered_config(folder, file))
    try:
        artifacts(folder)
    except AssayError as problem:
        found.append(f"The list of artifacts is damaged: {problem.what}")
    return tuple(
        sentence if sentence.endswith(".") else f"{sentence}." for sentence in found if sentence
    )


def describe_altered_config(folder: RunFolder, file: RunFile | None) -> str:
    """Return a sentence about a config that is not what was written, "" for one that is."""
    digest = file.newest.config_digest if file is not None and file.attempts else ""
    if not digest or run_file.digest_of_config(folder.config_toml) == digest:
        return ""
    return "config.toml is damaged: it is not what was written"


def _metrics(folder: RunFolder, file: RunFile | None) -> str:
    """Return a sentence about unreadable curves, "" for none and for curves that are too long."""
    try:
        size = folder.metrics.lstat().st_size
    except OSError:
        size = 0
    if size > MOST_CHECKED_BYTES:
        return ""
    has_ended = file is not None and file.status in _ENDED
    return metrics_damage(folder.metrics, file.summaries if file and has_ended else None)


def _lines(path: Path, *, may_be_cut: bool) -> str:
    """Return a sentence about unreadable lines, "" for none.

    `may_be_cut` permits one, as a killed run may have cut off its last line.
    """
    try:
        unreadable = read_lines(path).unreadable
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    if unreadable > (1 if may_be_cut else 0):
        return f"{path.name} is damaged: {unreadable} of its lines cannot be read"
    return ""


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
        lost = _count_lost(data, expected, is_damaged=bool(places)) if expected else ""
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


def _count_lost(data: bytes, expected: Mapping[str, Summary], *, is_damaged: bool) -> str:
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
