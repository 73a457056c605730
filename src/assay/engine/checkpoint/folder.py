"""One checkpoint on disk: its parts written and read, each file by its digest; two compared."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.core.directory import create_file
from assay.core.errors import CheckpointError
from assay.core.regular_file import read_bytes
from assay.engine.checkpoint.codec import (
    Encoded,
    decode,
    digest,
    digest_encoded,
    digest_tensor,
    encode,
)
from assay.engine.checkpoint.tensor_file import read_tensors, sha256_of, write_tensors
from assay.formats import manifest as manifests
from assay.formats.manifest import (
    CheckpointPart,
    Kind,
    Manifest,
    ManifestFile,
    MeshAxis,
    Shard,
    ShardedTensor,
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
        digest: str = "",
    ) -> Manifest:
        """The manifest of a folder that holds this in these files."""
        return Manifest(
            kind=self.kind,
            name=self.name,
            step=self.where.step,
            epoch=self.where.epoch,
            samples=self.where.samples,
            run=self.run,
            attempt=self.attempt,
            created_ns=time.time_ns(),
            files=tuple(files),
            parts=tuple(parts),
            layout=layout,
            digest=digest,
            versions={"torch": torch.__version__},
            info=dict(self.info),
        )


def write(folder: Path, contents: Contents, *, like: Iterable[Path] = ()) -> Manifest:
    """Write a checkpoint into an empty folder, durably; files equal to one in `like` are shared."""
    files: list[ManifestFile] = []
    listed: list[CheckpointPart] = []
    digests: dict[str, str] = {}
    for name, part in contents.parts.items():
        files.append(write_tree(folder, name, part))
        known: dict[str, str] = {}
        if part.tensors:
            file, known = write_tensors(folder / f"{name}.safetensors", separate(part.tensors))
            files.append(file)
        listed.append(
            CheckpointPart(
                name=name,
                tree=f"{name}.json",
                files=(f"{name}.safetensors",) if part.tensors else (),
            )
        )
        digests[name] = digest_encoded(part, known)
    return publish(folder, contents, files, listed, digests, like=like)


def write_tree(folder: Path, name: str, part: Encoded) -> ManifestFile:
    """Write the file of a part with everything but its tensors."""
    return _write_file(folder, f"{name}.json", _json(part.tree))


def publish(
    folder: Path,
    contents: Contents,
    files: list[ManifestFile],
    parts: list[CheckpointPart],
    digests: Mapping[str, str],
    *,
    like: Iterable[Path] = (),
    layout: tuple[MeshAxis, ...] = (),
) -> Manifest:
    """Write the manifest of what lies in a folder by now. `digests` are those of the parts."""
    for other in like:
        _share(folder, files, other)
    manifest = contents.manifest(files, parts, layout=layout, digest=digest_of_parts(digests))
    manifests.write(folder, manifest)
    sync_folder(folder)
    return manifest


def load(
    folder: Path, *, parts: tuple[str, ...] | None = None, verify: bool = True
) -> dict[str, Any]:
    """Return the parts of the checkpoint in a folder, by name: all, or those asked for.

    `verify` compares every file with its digest first, and all that was read with the digest of the
    whole.
    Raises CheckpointError naming the damaged file, or the parts that there are.
    """
    manifest = manifests.read(folder)
    why = manifests.missing_files(folder, manifest.files)
    if why:
        raise _damage(why, folder)
    wanted = [part for part in manifest.parts if parts is None or part.name in parts]
    for name in parts or ():
        manifest.part(name)
    used = {name for part in wanted for name in (part.tree, *part.files)}
    if verify:
        for file in manifest.files:
            if file.name in used and _sha256_of(folder / file.name) != file.sha256:
                raise _damage(f"{file.name} is not what was written", folder)
    loaded = {part.name: _load_part(folder, part) for part in wanted}
    if (
        verify
        and parts is None
        and manifest.digest not in ("", _digest_as_written(loaded, manifest))
    ):
        raise _damage("its parts are not those that were written", folder)
    return loaded


def digest_of(parts: Mapping[str, Any]) -> str:
    """Return the digest of a whole state, as the manifest of a single process has it."""
    return digest_of_parts({name: digest_encoded(encode(state)) for name, state in parts.items()})


def _digest_as_written(parts: Mapping[str, Any], manifest: Manifest) -> str:
    """Return the digest of a state whose tensors were written in pieces."""
    digests = {}
    for name, state in parts.items():
        encoded = encode(state)
        sharded = {tensor.name: tensor for tensor in manifest.part(name).sharded}
        contents = {
            key: digest_of_pieces(pieces_of(tensor, sharded[key]))
            if key in sharded
            else digest_tensor(tensor)
            for key, tensor in encoded.tensors.items()
        }
        digests[name] = digest_encoded(encoded, contents)
    return digest_of_parts(digests)


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
        theirs = {file.name: file for file in manifests.read(other).files}
    except CheckpointError:
        return
    for file in files:
        if file.size_bytes < _WORTH_A_LINK or theirs.get(file.name) != file:
            continue
        own = folder / file.name
        shared = folder / f"{file.name}.tmp"
        try:
            if (
                os.path.samefile(own, other / file.name)
                or sha256_of(other / file.name) != file.sha256
            ):
                continue  # damage is not passed on
            os.link(other / file.name, shared)
            os.replace(shared, own)
        except OSError:
            # a file system without links, or one that is gone meanwhile: the own file stays
            continue


def _load_part(folder: Path, part: CheckpointPart) -> Any:
    try:
        tree = json.loads(read_bytes(folder / part.tree, _MOST_TREE_BYTES))
        read = {name: read_tensors(folder / name) for name in part.files}
        in_pieces = {tensor.name: assemble_pieces(tensor, read) for tensor in part.sharded}
        tensors = {
            name: tensor for each in read.values() for name, tensor in each.items()
        } | in_pieces
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"Part {part.name} cannot be read: {error}.", where=str(folder)
        ) from error
    return decode(tree, tensors)


def _damage(what: str, folder: Path) -> CheckpointError:
    fix = "Take an older one, or load it without verification."
    return CheckpointError(f"The checkpoint is damaged: {what}.", where=str(folder), fix=fix)


def digest_of_parts(digest_by_part: Mapping[str, str]) -> str:
    """Return the digest of a whole state from those of its parts."""
    hasher = sha256()
    for name, own in sorted(digest_by_part.items()):
        hasher.update(f"{name} {own}\n".encode())
    return hasher.hexdigest()


def _json(tree: Any) -> bytes:
    return (json.dumps(tree, separators=(",", ":"), allow_nan=False) + "\n").encode("ascii")


def _sha256_of(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {error}.", where=str(path.parent)
        ) from error


def _write_file(folder: Path, name: str, data: bytes) -> ManifestFile:
    with os.fdopen(create_file(folder / name), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return ManifestFile(name=name, size_bytes=len(data), sha256=sha256(data).hexdigest())


Piece = tuple[tuple[int, ...], str]
"""Start of a piece, and the digest of its bytes."""


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


def pieces_of(whole: Tensor, tensor: ShardedTensor) -> list[Piece]:
    """Return the parts of a whole tensor at the places of its pieces."""
    return [
        (shard.offsets, digest_tensor(whole[_where(shard)].contiguous())) for shard in tensor.shards
    ]


def digest_of_pieces(pieces: Iterable[Piece]) -> str:
    """Return the digest of a tensor from those of its pieces."""
    hasher = blake2b(digest_size=16)
    for offsets, own in sorted(pieces):
        hasher.update(f"{offsets} {own}\n".encode())
    return hasher.hexdigest()


def _where(shard: Shard) -> tuple[slice, ...]:
    return tuple(
        slice(low, low + size) for low, size in zip(shard.offsets, shard.shape, strict=True)
    )


def differing(left: Path, right: Path) -> dict[str, list[str]]:
    """Return, for each part of two checkpoints, the names of its values that differ.

    CheckpointError for one that is damaged.
    """
    a = load(left)
    b = load(right)
    return {part: _names(a.get(part), b.get(part)) for part in sorted(a.keys() | b.keys())}


def _names(left: Any, right: Any) -> list[str]:
    if digest(left) == digest(right):
        return []
    ours = dict(_leaves(left, ""))
    theirs = dict(_leaves(right, ""))
    return [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]


def _leaves(state: Any, path: str) -> Iterator[tuple[str, str]]:
    """Return the digest of every leaf of a state, by path."""
    if not isinstance(state, Mapping | list):
        yield path, digest(state)
        return
    for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
        yield from _leaves(value, f"{path}.{key}" if path else str(key))
