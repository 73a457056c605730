"""What a training step and the build cost with two ranks: by hand in torch, and by the engine.

Two processes that talk by gloo, one thread each. `data`: a perceptron of 32-64-10, by hand in
`DistributedDataParallel`; `gpt`: a GPT of the examples in its place. `shard`: the GPT, by hand with
`fully_shard` for each block and the model. By hand each step clips the norm, adds the loss up over
the ranks, and reads both; batches come from torch's `DataLoader` and `DistributedSampler`. The
engine does the same from its `Loader`, and keeps the numbers of each step, which it reads later, as
on a GPU, where it can. Both ways take turns in the same processes.

Counted in a step, on the rank that has more: how often Python reads a tensor (`item`, `tolist` and
the like: on a GPU each would wait for it; not those that Python makes of numbers of its own, which
are on the CPU anywhere), collectives of gloo, the bytes that go into them, and the most bytes of
the allocator over those before the round. Time is the CPU time of the whole
process, gloo's threads included, since a clock would tell the load of the machine.

`build`: 245 MB of weights in eight layers, sharded by two. By hand on `meta`, shared out, and then
`reset_parameters` of each layer, which gives other weights than one process has. The engine records
the build and gives those of one process. `whole` is built before it is shared out.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
import torch.distributed as dist
from figures import Figure, machine, options, show
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, OptimizerStep, Supervised
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.join import build_model, partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import Mesh, init_mesh

RANKS = 2
WIDTH = 2828
NORM = 1.0
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "03_gpt"
READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")
LAYOUTS = {"data": Layout(data=RANKS), "gpt": Layout(data=RANKS), "shard": Layout(shard=RANKS)}
BATCHES = {"data": 64, "gpt": 16, "shard": 16}
"""Samples of a step, over all ranks."""


def network(axis: str) -> nn.Module:
    torch.manual_seed(0)
    if axis == "data":
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    made = runpy.run_path(str(EXAMPLE / "model.py"))["GPT"]
    model: nn.Module = made(256, 128, 128, 2, 4)
    return model


def samples(axis: str, steps: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    count = steps * BATCHES[axis]
    if axis == "data":
        return TensorDataset(
            torch.randn(count, 32, generator=draw), torch.randint(10, (count,), generator=draw)
        )
    letters = torch.randint(256, (count, 129), generator=draw)
    return TensorDataset(letters[:, :-1].contiguous(), letters[:, 1:].contiguous())


def by_hand(axis: str, rank: int, data: TensorDataset) -> Callable[[], object]:
    """Return a round: one epoch over the data."""
    model = network(axis)
    if axis != "shard":
        model = DistributedDataParallel(model)
    else:
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    sampler = DistributedSampler(data, RANKS, rank)  # type: ignore[var-annotated]
    loader = DataLoader(data, BATCHES[axis] // RANKS, sampler=sampler)

    def loop() -> None:
        told = []
        for inputs, target in loader:
            loss = criterion(model(inputs), target)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), NORM)
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach()
            dist.all_reduce(mean, op=dist.ReduceOp.SUM)
            told.append((mean.item() / RANKS, norm.item()))

    return loop


def by_engine(axis: str, mesh: Mesh, data: TensorDataset) -> Callable[[], object]:
    model = network(axis)
    partition_model(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def loop() -> None:
        backward = OptimizerStep(optimizer, clip_norm=NORM)
        process = Supervised(model, nn.CrossEntropyLoss(), backward=backward)
        loader = Loader(
            data, batch_size=BATCHES[axis], shuffle=True, rank=mesh.ranks.rank, ranks=RANKS
        )
        engine = Engine(process, loader, recorder=MemoryRecorder(), deferred=True)
        join_data_parallel(engine, mesh.ranks)
        engine.run()

    return loop


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)))


def build_by_hand(mesh: Mesh) -> None:
    with torch.device("meta"):
        model = layers()
    for part in (*model.children(), model):
        fully_shard(part, mesh=mesh.devices["shard"])
    model.to_empty(device="cpu")
    for part in model.children():
        part.reset_parameters()  # type: ignore[operator]


def build_recorded(mesh: Mesh) -> None:
    model, record = build_model(layers, mesh)
    assert record is not None
    partition_model(model, mesh, record=record)


def build_whole(mesh: Mesh) -> None:
    partition_model(layers(), mesh)


@contextmanager
def counted(found: dict[str, float], steps: int) -> Iterator[None]:
    """Count what a round of so many steps reads, sends and holds."""
    reads: Counter[str] = Counter()
    before = {name: getattr(Tensor, name) for name in READS}
    make = torch.tensor
    depth = 0

    def counting(name: str) -> Callable[..., Any]:
        def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            reads[name] += depth == 0 and not hasattr(
                self, "is_from_host"
            )  # a nested one is no second
            depth += 1
            try:
                return before[name](self, *args, **kwargs)
            finally:
                depth -= 1

        return call

    def make_from_host(data: Any, **given: Any) -> Tensor:
        tensor = make(data, **given)
        tensor.is_from_host = True
        return tensor

    for name in READS:
        setattr(Tensor, name, counting(name))
    torch.tensor = make_from_host
    activities = [ProfilerActivity.CPU]
    try:
        with profile(
            activities=activities, record_shapes=True, profile_memory=True, acc_events=True
        ) as seen:
            yield
    finally:
        torch.tensor = make
        for name, method in before.items():
            setattr(Tensor, name, method)
    sent = [event for event in events_of(seen) if event.name().startswith("gloo:")]
    size = sum(sum(map(bytes_of, event.shapes(), event.dtypes())) for event in sent)
    found |= {"reads": sum(reads.values()) / steps, "collectives": len(sent) / steps}
    found |= {"sent_bytes": size / steps, "peak_bytes": peak_bytes(seen)}


def events_of(seen: profile) -> list[Any]:
    """Return what a profiler has seen, in the order of time."""
    events = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
    return sorted(events, key=lambda event: event.start_ns())


def peak_bytes(seen: profile) -> int:
    """Return the most bytes of torch's allocator over those at the start."""
    live = most = 0
    for event in events_of(seen):
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


def bytes_of(shape: list[int], dtype: str) -> int:
    widths = {"double": 8, "long": 8, "long int": 8, "float": 4, "int": 4}
    return int(torch.Size(shape).numel()) * widths.get(dtype, 1 if shape else 0)


def rank_main(folder: str, rank: int, steps: int, rounds: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found: dict[str, dict[str, float]] = {}
    for build in (build_by_hand, build_recorded, build_whole):
        mesh = init_mesh(LAYOUTS["shard"], torch.device("cpu"))
        build(mesh)  # what it imports and keeps is no part of it
        begun = process_time()
        build(mesh)
        name = build.__name__.rpartition("_")[2]
        own = found[f"build.{name}"] = {"cpu_us": (process_time() - begun) * 1e6}
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            build(mesh)
        own["peak_bytes"] = peak_bytes(seen)
    for axis, layout in LAYOUTS.items():
        mesh = init_mesh(layout, torch.device("cpu"))
        data = samples(axis, steps)
        sides = {
            "hand": by_hand(axis, rank, data),
            "engine": by_engine(axis, mesh, data),
        }
        took: dict[str, list[float]] = {name: [] for name in sides}
        for i in range(-1, rounds):
            for name, loop in list(sides.items())[:: 1 if i % 2 else -1]:
                dist.barrier()
                begun = process_time()
                loop()
                if i >= 0:
                    took[name].append((process_time() - begun) / steps)
        for name, loop in sides.items():
            own = found[f"{axis}.{name}"] = {"cpu_us": median(took[name]) * 1e6}
            with counted(own, steps):
                loop()
        pairs = zip(took["engine"], took["hand"], strict=True)
        found[f"{axis}.engine"]["ratio"] = median(e / h for e, h in pairs)
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    asked = options("What a step costs with two ranks.")
    steps, rounds = (2, 1) if asked.quick else (40, 5)
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--rank", folder]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(steps), str(rounds)], stdout=subprocess.DEVNULL
            )
            for rank in range(RANKS)
        ]
        if any([rank.wait() for rank in ranks]):
            raise SystemExit("error: a rank failed")
        told = [
            json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8"))
            for rank in range(RANKS)
        ]
    units = {"cpu_us": "us", "sent_bytes": "B", "peak_bytes": "B"}
    limits = {"data.engine.ratio": 1.10, "data.engine.reads": 0.0, "gpt.engine.ratio": 1.10}
    figures = [
        Figure(
            name=f"ranks.{side}.{name}",
            value=max(each[side][name] for each in told),
            unit=units.get(name, ""),
            at_most=limits.get(f"{side}.{name}"),
        )
        for side, values in told[0].items()
        for name in values
    ]
    show("ranks: two ranks, by hand and by the engine", figures, machine(), as_json=asked.as_json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main()
