"""Files of tensors: hashed as they are written, read by safetensors, several side by side."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor

from assay.core.devices import cores
from assay.core.directory import create_file
from assay.core.errors import AssayError, CheckpointError
from assay.core.regular_file import open_regular
from assay.engine.checkpoint.codec import FILE_DTYPES, as_bytes
from assay.formats.manifest import ManifestFile

Item = TypeVar("Item")
Result = TypeVar("Result")

_FILE_BYTES = 64 << 20
"""A part of more than this is divided into several files."""

_MOST_FILES = 8
_MOST_THREADS = 4
_MOST_DIMENSIONS = 64
"""Dimensions of a tensor that are read: torch takes minutes to make one of a million."""

_MOST_REASON = 200

_READ_DTYPES: Mapping[str, torch.dtype] = {
    **{name: dtype for dtype, name in FILE_DTYPES.items()},
    "C64": torch.complex64,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}


def write_files(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, dict[str, ManifestFile]]:
    """Write contiguous CPU tensors of several parts, durably; return the file of each by its name.

    A part has one file, `<part>.safetensors`, or if it is large up to 8 of about one size,
    `<part>-1-of-8.safetensors` and so on. Raises OSError.
    """
    placed: dict[str, dict[str, ManifestFile]] = {part: {} for part in tensors}
    jobs: list[tuple[str, str, dict[str, Tensor]]] = []
    for part, own in tensors.items():
        groups = _divide(own)
        for number, group in enumerate(groups, 1):
            ending = f"-{number}-of-{len(groups)}" if len(groups) > 1 else ""
            jobs.append((part, f"{part}{ending}.safetensors", group))
    files = side_by_side(lambda job: write_tensors(folder / job[1], job[2]), jobs)
    for (part, _, group), file in zip(jobs, files, strict=True):
        placed[part] |= dict.fromkeys(group, file)
    return placed


def _divide(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the tensors in groups for a file each, in the order of their files."""
    ordered = _in_order(tensors)
    size_bytes = sum(tensor.nbytes for _, tensor in ordered)
    num_files = min(_MOST_FILES, 1 + size_bytes // _FILE_BYTES)
    groups: list[dict[str, Tensor]] = [{} for _ in range(num_files)]
    middle = 0.0
    for name, tensor in ordered:
        middle += tensor.nbytes / 2
        groups[min(num_files - 1, int(middle / max(1, size_bytes) * num_files))][name] = tensor
        middle += tensor.nbytes / 2
    return [group for group in groups if group]


def _in_order(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Return the tensors as they lie in files: wide numbers first, so that each is aligned."""
    return sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> ManifestFile:
    """Write contiguous CPU tensors to one new file and sync it; equal tensors give equal bytes."""
    ordered = _in_order(tensors)
    header = {}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.nbytes
        kind = FILE_DTYPES[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    buffers: list[bytes | memoryview] = [head, *(as_bytes(tensor) for _, tensor in ordered)]
    hasher = sha256()
    with os.fdopen(create_file(path), "wb") as file:
        # Each tensor whole, not in pieces that fit a cache: after each call the training is asked
        # for the interpreter's lock.
        for data in buffers:
            hasher.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    size_bytes = len(head) + offset
    return ManifestFile(name=path.name, size_bytes=size_bytes, sha256=hasher.hexdigest())


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Dtype and shape of a tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Box of a stored tensor of the shape `whole`: its offsets, and what it is read into."""

    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    into: Tensor


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file in memory of their own; CheckpointError names a bad file."""
    with report_unreadable(path), safe_open(path, framework="pt") as file:
        for name in file.offset_keys():
            _describe(name, file.get_slice(name))
        # Not views of the file: sums over memory that is not aligned differ in their last bits.
        return {name: file.get_tensor(name).clone() for name in file.offset_keys()}


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, unread; errors as of `read_tensors`."""
    with report_unreadable(path), safe_open(path, framework="pt") as file:
        return {name: _describe(name, file.get_slice(name)) for name in file.offset_keys()}


def read_slices(path: Path, slices: Mapping[str, Sequence[Slice]]) -> None:
    """Fill slices of the tensors of a file, by name; errors as of `read_tensors`.

    CheckpointError also for a tensor that is missing, or of another shape or dtype.
    """
    with report_unreadable(path), safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for name, wanted in slices.items():
            stored = _describe(name, file.get_slice(name)) if name in names else None
            for each in wanted:
                if stored != StoredTensor(each.into.dtype, each.whole):
                    raise CheckpointError(
                        f"{path.name} does not hold the {name} that it should.", where=str(path)
                    )
                box = tuple(
                    slice(low, low + size)
                    for low, size in zip(each.offsets, each.into.shape, strict=True)
                )
                each.into.copy_(file.get_slice(name)[box] if box else file.get_tensor(name))


def _describe(name: str, tensor: Any) -> StoredTensor:
    if len(tensor.get_shape()) > _MOST_DIMENSIONS:
        raise ValueError(f"{name} has more than {_MOST_DIMENSIONS} dimensions")
    return StoredTensor(_READ_DTYPES[tensor.get_dtype()], tuple(tensor.get_shape()))


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


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return what `work` makes of each item, in a few threads of which this is one.

    The first error is raised when all have stopped.
    """
    waiting = deque(enumerate(items))
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def do() -> None:
        while not errors:
            try:
                index, item = waiting.popleft()
            except IndexError:
                return
            try:
                results[index] = work(item)
            except BaseException as error:
                errors.append(error)

    others: list[threading.Thread] = []
    try:
        while len(others) + 1 < min(_MOST_THREADS, cores(), len(items)):
            others.append(threading.Thread(target=do, name="assay-files"))
            others[-1].start()
    except RuntimeError:  # there may be no more of them
        others.pop()
    except BaseException as error:  # Ctrl-C while it waited for one, which begins all the same
        errors.append(error)
    do()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]


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
