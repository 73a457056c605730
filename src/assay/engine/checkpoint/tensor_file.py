"""One safetensors file, hashed while it is written: no second copy, and other threads run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from assay.core.directory import create_file
from assay.core.errors import AssayError, CheckpointError
from assay.core.regular_file import open_regular
from assay.engine.checkpoint.codec import FILE_DTYPES, as_bytes, hasher_of
from assay.formats.manifest import ManifestFile

_CHUNK = 1 << 20
_MOST_DIMENSIONS = 64
"""Dimensions of a tensor that are read: torch takes minutes to make one of a million."""

_MOST_REASON = 200


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[ManifestFile, dict[str, str]]:
    """Write contiguous CPU tensors to a new file, sync it, and return the digest of each by name.

    Equal tensors give equal bytes, whatever their order.
    """
    # Wide numbers first, as safetensors itself lays them out: each is aligned.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header = {}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.numel() * tensor.element_size()
        kind = FILE_DTYPES[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    whole = sha256()
    digests = {}
    with os.fdopen(create_file(path), "wb") as file:
        head = len(text).to_bytes(8, "little") + text
        file.write(head)
        whole.update(head)
        for name, tensor in ordered:
            own = hasher_of(tensor)
            data = as_bytes(tensor)
            # Whole, not in pieces that fit a cache: after each call the training is asked for the
            # interpreter's lock.
            own.update(data)
            whole.update(data)
            file.write(data)
            digests[name] = own.hexdigest()
        file.flush()
        os.fsync(file.fileno())
    size_bytes = len(head) + offset
    written = ManifestFile(name=path.name, size_bytes=size_bytes, sha256=whole.hexdigest())
    return written, digests


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file in memory of their own; CheckpointError names a bad file."""
    with report_unreadable(path), safe_open(path, framework="pt") as file:
        names = file.keys()
        if any(len(file.get_slice(name).get_shape()) > _MOST_DIMENSIONS for name in names):
            raise ValueError(f"a tensor has more than {_MOST_DIMENSIONS} dimensions")
        # Copied out of the mapped file: sums over memory that is not aligned differ in their last
        # bits.
        return {name: file.get_tensor(name).clone() for name in names}


@contextmanager
def report_unreadable(path: Path) -> Iterator[None]:
    """Turn whatever a file makes of its reader into one CheckpointError that names the file."""
    try:
        os.close(open_regular(path, follow=True))  # a reader would wait for ever at a named pipe
        yield
    except AssayError:
        raise
    except Exception as error:  # from a library: memory, zip, zlib, overflow, tokens, ...
        reason = str(error).partition("\n")[0][:_MOST_REASON].removesuffix(".")
        raise CheckpointError(
            f"{path.name} cannot be read: {reason or type(error).__name__}.", where=str(path)
        ) from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    hasher = sha256()
    with open(open_regular(path, follow=True), "rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


class Staging:
    """Host memory for copies of tensors, reused: new pages cost more than the copy.

    A copy is what its tensor was when `copy` returned; it stays until the next one.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies by the same names, contiguous and in host memory."""
        self._buffers = {
            name: self._copy_into_buffer(name, tensor) for name, tensor in tensors.items()
        }
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return dict(self._buffers)

    def _copy_into_buffer(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
            )
        return buffer.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
