"""Data of a rehearsal: the first steps as one rank sees them, and each stage that they pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from assay.core.sections import StandardSections
from assay.engine.data.loader import Loader
from assay.engine.data.samplers import ByLength
from assay.engine.data.shapes import shape_of
from assay.engine.data.source import Window
from assay.engine.data.streams.stream import StagedStream
from assay.engine.loop.engine import Engine
from assay.engine.loop.epoch import no_batch
from assay.engine.loop.process import Process
from assay.engine.numerics.seed import restore_generators
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.join import join_pipeline
from assay.engine.parallel.process_group import Mesh
from assay.engine.rehearse.module_stack import ModuleCall
from assay.formats.rehearsal import DataStage, Layer

_MOST_WALKED = 20_000  # steps of a schedule, for each of which a scheduler of torch takes 10 us


def without_workers(data: Any) -> Any:
    """Return the loader without its workers: a few batches are all that is asked of it.

    Where lengths are known, its first batch has the longest samples.
    """
    if not isinstance(data, Loader):
        return data
    if isinstance(data.sampler, ByLength):
        return data.with_options(workers=0, sampler=data.sampler.longest_first(data.dataset))
    return data.with_options(workers=0) if data.workers else data


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


_CHAINED = ("assay.engine.data.streams.", "assay.engine.data.map_style")


def data_stages(data: Any) -> Iterator[DataStage]:
    """Yield the source and each of its pipes with one sample, then the loader."""
    source = getattr(data, "dataset", None) or getattr(data, "stream", None)
    chain = []
    while source is not None:
        chain.append(source)
        is_pipe = type(source).__module__.startswith(_CHAINED)
        source = getattr(source, "source", None) if is_pipe else None
    for number, stage in enumerate(reversed(chain)):
        with restore_generators():
            has_items = hasattr(stage, "__getitem__") and hasattr(stage, "__len__")
            sample = stage[0] if has_items else next(iter(stage), None)
        name = f"pipe {number}" if number else "source"
        kind = type(stage.stage if isinstance(stage, StagedStream) else stage).__name__
        yield DataStage(name=name, kind=kind, gives=shape_of(sample))


def step_stages(
    process: Process,
    loader: str,
    batches: Sequence[Any],
    layers: Sequence[Layer],
    calls: Mapping[str, ModuleCall],
    output: str,
) -> Iterator[DataStage]:
    """Yield the batch, the outer modules in the order of their calls, and what follows them."""
    yield DataStage(name="batch", kind=loader, gives=shape_of(batches[0]) if batches else "nothing")
    order = list(calls)

    def place(layer: Layer) -> int:
        name = f"{layer.name} ({layer.kind})"
        return order.index(name) if name in calls else len(order)

    outer = [layer for layer in layers if layer.depth <= 1]
    for layer in sorted(outer, key=place):
        gives = f"{layer.given} -> {layer.gave}" if layer.gave else "not called"
        yield DataStage(name=layer.name, kind=layer.kind, gives=gives)
    for name, call in calls.items():
        if name.startswith("process.") and name.count(".") == 1:
            name, _, kind = name.partition(" ")
            gives = f"{call.given} -> {call.gave or 'failed'}"
            yield DataStage(name=name, kind=kind.strip("()"), gives=gives)
    yield DataStage(name="output", kind=type(process).__name__, gives=output or "not reached")
    metrics = getattr(process, "metrics", None) or {}
    for name, metric in metrics.items():
        yield DataStage(name=f"metric {name}", kind=type(metric).__name__, gives="a number")
    for name, optimizer in process.backward.optimizers.items():
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        sizes = [p.numel() for p in parameters if p.requires_grad]
        count = f"{len(sizes)} tensors, {sum(sizes):,} numbers"
        kind = type(optimizer).__name__
        yield DataStage(name=f"optimizer {name}".rstrip(), kind=kind, gives=count)
