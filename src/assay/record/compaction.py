"""Compaction of `metrics.bin` at the end: rows become columns, in longer frames."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import compress, pairwise
from pathlib import Path

from assay.core.directory import create_file
from assay.core.errors import AssayError
from assay.formats import frames, metrics_file
from assay.formats.metrics_file import Chunk
from assay.store.series import Block, read_contents

EXTENT_BYTES = 1 << 20
"""About so much stands in one extent."""


def compact(path: Path, clean_names: Callable[[Sequence[str]], Sequence[str]] = list) -> bool:
    """Rewrite a finished file by column and put it in the old one's place; True when that is done.

    The metrics get the names that `clean_names` returns, as many and all different.

    The new file is read back and compared before it takes the place. On any doubt the old one
    stays.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        before = read_contents(path)
        if before.damages:
            return False
        blocks = [_renamed(block, clean_names) for block in before.blocks]
        write_compacted(temporary, blocks)
        after = read_contents(temporary)
        if after.damages or not _same(blocks, after.blocks):
            return False
        os.replace(temporary, path)
        return True
    except (OSError, AssayError):
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _renamed(block: Block, clean_names: Callable[[Sequence[str]], Sequence[str]]) -> Block:
    names = tuple(clean_names(block.keys.names))
    if names == block.keys.names:
        return block
    renamed = copy(block)
    renamed.keys = replace(block.keys, names=names)
    return renamed


def write_compacted(path: Path, blocks: list[Block]) -> None:
    """A file that holds these rows by column, as that of a run that has ended."""
    with os.fdopen(create_file(path), "wb") as file:
        for part in _file(blocks):
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _file(blocks: list[Block]) -> Iterator[bytes]:
    yield frames.file_head(metrics_file.FORM)
    places_by_set = _places(blocks)
    offset = frames.FILE_HEAD_BYTES
    sequence = 0
    waiting: list[bytes] = []
    defined: dict[int, bytes] = {}

    def extent() -> bytes:
        nonlocal offset, sequence
        # Defined again in every extent, so that each can be read without the others; and once more
        # at its end, so that
        # damage to a definition takes none of the rows with it.
        body = b"".join((*waiting, *defined.values()))
        end = offset + frames.EXTENT_HEAD_BYTES + len(body)
        head = frames.pack_extent(
            metrics_file.FORM, sequence=sequence, attempt=0, base_ns=0, end=end
        )
        offset = end
        sequence += 1
        waiting.clear()
        defined.clear()
        return head + body

    size = 0
    for block in blocks:
        for chunk in _chunks(block, places_by_set.get(block.keys.id)):
            if block.keys.id not in defined:
                defined[block.keys.id] = metrics_file.pack_keys(block.keys)
                waiting.append(defined[block.keys.id])
            waiting.append(metrics_file.pack_chunk(chunk))
            size += len(waiting[-1])
            if size >= EXTENT_BYTES:
                yield extent()
                size = 0
    if waiting:
        yield extent()


def _chunks(block: Block, places_of_rows: Sequence[int] | None) -> Iterator[Chunk]:
    most = metrics_file.rows_per_chunk(len(block.keys.names), len(block.steps))
    for branch in sorted(set(block.branches)):
        keep = [each == branch for each in block.branches]
        steps = list(compress(block.steps, keep))
        times = list(compress(block.times_ns, keep))
        places = None if places_of_rows is None else list(compress(places_of_rows, keep))
        columns = [list(compress(column, keep)) for column in block.columns]
        for i in range(0, len(steps), most):
            part = slice(i, i + most)
            yield Chunk(
                block.keys,
                branch,
                steps[part],
                times[part],
                tuple(column[part] for column in columns),
                None if places is None else places[part],
            )


def _places(blocks: list[Block]) -> dict[int, Sequence[int]]:
    """Return the places of rows by the number of their key set; none where times order them."""
    if len(blocks) == 1 and all(a <= b for a, b in pairwise(blocks[0].times_ns)):
        return {}
    orders = {block.keys.id: block.orders for block in blocks}
    if not any(block.unplaced for block in blocks):
        return dict(orders)
    rows = [
        (i >= block.unplaced, 0 if i >= block.unplaced else time_ns, order, block.keys.id, i)
        for block in blocks
        for i, (order, time_ns) in enumerate(
            zip(orders[block.keys.id], block.times_ns, strict=True)
        )
    ]
    for place, (_, _, _, set_id, i) in enumerate(sorted(rows)):
        orders[set_id][i] = place
    return dict(orders)


def _same(before: list[Block], after: list[Block]) -> bool:
    """Return whether all branches hold the same rows in order."""
    new_by_set = {block.keys: block for block in after}
    if len(before) != len(after):
        return False
    for old in before:
        new = new_by_set.get(old.keys)
        if new is None or len(new.steps) != len(old.steps):
            return False
        for branch in set(old.branches):
            if not _same_branch(old, new, branch):
                return False
    return True


def _same_branch(old: Block, new: Block, branch: int) -> bool:
    keep_old = [each == branch for each in old.branches]
    keep_new = [each == branch for each in new.branches]
    pairs = (old.steps, new.steps), (old.times_ns, new.times_ns)
    if any(list(compress(a, keep_old)) != list(compress(b, keep_new)) for a, b in pairs):
        return False
    # Bytes, not numbers: NaN is not equal to itself, and -0.0 is to 0.0.
    for a, b in zip(old.columns, new.columns, strict=True):
        left = type(a)("d", compress(a, keep_old))
        right = type(b)("d", compress(b, keep_new))
        if left.tobytes() != right.tobytes():
            return False
    return True
