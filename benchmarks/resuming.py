"""What each of two ranks reads and holds as it resumes a sharded model: by hand and by the engine.

732 MiB of weights and moments of AdamW, in fp32, sharded by FSDP2 over two ranks that talk by gloo.
`hand`: `torch.distributed.checkpoint`, which verifies nothing. `engine`: a checkpoint that the two
ranks wrote; `engine.from_one`: one that a single process wrote. `engine.whole`: the first one, read
by each rank as a single process reads it.

Read are the bytes of the system's calls (`rchar`), as shares: of what the rank has, weights and
moments. Memory is the most that was resident while it loaded, over what was before. Each way has
processes of its own, and its files are in the page cache. Figures are those of the rank that has
more.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from figures import Figure, machine, options, show
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.optimizer_state import NamedState
from assay.engine.checkpoint.own_share import Share
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.weights import load_model_state
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import init_mesh

RANKS = 2
WAYS = ("hand", "engine", "engine.from_one", "engine.whole")
LIMITS = {"engine.shares": 1.05, "engine.from_one.shares": 2.1}


def network(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(8)])


def sharded(width: int) -> nn.Sequential:
    """The model on this rank, which never had more than its share."""
    with torch.device("meta"):
        model = network(width)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter.to_local())  # type: ignore[attr-defined]
    return model


def optimizer_of(model: nn.Module, *, trained: bool) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if trained:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def parts_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizer": NamedState(optimizer, model).state_dict(),
    }


def save(folder: Path, rank: int, width: int) -> None:
    """Write the three checkpoints."""
    mesh = init_mesh(Layout(shard=RANKS), torch.device("cpu"))
    model = sharded(width)
    optimizer = optimizer_of(model, trained=True)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / "hand")
    Saver(folder / "engine", writers=mesh.writers).save(parts_of(model, optimizer), Where(step=1))
    if rank == 0:
        alone = network(width)
        parts = parts_of(alone, optimizer_of(alone, trained=True))
        Saver(folder / "engine.from_one").save(parts, Where(step=1))
    dist.barrier()


def load_by_hand(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder / "hand")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )


def load_by_saver(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, mesh: Any, *, whole: bool
) -> None:
    share = None if whole else Share(layouts=dict(model.named_parameters()))
    parts = Saver(folder, writers=mesh.writers).load(share=share)
    load_model_state(model, parts["model"])
    NamedState(optimizer, model).load_state_dict(parts["optimizer"])


def of_process(file: str, key: str) -> int:
    """A number that Linux counts of this process."""
    lines = Path(f"/proc/self/{file}").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def load(folder: Path, rank: int, width: int, way: str) -> None:
    mesh = init_mesh(Layout(shard=RANKS), torch.device("cpu"))
    model = sharded(width)
    optimizer = optimizer_of(model, trained=False)
    ways: dict[str, Callable[[], None]] = {
        "hand": lambda: load_by_hand(folder, model, optimizer),
        "engine": lambda: load_by_saver(folder / "engine", model, optimizer, mesh, whole=False),
        "engine.from_one": lambda: load_by_saver(folder / way, model, optimizer, mesh, whole=False),
        "engine.whole": lambda: load_by_saver(
            folder / "engine", model, optimizer, mesh, whole=True
        ),
    }
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins anew
    resident, read, begun = of_process("status", "VmRSS"), of_process("io", "rchar"), process_time()
    ways[way]()
    found = {
        "cpu_s": process_time() - begun,
        "read_mb": (of_process("io", "rchar") - read) / 1e6,
        "peak_mb": (of_process("status", "VmHWM") - resident) * 1024 / 1e6,
    }
    own = sum(each.to_local().nbytes for each in model.parameters())  # type: ignore[attr-defined]
    found["shares"] = found["read_mb"] / (3 * own / 1e6)
    total = sum(
        each["exp_avg_sq"].full_tensor().double().sum().item() for each in optimizer.state.values()
    )
    assert abs(total - 1e-3 * 8 * width * width) < 1e-6 * width * width
    (folder / f"{way}-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()


def rank_main(folder: str, rank: int, width: int, what: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = dist.FileStore(f"{folder}/store-{what}", RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    if what == "save":
        save(Path(folder), rank, width)
    else:
        load(Path(folder), rank, width, what)
    dist.destroy_process_group()


def main() -> None:
    asked = options("What two ranks read and hold as they resume.")
    width = 512 if asked.quick else 2828
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
        for what in ("save", *WAYS):
            command = [sys.executable, str(Path(__file__).resolve()), "--rank", folder]
            ranks = [
                subprocess.Popen([*command, str(rank), str(width), what]) for rank in range(RANKS)
            ]
            if any([rank.wait() for rank in ranks]):
                raise SystemExit("error: a rank failed")
        told = {
            way: [
                json.loads(Path(folder, f"{way}-{rank}.json").read_text(encoding="utf-8"))
                for rank in range(RANKS)
            ]
            for way in WAYS
        }
    units = {"read_mb": "MB", "peak_mb": "MB", "cpu_s": "s"}
    figures = [
        Figure(
            name=f"resuming.{way}.{name}",
            value=max(each[name] for each in ranks),
            unit=units.get(name, ""),
            at_most=LIMITS.get(f"{way}.{name}"),
        )
        for way, ranks in told.items()
        for name in ranks[0]
    ]
    show(
        "resuming: two ranks, by hand and by the engine", figures, machine(), as_json=asked.as_json
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        main()
