"""Models that are built by ranks, each with its own part: `python build_cases.py FOLDER RANK RANKS`.

Each layout gives digests of all weights, and the most bytes of the allocator during the build.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from assay.engine.numerics.dtensor import full_tensor
from assay.engine.parallel.join import build_model, partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import Mesh, init_mesh

WIDTH, DEPTH = 258, 6  # four ranks have 65 rows each, but the last
LAYOUTS: dict[int, tuple[Layout, ...]] = {
    2: (Layout(shard=2), Layout(tensor=2), Layout(pipeline=2)),
    4: (
        Layout(shard=4),
        Layout(data=2, shard=2),
        Layout(shard=2, tensor=2),
        Layout(pipeline=2, tensor=2),
        Layout(pipeline=2, shard=2),
    ),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(self.up(x).relu())
        return x + hidden


class Deep(nn.Module):
    """Initialised at the end by what its root says, as language models are; one weight is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(WIDTH + 1, WIDTH)  # an odd number of columns
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.outlet = nn.Linear(WIDTH, WIDTH, bias=False)
        self.again = nn.Linear(WIDTH, WIDTH, bias=False)
        self.again.weight = self.outlet.weight
        self.register_buffer("mask", torch.ones(300, 300).tril())
        self.apply(self.begin)

    def begin(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)

    def pipeline_split(self) -> list[Any]:
        return [self.inlet, *self.blocks, (self.end, "outlet", "again", "mask")]

    def tensor_plan(self) -> dict[str, str]:
        return {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}

    def end(self, x: Tensor) -> Tensor:
        found: Tensor = self.again(self.outlet(x))
        return found

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x)
        return self.end(x)


def deep(seed: int = 1) -> Deep:
    torch.manual_seed(seed)
    return Deep()


def digests(model: nn.Module) -> dict[str, str]:
    """Return a digest of each weight and buffer that is here, wherever its parts are."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    wholes = {name: full_tensor(tensor.detach()).contiguous() for name, tensor in named}
    return {name: sha256(whole.numpy().tobytes()).hexdigest() for name, whole in wholes.items()}


def most_bytes(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `work` gives, and the most bytes that it had of torch's allocator at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        found = work()
    live = most = 0
    events: Any = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return found, most


def recorded(mesh: Mesh, seed: int) -> nn.Module:
    model, record = build_model(lambda: deep(seed), mesh)
    assert record is not None
    partition_model(model, mesh, record=record)
    return model


def whole(mesh: Mesh, seed: int) -> nn.Module:
    model = deep(seed)
    partition_model(model, mesh)
    return model


def layouts(rank: int, ranks: int) -> Any:
    """Where weights are sharded, ranks but the first would begin with others by themselves."""
    found = {}
    for layout in LAYOUTS[ranks]:
        mesh = init_mesh(layout, torch.device("cpu"))
        is_followed = layout.shard > 1 and layout.tensor == 1
        seed = 2 if is_followed and mesh.ranks.rank else 1
        way = {}
        for build in (recorded, whole):
            model, most = most_bytes(partial(build, mesh, seed))
            way[build.__name__] = {"digests": digests(model), "most_bytes": most}
        found[str(layout)] = way
    return found


def refused(rank: int, ranks: int) -> Any:
    """One rank has a model that cannot be recorded; return the lines that say why."""
    mesh = init_mesh(Layout(shard=ranks), torch.device("cpu"))
    builds = []

    def build() -> nn.Module:
        builds.append(1)
        return nn.LSTM(WIDTH, WIDTH) if rank else deep()

    model, record = build_model(build, mesh)
    is_whole = not any(weight.is_meta for weight in model.parameters())
    return [mesh.built_whole, len(builds), is_whole, record is None]


def main(folder: str, rank: str, ranks: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    results = {case.__name__: case(int(rank), int(ranks)) for case in (layouts, refused)}
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
