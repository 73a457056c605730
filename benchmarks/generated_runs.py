"""Stores of very many runs, written file by file: what the benchmarks of the page open."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.core.ids import new_run_id
from assay.formats import defaults_file
from assay.interop.foreign_run import block_of
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import Project
from assay.store.write_blocks import write_blocks

_LR = "0.125"
"""Number of the template, which each copy has another one for."""
_BEGIN_NS, _STEP_NS = 1_700_000_000 * 1_000_000_000, 16_384


def copy_runs(
    project: Project,
    count: int,
    *,
    keys: int = 1,
    defaults: int = 0,
    curves: Mapping[str, Sequence[float]],
) -> list[str]:
    """Fill a store with runs that differ in `lr`; return their ids.

    Each has `keys` keys in its config, and took `defaults`. All have the same curves, one value a
    step.
    """
    filler = "".join(f"key_{i} = {i}\n" for i in range(keys - 1))
    recorder = start_run(
        project, AttemptSpec(keep_code=False, config_toml=f"lr = {_LR}\n{filler}"), tag="many"
    )
    recorder.finish(step=len(next(iter(curves.values()))) - 1)
    first, own = recorder.folder.path, recorder.folder.id
    metrics = first / "metrics"
    shutil.rmtree(metrics)
    write_points(metrics, curves)
    taken = [
        defaults_file.Taken(key=f"part.default_{i}", value=str(i), owner="Part")
        for i in range(defaults)
    ]
    defaults_file.write(first, tuple(taken))
    names = ("run.json", "config.toml", defaults_file.FILE_NAME)
    texts = {name: (first / name).read_text("utf-8") for name in names}
    ids = [new_run_id() for _ in range(count)]
    for i, run_id in enumerate(ids):
        folder = project.runs_dir / first.name.replace(own, run_id)
        folder.mkdir()
        for name, text in texts.items():
            changed = text.replace(own, run_id).replace(_LR, str(i / count))
            (folder / name).write_text(changed, "utf-8")
        shutil.copytree(metrics, folder / "metrics")
    shutil.rmtree(first)
    return ids


def long_run(project: Project, points: int) -> str:
    """Add a run of one long curve; return its id."""
    recorder = start_run(project, AttemptSpec(keep_code=False), tag="long")
    recorder.finish()
    path = recorder.folder.metrics
    shutil.rmtree(path)
    write_points(path, {"train/loss": [1 / (1 + step % 997) for step in range(points)]})
    return recorder.folder.id


def write_points(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Write curves that were logged together, one value a step."""
    count = len(next(iter(curves.values())))
    times = [_BEGIN_NS + step * _STEP_NS for step in range(count)]
    write_blocks(path, [block_of(list(curves), range(count), times, list(curves.values()))])
