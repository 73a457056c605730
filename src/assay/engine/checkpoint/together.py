"""Checkpoints written by several processes: a file each, published by the first.

1. each offers what it holds; a piece that several hold is written by the first of them
2. each writes its pieces, durably, and says so
3. when all have, the first writes the trees and the manifest, and gives the folder its name

Whatever ends one of them before that leaves a folder that has no manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from assay.core.errors import AssayError, CheckpointError
from assay.engine.checkpoint.folder import Contents, publish, write_state_tree
from assay.engine.checkpoint.tensor_file import write_files
from assay.formats.json_codec import dataclass_from, to_plain
from assay.formats.manifest import (
    CheckpointPart,
    Manifest,
    ManifestFile,
    MeshAxis,
    Shard,
    ShardedTensor,
)

Offer = Mapping[str, Mapping[str, Any]]
"""By part and tensor: where the piece begins, its shape, the shape of the whole, its dtype."""


class Writers(Protocol):
    """Group of processes that write together; all of them call the same methods."""

    rank: int
    axes: tuple[MeshAxis, ...]

    @property
    def is_first(self) -> bool: ...

    def gather(self, value: Any) -> list[Any]: ...


def offer(contents: Contents) -> dict[str, dict[str, Any]]:
    """Return what this process holds, by part and tensor."""
    held: dict[str, dict[str, Any]] = {}
    for name, part in contents.parts.items():
        pieces: dict[str, Any] = {}
        held[name] = pieces
        for key, tensor in part.tensors.items():
            box = part.boxes.get(key)
            shape = list(tensor.shape)
            dtype = str(tensor.dtype)
            if box is None:
                begin = [0] * len(shape)
                pieces[key] = [begin, shape, shape, dtype]
            elif tensor.numel():
                pieces[key] = [list(box.offsets), shape, list(box.whole), dtype]
    return held


def write_own(
    folder: Path, contents: Contents, offers: Sequence[Offer], rank: int
) -> dict[str, Any]:
    """Write the pieces that no lower rank holds; return the file of each. Raises OSError."""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not there on the machine of rank {rank}: checkpoints want a file system "
            "that all share."
        )
    mine: dict[str, dict[str, Tensor]] = {}
    for name, part in contents.parts.items():
        mine[name] = {
            key: part.tensors[key]
            for key, found in offers[rank].get(name, {}).items()
            if _owner(offers, name, key, found[0]) == rank
        }
    ending = f"-rank{rank}" if rank else ""
    files = write_files(folder, {f"{name}{ending}": tensors for name, tensors in mine.items()})
    return {name: to_plain(files[f"{name}{ending}"]) for name in mine}


def write_parts(
    folder: Path, contents: Contents, offers: Sequence[Offer], writers: Writers
) -> list[dict[str, Any]]:
    """Write the pieces of all processes; return what each has written. Collective."""
    own = outcome_of(lambda: {"written": write_own(folder, contents, offers, writers.rank)})
    told = writers.gather(own)
    raise_first_error(told)
    return [each["written"] for each in told]


def publish_together(
    folder: Path,
    contents: Contents,
    offers: Sequence[Offer],
    written: Sequence[Mapping[str, Any]],
    *,
    axes: tuple[MeshAxis, ...],
    like: Iterable[Path] = (),
) -> Manifest:
    """Write the manifest of what all of them have written into `folder`."""
    files: list[ManifestFile] = []
    parts: list[CheckpointPart] = []
    for name, part in contents.parts.items():
        own = dict.fromkeys(
            dataclass_from(ManifestFile, file)
            for each in written
            for file in each.get(name, {}).values()
        )
        files += [write_state_tree(folder, name, part), *own]
        parts.append(
            CheckpointPart(
                name=name,
                tree=f"{name}.json",
                files=tuple(file.name for file in own),
                sharded=_sharded_tensors(name, offers, written),
            )
        )
    return publish(folder, contents, files, parts, like=like, layout=axes)


def _sharded_tensors(
    name: str, offers: Sequence[Offer], written: Sequence[Mapping[str, Any]]
) -> tuple[ShardedTensor, ...]:
    """Return the tensors of a part of which each process has written a piece."""
    sharded: list[ShardedTensor] = []
    keys = [key for each in offers for key in each.get(name, {})]
    for key in dict.fromkeys(keys):
        shards: list[Shard] = []
        about = None
        for rank, each in enumerate(written):
            if key not in each.get(name, {}):
                continue
            file = each[name][key]["name"]
            about = offers[rank][name][key]
            shards.append(Shard(file=file, key=key, offsets=tuple(about[0]), shape=tuple(about[1])))
        assert about is not None
        if about[1] != about[2]:
            whole = tuple(about[2])
            sharded.append(
                ShardedTensor(name=key, dtype=about[3], shape=whole, shards=tuple(shards))
            )
    return tuple(sharded)


def _owner(offers: Sequence[Offer], part: str, key: str, offsets: Sequence[int]) -> int:
    """Return the first rank that holds a piece."""
    holds = (
        rank
        for rank, each in enumerate(offers)
        if key in each.get(part, {}) and each[part][key][0] == offsets
    )
    return next(holds)


def outcome_of(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a step and return its outcome for the other processes; an error is sent to them first."""
    try:
        return do()
    except Exception as error:  # whatever it is: the others wait, and are told
        return {"error": str(error) if isinstance(error, AssayError | OSError) else repr(error)}


def refuse_together(writers: Writers, why: str) -> Manifest:
    """Tell the waiting processes that a value cannot be kept."""
    writers.gather({"error": why})
    raise CheckpointError(why)


def raise_first_error(told: Sequence[Mapping[str, Any]]) -> None:
    """CheckpointError with the first thing that one of several processes could not do."""
    for rank, each in enumerate(told):
        if "error" in each:
            raise CheckpointError(f"rank {rank}: {each['error']}" if rank else str(each["error"]))
