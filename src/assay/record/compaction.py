"""Compaction of `metrics.bin` at the end: rows become columns, in longer frames."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.directory import create_file
from assay.core.errors import AssayError
from assay.formats import frames, metrics_file, metrics_reader
from assay.formats.metrics_file import Chunk, KeySet
from assay.store.chunk_stream import read_chunks, read_outline, split_branches
from assay.store.series import Block
from assay.store.vectors import FAST, bounds, pack_offsets

EXTENT_BYTES = 1 << 20
"""About so much stands in one extent."""
_MOST_WAITING = 1 << 19
"""So many numbers wait for their chunk to be full; of very many sets of metrics chunks are shorter.
"""

CleanNames = Callable[[Sequence[str]], Sequence[str]]


def compact(path: Path, clean_names: CleanNames = list) -> bool:
    """Rewrite a finished file by column and put it in the old one's place; True when that is done.

    The metrics get the names that `clean_names` returns, as many and all different. Each part of
    the new file is read back and compared before it takes the place. On any doubt the old one
    stays. It takes little memory, whatever the length of the file.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        outline = read_outline(path)
        if outline.is_damaged:
            return False
        renamed = {keys: _rename(keys, clean_names) for keys in outline.rows}
        chunks = read_chunks(path, outline)
        if any(old.names != new.names for old, new in renamed.items()):
            chunks = (replace(it, keys=renamed[it.keys]) for it in chunks)
        rows = {renamed[keys]: count for keys, count in outline.rows.items()}
        if not _write(temporary, chunks, rows):
            return False
        os.replace(temporary, path)
        return True
    except (OSError, AssayError):
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _rename(keys: KeySet, clean_names: CleanNames) -> KeySet:
    return replace(keys, names=tuple(clean_names(keys.names)))


def write_compacted(path: Path, blocks: Sequence[Block]) -> None:
    """A file that holds these rows by column, as that of a run that has ended."""
    rows = {block.keys: len(block.steps) for block in blocks}
    if not _write(path, _in_time(blocks), rows):
        raise OSError("the metrics were not written as they are")


def _in_time(blocks: Sequence[Block]) -> Iterator[Chunk]:
    """Yield rows that nobody has placed: by time, and as they were logged where that is equal."""
    times = [np.asarray(block.times_ns, np.int64) for block in blocks]
    orders = [np.asarray(block.orders, np.int64) for block in blocks]
    if not blocks:
        return
    sets = np.repeat([block.keys.id for block in blocks], [len(each) for each in times])
    places = np.empty(len(sets), np.int64)
    places[np.lexsort((sets, np.concatenate(orders), np.concatenate(times)))] = np.arange(len(sets))
    begin = 0
    for block in blocks:
        end = begin + len(block.steps)
        own = places[begin:end].data
        rows = Chunk(block.keys, 0, block.steps, block.times_ns, tuple(block.columns), own)
        yield from split_branches(rows, np.asarray(block.branches, np.int64))
        begin = end


def _write(path: Path, chunks: Iterable[Chunk], rows: Mapping[KeySet, int]) -> bool:
    """Write a file of these rows, so many of each key set; return whether it can be read back."""
    written = dict.fromkeys(rows, 0)
    with os.fdopen(create_file(path), "w+b") as file:
        file.write(frames.file_head(metrics_file.FORM))
        for sequence, part in enumerate(_extents(_fill(chunks, rows))):
            if not _append(file, sequence, part):
                return False
            for chunk in part:
                written[chunk.keys] += len(chunk.steps)
        file.flush()
        os.fsync(file.fileno())
    return written == rows


def _extents(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Put chunks together that stand in one extent."""
    part: list[Chunk] = []
    size = 0
    for chunk in chunks:
        part.append(chunk)
        size += len(chunk.steps) * (20 + 8 * len(chunk.columns))
        if size >= EXTENT_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _append(file: BufferedRandom, sequence: int, chunks: Sequence[Chunk]) -> bool:
    """Write an extent at the end; return whether it can be read back as it was meant."""
    defined: dict[int, bytes] = {}
    frames_of_chunks = []
    for chunk in chunks:
        if chunk.keys.id not in defined:
            defined[chunk.keys.id] = metrics_file.pack_keys(chunk.keys)
            frames_of_chunks.append(defined[chunk.keys.id])
        frames_of_chunks.append(
            metrics_file.pack_chunk(chunk, pack_offsets=pack_offsets, bounds=bounds)
        )
    # Defined in every extent, so that each can be read without the others; and once more at its
    # end, so that damage to a definition takes none of the rows with it.
    body = b"".join((*frames_of_chunks, *defined.values()))
    begin = file.tell()
    end = begin + frames.EXTENT_HEAD_BYTES + len(body)
    head = frames.pack_extent(metrics_file.FORM, sequence=sequence, attempt=0, base_ns=0, end=end)
    file.write(head + body)
    file.flush()
    extent = frames.file_head(metrics_file.FORM) + os.pread(file.fileno(), end - begin, begin)
    read = list(metrics_reader.read_rows(extent, vectors=replace(FAST, join_chunks=None)))
    return len(read) == len(chunks) and all(map(_is_same, chunks, read))


def _is_same(chunk: Chunk, read: object) -> bool:
    if not isinstance(read, Chunk) or (read.keys, read.branch) != (chunk.keys, chunk.branch):
        return False
    ours, theirs = _columns(chunk), _columns(read)
    # Bytes, not numbers: NaN is not equal to itself, and -0.0 is to 0.0.
    return len(ours) == len(theirs) and all(
        np.asarray(old).tobytes() == np.asarray(new).tobytes()
        for old, new in zip(ours, theirs, strict=True)
    )


def _fill(chunks: Iterable[Chunk], rows: Mapping[KeySet, int]) -> Iterator[Chunk]:
    """Yield the same rows in chunks of the right length, those of one branch in their order."""
    waiting: dict[tuple[KeySet, int], Chunk] = {}
    has_places = False
    numbers = 0
    for chunk in chunks:
        # Rows that have no place come before all others.
        if (chunk.places is not None) != has_places or numbers > _MOST_WAITING:
            has_places = chunk.places is not None
            yield from waiting.values()
            waiting.clear()
            numbers = 0
        which = chunk.keys, chunk.branch
        width = len(chunk.columns)
        most = metrics_file.rows_per_chunk(width, rows[chunk.keys])
        numbers += len(chunk.steps) * width
        joined = _join(waiting.pop(which, None), chunk)
        full = len(joined.steps) // most * most
        numbers -= full * width
        yield from (_rows_of(joined, begin, begin + most) for begin in range(0, full, most))
        if full < len(joined.steps):
            waiting[which] = _rows_of(joined, full, len(joined.steps)) if full else joined
    yield from waiting.values()


def _join(first: Chunk | None, second: Chunk) -> Chunk:
    """Return the rows of both in arrays, those of the first where it has them."""
    if first is None:
        empty = tuple(array("d") for _ in second.columns)
        places = None if second.places is None else array("q")
        first = Chunk(second.keys, second.branch, array("q"), array("q"), empty, places)
    for mine, more in zip(_columns(first), _columns(second), strict=True):
        assert isinstance(mine, array)
        if isinstance(more, memoryview):
            mine.frombytes(more.tobytes())  # many times as fast as number by number
        else:
            mine.extend(more)
    return first


def _columns(chunk: Chunk) -> list[Sequence[Any]]:
    """Return all that has one number for each row."""
    places = [] if chunk.places is None else [chunk.places]
    return [chunk.steps, chunk.times_ns, *places, *chunk.columns]


def _rows_of(chunk: Chunk, begin: int, end: int) -> Chunk:
    part = slice(begin, end)
    return replace(
        chunk,
        steps=chunk.steps[part],
        times_ns=chunk.times_ns[part],
        columns=tuple(column[part] for column in chunk.columns),
        places=None if chunk.places is None else chunk.places[part],
    )
