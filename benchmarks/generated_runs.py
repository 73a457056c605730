"""Stores of very many runs, written file by file: what the benchmarks of the page open."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

from assay.core.ids import new_run_id
from assay.formats import frames, metrics_file
from assay.formats.frames import TICK_NS
from assay.record.attempt import AttemptSpec
from assay.record.compaction import write_compacted
from assay.record.opening import start_run
from assay.store.layout import Project
from assay.store.series import Block

_LR, _LOSS = "0.125", "0.0625"
"""Numbers of the template, which each copy has another one for."""
_BEGIN_NS = 1_700_000_000 * 1_000_000_000 // TICK_NS * TICK_NS


def copy_runs(
    project: Project, count: int, *, keys: int = 1, curves: Mapping[str, Sequence[float]]
) -> list[str]:
    """Fill a store with runs that differ in `lr` and in their summaries; return their ids.

    Each has `keys` keys in its config. All have the same curves, one value a step.
    """
    filler = "".join(f"key_{i} = {i}\n" for i in range(keys - 1))
    recorder = start_run(
        project, AttemptSpec(keep_code=False, config_toml=f"lr = {_LR}\n{filler}"), tag="many"
    )
    recorder.log(dict.fromkeys(curves, float(_LOSS)), step=len(next(iter(curves.values()))) - 1)
    recorder.finish()
    first, own = recorder.folder.path, recorder.folder.id
    metrics = first / "metrics.bin"
    metrics.unlink()
    write_points(metrics, curves)
    texts = {name: (first / name).read_text("utf-8") for name in ("run.json", "config.toml")}
    ids = [new_run_id() for _ in range(count)]
    for i, run_id in enumerate(ids):
        folder = project.runs_dir / first.name.replace(own, run_id)
        folder.mkdir()
        for name, text in texts.items():
            changed = text.replace(own, run_id).replace(_LR, str(i / count))
            (folder / name).write_text(changed.replace(_LOSS, str(i / count / 2)), "utf-8")
        shutil.copyfile(metrics, folder / "metrics.bin")
    shutil.rmtree(first)
    return ids


def long_run(project: Project, points: int, *, as_killed: bool = False) -> str:
    """Add a run of one long curve; return its id.

    One that was killed left its log calls as they were written, row by row.
    """
    recorder = start_run(project, AttemptSpec(keep_code=False), tag="long")
    recorder.log({"train/loss": 1.0}, step=0)
    recorder.finish()
    path = recorder.folder.path / "metrics.bin"
    path.unlink()
    (write_rows if as_killed else write_points)(
        path, {"train/loss": [1 / (1 + step % 997) for step in range(points)]}
    )
    return recorder.folder.id


def write_points(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Write a `metrics.bin` as a run leaves it that has ended: by column."""
    steps, times = _steps_and_times(curves)
    block = Block(metrics_file.KeySet(0, tuple(curves)))
    block.add(steps, times, [array("d", values) for values in curves.values()], 0, 0)
    write_compacted(path, [block])


def write_rows(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Write the same as a run that is open does: a frame for each log call."""
    steps, times = _steps_and_times(curves)
    layout = metrics_file.values_struct(len(curves))
    words = metrics_file.values_words(len(curves))
    parts = [
        frames.file_head(metrics_file.FORM),
        frames.pack_extent(metrics_file.FORM, sequence=0, attempt=1, base_ns=_BEGIN_NS, end=0),
        metrics_file.pack_keys(metrics_file.KeySet(0, tuple(curves))),
    ]
    for step, time, *values in zip(steps, times, *curves.values(), strict=True):
        body = layout.pack(words, 0, step, (time - _BEGIN_NS) // TICK_NS, *values)
        parts.append(crc32(body).to_bytes(4, "little") + body)
    path.write_bytes(b"".join(parts))


def _steps_and_times(curves: Mapping[str, Sequence[float]]) -> tuple[array[int], array[int]]:
    count = len(next(iter(curves.values())))
    times = array("q", range(_BEGIN_NS, _BEGIN_NS + count * TICK_NS, TICK_NS))
    return array("q", range(count)), times
