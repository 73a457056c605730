"""One model trained under every layout of so many processes: `python matrix.py FOLDER RANK RANKS`.

A row is a layout of `LAYOUTS`, a column a way of training of `WAYS`; each cell is trained in double
precision. Layouts of more processes than two take the first way and the last, which does what the
others do. To add an axis, add its layouts: all cells of one number of processes run in one launch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils.data import TensorDataset

from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, OptimizerStep, Process
from assay.engine.model.compiling import recompute
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import Mesh, init_mesh
from assay.engine.parallel.recorded_build import RecordedBuild

LAYOUTS: dict[int, tuple[Layout, ...]] = {
    2: (
        Layout(data=2),
        Layout(shard=2),
        Layout(tensor=2),
        Layout(pipeline=2),
        Layout(pipeline=2, schedule="gpipe"),
        Layout(pipeline=2, schedule="interleaved"),
    ),
    4: (
        Layout(shard=4),
        Layout(data=2, shard=2),
        Layout(data=2, tensor=2),
        Layout(shard=2, tensor=2),
        Layout(pipeline=2, data=2),
        Layout(pipeline=2, tensor=2),
        Layout(pipeline=2, shard=2),
        Layout(pipeline=2, shard=2, schedule="gpipe", stage=1),
        Layout(pipeline=2, shard=2, schedule="interleaved", stage=2),
    ),
    8: (
        Layout(data=2, shard=2, tensor=2),
        Layout(pipeline=2, data=2, tensor=2),
        Layout(pipeline=2, shard=2, tensor=2),
        Layout(pipeline=2, data=2, shard=2),
        Layout(pipeline=2, data=2, shard=2, schedule="interleaved", stage=1),
    ),
}
"""What is trained on how many processes."""

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 2},
    "checkpointed": {"activation_checkpoint": True},
    "clipped": {"clip_norm": 0.2},
    "weighed": {"is_weighed": True},
    "dropped": {"dropout": 0.3},
    "experts": {"experts": 4},
    "all": {
        "accumulate": 2,
        "activation_checkpoint": True,
        "clip_norm": 0.2,
        "is_weighed": True,
        "dropout": 0.3,
    },
}


def ways_of(layout: Layout) -> list[str]:
    """Return the ways in which a layout is trained."""
    return [*WAYS] if layout.processes == 2 else ["plain", "all"]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return x + hidden


class Experts(nn.Module):
    """Experts of two layers, each with weights of its own; `gates` weigh what they give."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) / width)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) / width)

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        hidden = torch.matmul(x, self.up).tanh()  # expert, sample, feature
        return (torch.matmul(hidden, self.down) * gates.T.unsqueeze(2)).sum(0)


class Mixture(nn.Module):
    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = Experts(width, count)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.experts(x, self.router(x).softmax(1))
        return x + out


class ExpertParallel(ParallelStyle):
    """Each rank has some of the experts; what they give is added up over the ranks."""

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, mesh, self.divide, self.begin, self.end)

    def divide(self, _: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, weight in list(module.named_parameters(recurse=False)):
            part = distribute_tensor(weight.detach(), mesh, [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(part))

    def begin(self, _: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        return tuple(DTensor.from_local(each, mesh, [Replicate()]) for each in inputs)

    def end(self, _: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        return output.redistribute(placements=[Replicate()]).to_local()


class Net(nn.Module):
    """Blocks between what is read in and what is read out, which share a weight.

    There are no running statistics. Dropout is in the first stage of a pipeline: a later one has random numbers of its own.
    """

    def __init__(
        self, width: int = 6, depth: int = 4, dropout: float = 0.0, experts: int = 0
    ) -> None:
        super().__init__()
        self.inlet = nn.Linear(4, width)
        self.drop = nn.Dropout(dropout)
        self.has_experts = experts > 0
        self.blocks = nn.ModuleList(
            Mixture(width, experts) if experts else Block(width) for _ in range(depth)
        )
        self.outlet = nn.Linear(width, 3)  # an odd number: it does not divide evenly

    def pipeline_split(self) -> list[Any]:
        last = (self.read_out, "outlet", "inlet.weight")
        return [self.inlet, self.drop, *self.blocks, last]

    def read_out(self, x: Tensor) -> Tensor:
        out: Tensor = self.outlet(x) + (x @ self.inlet.weight)[:, :3]
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.inlet(x))
        for block in self.blocks:
            x = block(x)
        return self.read_out(x)

    def tensor_plan(self) -> dict[str, Any]:
        if self.has_experts:
            return {"blocks.*.experts": ExpertParallel()}
        return {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}


class Fit(Process):
    """Mean of squares; where `is_weighed`, a sum, with the number of samples that count."""

    def __init__(
        self, model: nn.Module, *, clip_norm: float | None = None, is_weighed: bool = False
    ) -> None:
        self.model = model
        self.is_weighed = is_weighed
        self.metrics: dict[str, Any] = {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.backward = OptimizerStep(optimizer, clip_norm=clip_norm)

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        squares = (self.model(inputs) - target).square()
        loss = squares.mean()
        if not self.is_weighed:
            return loss, {"loss": loss.detach()}
        counts = inputs[:, 0] > 0.3
        return (squares[counts].sum(), counts.sum()), {"loss": loss.detach()}


def samples(size: int = 37) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs, inputs[:, :3] * inputs[:, 1:])


def cell(layout: Layout, way: str) -> dict[str, Any]:
    """Return losses, gradient norms and weights of a training; one process is the reference.

    Of the way `all` each rank builds only its own part of the weights.
    """
    options = dict(WAYS[way])
    sizes = {name: options.pop(name) for name in ("dropout", "experts") if name in options}
    torch.manual_seed(0)
    mesh = init_mesh(layout, torch.device("cpu")) if dist.is_initialized() else None
    record = RecordedBuild(large_bytes=1) if mesh is not None and way == "all" else None
    if record is not None:
        model = record.build(lambda: Net(**sizes).double())
    else:
        model = Net(**sizes).double()
    is_recomputed = options.pop("activation_checkpoint", False)
    recompute(model, is_recomputed)
    if mesh is not None:
        partition_model(model, mesh, record=record)
    accumulate = options.pop("accumulate", 1) * layout.pipeline  # a stage wants a micro-batch each
    rank, ranks = (mesh.ranks.rank, mesh.ranks.size) if mesh is not None else (0, 1)
    if mesh is None:
        accumulate *= layout.data_parallel_size
    process = Fit(model, **options)
    loader = Loader(
        samples(), batch_size=16, shuffle=True, accumulate=accumulate, rank=rank, ranks=ranks
    )
    recorder = MemoryRecorder()
    engine = Engine(process, loader, epochs=2, recorder=recorder)
    if mesh is not None:
        join_data_parallel(engine, mesh.ranks)
    if mesh is not None and mesh.pipeline is not None:
        mesh.pipeline.join(engine)
    engine.run()
    points = [
        [name, step, value] for name, step, value in recorder.points if name.startswith("train/")
    ]
    return {"points": points, "weights": whole(model, mesh)}


def whole(model: nn.Module, mesh: Mesh | None) -> dict[str, list[float]]:
    """All weights by their names, wherever they are."""
    own = {}
    for name, weight in model.named_parameters():
        full: Any = getattr(weight, "full_tensor", None)
        own[name] = (full() if full is not None else weight).detach().flatten().tolist()
    if mesh is not None:
        for theirs in mesh.ranks.all_gather_world(own):
            own = theirs | own
    return dict(sorted(own.items()))


def main(folder: str, rank: str, ranks: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    results = {
        str(layout): {way: cell(layout, way) for way in ways_of(layout)}
        for layout in LAYOUTS[int(ranks)]
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
