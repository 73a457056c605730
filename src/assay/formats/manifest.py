"""Format of `manifest.json`, version 2: the contents of a checkpoint, written last.

A checkpoint is a folder `step-000000123` (`.tmp` at its end while it is being written). A folder
without a manifest is no checkpoint. It is divided into **parts** (`model`, `optimizer`, `state`,
...) that can be read one by one. A part is a tree of plain data in `<part>.json` whose tensors lie
in safetensors files and are named there. A large part has several such files, a sharded one its own
for each writing rank.

`digest` is that of `digest_of_parts`. In version 1 it was over the decoded state: it tells two
states of that version apart, and is compared with nothing else.

`checkpoints` reads a folder of them, and `best.json` and `final.json` beside them, which name one
of them each.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from assay.core.errors import CheckpointError, RecordError
from assay.core.regular_file import kind_of_mode, read_bytes
from assay.formats.json_codec import dumps, parse_json, read_json, write_atomic, write_json

FORMAT = 2
_POINTER_FORMAT = 1
FILE_NAME = "manifest.json"
MAX_BYTES = 256 << 20
_MAX_POINTER_BYTES = 1 << 16

Kind = Literal["checkpoint", "keypoint", "best", "model"]
Pointer = Literal["best", "final"]
POINTERS: tuple[Pointer, ...] = ("best", "final")
_FOLDER = re.compile(r"step-(\d{9,})")
_SAFE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
TEMPORARY = ".tmp"
_LEFT = ".left-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file of the folder. `sha256` in hex of its bytes."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Box of a tensor: its `offsets` and `shape`, one number a dimension, and its file."""

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
class MeshAxis:
    """One axis of the device mesh that wrote the checkpoint: data, shard, tensor, pipeline."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """Part of a checkpoint that can be read alone: files of whole tensors, and sharded tensors."""

    name: str
    tree: str
    files: tuple[str, ...] = ()
    sharded: tuple[ShardedTensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of a checkpoint: everything but its data.

    `step` counts optimizer updates, `samples` the training samples seen. `digest` is over the whole
    state: equal states that were written in the same layout have the same. `layout` says how many
    processes wrote it along which axes; none for one. `info` is shown in lists (metrics).
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
    files: tuple[ManifestFile, ...]
    parts: tuple[CheckpointPart, ...]
    layout: tuple[MeshAxis, ...] = ()
    digest: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        size = 1
        for axis in self.layout:
            size *= axis.size
        return size

    @property
    def is_as_digested(self) -> bool:
        """Return whether the parts and the digests of files are those that were written."""
        if self.format == 1 or not self.digest:
            return True
        return self.digest == digest_of_parts(self.parts, self.files)

    def digest_of(self, part: str) -> str:
        """Return a digest of the files of a part, equal in two checkpoints when the part is."""
        found = self.part(part)
        sha256_by_name = {file.name: file.sha256 for file in self.files}
        return " ".join(sha256_by_name[name] for name in (found.tree, *found.files))

    def part(self, name: str) -> CheckpointPart:
        """Return the part of that name. Raises CheckpointError that lists the parts there are."""
        for part in self.parts:
            if part.name == name:
                return part
        known = ", ".join(part.name for part in self.parts)
        raise CheckpointError(
            f"The checkpoint {self.name} has no part {name!r}.", fix=f"It has: {known}."
        )


def digest_of_parts(parts: Iterable[CheckpointPart], files: Iterable[ManifestFile]) -> str:
    """Return a digest of parts: of the SHA-256 of their files, and of what lies where in these."""
    sha256_by_name = {file.name: file.sha256 for file in files}
    texts = [
        dumps([part, [sha256_by_name[name] for name in (part.tree, *part.files)]]) for part in parts
    ]
    return sha256("\n".join(sorted(texts)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, repr=False)
class Checkpoint:
    """Checkpoint in a folder of them: usable when `why` is empty, else `why` says why not."""

    name: str
    path: Path
    manifest: Manifest | None = None
    why: str = ""

    def __repr__(self) -> str:
        return (
            f"Checkpoint({self.name}, {dict(self.info)})"
            if not self.why
            else f"Checkpoint({self.name}: {self.why})"
        )

    @property
    def step(self) -> int | None:
        return self.manifest.step if self.manifest is not None else step_of_folder(self.name)

    @property
    def info(self) -> Mapping[str, Any]:
        """Information of the manifest for lists."""
        return self.manifest.info if self.manifest is not None else {}

    @property
    def is_left(self) -> bool:
        """True if a later attempt resumed from an earlier step and put this checkpoint aside."""
        return _LEFT in self.name

    @property
    def is_damaged(self) -> bool:
        """True for one that was complete and cannot be used: not unfinished, and not put aside."""
        if not self.why or self.is_left or self.name.endswith(TEMPORARY):
            return False
        return step_of_folder(self.name) is not None or (self.path / FILE_NAME).exists()


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Return all checkpoints of a folder, usable or not, by step and then by age."""
    try:
        paths = [
            path
            for path in folder.iterdir()
            if path.is_dir() or step_of_folder(path.name) is not None
        ]
    except OSError:
        return []
    return sorted(map(checkpoint_in, paths), key=_age)


def find_named(complete: Sequence[Checkpoint], name: str, folder: Path) -> Checkpoint | None:
    """Return the checkpoint that a person means by `name`, or None.

    Names are `latest`, `best`, `final`, a step, -1 for the newest, -2 for the one before, or a
    folder's name. The latest is the newest from which a run can be resumed: not a model alone.
    """
    for pointer in POINTERS:
        if name == pointer:
            name = pointed_name(folder, pointer)
    if name == "latest":
        able = [
            each for each in complete if each.manifest is not None and each.manifest.kind != "model"
        ]
        return next(reversed(able or complete), None)
    if re.fullmatch(r"-[1-9]\d{0,8}", name):
        return complete[int(name)] if int(name) >= -len(complete) else None
    wanted = folder_of_step(int(name)) if re.fullmatch(r"\d{1,18}", name) else name
    exact = [each for each in complete if each.name == wanted]
    of_step = [
        each
        for each in complete
        if name.isdecimal() and str(each.step) == name.lstrip("0").rjust(1, "0")
    ]
    return next(iter([*exact, *of_step]), None)


def checkpoint_in(path: Path) -> Checkpoint:
    """Return the checkpoint of one folder, usable or not."""
    if path.name.endswith(TEMPORARY):
        return Checkpoint(path.name, path, why="it was still being written")
    if _LEFT in path.name:
        return Checkpoint(path.name, path, why="a later attempt went on from before it")
    if step_of_folder(path.name) is None and not (path / FILE_NAME).exists():
        return Checkpoint(path.name, path, why="it has no manifest")
    try:
        manifest = read(path)
    except CheckpointError as error:
        return Checkpoint(path.name, path, why=error.what)
    return Checkpoint(
        path.name,
        path,
        manifest,
        _why_misnamed(manifest, path.name) or missing_files(path, manifest.files),
    )


def describe_damage(found: Iterable[Checkpoint]) -> str:
    """Return for each damaged checkpoint that it is damaged, and by which file; "" for none."""
    return " ".join(
        f"{each.name} is damaged: {each.why.removesuffix('.')}."
        for each in found
        if each.is_damaged
    )


def _why_misnamed(manifest: Manifest, name: str) -> str:
    """Return why a manifest is not that of its folder, or "" when it is."""
    step = step_of_folder(name)
    if manifest.name != name or step not in (None, manifest.step):
        return f"its manifest is that of {manifest.name!r}, step {manifest.step}"
    return ""


def _age(checkpoint: Checkpoint) -> tuple[int, int, str]:
    written_ns = checkpoint.manifest.created_ns if checkpoint.manifest is not None else 0
    return -1 if checkpoint.step is None else checkpoint.step, written_ns, checkpoint.name


def pointed_name(folder: Path, pointer: Pointer) -> str:
    """Return the name of the best or the final checkpoint; "" without a readable pointer."""
    return str((read_pointer(folder, pointer) or {}).get("name", ""))


def read_pointer(folder: Path, pointer: Pointer) -> Mapping[str, Any] | None:
    """Return what a pointer says of its checkpoint; {} without a pointer, None if it is broken."""
    try:
        about = parse_json(read_bytes(folder / f"{pointer}.json", _MAX_POINTER_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return None
    name = about.get("name") if isinstance(about, dict) else None
    return about if isinstance(name, str) and _SAFE_FILE.fullmatch(name) else None


def point(folder: Path, pointer: Pointer, name: str, **about: Any) -> None:
    """Let `name` be the best or the final checkpoint, durably."""
    write_atomic(
        folder / f"{pointer}.json",
        (json.dumps({"format": _POINTER_FORMAT, "name": name, **about}) + "\n").encode(),
    )


def aside(path: Path) -> Path:
    """Return a free path to put a folder aside: its own name and a number."""
    number = 1
    while (place := path.with_name(f"{path.name}{_LEFT}{number}")).exists():
        number += 1
    return place


def is_safe_name(name: str) -> bool:
    """Return whether a folder of this name is neither unfinished, aside nor outside."""
    return bool(_SAFE_FILE.fullmatch(name)) and not name.endswith(TEMPORARY) and _LEFT not in name


def folder_of_step(step: int) -> str:
    """Return `step-000000123`, which sorts as text in the order of steps."""
    return f"step-{step:09d}"


def step_of_folder(name: str) -> int | None:
    """Return the step in a checkpoint folder's name; None for other or unfinished folders."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest durably. Everything it names must already be synced."""
    write_json(folder / FILE_NAME, manifest)


def read(folder: Path) -> Manifest:
    """Return the manifest of a complete checkpoint.

    Raises CheckpointError for a missing or wrong one.
    """
    try:
        manifest = read_json(folder / FILE_NAME, Manifest, version=FORMAT, limit=MAX_BYTES)
    except FileNotFoundError:
        raise CheckpointError(
            "The checkpoint is not complete: it has no manifest.", where=str(folder)
        ) from None
    except RecordError as error:
        raise CheckpointError(
            error.what, where=error.where or str(folder), fix=error.fix
        ) from error
    _check(manifest, folder)
    return manifest


def missing_files(folder: Path, files: Sequence[ManifestFile]) -> str:
    """Return which file is missing or has another length than its manifest says; "" when none."""
    for file in files:
        try:
            status = os.stat(folder / file.name, follow_symlinks=False)
        except OSError:
            return f"{file.name} is missing"
        if kind := kind_of_mode(status.st_mode):
            return f"{file.name} is {kind}, not a file"
        size = status.st_size
        if size != file.size_bytes:
            return f"{file.name} has {size} of {file.size_bytes} bytes"
    return ""


def _check(manifest: Manifest, folder: Path) -> None:
    """Check that names in a manifest, which a stranger may have written, stay inside the folder."""
    names = {file.name for file in manifest.files}
    for file in manifest.files:
        if not _SAFE_FILE.fullmatch(file.name):
            raise CheckpointError(
                f"The manifest names a file outside its folder: {file.name!r}.", where=str(folder)
            )
    for part in manifest.parts:
        used = {part.tree, *part.files, *(s.file for t in part.sharded for s in t.shards)}
        if not used <= names:
            unknown = ", ".join(sorted(used - names))
            raise CheckpointError(
                f"Part {part.name} uses files that are not listed: {unknown}.", where=str(folder)
            )
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
            raise CheckpointError(
                f"A shard of {tensor.name} lies outside of it.", where=str(folder)
            )
        volume = 1
        for size in shard.shape:
            volume *= size
        total += volume
    overlap = any(_overlap(a, b) for i, a in enumerate(tensor.shards) for b in tensor.shards[:i])
    if total != whole or overlap:
        raise CheckpointError(
            f"The shards of {tensor.name} do not cover it exactly once.", where=str(folder)
        )


def _overlap(a: Shard, b: Shard) -> bool:
    return all(
        low_a < low_b + size_b and low_b < low_a + size_a
        for low_a, size_a, low_b, size_b in zip(a.offsets, a.shape, b.offsets, b.shape, strict=True)
    ) and bool(a.shape)
