"""Tensors that lie in a checkpoint in pieces, one file for each process that wrote some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from torch import Tensor

from assay.core.errors import CheckpointError
from assay.engine.checkpoint.codec import digest_tensor
from assay.formats.manifest import Shard, ShardedTensor

Piece = tuple[tuple[int, ...], str]
"""Where a piece begins, and the digest of what it holds."""


def assembled(tensor: ShardedTensor, read: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
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
    for offsets, digest in sorted(pieces):
        hasher.update(f"{offsets} {digest}\n".encode())
    return hasher.hexdigest()


def _where(shard: Shard) -> tuple[slice, ...]:
    return tuple(
        slice(low, low + size) for low, size in zip(shard.offsets, shard.shape, strict=True)
    )
