"""Checkpoints read by several ranks: each reads its own slices, and each file is verified by one.

1. each plans which bytes of which files it needs, and tells the others
2. each file goes to a rank that verifies it: one that reads all of it anyway, if there is any
3. each reads; what one of them finds wrong all of them raise
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from assay.core.errors import AssayError, CheckpointError
from assay.engine.checkpoint.codec import decode, dtype_named, tensors_under, without_entries
from assay.engine.checkpoint.folder import open_parts, refuse_damaged
from assay.engine.checkpoint.tensor_file import Slice, read_header, read_slices, side_by_side
from assay.engine.numerics.dtensor import chunk_offsets, from_local_like, local_tensor
from assay.formats.manifest import CheckpointPart, ManifestFile, Shard, ShardedTensor

DIVIDED_PARTS = ("model", "optimizer", "EMA")
"""Parts that take slices; every other part is given whole tensors, whatever holds its state."""

PROCESS_PARTS = ("criterion", "process", "frozen")
"""Parts of a process beside its model, whole on each rank. What they hold under the name of a
weight is no weight of the model: a teacher has the same names."""

_HEADER = 0.05
"""Part of a file that a rank which needs all of its tensors may read beyond them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of one rank in a model: `layouts` are its DTensors by name.

    Of what lies under the names `elsewhere` it has nothing, but in `PROCESS_PARTS`.
    """

    layouts: Mapping[str, Tensor] = field(default_factory=dict)
    elsewhere: Collection[str] = ()


class Readers(Protocol):
    """Group of processes that read together; all of them call the same methods."""

    @property
    def rank(self) -> int: ...

    def gather(self, value: Any) -> list[Any]: ...


class _Alone:
    """Group of one."""

    rank = 0

    def gather(self, value: Any) -> list[Any]:
        return [value]


@dataclass(slots=True)
class _Plan:
    """Slices to read, by file and name, and the trees and tensors that states are made of."""

    files: Mapping[str, ManifestFile]
    digest: str = ""
    trees: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    layouts: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    slices: dict[str, dict[str, list[Slice]]] = field(default_factory=dict)

    def needs(self) -> dict[str, int]:
        """Return how many bytes of each file this process needs."""
        return {
            file: sum(each.into.nbytes for several in names.values() for each in several)
            for file, names in self.slices.items()
        }

    def decode_states(self) -> dict[str, Any]:
        """Return the states; what is laid out as a parameter is a DTensor on its device."""
        states = {}
        for part, tree in self.trees.items():
            tensors = self.tensors.pop(part)
            for name, layout in self.layouts.pop(part).items():
                tensors[name] = from_local_like(layout, tensors[name])
            states[part] = decode(tree, tensors)
        return states


def load_share(
    folder: Path,
    share: Share,
    *,
    parts: tuple[str, ...] | None = None,
    verify: bool = True,
    readers: Readers | None = None,
) -> dict[str, Any]:
    """Return the parts of a checkpoint as one rank has them; collective for `readers`.

    In the `DIVIDED_PARTS` a tensor under the name of a DTensor, and of its shape, is a DTensor laid
    out alike, of which this rank reads its own slice. Without `readers` it verifies all files.
    Raises CheckpointError naming a damaged file, the same on all ranks.
    """
    group = readers or _Alone()
    plan = _Plan({})

    def begin() -> list[Any]:
        nonlocal plan
        plan = _plan(folder, share, parts, verify=verify)
        return [plan.digest, plan.needs()]

    told = _agree(group, begin)
    needs = [need for _, need in told]
    for rank, (digest, _) in enumerate(told):
        if digest != told[0][0]:
            raise CheckpointError(
                f"Rank {rank} finds another checkpoint than rank 0.",
                where=str(folder),
                fix="Use a file system that all machines share.",
            )
    owners = divide_files(plan.files.values(), needs)
    verified = {name for name, rank in owners.items() if verify and rank == group.rank}

    def read_file(name: str) -> None:
        file = plan.files[name]
        if name in verified:
            refuse_damaged(folder, [file])
        try:
            read_slices(folder / name, plan.slices.get(name, {}))
        except CheckpointError:
            refuse_damaged(folder, [file] if verify else [])
            raise

    def read() -> None:
        side_by_side(
            read_file, [name for name in plan.files if name in verified | plan.slices.keys()]
        )

    _agree(group, read)
    return plan.decode_states()


def _agree(group: Readers, do: Callable[[], Any]) -> list[Any]:
    """Run a step on each rank; return all outcomes, or raise the first error as CheckpointError."""
    try:
        own = {"outcome": do()}
    except AssayError as error:
        own = {"error": [error.what, error.where, error.fix]}
    except Exception as error:  # whatever it is: the others wait, and are told
        own = {"error": [repr(error), "", ""]}
    told = group.gather(own)
    for each in told:
        if "error" in each:
            what, where, fix = each["error"]
            raise CheckpointError(what, where=where, fix=fix)
    return [each["outcome"] for each in told]


def _plan(folder: Path, share: Share, parts: tuple[str, ...] | None, *, verify: bool) -> _Plan:
    manifest, trees = open_parts(folder, parts=parts, verify=verify)
    listed = {file.name: file for file in manifest.files}
    wanted = [manifest.part(name) for name in trees]
    files = {name: listed[name] for part in wanted for name in part.files}
    plan = _Plan(files, manifest.digest)
    for part in wanted:
        elsewhere = () if part.name in PROCESS_PARTS else share.elsewhere
        tree = plan.trees[part.name] = without_entries(trees[part.name], elsewhere)
        try:
            _plan_part(folder, part, tree, share, plan)
        except CheckpointError:
            refuse_damaged(folder, [listed[name] for name in part.files] if verify else [])
            raise
    return plan


def _plan_part(folder: Path, part: CheckpointPart, tree: Any, share: Share, plan: _Plan) -> None:
    """Plan what is read of a part, and make room for it."""
    is_divided = part.name.partition(".")[0] in DIVIDED_PARTS
    names_of: dict[str, set[str | None]] = {}
    for name, parameter in tensors_under(tree, share.layouts if is_divided else {}):
        names_of.setdefault(name, set()).add(parameter)
    stored = {tensor.name: tensor for tensor in part.sharded}
    stored |= _find_whole(folder, part, names_of.keys() - stored.keys())
    tensors = plan.tensors[part.name] = {}
    layouts = plan.layouts[part.name] = {}
    for name, parameters in names_of.items():
        tensor = stored[name]
        # A tensor that the state has at several places is sliced where all of them agree.
        layout = share.layouts.get(parameters.pop() or "") if len(parameters) == 1 else None
        if layout is not None and tuple(layout.shape) == tensor.shape:
            layouts[name] = layout
            offsets, shape = chunk_offsets(layout), tuple(local_tensor(layout).shape)
        else:
            offsets, shape = (0,) * len(tensor.shape), tensor.shape
        dtype = dtype_named(tensor.dtype.removeprefix("torch."))
        tensors[name] = torch.empty(shape, dtype=dtype, device="cpu")
        # Of one piece once: the whole is then no larger than its files.
        if len({(shard.file, shard.key) for shard in tensor.shards}) < len(tensor.shards):
            raise CheckpointError(f"{name} has a piece twice.")
        for shard in tensor.shards:
            if shard.file not in part.files:
                raise CheckpointError(f"{shard.file} is no file of the part {part.name}.")
            piece = _overlap(shard, offsets, tensors[name])
            if piece is not None:
                plan.slices.setdefault(shard.file, {}).setdefault(shard.key, []).append(piece)


def _find_whole(
    folder: Path, part: CheckpointPart, names: Collection[str]
) -> dict[str, ShardedTensor]:
    """Return the tensors of a part that were not written in pieces, each as its only piece."""
    found: dict[str, ShardedTensor] = {}
    for file in part.files:
        if len(found) == len(names):
            break
        for name, stored in read_header(folder / file).items():
            if name in names:
                shape = stored.shape
                shard = Shard(file=file, key=name, offsets=(0,) * len(shape), shape=shape)
                found[name] = ShardedTensor(
                    name=name, dtype=str(stored.dtype), shape=shape, shards=(shard,)
                )
    for name in names:
        if name not in found:
            raise CheckpointError(f"The checkpoint names a tensor that it does not hold: {name!r}.")
    return found


def _overlap(shard: Shard, offsets: Sequence[int], local: Tensor) -> Slice | None:
    """Return the slice of a piece that lies in a box, which `local` has room for."""
    begins, inside = [], []
    for low, size, own, room in zip(shard.offsets, shard.shape, offsets, local.shape, strict=True):
        begin, end = max(low, own), min(low + size, own + room)
        if begin >= end:
            return None
        begins.append(begin - low)
        inside.append(slice(begin - own, end - own))
    return Slice(shard.shape, tuple(begins), local[tuple(inside)])


def divide_files(
    files: Iterable[ManifestFile], needs: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Return the rank that verifies each file, so that none of them reads much more than others.

    `needs` is what each rank reads of each file anyway, in bytes.
    """
    reads = [sum(need.values()) for need in needs]
    verifies = [0] * len(needs)
    owner: dict[str, int] = {}
    for file in sorted(files, key=lambda file: (-file.size_bytes, file.name)):
        rest = [file.size_bytes - need.get(file.name, 0) for need in needs]
        whole = [rank for rank, left in enumerate(rest) if left <= _HEADER * file.size_bytes]
        owner[file.name] = rank = (
            min(whole, key=lambda rank: verifies[rank])
            if whole
            else min(range(len(needs)), key=lambda rank: reads[rank] + rest[rank])
        )
        reads[rank] += rest[rank]
        verifies[rank] += file.size_bytes
    return owner
