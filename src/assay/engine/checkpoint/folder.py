"""One checkpoint on disk: its parts written and read, each file by its digest; two compared."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.core.directory import create_file
from assay.core.errors import CheckpointError
from assay.core.regular_file import read_bytes
from assay.engine.checkpoint.codec import Encoded, decode, digest_state
from assay.engine.checkpoint.tensor_file import (
    read_tensors,
    report_unreadable,
    side_by_side,
    write_files,
)
from assay.formats import manifest as manifests
from assay.formats.manifest import (
    CheckpointPart,
    Kind,
    Manifest,
    ManifestFile,
    MeshAxis,
    Shard,
    ShardedTensor,
    digest_of_parts,
)

_WORTH_A_LINK = 1 << 20
_MOST_TREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Position in a run at which a checkpoint is taken."""

    step: int
    epoch: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that becomes a checkpoint; its tensors are contiguous and in host memory."""

    parts: Mapping[str, Encoded]
    where: Where
    kind: Kind
    name: str
    run: str
    attempt: int
    info: Mapping[str, Any]

    def manifest(
        self,
        files: Iterable[ManifestFile],
        parts: Iterable[CheckpointPart],
        *,
        layout: tuple[MeshAxis, ...] = (),
    ) -> Manifest:
        """The manifest of a folder that holds this in these files."""
        files, parts = tuple(files), tuple(parts)
        return Manifest(
            kind=self.kind,
            name=self.name,
            step=self.where.step,
            epoch=self.where.epoch,
            samples=self.where.samples,
            run=self.run,
            attempt=self.attempt,
            created_ns=time.time_ns(),
            files=files,
            parts=parts,
            layout=layout,
            digest=digest_of_parts(parts, files),
            versions={"torch": torch.__version__},
            info=dict(self.info),
        )


def write(folder: Path, contents: Contents, *, like: Iterable[Path] = ()) -> Manifest:
    """Write a checkpoint into an empty folder, durably; files equal to one in `like` are shared."""
    files: list[ManifestFile] = []
    listed: list[CheckpointPart] = []
    written = write_files(folder, {name: part.tensors for name, part in contents.parts.items()})
    for name, part in contents.parts.items():
        own = dict.fromkeys(written[name].values())
        files += [write_state_tree(folder, name, part), *own]
        names = tuple(file.name for file in own)
        listed.append(CheckpointPart(name=name, tree=f"{name}.json", files=names))
    return publish(folder, contents, files, listed, like=like)


def write_state_tree(folder: Path, name: str, part: Encoded) -> ManifestFile:
    """Write the file of a part with everything but its tensors."""
    return _write_file(folder, f"{name}.json", _json(part.tree))


def publish(
    folder: Path,
    contents: Contents,
    files: list[ManifestFile],
    parts: list[CheckpointPart],
    *,
    like: Iterable[Path] = (),
    layout: tuple[MeshAxis, ...] = (),
) -> Manifest:
    """Write the manifest of what lies in a folder by now."""
    for other in like:
        _share(folder, files, other)
    manifest = contents.manifest(files, parts, layout=layout)
    manifests.write(folder, manifest)
    sync_folder(folder)
    return manifest


def load_parts(
    folder: Path, *, parts: tuple[str, ...] | None = None, verify: bool = True
) -> dict[str, Any]:
    """Return the parts of the checkpoint in a folder, by name: all, or those asked for.

    `verify` compares each file with its digest before it is read, and the list of them with its
    own.
    Raises CheckpointError naming the damaged file, or the parts that there are.
    """
    manifest, trees = open_parts(folder, parts=parts, verify=verify)
    wanted = [manifest.part(name) for name in trees]
    listed = {file.name: file for file in manifest.files}

    def read_file(name: str) -> tuple[str, dict[str, Tensor]]:
        if verify:
            refuse_damaged(folder, [listed[name]])
        return name, read_tensors(folder / name)

    names = [name for part in wanted for name in part.files]
    read = dict(side_by_side(read_file, names))
    return {part.name: _decode_part(part, trees[part.name], read) for part in wanted}


def open_parts(
    folder: Path, *, parts: tuple[str, ...] | None, verify: bool
) -> tuple[Manifest, dict[str, Any]]:
    """Return the manifest and the trees of the parts by name, as `load_parts` finds them.

    No tensor has been read, and no file of them verified.
    """
    manifest = manifests.read(folder)
    why = manifests.missing_files(folder, manifest.files)
    if verify and not why and not manifest.is_as_digested:
        why = "its parts are not those that were written"
    if why:
        raise _damage(why, folder)
    wanted = [part for part in manifest.parts if parts is None or part.name in parts]
    for name in parts or ():
        manifest.part(name)
    digests = {file.name: file.sha256 for file in manifest.files} if verify else {}
    return manifest, {part.name: _read_tree(folder, part, digests) for part in wanted}


def refuse_damaged(folder: Path, files: Iterable[ManifestFile]) -> None:
    """CheckpointError for the first file that is not what was written."""
    for file in files:
        with report_unreadable(folder / file.name), open(folder / file.name, "rb") as data:
            if file_digest(data, sha256).hexdigest() != file.sha256:
                raise _damage(f"{file.name} is not what was written", folder)


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors in host memory; those that already are stay themselves."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete(folder: Path) -> None:
    """Delete a checkpoint, renamed first: a kill meanwhile leaves no half a checkpoint."""
    going = folder.with_name(folder.name + manifests.TEMPORARY)
    with contextlib.suppress(OSError):
        os.replace(folder, going)
        shutil.rmtree(going, ignore_errors=True)


def _share(folder: Path, files: Iterable[ManifestFile], other: Path) -> None:
    """Replace large files by hard links to equal files of another checkpoint."""
    try:
        listed = manifests.read(other)
    except CheckpointError:
        return
    theirs = {file.name: file for file in listed.files}
    for file in files:
        if file.size_bytes < _WORTH_A_LINK or theirs.get(file.name) != file:
            continue
        own = folder / file.name
        shared = folder / f"{file.name}.tmp"
        try:
            if os.stat(other / file.name).st_mtime_ns > listed.created_ns:
                continue  # it was written to since: damage is not passed on
            os.link(other / file.name, shared)
            os.replace(shared, own)
        except OSError:
            # a file system without links, or one that is gone meanwhile: the own file stays
            continue


def _read_tree(folder: Path, part: CheckpointPart, digests: Mapping[str, str]) -> Any:
    try:
        data = read_bytes(folder / part.tree, _MOST_TREE_BYTES)
        if digests and sha256(data).hexdigest() != digests[part.tree]:
            raise _damage(f"{part.tree} is not what was written", folder)
        return json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{part.tree} cannot be read: {error}.", where=str(folder)) from error


def _decode_part(part: CheckpointPart, tree: Any, read: dict[str, dict[str, Tensor]]) -> Any:
    """Return the state of a part whose files were read, and drop what is needed no more."""
    own = {name: read.pop(name) for name in part.files}
    in_pieces = {tensor.name: assemble_pieces(tensor, own) for tensor in part.sharded}
    tensors = {name: tensor for each in own.values() for name, tensor in each.items()}
    return decode(tree, tensors | in_pieces)


def _damage(what: str, folder: Path) -> CheckpointError:
    fix = "Take an older one, or load it without verification."
    return CheckpointError(f"The checkpoint is damaged: {what}.", where=str(folder), fix=fix)


def _json(tree: Any) -> bytes:
    return (json.dumps(tree, separators=(",", ":"), allow_nan=False) + "\n").encode("ascii")


def _write_file(folder: Path, name: str, data: bytes) -> ManifestFile:
    with os.fdopen(create_file(folder / name), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return ManifestFile(name=name, size_bytes=len(data), sha256=sha256(data).hexdigest())


def assemble_pieces(tensor: ShardedTensor, read: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
    """Return a tensor made of its pieces; CheckpointError for a piece of another shape."""
    pieces: dict[tuple[str, str], Tensor] = {}
    for shard in tensor.shards:
        piece = read.get(shard.file, {}).get(shard.key)
        # Of one piece once, and of all before there is room for the whole: it is then no larger
        # than its files.
        is_used = (shard.file, shard.key) in pieces
        if piece is None or is_used or tuple(piece.shape) != shard.shape:
            raise CheckpointError(
                f"{shard.file} does not hold the piece of {tensor.name} that it should."
            )
        pieces[shard.file, shard.key] = piece
    if not pieces:
        raise CheckpointError(f"{tensor.name} has no pieces.")
    first, *others = pieces.values()
    if any(piece.dtype != first.dtype for piece in others):
        raise CheckpointError(f"The pieces of {tensor.name} are of several dtypes.")
    whole = first.new_empty(tensor.shape)
    for shard in tensor.shards:
        whole[_where(shard)] = pieces[shard.file, shard.key]
    return whole


def _where(shard: Shard) -> tuple[slice, ...]:
    return tuple(
        slice(low, low + size) for low, size in zip(shard.offsets, shard.shape, strict=True)
    )


def differing(left: Path, right: Path) -> dict[str, list[str]]:
    """Return, for each part of two checkpoints, the names of its values that differ.

    CheckpointError for one that is damaged.
    """
    a = load_parts(left)
    b = load_parts(right)
    return {part: _names(a.get(part), b.get(part)) for part in sorted(a.keys() | b.keys())}


def _names(left: Any, right: Any) -> list[str]:
    if digest_state(left) == digest_state(right):
        return []
    ours = dict(_leaves(left, ""))
    theirs = dict(_leaves(right, ""))
    return [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]


def _leaves(state: Any, path: str) -> Iterator[tuple[str, str]]:
    """Return the digest of every leaf of a state, by path."""
    if not isinstance(state, Mapping | list):
        yield path, digest_state(state)
        return
    for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
        yield from _leaves(value, f"{path}.{key}" if path else str(key))
