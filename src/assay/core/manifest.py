"""`manifest.json`: what a checkpoint holds, format 1. It is written last; a folder without it is no checkpoint.

A checkpoint is a folder `step-000000123` (`.tmp` at its end while it is being written). It is divided into **parts**
(`model`, `optimizer`, `state`, ...) that can be read one by one. A part is a tree of plain data in `<part>.json`
whose tensors lie in safetensors files and are named there; a sharded part has one such file per writing rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.core.errors import CheckpointError, RecordError
from assay.core.plain import read_json, write_json

FORMAT = 1
FILE_NAME = "manifest.json"

Kind = Literal["checkpoint", "keypoint", "best", "model"]
_FOLDER = re.compile(r"step-(\d{9,})")
_SAFE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of the folder. `sha256` in hex of its bytes."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A box of a tensor: where it lies in the whole (`offsets`, `shape`, one number a dim) and in which file."""

    file: str
    key: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTensor:
    """A tensor written in pieces; the shards cover it exactly once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of the device mesh that wrote the checkpoint: data, shard, tensor, pipeline."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part that can be read alone. `files`: its tensors' files. `sharded` lists tensors that lie in pieces."""

    name: str
    tree: str
    files: tuple[str, ...] = ()
    sharded: tuple[ShardedTensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All about a checkpoint but its data.

    `step` counts optimizer updates, `samples` the training samples seen. `digest` is over the whole state as decoded,
    independent of the layout; it is compared after loading. `info` is what a person wants to see in a list (metrics).
    """

    format: int = FORMAT
    kind: Kind
    name: str
    step: int
    epoch: int
    samples: int
    run: str
    attempt: int
    created_ns: int
    files: tuple[File, ...]
    parts: tuple[Part, ...]
    layout: tuple[Axis, ...] = ()
    digest: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        size = 1
        for axis in self.layout:
            size *= axis.size
        return size

    def part(self, name: str) -> Part:
        """The part of that name; CheckpointError lists those that exist."""
        for part in self.parts:
            if part.name == name:
                return part
        known = ", ".join(part.name for part in self.parts)
        raise CheckpointError(f"The checkpoint {self.name} has no part {name!r}.", fix=f"It has: {known}.")


def folder_of_step(step: int) -> str:
    """`step-000000123`: sorts as text in the order of steps."""
    return f"step-{step:09d}"


def step_of_folder(name: str) -> int | None:
    """The step in a checkpoint folder's name, or None when it is none (or one still being written)."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest durably. Everything it names must already be synced."""
    write_json(folder / FILE_NAME, manifest)


def read(folder: Path) -> Manifest:
    """The manifest of a complete checkpoint. CheckpointError says what is missing or wrong."""
    try:
        manifest = read_json(folder / FILE_NAME, Manifest, version=FORMAT)
    except FileNotFoundError:
        raise CheckpointError("The checkpoint is not complete: it has no manifest.", where=str(folder)) from None
    except RecordError as error:
        raise CheckpointError(error.what, where=error.where or str(folder), fix=error.fix) from error
    _check(manifest, folder)
    return manifest


def missing_files(folder: Path, files: Sequence[File]) -> str:
    """Why the folder is not what its manifest says (a file missing or of another length), or "" when it is."""
    for file in files:
        try:
            size = (folder / file.name).stat().st_size
        except OSError:
            return f"{file.name} is missing"
        if size != file.size_bytes:
            return f"{file.name} has {size} bytes instead of {file.size_bytes}"
    return ""


def _check(manifest: Manifest, folder: Path) -> None:
    """Names in a manifest may come from a stranger: they must stay inside the folder and agree with each other."""
    names = {file.name for file in manifest.files}
    for file in manifest.files:
        if not _SAFE_FILE.fullmatch(file.name):
            raise CheckpointError(f"The manifest names a file outside its folder: {file.name!r}.", where=str(folder))
    for part in manifest.parts:
        used = {part.tree, *part.files, *(s.file for t in part.sharded for s in t.shards)}
        if not used <= names:
            unknown = ", ".join(sorted(used - names))
            raise CheckpointError(f"Part {part.name} uses files that are not listed: {unknown}.", where=str(folder))
        for tensor in part.sharded:
            _check_cover(tensor, folder)


def _check_cover(tensor: ShardedTensor, folder: Path) -> None:
    whole = 1
    for size in tensor.shape:
        whole *= size
    total = 0
    for shard in tensor.shards:
        inside = len(shard.shape) == len(shard.offsets) == len(tensor.shape) and all(
            low >= 0 and size >= 0 and low + size <= full
            for low, size, full in zip(shard.offsets, shard.shape, tensor.shape, strict=True)
        )
        if not inside:
            raise CheckpointError(f"A shard of {tensor.name} lies outside of it.", where=str(folder))
        volume = 1
        for size in shard.shape:
            volume *= size
        total += volume
    overlap = any(_overlap(a, b) for i, a in enumerate(tensor.shards) for b in tensor.shards[:i])
    if total != whole or overlap:
        raise CheckpointError(f"The shards of {tensor.name} do not cover it exactly once.", where=str(folder))


def _overlap(a: Shard, b: Shard) -> bool:
    return all(
        low_a < low_b + size_b and low_b < low_a + size_a
        for low_a, size_a, low_b, size_b in zip(a.offsets, a.shape, b.offsets, b.shape, strict=True)
    ) and bool(a.shape)
