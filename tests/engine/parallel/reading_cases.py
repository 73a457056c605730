"""What each of several ranks reads of a checkpoint: counted bytes, bits, and errors.

`python reading_cases.py FOLDER RANK RANKS CASES` leaves the answers in FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor

from assay.core.errors import CheckpointError
from assay.engine.callbacks.ema import EMA, evaluated_weights
from assay.engine.checkpoint import own_share, tensor_file
from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.folder import Where, load_parts
from assay.engine.checkpoint.optimizer_state import NamedState
from assay.engine.checkpoint.own_share import Share
from assay.engine.checkpoint.saver import Saver
from assay.engine.numerics.dtensor import distribute_like, is_dtensor, local_tensor
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import Mesh, init_mesh

FOLDER: list[Path] = []


def net() -> nn.Sequential:
    """1.1 MB of weights whose rows divide by two or not, and a buffer."""
    torch.manual_seed(0)
    layers = [nn.Linear(256, 256), nn.BatchNorm1d(256), *(nn.Linear(256, 256) for _ in range(3))]
    return nn.Sequential(*layers, nn.Linear(256, 7))


class Counted:
    """File of tensors, or one of them, that counts the bytes which are read of it."""

    def __init__(self, inside: Any, count: list[int]) -> None:
        self.inside, self.count = inside, count

    def __enter__(self) -> Counted:
        return Counted(self.inside.__enter__(), self.count)

    def __exit__(self, *how: Any) -> None:
        self.inside.__exit__(*how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)

    def __getitem__(self, box: Any) -> Any:
        return self.add(self.inside[box])

    def get_slice(self, name: str) -> Any:
        return Counted(self.inside.get_slice(name), self.count)

    def get_tensor(self, name: str) -> Any:
        return self.add(self.inside.get_tensor(name))

    def add(self, tensor: Any) -> Any:
        self.count[0] += tensor.nbytes
        return tensor


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the bytes that are read of files of tensors."""
    count = [0]
    library = tensor_file.safe_open  # type: ignore[attr-defined]

    def open_counted(*args: Any, **how: Any) -> Counted:
        return Counted(library(*args, **how), count)

    tensor_file.safe_open = open_counted  # type: ignore[attr-defined]
    try:
        yield count
    finally:
        tensor_file.safe_open = library  # type: ignore[attr-defined]


@contextmanager
def listing_verified() -> Iterator[list[str]]:
    """List the files that this rank verifies."""
    verified: list[str] = []
    refuse = own_share.refuse_damaged  # type: ignore[attr-defined]

    def refuse_listed(folder: Path, files: list[Any]) -> None:
        verified.extend(file.name for file in files)
        refuse(folder, files)

    own_share.refuse_damaged = refuse_listed  # type: ignore[attr-defined, assignment]
    try:
        yield verified
    finally:
        own_share.refuse_damaged = refuse  # type: ignore[attr-defined]


def trained(model: nn.Module) -> dict[str, Any]:
    """Parts of a checkpoint after a step: weights, moments and averages."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.linspace(-1, 1, 8 * 256).view(8, 256)).square().mean().backward()
    optimizer.step()
    average = EMA()
    average._look_at(model)
    return {
        "model": model.state_dict(),
        "optimizer": NamedState(optimizer, model).state_dict(),
        "EMA": average.state_dict(),
        "Listener": {"0.weight": torch.ones(256, 256)},
    }


def layouts(model: nn.Module) -> dict[str, Tensor]:
    return {name: each for name, each in model.named_parameters() if is_dtensor(each)}


def by_shard(rank: int, ranks: int) -> tuple[Mesh, nn.Module]:
    mesh = init_mesh(Layout(shard=ranks), torch.device("cpu"))
    model = net()
    partition_model(model, mesh)
    return mesh, model


def saved_together(folder: Path, rank: int, ranks: int) -> tuple[Saver, nn.Module, Mesh]:
    """A checkpoint that all ranks wrote, and an older one."""
    mesh, model = by_shard(rank, ranks)
    saver = Saver(folder, writers=mesh.writers)
    parts = trained(model)
    for step in (1, 2):
        saver.save(parts, Where(step=step))
    return saver, model, mesh


def saved_by_one(folder: Path, rank: int, ranks: int) -> tuple[Saver, nn.Module, Mesh]:
    """The same from one process, resumed by all."""
    if rank == 0:
        for step in (1, 2):
            parts = {**trained(net()), "Counter": {"step": step}}
            Saver(folder).save(parts, Where(step=step))
    mesh, model = by_shard(rank, ranks)
    dist.barrier()
    return Saver(folder, writers=mesh.writers), model, mesh


def saved_by_replicas(folder: Path, rank: int, ranks: int) -> tuple[Saver, nn.Module, Mesh]:
    """The same, resumed by ranks that each have the whole model."""
    if rank == 0:
        Saver(folder).save(trained(net()), Where(step=2))
    mesh = init_mesh(Layout(data=ranks), torch.device("cpu"))
    dist.barrier()
    return Saver(folder, readers=mesh.readers), net(), mesh


Save = Callable[[Path, int, int], tuple[Saver, nn.Module, Mesh]]


def read(save: Save, name: str, *, columns: bool = False, verify: bool = True) -> Any:
    """Return the bytes that this rank reads and has, and whether they are those of the whole."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    saver, model, mesh = save(FOLDER[0] / name, rank, ranks)
    divided = layouts(model)
    if columns:
        devices = mesh.devices["shard"]
        divided = {
            name: distribute_tensor(
                torch.empty(tuple(each.shape)), devices, [Shard(each.dim() - 1)]
            )
            for name, each in divided.items()
        }
    with counted() as count, listing_verified() as verified:
        parts = saver.load(share=Share(layouts=divided), verify=verify)
    whole = load_parts(saver.folder / "step-000000002")
    expected = {
        "model": {n: like(divided, n, each) for n, each in whole["model"].items()},
        "optimizer": {
            n: {key: like(divided, n, each) for key, each in state.items()}
            for n, state in whole["optimizer"]["state"].items()
        },
        "EMA": {n: like(divided, n, each) for n, each in whole["EMA"]["weights"].items()},
    }
    found = {
        "model": dict(parts["model"]),
        "optimizer": parts["optimizer"]["state"],
        "EMA": parts["EMA"]["weights"],
    }
    own = {id(each): local_tensor(each).nbytes for each in tensors(parts)}
    return {
        "read": count[0],
        "verified": sorted(verified),
        "files": sorted(path.name for path in saver.folder.glob("step-000000002/*.safetensors")),
        "share": sum(own.values()),
        "state": sum({id(each): each.nbytes for each in tensors(whole)}.values()),
        "is equal": digest_state(found) == digest_state(expected),
        "listener": isinstance(parts["Listener"]["0.weight"], Tensor)
        and parts["Listener"]["0.weight"].sum().item(),
        "groups": parts["optimizer"]["groups"] == whole["optimizer"]["groups"],
    }


def like(divided: dict[str, Tensor], name: str, value: Tensor) -> Tensor:
    layout = divided.get(name)
    return (
        value if layout is None or layout.shape != value.shape else distribute_like(layout, value)
    )


def tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    for each in (
        state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    ):
        yield from tensors(each)


def damaged(save: Save, name: str, file: str, *, at: float, to_header: bool = False) -> Any:
    """Return how loading ends where a byte of a file is another, and what is resumed from then."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    saver, model, _ = save(FOLDER[0] / name, rank, ranks)
    if rank == 0:
        path = saver.folder / "step-000000002" / file
        data = bytearray(path.read_bytes())
        data[12 if to_header else int(len(data) * at)] ^= 1
        path.unlink()  # the checkpoint before may share it
        path.write_bytes(data)
    dist.barrier()
    own = Share(layouts=layouts(model))
    try:
        told = f"loaded {len(saver.load(share=own))}"
    except CheckpointError as error:
        told = str(error)
    manifest, _, skipped = saver.newest(share=own)
    unverified = to_header or saver.load(share=own, verify=False).keys() >= {
        "model",
        "optimizer",
        "EMA",
        "Listener",
    }
    return [told, manifest.step, [each.why for each in skipped], unverified]


def lone_failure() -> Any:
    """Return the errors of a rank that cannot read, and of one that could."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    saver, model, _ = saved_by_one(FOLDER[0] / "lone", rank, ranks)
    if rank == ranks - 1:

        def refuse(*_: Any, **__: Any) -> Any:
            raise MemoryError("no room")

        tensor_file.safe_open = refuse  # type: ignore[attr-defined]
    try:
        saver.load(share=Share(layouts=layouts(model)))
    except CheckpointError as error:
        return str(error)
    finally:
        tensor_file.safe_open = safe_open  # type: ignore[attr-defined]
    return ""


def begun_from() -> Any:
    """Return what a run reads whose first weights are those of another one, and that they are."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    saver, model, mesh = saved_together(FOLDER[0] / "begun", rank, ranks)
    folder = saver.folder / "step-000000002"
    with counted() as count:
        weights = evaluated_weights(folder, Share(layouts=layouts(model)), mesh.readers)
    averages = load_parts(folder)["EMA"]["weights"]
    return {
        "read": count[0],
        "share": 2 * sum(local_tensor(each).nbytes for each in model.parameters()),
        "is equal": all(
            digest_state(weights[name]) == digest_state(like(layouts(model), name, each))
            for name, each in averages.items()
        ),
    }


def of_two_minds() -> Any:
    """Return the error of ranks that find different checkpoints under one name."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    saver, model, _ = saved_by_one(FOLDER[0] / "minds", rank, ranks)
    try:
        saver.load(1 + rank, share=Share(layouts=layouts(model)))
    except CheckpointError as error:
        return error.what
    return ""


CASES: dict[str, Callable[[], Any]] = {
    "same layout": lambda: read(saved_together, "same"),
    "same layout, unverified": lambda: read(saved_together, "unverified", verify=False),
    "from one": lambda: read(saved_by_one, "one"),
    "from one, unverified": lambda: read(saved_by_one, "bare", verify=False),
    "replicas": lambda: read(saved_by_replicas, "replicas"),
    "from rows to columns": lambda: read(saved_together, "columns", columns=True),
    "from rows to columns, unverified": lambda: read(
        saved_together, "bare-columns", columns=True, verify=False
    ),
    "damage of rank 1": lambda: damaged(
        saved_together, "hurt", "optimizer-rank1.safetensors", at=0.9
    ),
    "damage in the rows of rank 1": lambda: damaged(
        saved_by_one, "hurt-one", "EMA.safetensors", at=0.95
    ),
    "damage in a header": lambda: damaged(
        saved_together, "hurt-head", "model.safetensors", at=0, to_header=True
    ),
    "one cannot read": lone_failure,
    "of two minds": of_two_minds,
    "begun from another run": begun_from,
}


def main(folder: str, rank: str, ranks: str, *names: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    FOLDER.append(Path(folder))
    results = {name: CASES[name]() for name in names}
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
