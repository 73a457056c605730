"""Stages of the data flow of a step, from a sample of the source to the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.engine.data.shapes import shape_of
from assay.engine.loop.process import Process
from assay.engine.numerics.seed import undisturbed
from assay.engine.rehearse.module_stack import ModuleCall
from assay.formats.rehearsal import DataStage, Layer

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
        with undisturbed(keyed=True):
            has_items = hasattr(stage, "__getitem__") and hasattr(stage, "__len__")
            sample = stage[0] if has_items else next(iter(stage), None)
        name = f"pipe {number}" if number else "source"
        yield DataStage(name=name, kind=type(stage).__name__, gives=shape_of(sample))


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
