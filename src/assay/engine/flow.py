"""What goes through a training step: shapes and types of one sample, one batch and each module, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from assay.engine.batches import size_of
from assay.engine.data.collate import fields_of
from assay.engine.engine import Engine
from assay.engine.metrics.metric import Metric
from assay.engine.seed import undisturbed

_MOST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A module in its first call. `params` are those of itself alone, of which `trained` get gradients.

    `flops` are those of its forward pass with what is inside of it: a multiplication and an addition are two.
    `given` and `gave` are "" for a module that was not called.
    """

    name: str
    kind: str
    depth: int
    given: str = ""
    gave: str = ""
    params: int = 0
    trained: int = 0
    flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A station of the data on its way: what stands there, and what comes out of it."""

    name: str
    kind: str
    gives: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One step of training, its first batch of `samples`.

    `layers` are those of the model, from the outside in; `stages` are in the order in which the data comes by.
    """

    layers: tuple[Layer, ...]
    stages: tuple[Stage, ...]
    samples: int

    @property
    def params(self) -> int:
        return sum(layer.params for layer in self.layers)

    @property
    def trained(self) -> int:
        return sum(layer.trained for layer in self.layers)

    @property
    def flops(self) -> int:
        """Of the forward pass of the model."""
        return self.layers[0].flops if self.layers else 0


@dataclass(slots=True)
class _Call:
    given: str
    before: int
    gave: str = ""
    flops: int = 0
    is_open: bool = True


@dataclass(slots=True)
class _Watch:
    """What modules are given and give when they are called first, in the order in which they are."""

    counter: Any
    calls: dict[str, _Call] = field(default_factory=dict)
    handles: list[RemovableHandle] = field(default_factory=list)

    def add(self, name: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if name not in self.calls:
                given = [*args, *kwargs.values()]
                self.calls[name] = _Call(", ".join(map(shape_of, given)), self.counter.get_total_flops())

        def after(_: nn.Module, args: Any, output: Any) -> None:
            call = self.calls[name]
            if call.is_open:
                call.gave, call.is_open = shape_of(output), False
                call.flops = self.counter.get_total_flops() - call.before

        self.handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self.handles.append(module.register_forward_hook(after))


def flow_of(engine: Engine) -> Flow:
    """Makes the first step of an engine, and says what went through it. What it trains is changed by that step."""
    process, data = engine.process, engine.state.dataloader
    stages = [*_data_stages(data)]
    batches: list[tuple[str, int]] = []
    engine.on("backward_begin")(lambda state: batches.append((shape_of(state.batch), size_of(state.batch))))
    roots = {name: part for name, part in vars(process).items() if isinstance(part, nn.Module)}
    roots = {"model": process.model, **roots}
    counter = FlopCounterMode(display=False)
    watch = _Watch(counter)
    seen: set[nn.Module] = set()
    for root, part in roots.items():
        for name, module in part.named_modules():
            if module not in seen:
                seen.add(module)
                watch.add(f"{root}.{name}".rstrip("."), module)
    with _eager(), counter:
        try:
            engine.run()
        finally:
            for handle in watch.handles:
                handle.remove()
    layers = _layers(process.model, watch)
    stages.append(Stage(name="batch", kind=type(data).__name__, gives=batches[0][0] if batches else "nothing"))
    top = [layer for layer in layers if layer.depth <= 1]
    called = list(watch.calls)
    top.sort(key=lambda layer: called.index(layer.name) if layer.name in watch.calls else len(called))
    stages += [
        Stage(name=layer.name, kind=layer.kind, gives=f"{layer.given} -> {layer.gave}" if layer.gave else "not called")
        for layer in top
    ]
    for root, part in roots.items():
        call = watch.calls.get(root)
        if root != "model" and call is not None:
            stages.append(Stage(name=f"process.{root}", kind=type(part).__name__, gives=f"{call.given} -> {call.gave}"))
    stages.append(Stage(name="output", kind=type(process).__name__, gives=shape_of(engine.state.output)))
    metrics: Mapping[str, Metric] = getattr(process, "metrics", None) or {}
    stages += [
        Stage(name=f"metric {name}", kind=type(each).__name__, gives="a number") for name, each in metrics.items()
    ]
    for name, optimizer in process.backward.optimizers.items():
        weights = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        count = f"{len(weights)} tensors, {sum(p.numel() for p in weights):,} numbers"
        stages.append(Stage(name=f"optimizer {name}".rstrip(), kind=type(optimizer).__name__, gives=count))
    return Flow(layers=tuple(layers), stages=tuple(stages), samples=batches[0][1] if batches else 0)


def shape_of(value: Any) -> str:
    """Type and shape of tensors, wherever they are in a structure.

    >>> shape_of((torch.ones(2, 3), {"y": torch.tensor(1)}, "a"))
    '(float32 [2, 3], {y: int64 []}, str)'
    """
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if (names := fields_of(value)) is not None:
        value = {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return f"{{{_few([f'{name}: {shape_of(each)}' for name, each in value.items()])}}}"
    if isinstance(value, list | tuple):
        left, right = "()" if isinstance(value, tuple) else "[]"
        return f"{left}{_few([shape_of(each) for each in value])}{right}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


def _few(parts: list[str]) -> str:
    more = len(parts) - _MOST
    return ", ".join([*parts[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def _layers(model: nn.Module, watch: _Watch) -> list[Layer]:
    layers = []
    counted: set[nn.Parameter] = set()
    for path, module in model.named_modules():
        name = f"model.{path}".rstrip(".")
        own = [p for p in module.parameters(recurse=False) if p not in counted]
        counted.update(own)
        call = watch.calls.get(name, _Call("", 0))
        layers.append(
            Layer(
                name=name,
                kind=type(module).__name__,
                depth=path.count(".") + bool(path),
                given=call.given,
                gave=call.gave,
                params=sum(p.numel() for p in own),
                trained=sum(p.numel() for p in own if p.requires_grad),
                flops=call.flops,
            )
        )
    return layers


def _data_stages(data: Any) -> Iterator[Stage]:
    """The source and what its pipes make of it, one sample each."""
    source = getattr(data, "dataset", None) or getattr(data, "stream", None)
    chain = []
    while source is not None:
        chain.append(source)
        source = getattr(source, "source", None) if type(source).__module__.startswith("assay.engine.pipes") else None
    for number, stage in enumerate(reversed(chain)):
        with undisturbed(keyed=True):
            has_items = hasattr(stage, "__getitem__") and hasattr(stage, "__len__")
            sample = stage[0] if has_items else next(iter(stage), None)
        yield Stage(
            name="source" if not number else f"pipe {number}", kind=type(stage).__name__, gives=shape_of(sample)
        )


@contextmanager
def _eager() -> Iterator[None]:
    """Inside compiled code nobody can look."""
    with torch.compiler.set_stance("force_eager"):
        yield
