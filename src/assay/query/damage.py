"""Damage of one record: the parts that cannot be read any more, and what is lost with them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import AssayError
from assay.core.event_log import read_lines
from assay.store.artifacts import artifacts
from assay.store.metrics_damage import metrics_damage

if TYPE_CHECKING:
    from assay.query.run import RunView

MOST_CHECKED_BYTES = 1 << 30
"""Curves that take longer than a second or two to read through are not looked at for damage."""

_ENDED = ("finished", "failed", "stopped")


def damages(view: RunView) -> tuple[str, ...]:
    """Return a sentence for each damaged part of a record, the most important first."""
    found = [view.error, *_metrics(view)]
    for path in (view.folder.events, view.folder.edits):
        found.append(_lines(path, may_be_cut=view.status not in _ENDED))
    try:
        tomllib.loads(view.config_text)
    except (ValueError, RecursionError) as error:
        found.append(f"config.toml cannot be read: {error}")
    try:
        artifacts(view.folder)
    except AssayError as error:
        found.append(f"The list of artifacts is damaged: {error.what}")
    return tuple(
        sentence if sentence.endswith(".") else f"{sentence}." for sentence in found if sentence
    )


def _metrics(view: RunView) -> list[str]:
    try:
        size = view.folder.metrics.lstat().st_size
    except OSError:
        size = 0
    if size > MOST_CHECKED_BYTES:
        return []
    ended = not view.error and view.file.status in _ENDED
    return [metrics_damage(view.folder.metrics, view.file.summaries if ended else None)]


def _lines(path: Path, *, may_be_cut: bool) -> str:
    """Return a sentence about unreadable lines, "" for none; a killed run may have cut off its
    last.
    """
    try:
        unreadable = read_lines(path).unreadable
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    if unreadable > (1 if may_be_cut else 0):
        return f"{path.name} is damaged: {unreadable} of its lines cannot be read"
    return ""
