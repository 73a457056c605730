"""DamagedRows of one record: the parts that cannot be read any more, and what is lost with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from assay.core.errors import AssayError, RecordError
from assay.formats import run_file
from assay.formats.event_log import read_lines
from assay.formats.metrics_file import (
    NAMES_FILE,
    DamagedRows,
    metrics_state,
    row_bytes,
    row_values,
    values_of_file,
)
from assay.formats.run_file import RunFile, Status, Summary
from assay.store.artifacts import artifacts
from assay.store.best_damage import best_damage
from assay.store.layout import RunFolder
from assay.store.series import MetricsContents, read_contents

MOST_CHECKED_BYTES = 1 << 30
"""Curves that take longer than a second or two to read through are not looked at for damage."""

_ENDED = ("finished", "failed", "stopped")


def damages(
    folder: RunFolder,
    file: RunFile | None,
    error: str,
    *,
    status: Status,
    config_text: str,
    summaries: Mapping[str, Summary],
) -> tuple[str, ...]:
    """Return a sentence for each damaged part of a record, the most important first.

    `file` is the content of `run.json`, None with its `error` when that cannot be read.
    """
    found = [error, _metrics(folder, file)]
    if file is not None:
        found.append(best_damage(folder, file, summaries if status in _ENDED else {}))
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
    size, _ = metrics_state(folder.metrics)
    if size > MOST_CHECKED_BYTES:
        return ""
    return metrics_damage(folder.metrics, has_ended=file is not None and file.status in _ENDED)


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


def metrics_damage(folder: Path, *, has_ended: bool) -> str:
    """Return one sentence about what cannot be read of the metrics, "" when all of it can.

    The last row of a run that has not ended may have been cut off when it was killed.
    """
    if not folder.exists():
        return "metrics is missing." if has_ended else ""
    try:
        contents = read_contents(folder)
    except RecordError as error:
        return f"metrics cannot be read: {error.what}"
    places = [each for each in contents.damages if has_ended or not each.torn]
    lost = dict(contents.missing) if has_ended else {}
    if not has_ended:
        for each in places:
            values = values_of_file(each.file) or 1
            rows = -(-(each.end - each.begin) // row_bytes(values))
            lost[values] = lost.get(values, 0) + rows
    told = ", ".join(_rows_of(contents, values, rows) for values, rows in lost.items())
    if contents.nameless:
        told = ", ".join(
            filter(None, [told, _count_rows(contents.nameless) + " without their names"])
        )
    if places:
        ending = f": {told} cannot be read." if told else ". No row is lost."
        return f"metrics/{places[0].file} is damaged {_where(places)}{ending}"
    if told and not lost:
        return f"metrics/{NAMES_FILE} is damaged: {told} cannot be read."
    if told:
        return f"metrics is not what was written: {told} cannot be read."
    return f"metrics/{NAMES_FILE} is damaged. No row is lost." if contents.damaged_names else ""


def _rows_of(contents: MetricsContents, values: int, rows: int) -> str:
    """Return so many rows of a file in words, with the metrics that they may be of."""
    sets = [keys.names for keys in contents.sets if row_values(len(keys.names)) == values]
    names = list(dict.fromkeys(name for each in sets for name in each))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    of = f" of {', '.join(names[:_NAMED])}{more}" if names else ""
    return _count_rows(rows) + of


def _count_rows(rows: int) -> str:
    return f"{rows} {'row' if rows == 1 else 'rows'}"


def _where(places: list[DamagedRows]) -> str:
    size = sum(each.end - each.begin for each in places)
    if len(places) == 1:
        return f"at byte {places[0].begin} ({size} bytes)"
    return f"in {len(places)} places ({size} bytes, the first at byte {places[0].begin})"
