"""Data of a rehearsal: the first steps, as one rank sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from assay.core.sections import StandardSections
from assay.engine.data.loader import Loader
from assay.engine.data.source import Window
from assay.engine.loop.engine import Engine
from assay.engine.loop.epoch_windows import no_batch
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.join import join_pipeline
from assay.engine.parallel.mesh import Mesh

_MOST_WALKED = 20_000  # steps of a schedule, for each of which a scheduler of torch takes 10 us


def without_workers(data: Any) -> Any:
    """Return the loader without its workers: a few batches are all that is asked of it."""
    return data.changed(workers=0) if isinstance(data, Loader) and data.workers else data


def first_windows(
    engine: Engine,
    train: Iterable[Any],
    mesh: Mesh | None,
    sections: StandardSections,
    device: torch.device,
) -> Iterator[Window]:
    """Return the steps of the first epoch, as this rank sees them."""
    engine.bounds.start_schedule(engine.state, engine.process.backward)
    engine.process.backward.walk_schedule(_MOST_WALKED)
    windows = _check_windows(engine, engine.source.windows(0, 0))
    if mesh is None:
        return windows
    if isinstance(train, Loader):
        join_data_parallel(engine, mesh.ranks)
    else:  # a declared batch is that of this rank
        engine.process.backward.ranks = mesh.ranks  # type: ignore[attr-defined]
    join_pipeline(engine, mesh, sections, device)
    return _begin_steps(mesh.ranks, windows)


def _check_windows(engine: Engine, windows: Iterable[Window]) -> Iterator[Window]:
    """Yield the windows; InputError for none, and for samples that bound the run uncounted."""
    is_empty = True
    for window in windows:
        is_empty = False
        if not window.samples:
            engine.bounds.refuse_uncounted(window.batches[0])
        yield window
    if is_empty:
        raise no_batch()


def _begin_steps(ranks: Any, windows: Iterable[Window]) -> Iterator[Window]:
    for window in windows:
        ranks.begin_step(window, 0)
        yield window
