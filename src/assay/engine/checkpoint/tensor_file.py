"""Files of tensors: each hashed once, as it is written or read, and several side by side."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar

import torch
from torch import Tensor

from assay.core.devices import cores
from assay.core.directory import create_file
from assay.core.errors import AssayError, CheckpointError, RecordError
from assay.core.regular_file import open_regular
from assay.engine.checkpoint.codec import FILE_DTYPES, as_bytes
from assay.formats.json_codec import dataclass_from, parse_json
from assay.formats.manifest import ManifestFile

Item = TypeVar("Item")
Result = TypeVar("Result")

_FILE_BYTES = 64 << 20
"""A part of more than this is divided into several files."""

_MOST_FILES = 8
_MOST_THREADS = 4
_MOST_HEADER_BYTES = 100_000_000
_MOST_DIMENSIONS = 64
"""Dimensions of a tensor that are read: torch takes minutes to make one of a million."""

_MOST_REASON = 200
_BLOCK_BYTES = 4 << 20
_WORTH_A_CALL = 1 << 10
"""Bytes from which on a part of a row is read alone."""


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
class _HeaderEntry:
    """Kind and place of one tensor, in the header of its file."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Tensor in a file, whose bytes are those from `begin` on."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Slice:
    """Box of a stored tensor of the shape `whole`: its offsets, and what it is read into."""

    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    into: Tensor


def read_tensors(
    path: Path, update: Callable[[bytes | memoryview], object] | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a file in memory of their own; CheckpointError names a bad file.

    `update` is called with all bytes of the file, in order. What is no file of tensors has a
    ValueError as the cause of its error.
    """
    update = update or (lambda data: None)
    tensors = {}
    with report_unreadable(path), open(path, "rb") as file:
        for name, stored in _read_header(file, update).items():
            # Not a view of the file: sums over memory that is not aligned differ in their last
            # bits.
            tensors[name] = torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
            update(_fill(file, tensors[name]))
    return tensors


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, unread; errors as of `read_tensors`."""
    with report_unreadable(path), open(path, "rb", buffering=0) as file:
        return _read_header(file, lambda data: None)


def read_slices(
    path: Path,
    slices: Mapping[str, Sequence[Slice]],
    update: Callable[[bytes | memoryview], object] | None = None,
) -> None:
    """Fill slices of the tensors of a file, by name; errors as of `read_tensors`.

    CheckpointError also for a tensor that is missing, or of another shape or dtype. Only the bytes
    of slices are read, and whole rows where the part of a row is less than 1 KB; with `update`,
    which is called with all bytes of the file in order, all of it.
    """
    with report_unreadable(path), open(path, "rb", buffering=0) as file:
        header = _read_header(file, update or (lambda data: None))
        for name, wanted in slices.items():
            stored = header.get(name)
            if stored is None or any(
                (each.whole, each.into.dtype) != (stored.shape, stored.dtype) for each in wanted
            ):
                raise CheckpointError(
                    f"{path.name} does not hold the {name} that it should.", where=str(path)
                )
        for name, stored in header.items():
            wanted = slices.get(name, ())
            if update is not None:
                _read_through(file, stored, wanted, update)
                continue
            for each in wanted:
                _read_box(file, stored.begin, stored.shape, each.offsets, each.into)


def _read_header(
    file: BinaryIO, update: Callable[[bytes | memoryview], object]
) -> dict[str, StoredTensor]:
    """Read up to the first tensor; return all, in the order in which they lie in the file."""
    left = os.fstat(file.fileno()).st_size - 8
    head = file.read(8)
    header_bytes = int.from_bytes(head, "little")
    if header_bytes > min(left, _MOST_HEADER_BYTES):
        raise ValueError("it is no safetensors file: its header does not fit into it")
    text = file.read(header_bytes)
    update(head + text)
    header = parse_json(text)
    if not isinstance(header, dict) or not isinstance(header.pop("__metadata__", {}), dict):
        raise ValueError("its header is no table")
    try:
        entries = [
            (name, dataclass_from(_HeaderEntry, entry, where=name))
            for name, entry in header.items()
        ]
    except RecordError as error:
        raise ValueError(error.what) from error
    found = {}
    at = 0
    for name, entry in sorted(entries, key=lambda item: item[1].data_offsets):
        dtype = _READ_DTYPES.get(entry.dtype)
        if dtype is None:
            raise ValueError(f"{name} is of {entry.dtype}, which has no dtype here")
        if len(entry.shape) > _MOST_DIMENSIONS or min(entry.shape, default=0) < 0:
            raise ValueError(f"{name} has no shape of at most {_MOST_DIMENSIONS} dimensions")
        found[name] = StoredTensor(dtype, entry.shape, 8 + header_bytes + at)
        end = at + found[name].size_bytes
        if entry.data_offsets != (at, end) or end > left - header_bytes:
            raise ValueError(f"{name} does not lie where its header says")
        at = end
    if at != left - header_bytes:
        raise ValueError("it is longer than its header says")
    return found


def _fill(file: BinaryIO, tensor: Tensor) -> memoryview:
    """Read the bytes of a contiguous tensor from where the file is; return them."""
    data = as_bytes(tensor)
    done = 0
    while done < len(data):
        count = file.readinto(data[done:])  # type: ignore[attr-defined]
        if not count:
            raise ValueError("it ends within a tensor")
        done += count
    return data


def _read_through(
    file: BinaryIO,
    stored: StoredTensor,
    slices: Sequence[Slice],
    update: Callable[[bytes | memoryview], object],
) -> None:
    """Read all of the tensor that the file is at, some rows at a time, and fill slices of it."""
    shape = stored.shape or (1,)
    if len(slices) == 1 and slices[0].into.shape == stored.shape and slices[0].into.is_contiguous():
        update(_fill(file, slices[0].into))
        return
    row_bytes = stored.size_bytes // max(1, shape[0])
    block = max(1, _BLOCK_BYTES // max(1, row_bytes))
    memory = torch.empty((min(block, shape[0]), *shape[1:]), dtype=stored.dtype, device="cpu")
    for begin in range(0, shape[0], block):
        rows = memory[: min(block, shape[0] - begin)]
        update(_fill(file, rows))
        for each in slices:
            into = each.into.reshape(1) if not each.into.dim() else each.into
            first, *others = each.offsets or (0,)
            low, high = max(begin, first), min(begin + len(rows), first + len(into))
            if low < high:
                here = (
                    slice(low - begin, high - begin),
                    *(slice(i, i + size) for i, size in zip(others, into.shape[1:], strict=True)),
                )
                into[low - first : high - first] = rows[here]


def _read_box(
    file: BinaryIO, begin: int, shape: Sequence[int], offsets: Sequence[int], into: Tensor
) -> None:
    """Fill `into` with a box of the tensor whose bytes begin there."""
    if not into.numel():
        return
    row_bytes = math.prod(shape[1:]) * into.itemsize
    if offsets:
        begin += offsets[0] * row_bytes
    if into.shape[1:] == tuple(shape[1:]):
        file.seek(begin)
        memory = into if into.is_contiguous() else torch.empty(into.shape, dtype=into.dtype)
        _fill(file, memory)
        if memory is not into:
            into.copy_(memory)
    elif into[0].numel() * into.itemsize < _WORTH_A_CALL:
        stored = StoredTensor(into.dtype, (len(into), *shape[1:]), begin)
        file.seek(begin)
        _read_through(
            file, stored, [Slice(stored.shape, (0, *offsets[1:]), into)], lambda data: None
        )
    else:
        for number, row in enumerate(into):
            _read_box(file, begin + number * row_bytes, shape[1:], offsets[1:], row)


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
