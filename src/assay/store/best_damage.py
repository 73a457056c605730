"""Damage of what a run holds for its best: a claim that its own numbers do not bear out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.formats import manifest as manifests
from assay.formats.manifest import Checkpoint, folder_of_step
from assay.formats.run_file import Best, RunFile, Summary
from assay.store.layout import RunFolder


def best_damage(folder: RunFolder, run: RunFile, summaries: Mapping[str, Summary]) -> str:
    """Return why what is held for the best cannot be it, in a sentence; "" where nothing says so.

    `summaries` are those of the end; a run that goes on may have measured since, and gives none.
    """
    claim = manifests.read_pointer(folder.checkpoints, "best")
    if claim is None:
        return "checkpoints/best.json cannot be read."
    best = run.best
    metric, mode, value = _read_claim(claim, best)
    name = str(claim.get("name") or (best.checkpoint if best else ""))
    if name:
        found = manifests.checkpoint_in(folder.checkpoints / name)
        if damage := _checkpoint_damage(claim, found, metric, value):
            return damage
    if best is not None and best.checkpoint != name and _is_complete(folder, best.checkpoint):
        is_same = value is None or (best.metric, best.mode) == (metric, mode)
        if is_same and (value is None or not _is_better(value, best.value, mode)):
            return f"best.json names {name}, and run.json {best.checkpoint} with {best.value:g}."
    if value is None:
        return ""
    summary = summaries.get(metric)
    if summary is None:
        return ""
    extreme, at = (summary.max, summary.at_max) if mode == "max" else (summary.min, summary.at_min)
    if _is_better(value, extreme, mode):
        return f"The best has {metric} {value:g}, and no evaluation was better than {extreme:g}."
    # After a resume another metric may be what decides, from then on.
    is_held = len(run.attempts) == 1 and _is_complete(folder, folder_of_step(at))
    if is_held and name and _is_better(extreme, value, mode):
        return f"The best is said to have {metric} {value:g}, and step {at} has {extreme:g}."
    return ""


def _checkpoint_damage(
    claim: Mapping[str, Any], found: Checkpoint, metric: str, value: float | None
) -> str:
    if found.manifest is None or found.why:
        why = found.why.removesuffix(".")
        return f"best.json names {found.name}, which cannot be used: {why}." if claim else ""
    own = found.manifest.info.get(metric)
    if isinstance(own, int | float) and value is not None and own != value:
        return f"{found.name} is said to be the best with {metric} {value:g}, and has {own:g}."
    digest = claim.get("digest")
    if digest and found.manifest.digest and digest != found.manifest.digest:
        return f"{found.name} is not the state that was the best: its digest is another."
    return ""


def _read_claim(claim: Mapping[str, Any], best: Best | None) -> tuple[str, str, float | None]:
    """Return metric, mode and value of the best: by its pointer, else by the record."""
    metric, mode, value = claim.get("metric"), claim.get("mode"), claim.get("value")
    if isinstance(metric, str) and isinstance(mode, str) and isinstance(value, int | float):
        return metric, mode, float(value)
    if best is not None and claim.get("name") in (None, best.checkpoint):
        return best.metric, best.mode, best.value
    return "", "", None


def _is_complete(folder: RunFolder, name: str) -> bool:
    found = manifests.checkpoint_in(folder.checkpoints / name) if name else None
    return found is not None and found.manifest is not None and not found.why


def _is_better(one: float, other: float, mode: str) -> bool:
    return one > other if mode == "max" else one < other
