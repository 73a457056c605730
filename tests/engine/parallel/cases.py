"""Cases of the tests of several ranks: `python cases.py FOLDER RANK RANKS CASE ...`.

Each case gives something that JSON knows; `results` holds that of every rank.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from assay.compat.framework.training import train_epoch
from assay.core.errors import AssayError
from assay.core.events import Event, Handler
from assay.core.ports import MemoryRecorder
from assay.core.sections import ParallelSection
from assay.engine import (
    Accuracy,
    Engine,
    Evaluate,
    Loader,
    Mean,
    OptimizerStep,
    Process,
    Supervised,
)
from assay.engine.callbacks.change import SetRequiresGrad
from assay.engine.callbacks.ema import EMA
from assay.engine.callbacks.norms import Norms
from assay.engine.callbacks.save import Save
from assay.engine.checkpoint import together
from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.weights import save_weights
from assay.engine.loop.bus import on
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.metrics.outputs import Collect, SaveOutputs
from assay.engine.numerics import deferred
from assay.engine.numerics.dtensor import full_tensor, local_tensor
from assay.engine.numerics.precision import in_precision
from assay.engine.parallel import data_parallel
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import Mesh, init_mesh


def points(size: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs, torch.stack([inputs.sum(1), inputs.square().sum(1)], 1))


FOLDER: list[str] = []
"""Where cases may write, the same for all ranks."""
MESHES: list[Mesh] = []
"""Where weights are shared out: the processes that do it."""


SMALL: list[bool] = []
"""One entry where each gradient is sent by itself."""
LATE: list[bool] = []
"""One entry where the numbers of a step are read later, as on a GPU."""


def net(*, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2)).double()
    for mesh in MESHES:
        partition_model(model, mesh)
    return model


def shared(rank: int, ranks: int) -> dict[str, int]:
    """What a loader is told of the others."""
    return {"rank": rank, "ranks": ranks} if dist.is_initialized() else {}


def share(engine: Engine, ranks: int) -> None:
    """Let an engine share its steps with the others, if there are others."""
    if MESHES:
        join_data_parallel(engine, MESHES[0].ranks)
    elif dist.is_initialized():
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("data",))
        data_parallel(engine, mesh, **({"bucket_bytes": 1} if SMALL else {}))


class Means(Process):
    """The mean loss over the batch; logs what only some batches have."""

    def __init__(self, model: nn.Module, **how: Any) -> None:
        self.model = model
        self.metrics: dict[str, Any] = {}
        # Only a fused one leaves out an update without asking.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=bool(LATE))
        self.backward = OptimizerStep(optimizer, **how)

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        pred = self.model(inputs)
        losses = (pred - target).square().mean(1)
        self.log("mean_input", inputs.mean())
        if inputs[0, 0] > 0:
            self.log("sometimes", inputs[0, 0], 1.0)
        return self.loss(losses, inputs), {
            "pred": pred.detach(),
            "target": target,
            "loss": losses.mean().detach(),
        }

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return losses.mean()


class Sums(Means):
    """Samples count as much as their input says: shares weigh unevenly."""

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        weights = inputs[:, 0].abs() + 0.1
        return (losses * weights).sum(), weights.sum()


class Centre(nn.Module):
    """Criterion with a state: the running mean of the losses of this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, losses: Tensor) -> Tensor:
        self.mean.lerp_(losses.mean().detach(), 0.3)
        return losses.mean() * (1 + self.mean)


class Centred(Means):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.criterion = Centre()

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return self.criterion(losses)


class Viewed(nn.Sequential):
    """A model that gives a view, as one does that puts the classes first."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).T.T


class Mixing(nn.Sequential):
    """Model with a sparse buffer that differs between ranks until they share a step."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        rank = dist.get_rank() if dist.is_initialized() else 0
        matrix = torch.eye(4, dtype=torch.float64).to_sparse() * (1.0 + rank)
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.sparse.mm(self.matrix, x.T).T)


class InPlace(Means):
    """Writes into what the model gave."""

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        pred = self.model(inputs)
        pred += inputs[:, :2]
        loss = (pred - target).square().mean()
        return loss, {"loss": loss.detach()}


class Silent(Sums):
    """Logs nothing."""

    def log(self, *args: Any) -> None:
        pass


class Several(Means):
    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        weights = inputs[:, 1].abs() + 0.1
        return {"plain": losses.mean(), "weighted": ((losses * weights).sum(), weights.sum())}


class Spoilt(Means):
    """One sample of one rank makes the loss infinite."""

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return losses.mean() / (inputs[:, 0] != points(34).tensors[0][3, 0]).all()


class Unlabelled(Means):
    """Few samples have a label, and none in the second step."""

    is_labelled = True

    def begin_step(self, engine: Engine) -> None:
        self.is_labelled = engine.state.step != 1

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        weights = (inputs[:, 0] > 0.3) * float(self.is_labelled)
        return (losses * weights).sum(), weights.sum()


class UnlabelledByName(Unlabelled):
    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return {"labelled": super().loss(losses, inputs)}


class Disagreeing(Means):
    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return {"even" if dist.is_initialized() and dist.get_rank() else "odd": losses.mean()}


def train(
    process: Process,
    *,
    rank: int,
    ranks: int,
    accumulate: int = 1,
    like: bool = True,
    size: int = 34,
    batch_size: int = 12,
    handlers: list[Handler] | None = None,
    stray: int | None = None,
    **bounds: Any,
) -> dict[str, Any]:
    """Train on a share; in one process on all data, in micro-batches `like` those of the ranks."""
    accumulate *= ranks if like and not dist.is_initialized() else 1
    data = points(size)
    if stray is not None:
        data.tensors[1][stray, 0] = math.nan
    loader = Loader(
        data, batch_size=batch_size, shuffle=True, accumulate=accumulate, **shared(rank, ranks)
    )
    recorder = MemoryRecorder()
    engine = Engine(
        process,
        loader,
        recorder=recorder,
        handlers=handlers or [],
        deferred=bool(LATE),
        **(bounds or {"epochs": 2}),
    )
    share(engine, ranks)
    engine.run()
    weights = [
        value
        for each in process.model.state_dict().values()
        for value in full_tensor(each).flatten().tolist()
    ]
    state = engine.state
    return {
        "weights": weights,
        "points": [[name, step, value] for name, step, value in recorder.points],
        "counts": [state.step, state.samples, state.epoch],
        "stop": state.stop.reason,
        "micro_steps": state.micro_step,
    }


def means(rank: int, ranks: int) -> Any:
    return train(Means(net()), rank=rank, ranks=ranks)


def plain(rank: int, ranks: int) -> Any:
    """One process takes each batch whole."""
    found = train(Means(net()), rank=rank, ranks=ranks, like=False)
    losses = [point for point in found["points"] if point[0] in ("train/loss", "train/mean_input")]
    return {"weights": found["weights"], "points": losses}


def clipped(rank: int, ranks: int) -> Any:
    return train(Means(net(), clip_norm=0.3), rank=rank, ranks=ranks)


def accumulated(rank: int, ranks: int) -> Any:
    return train(Means(net()), rank=rank, ranks=ranks, accumulate=2)


def sums(rank: int, ranks: int) -> Any:
    return train(Sums(net(), clip_norm=0.3), rank=rank, ranks=ranks)


def sums_accumulated(rank: int, ranks: int) -> Any:
    return train(Sums(net()), rank=rank, ranks=ranks, accumulate=2)


def sparse(rank: int, ranks: int) -> Any:
    torch.manual_seed(0)
    return train(Means(Mixing(nn.Linear(4, 2)).double()), rank=rank, ranks=ranks)


def several(rank: int, ranks: int) -> Any:
    return train(Several(net(), weights={"weighted": 0.5}), rank=rank, ranks=ranks, accumulate=2)


def few(rank: int, ranks: int) -> Any:
    """The last step of an epoch has one sample: all ranks but one have none."""
    return train(Several(net()), rank=rank, ranks=ranks, size=25)


def viewed(rank: int, ranks: int) -> Any:
    """Views cause no warning; with blocks they may be written into, as in one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [
            train(InPlace(views()), rank=rank, ranks=ranks),
            train(Means(views()), rank=rank, ranks=ranks),
        ]


def written_into(rank: int, ranks: int) -> Any:
    """Where all weights come together at once it may not."""
    try:
        train(InPlace(views(shard_blocks=False)), rank=rank, ranks=ranks)
    except AssayError as error:
        return str(error)
    return ""


def views(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model = Viewed(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    for mesh in MESHES:
        partition_model(model, mesh, ParallelSection(**settings))
    return model


def frozen(rank: int, ranks: int) -> Any:
    model = net()
    model[0].requires_grad_(False)
    return train(Means(model), rank=rank, ranks=ranks)


def dropout(rank: int, ranks: int) -> Any:
    """Equal to one process that has as many micro-batches as all ranks together."""
    return train(Means(net(dropout=0.4)), rank=rank, ranks=ranks)


def skipped(rank: int, ranks: int) -> Any:
    process = Spoilt(net(), non_finite="skip")
    found = train(process, rank=rank, ranks=ranks)
    return {**found, "points": [], "skipped": process.backward.skipped}  # type: ignore[attr-defined]


def unlabelled(rank: int, ranks: int) -> Any:
    found = []
    for kind in (Unlabelled, UnlabelledByName):
        process = kind(net())
        handlers = [Handler(event=Event.STEP_BEGIN, fn=process.begin_step)]
        weights = train(process, rank=rank, ranks=ranks, handlers=handlers)["weights"]
        backward = process.backward
        found.append({"weights": weights, "skipped": [backward.skipped, backward.num_empty]})
    return found


def spoilt(rank: int, ranks: int) -> Any:
    process = Spoilt(net())
    try:
        train(process, rank=rank, ranks=ranks)
    except AssayError as error:
        return {"error": type(error).__name__, "what": str(error).splitlines()[0]}
    return {}


def stray(rank: int, ranks: int) -> Any:
    """One sample is not finite, which one rank has."""
    try:
        train(Means(net()), rank=rank, ranks=ranks, stray=17)
    except AssayError as error:
        return str(error)
    return ""


def disagreeing(rank: int, ranks: int) -> Any:
    try:
        train(Disagreeing(net()), rank=rank, ranks=ranks)
    except AssayError as error:
        return str(error)
    return ""


def stopped(rank: int, ranks: int) -> Any:
    """One rank alone is asked to stop."""

    def ask(engine: Engine) -> None:
        if engine.state.step == 2 and rank == ranks - 1:
            engine.stop("somebody asked", interrupts=True)

    found = train(
        Means(net()),
        rank=rank,
        ranks=ranks,
        handlers=[Handler(event=Event.STEP_END, fn=ask)],
        epochs=9,
    )
    return {key: found[key] for key in ("counts", "stop", "weights")}


def ended(rank: int, ranks: int) -> Any:
    """One rank alone ends an epoch after two steps, all of them another after one."""

    def ask(engine: Engine) -> None:
        place = (engine.state.epoch, engine.state.epoch_step)
        if place == (1, 1) or (
            place == (0, 2) and (rank == ranks - 1 or not dist.is_initialized())
        ):
            engine.end_epoch()

    handlers = [Handler(event=Event.STEP_END, fn=ask)]
    return train(Means(net()), rank=rank, ranks=ranks, handlers=handlers, epochs=3)


def bounded(rank: int, ranks: int) -> Any:
    """One rank alone finds that it is enough."""

    def ask(engine: Engine) -> None:
        if engine.state.step == 4 and rank == ranks - 1:
            engine.finish()

    found = train(
        Means(net()),
        rank=rank,
        ranks=ranks,
        handlers=[Handler(event=Event.STEP_END, fn=ask)],
        epochs=9,
    )
    return {key: found[key] for key in ("counts", "weights")}


class Classes(Supervised):
    """Tells which samples it has seen."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 3).double()
        for mesh in MESHES:
            partition_model(model, mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        super().__init__(model, nn.CrossEntropyLoss(), optimizer, metrics={"acc": Accuracy()})
        self.seen: list[float] = []

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        if not torch.is_grad_enabled():
            is_idle = self.logged is not None and self.logged.is_idle  # others have a batch left
            self.seen += [] if is_idle else batch[0][:, 0].tolist()
            self.log("drawn", torch.rand(()), 1.0)
        return super().forward_step(batch)


def classes(size: int) -> TensorDataset:
    inputs, _ = points(size).tensors
    return TensorDataset(inputs, inputs[:, 1].abs().mul(2).long().clamp(max=2))


def evaluated(
    rank: int, ranks: int, *, size: int = 21, limit: int | None = None, batches: bool = False
) -> Any:
    process = Classes()
    recorder = MemoryRecorder()
    engine = Engine(
        process, Loader(classes(12), batch_size=12, **shared(rank, ranks)), recorder=recorder
    )
    valid: Any = Loader(classes(size), micro_batch_size=2, split="valid", **shared(rank, ranks))
    if batches:
        valid = [
            tuple(each[i : i + 2] for each in classes(size).tensors) for i in range(0, size, 2)
        ]
    collect, save = Collect(), SaveOutputs(["target"], limit=9)
    evaluate = Evaluate({"valid": valid}, limit=limit, pipes=[collect, save])
    engine.bus.extend(evaluate.handlers())
    share(engine, ranks)
    engine.run()
    return {
        "metrics": engine.state.metrics,
        "seen": process.seen,
        "samples": [fact.samples for fact in recorder.facts if hasattr(fact, "samples")],
        "collected": collect["target"].tolist(),
        "count": len(collect),
        "artifacts": {name: data.decode() for name, data in recorder.artifacts.items()},
    }


class Elsewhere(Tensor):
    """Tensor that claims a GPU of its rank, and like torch refuses to mix with another rank's."""

    home: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.home)

    def cpu(self) -> Tensor:
        return torch.from_numpy(self.numpy().copy())

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        homes = {each.home for each in tree_leaves((args, kwargs)) if isinstance(each, Elsewhere)}
        if len(homes) > 1:
            raise RuntimeError("Expected all tensors to be on the same device")
        found = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(found, Elsewhere):
            found.home = homes.pop()
        return found


class Far(Classes):
    """Gives outputs on the GPU of this rank."""

    def validation_step(self, batch: Any) -> Any:
        return {name: _moved(value) for name, value in super().validation_step(batch).items()}


def _moved(value: Tensor) -> Tensor:
    moved = value.as_subclass(Elsewhere)
    moved.home = dist.get_rank() if dist.is_initialized() else 0
    return moved


def on_devices(rank: int, ranks: int) -> Any:
    """Evaluated on the GPU of each rank."""
    process = Far()
    process.metrics = {"acc": Accuracy(), "mean": Mean()}
    engine = Engine(process, Loader(classes(12), batch_size=12, **shared(rank, ranks)))
    valid = Loader(classes(21), micro_batch_size=2, split="valid", **shared(rank, ranks))
    collect = Collect()
    engine.bus.extend(Evaluate({"valid": valid}, pipes=[collect]).handlers())
    share(engine, ranks)
    engine.run()
    return {**engine.state.metrics, "pred": collect["pred"].tolist()}


def limited(rank: int, ranks: int) -> Any:
    return evaluated(rank, ranks, limit=3)


def own_batches(rank: int, ranks: int) -> Any:
    return evaluated(rank, ranks, batches=True)


def watched(rank: int, ranks: int) -> Any:
    """Train with an evaluated average, norms, modules frozen on the way, and bf16."""
    process = Means(net())
    process.forward_step = in_precision("bf16", torch.device("cpu"), process.forward_step)  # type: ignore[method-assign]
    valid = Loader(points(20), micro_batch_size=4, split="valid", **shared(rank, ranks))
    parts = (
        EMA(0.5),
        Norms("2 steps"),
        SetRequiresGrad(3, "0.*"),
        Evaluate({"valid": valid}, every="2 steps"),
    )
    handlers = [handler for part in parts for handler in part.handlers()]
    found = train(process, rank=rank, ranks=ranks, handlers=handlers)
    average = [
        value
        for each in parts[0].weights.values()
        for value in full_tensor(each).flatten().tolist()
    ]
    return {**found, "average": average}


class Half(Means):
    """Counts the bytes of half weights that the first forward pass keeps for its backward pass."""

    kept = 0

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        seen: dict[int, Tensor] = {}

        def see(tensor: Tensor) -> Tensor:
            if tensor.dtype == torch.bfloat16 and {*tensor.shape} == {64}:
                seen[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
            found = super().forward_step([tensor.float() for tensor in batch])
        self.kept = sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
        return found


def half(rank: int, ranks: int) -> Any:
    """Four blocks under autocast, gathered as they are and in half precision."""
    found = []
    for dtype in (None, torch.bfloat16):
        torch.manual_seed(0)
        blocks = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))
        model = nn.Sequential(nn.Linear(4, 64), blocks, nn.Linear(64, 2))
        for mesh in MESHES:
            partition_model(model, mesh, ParallelSection(shard_blocks=["1.*"]), dtype)
        process = Half(model)
        process.forward_step = in_precision(  # type: ignore[method-assign]
            "bf16", torch.device("cpu"), process.forward_step, evaluate="bf16"
        )
        weights = train(process, rank=rank, ranks=ranks)["weights"]
        dtypes = {str(weight.dtype) for weight in model.parameters()}
        found.append({"kept": process.kept, "weights": weights, "dtypes": [*dtypes]})
    return found


def talking(rank: int, ranks: int) -> Any:
    """Count the all-reduces of each step after the first."""
    count = 0
    seen: list[int] = []
    reduce = dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return reduce(*args, **kwargs)

    dist.all_reduce = counting
    try:
        told = on("step_end")(lambda state: seen.append(count))
        train(Means(net()), rank=rank, ranks=ranks, handlers=[told])
    finally:
        dist.all_reduce = reduce
    return [after - before for before, after in pairwise(seen)]


def early(rank: int, ranks: int, *, model: nn.Module | None = None) -> Any:
    """Count the gradients that were sent before each backward pass had ended."""
    count = 0
    seen: list[int] = []
    reduce = dist.all_reduce

    def counting(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        nonlocal count
        count += async_op
        return reduce(*args, async_op=async_op, **kwargs)

    @on("backward_begin")
    def begin() -> None:
        nonlocal count
        count = 0

    dist.all_reduce = counting
    SMALL.append(True)
    try:
        handlers = [begin, on("backward_end")(lambda: seen.append(count))]
        process = Means(model or net())
        found = train(process, rank=rank, ranks=ranks, accumulate=2, size=36, handlers=handlers)
    finally:
        SMALL.clear()
        dist.all_reduce = reduce
    return [{name: found[name] for name in ("weights", "points")}, seen]


class Twice(nn.Module):
    """A model whose first layer gets its gradient in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4).double()
        self.last = nn.Linear(4, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        out: Tensor = self.last(x)
        return out


def in_pieces(rank: int, ranks: int) -> Any:
    return early(rank, ranks, model=Twice())


def older_epoch(rank: int, ranks: int) -> Any:
    """Train an epoch by the function of an older text, each rank on its share of each batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2), nn.Identity()).double()
    model.append(nn.Linear(2, 2).double().requires_grad_(False))
    inputs, targets = points(24).tensors
    mine = slice(rank, None, ranks) if dist.is_initialized() else slice(None)
    batches = [(inputs[i : i + 6][mine], targets[i : i + 6][mine]) for i in range(0, 24, 6)]
    train_epoch(
        *(1, batches, model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)),
        *("cpu", 0.1),
        distributed=dist.is_initialized(),
    )
    return [value for each in model.parameters() for value in each.flatten().tolist()]


def reading(rank: int, ranks: int) -> Any:
    """Count what is read from tensors in each step after the first two."""
    reads: list[str] = []
    before = {name: getattr(Tensor, name) for name in ("item", "tolist", "cpu")}

    def counting(name: str) -> Callable[..., Any]:
        def read(tensor: Tensor) -> Any:
            reads.append(name)
            return before[name](tensor)

        return read

    seen: list[int] = []
    for name in before:
        setattr(Tensor, name, counting(name))
    try:
        told = on("step_end")(lambda state: seen.append(len(reads)))
        train(Silent(net(), clip_norm=0.3), rank=rank, ranks=ranks, handlers=[told], epochs=3)
    finally:
        for name, method in before.items():
            setattr(Tensor, name, method)
    return [after - before for before, after in pairwise(seen[1:])]


def impatient(rank: int, ranks: int) -> Any:
    """One rank alone finds that the numbers of its steps have waited for long enough."""
    seen: list[int] = []
    told = on("step_end")(lambda state: seen.append(state.step))
    before = deferred.MAX_SECONDS
    deferred.MAX_SECONDS = before if rank else 0.0  # type: ignore[misc]
    try:
        train(Spoilt(net()), rank=rank, ranks=ranks, handlers=[told], epochs=9)
    except AssayError as error:
        return [seen, str(error).splitlines()[0]]
    finally:
        deferred.MAX_SECONDS = before  # type: ignore[misc]
    return []


def skipped_late(rank: int, ranks: int) -> Any:
    """Without a norm limit the gradients are inspected: those of one rank's part are not finite."""
    process = Means(net(), non_finite="skip")

    def spoil(engine: Engine) -> None:
        grad = next(process.model.parameters()).grad
        if (
            engine.state.step == 2
            and grad is not None
            and (rank == ranks - 1 or not dist.is_initialized())
        ):
            local_tensor(grad).fill_(math.inf)

    found = train(
        process, rank=rank, ranks=ranks, handlers=[Handler(event=Event.BACKWARD_END, fn=spoil)]
    )
    return {"weights": found["weights"], "skipped": process.backward.skipped}


def saved(rank: int, ranks: int) -> Any:
    """Checkpoints that all ranks write; one that a rank cannot write; the weights in one file."""
    folder = Path(FOLDER[0]) / "checkpoints"
    saver = Saver(folder, writers=MESHES[0].writers, keep=9)
    save = Save(saver, every="1 epoch")
    process, told = Means(net()), ""
    found = train(process, rank=rank, ranks=ranks, handlers=save.handlers())
    whole_write, together.write_own = (
        together.write_own,
        _failing if rank == ranks - 1 else together.write_own,
    )
    try:
        saver.save({"model": process.model.state_dict()}, Where(step=99))
    except AssayError as error:
        told = str(error)
    together.write_own = whole_write
    save_weights(process.model, folder / "weights.safetensors")
    return {"weights": found["weights"], "folder": str(folder), "told": told}


def _failing(*_: Any) -> Any:
    raise OSError("no space left")


class Reaching(Means):
    """Uses a weight by its name, beside what is called."""

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return losses.mean() + (inputs @ self.model.get_parameter("3.weight")[0, :4]).mean()


def reaching(rank: int, ranks: int) -> Any:
    try:
        train(Reaching(net()), rank=rank, ranks=ranks)
    except AssayError as error:
        return str(error)
    return ""


def centred(rank: int, ranks: int) -> Any:
    """The state of a criterion, which each rank would change by its own losses."""
    process = Centred(net())
    train(process, rank=rank, ranks=ranks)
    return process.criterion.mean.item()


def one_batch(rank: int, ranks: int) -> Any:
    """Ranks but the first have nothing to evaluate."""
    return evaluated(rank, ranks, size=2)


def late(case: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """The same case with numbers that are read later."""

    def run(rank: int, ranks: int) -> Any:
        LATE.append(True)
        try:
            return case(rank, ranks)
        finally:
            LATE.clear()

    return run


def sharded(case: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """The same with the weights shared out."""

    def run(rank: int, ranks: int) -> Any:
        if dist.is_initialized():
            MESHES.append(init_mesh(Layout(shard=ranks), torch.device("cpu")))
        try:
            return case(rank, ranks)
        finally:
            MESHES.clear()

    return run


class Noisy:
    """Points whose inputs are augmented by chance, by all three generators."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        inputs, target = points(100)[i]
        return inputs + 0.1 * torch.randn(4).double() + 0.1 * random.random() + 0.1 * float(
            np.random.rand()
        ), target


def trained(
    process: Process,
    loader: Loader,
    ranks: int,
    saver: Saver,
    *,
    stop_at: int = 0,
    goes_on: bool = False,
) -> Engine:
    """Two epochs, or up to a step, where it is saved, or from there on."""

    def stop(engine: Engine) -> None:
        if engine.state.step == stop_at:
            engine.stop("the step was drawn", interrupts=True)

    with closing(loader):
        engine = Engine(
            process, loader, epochs=2, seed=5, handlers=[Handler(event=Event.STEP_END, fn=stop)]
        )
        if dist.is_initialized():
            data_parallel(engine, init_device_mesh("cpu", (ranks,), mesh_dim_names=("data",)))
        if goes_on:
            restore(engine, saver.load())
        engine.run()
    if stop_at and loader.rank == 0:
        saver.save(capture_state(engine), Where(step=engine.state.step))
    engine.ranks.barrier()
    return engine


@contextmanager
def shared_folder() -> Iterator[Path]:
    if dist.is_initialized():
        yield Path(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def noisy(folder: Path, rank: int, ranks: int, accumulate: int, workers: int, **how: Any) -> str:
    """The digest of the weights after a training on augmented points."""
    shared = {"rank": rank, "ranks": ranks} if dist.is_initialized() else {}
    loader = Loader(
        Noisy(),
        batch_size=8 * ranks,
        shuffle=True,
        accumulate=accumulate,
        workers=workers,
        **shared,
    )
    saver = Saver(folder / f"noisy-{accumulate}-{workers}")
    engine = trained(Means(net(dropout=0.4)), loader, ranks, saver, **how)
    return digest_state(engine.process.model.state_dict())


def interrupted(rank: int, ranks: int) -> Any:
    """Stop runs at random steps; return each step and the weights without and with the stop."""
    pick = random.Random(8)
    found = []
    with shared_folder() as folder:
        for accumulate in (1, 4):
            whole = noisy(folder, rank, ranks, accumulate, 0)
            for workers in (0, 2) if ranks == 2 else (0,):
                stop_at = pick.randrange(1, 2 * -(-100 // (8 * ranks)))
                noisy(folder, rank, ranks, accumulate, workers, stop_at=stop_at)
                found.append(
                    [stop_at, whole, noisy(folder, rank, ranks, accumulate, workers, goes_on=True)]
                )
    return found


class Items(Means):
    """Keeps what it has seen."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2).double())
        self.seen: list[int] = []

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        items, inputs, target = batch
        self.seen += items.tolist()
        return super().forward_step((inputs, target))


def thousand(rank: int, ranks: int) -> Any:
    """Return the items of two epochs, of those resumed at step 13, and a test's sample counts."""
    shared = {"rank": rank, "ranks": ranks} if dist.is_initialized() else {}
    data = TensorDataset(torch.arange(1000), *points(1000).tensors)

    def seen(folder: Path, **how: Any) -> list[int]:
        process = Items()
        loader = Loader(data, batch_size=16 * ranks, shuffle=True, seed=5, **shared)
        trained(process, loader, ranks, Saver(folder / "thousand"), **how)
        return process.seen

    process, recorder = Items(), MemoryRecorder()
    engine = Engine(process, Loader(data, batch_size=ranks, **shared), steps=1, recorder=recorder)
    engine.bus.extend(
        Evaluate({"test": Loader(data, micro_batch_size=16, split="test", **shared)}).handlers()
    )
    if dist.is_initialized():
        data_parallel(engine, init_device_mesh("cpu", (ranks,), mesh_dim_names=("data",)))
    engine.run()
    counted = [fact.samples for fact in recorder.facts if hasattr(fact, "samples")]
    with shared_folder() as folder:
        whole, before = seen(folder), seen(folder, stop_at=13)
        after = seen(folder, goes_on=True)
    return {
        "whole": whole,
        "before": before,
        "after": after,
        "tested": process.seen[1:],
        "counted": counted,
    }


CASES: dict[str, Callable[[int, int], Any]] = {
    each.__name__: each  # type: ignore[attr-defined]
    for each in (
        means,
        plain,
        centred,
        clipped,
        accumulated,
        sums,
        sums_accumulated,
        sparse,
        several,
        few,
        frozen,
        dropout,
        skipped,
        unlabelled,
        spoilt,
        stray,
        viewed,
        written_into,
        disagreeing,
        talking,
        early,
        in_pieces,
        older_epoch,
        stopped,
        bounded,
        ended,
        evaluated,
        on_devices,
        limited,
        own_batches,
        one_batch,
        interrupted,
        thousand,
        watched,
        half,
        skipped_late,
        reaching,
    )
}
CASES |= {
    f"sharded {name}": sharded(
        {**CASES, "saved": saved}[name]
    )  # `saved` writes in one folder: only together
    for name in (
        *(
            "means",
            "clipped",
            "accumulated",
            "sums",
            "sums_accumulated",
            "several",
            "few",
            "frozen",
            "dropout",
        ),
        *(
            "skipped",
            "unlabelled",
            "spoilt",
            "stray",
            "stopped",
            "evaluated",
            "limited",
            "own_batches",
            "one_batch",
        ),
        *("watched", "half", "skipped_late", "saved", "reaching", "viewed", "written_into"),
    )
}


CASES |= {
    f"late {name}": late({**CASES, "reading": reading, "impatient": impatient}[name])
    for name in (
        *("means", "clipped", "accumulated", "sums", "sums_accumulated", "several", "few"),
        *("frozen", "dropout", "skipped", "unlabelled", "spoilt", "stray", "stopped", "ended"),
        *("disagreeing", "reading", "impatient"),
    )
}


def main(folder: str, rank: str, ranks: str, *names: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    FOLDER.append(folder)
    results = {name: CASES[name](int(rank), int(ranks)) for name in names}
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
