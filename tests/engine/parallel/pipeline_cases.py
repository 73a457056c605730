"""What the tests of a pipeline do in each process: `python pipeline_cases.py FOLDER RANK RANKS CASE ...`.

Each case trains one model with another layout, or in one process where there is no group; it gives what JSON knows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.core.ports import MemoryRecorder
from assay.engine import Backward, Engine, Loader, Process
from assay.engine.handlers.save import capture
from assay.engine.metrics import Mean
from assay.engine.parallel.data import join_data
from assay.engine.parallel.divide import divide
from assay.engine.parallel.layout import Layout, Mesh, laid_out
from assay.engine.recompute import recompute

WIDTH = 6


def points(size: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs, torch.stack([inputs.sum(1), inputs.square().sum(1)], 1))


class Deep(nn.Module):
    """A way in, blocks, a way out; the way out uses a weight of the way in as well."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward = nn.Linear(4, WIDTH)
        block = (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(dropout))
        self.blocks = nn.Sequential(*(nn.Sequential(*block[:1], nn.Tanh(), *block[2:]) for _ in range(1)))
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(dropout)) for _ in range(3))
        )
        self.outward = nn.Linear(4, 2)
        self.double()

    def pipeline_split(self) -> list[Any]:
        return [self.inward, self.blocks, (self.out, "inward.weight", "outward")]

    def out(self, x: Tensor) -> Tensor:
        found: Tensor = self.outward(x @ self.inward.weight)
        return found

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(self.inward(x)))


class Means(Process):
    def __init__(self, model: nn.Module, **how: Any) -> None:
        self.model = model
        self.metrics = {"own": Mean("own")}
        self.backward = Backward(torch.optim.AdamW(model.parameters(), lr=1e-2), **how)

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        pred = self.model(inputs)
        losses = (pred - target).square().mean(1)
        self.log("mean_input", inputs.mean())
        output = {"pred": pred.detach(), "target": target, "loss": losses.mean().detach(), "own": losses.detach()}
        return self.loss(losses, inputs), output

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return losses.mean()


class Sums(Means):
    """Samples count as much as their input says: micro-batches weigh unevenly."""

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        weights = inputs[:, 0].abs() + 0.1
        return (losses * weights).sum(), weights.sum()


class Named(Means):
    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return {"plain": losses.mean(), "squared": losses.square().mean()}


def is_alone() -> bool:
    return not dist.is_initialized()


def made(kind: type[Means] = Means, *, dropout: float = 0.0, layout: Layout, **how: Any) -> tuple[Engine, Mesh | None]:
    """An engine for this process; alone it has as many micro-batches as all of them together."""
    model = Deep(dropout=dropout)
    mesh = None if is_alone() else laid_out(layout, torch.device("cpu"))
    if how.pop("recomputed", False):
        recompute(model, "blocks.*")
    if mesh is not None:
        divide(model, mesh)
    process = kind(model, **how)
    accumulate = 4 if is_alone() else 4 // layout.data
    share = {} if mesh is None else {"rank": mesh.ranks.rank, "ranks": mesh.ranks.count}
    loader = Loader(points(34), batch_size=12, shuffle=True, accumulate=accumulate, **share)
    engine = Engine(process, loader, recorder=MemoryRecorder(), epochs=2)
    if mesh is not None:
        join_data(engine, mesh.ranks)
        assert mesh.pipeline is not None
        mesh.pipeline.join(engine)
    return engine, mesh


def found(engine: Engine) -> dict[str, Any]:
    recorder: Any = engine.recorder
    parts = capture(engine)
    return {
        "weights": {name: value.flatten().tolist() for name, value in parts["model"].items()},
        "moments": {name: value["exp_avg"].flatten().tolist() for name, value in parts["optimizer"]["state"].items()},
        "groups": [group["params"] for group in parts["optimizer"]["groups"]],
        "points": [[name, step, value] for name, step, value in recorder.points],
        "counts": [engine.state.step, engine.state.samples, engine.state.epoch, engine.state.micro_step],
    }


def trained(layout: Layout, kind: type[Means] = Means, **how: Any) -> dict[str, Any]:
    engine, _ = made(kind, layout=layout, **how)
    engine.run()
    return found(engine)


CASES: dict[str, Callable[[Layout], Any]] = {
    "1f1b": lambda layout: trained(layout),
    "gpipe": lambda layout: trained(Layout(**{**layout.sizes, "schedule": "gpipe"})),
    "interleaved": lambda layout: trained(Layout(**{**layout.sizes, "schedule": "interleaved"})),
    "clipped": lambda layout: trained(layout, clip_norm=0.3),
    "recomputed": lambda layout: trained(layout, recomputed=True),
    "sums": lambda layout: trained(layout, Sums, clip_norm=0.3),
    "named": lambda layout: trained(layout, Named, weights={"squared": 0.5}),
}


def main(folder: str, rank: str, ranks: str, *names: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    layout = Layout(pipeline=2, data=int(ranks) // 2)
    results = {name: CASES[name](layout) for name in names}
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
