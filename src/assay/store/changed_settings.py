"""Settings that a resume changed: a run that trained with two values is a run of neither."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from assay.core import schema
from assay.core.regular_file import read_bytes
from assay.formats.run_file import RunFile
from assay.store.cells import Cell, ChangedSetting, from_cell
from assay.store.config_items import MAX_CONFIG_BYTES, config_items
from assay.store.layout import RunFolder

_NOT_GIVEN = "(default)"
_COUNTED = {key.name for key in schema.SECTIONS if key.weights} | {"data", "evaluate"}
_STANDARD = {key.name for key in schema.SECTIONS}


def changed_settings(
    folder: RunFolder, run: RunFile, config: Mapping[str, Cell]
) -> dict[str, ChangedSetting]:
    """Return the settings by key that resumes changed, of those that decide the numbers.

    `config` has the cells of the newest attempt. What a resume from an earlier step has undone is
    not told.
    """
    configs: list[tuple[int, Mapping[str, Cell]]] = []
    for attempt in reversed(run.attempts):
        configs.append((attempt.from_step, config))
        path = folder.config_dir / f"before-attempt-{attempt.number}" / "config.toml"
        with contextlib.suppress(OSError, ValueError, RecursionError):
            text = read_bytes(path, MAX_CONFIG_BYTES).decode("utf-8")
            config = {item.name: item.value for item in config_items(text)}
    keys = dict.fromkeys(key for _, each in configs for key in each)
    found = {}
    for key in filter(_is_counted, keys) if len({id(each) for _, each in configs}) > 1 else ():
        steps = [(step, each.get(key, _NOT_GIVEN)) for step, each in reversed(configs)]
        parts = _merge(steps)
        if len(parts) > 1:
            found[key] = ChangedSetting(tuple((step, from_cell(cell)) for step, cell in parts))
    return found


def setting_hash(run: RunFile) -> str:
    """Return the hash of all but the seed, of a run with several settings that of all of them."""
    steps = [(each.from_step, each.seedless_hash) for each in run.attempts if each.seedless_hash]
    parts = _merge(steps)
    if len(parts) < 2:
        return steps[-1][1] if steps else ""
    return blake2b(repr(parts).encode(), digest_size=32).hexdigest()


def _merge(steps: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Return the values that are left, each with its first step; equal neighbours are one."""
    parts: list[tuple[int, Any]] = []
    for step, value in steps:
        while parts and parts[-1][0] >= step:
            parts.pop()
        if not parts or parts[-1][1] != value:
            parts.append((step, value))
    return parts


def _is_counted(key: str) -> bool:
    section = key.partition(".")[0].partition("[")[0]
    return section in _COUNTED or section not in _STANDARD
