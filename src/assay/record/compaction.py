"""Compaction of `metrics.bin` at the end: rows become columns, in longer frames."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import compress
from pathlib import Path

from assay.core import frames, metrics_file
from assay.core.directory import create_file
from assay.core.errors import AssayError
from assay.core.frames import TICK_NS
from assay.core.metrics_file import Chunk
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
    times_by_set = _apart(blocks)
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
        for chunk in _chunks(block, times_by_set[block.keys.id]):
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


def _chunks(block: Block, times_ns: list[int]) -> Iterator[Chunk]:
    most = metrics_file.rows_per_chunk(len(block.keys.names), len(block.steps))
    for branch in sorted(set(block.branches)):
        keep = [each == branch for each in block.branches]
        steps = list(compress(block.steps, keep))
        times = list(compress(times_ns, keep))
        columns = [list(compress(column, keep)) for column in block.columns]
        for i in range(0, len(steps), most):
            part = slice(i, i + most)
            yield Chunk(
                block.keys,
                branch,
                steps[part],
                times[part],
                tuple(column[part] for column in columns),
            )


def _apart(blocks: list[Block]) -> dict[int, list[int]]:
    """Return the times of each set, moved by ns where rows of two sets share a metric and a tick.

    Rows of different sets are put in order by time, and by their place in the file where times are
    equal; compacted, the file has no such places.
    """
    times = {block.keys.id: list(block.times_ns) for block in blocks}
    names = [name for block in blocks for name in block.keys.names]
    if len(names) == len(set(names)):
        return times
    shared = {name for name in names if names.count(name) > 1} if len(names) < 1000 else set(names)
    together = [block for block in blocks if not shared.isdisjoint(block.keys.names)]
    seen: set[int] = set()
    tied: set[int] = set()
    for block in together:
        own = set(block.times_ns)
        tied |= seen & own
        seen |= own
    rows = [
        (order, block.keys.id, i)
        for block in together
        for i, (order, t) in enumerate(zip(block.orders, block.times_ns, strict=True))
        if t in tied
    ]
    moved: dict[int, int] = {}
    for _, set_id, i in sorted(rows):
        time_ns = times[set_id][i]
        by = moved.get(time_ns, 0)
        moved[time_ns] = by + 1
        times[set_id][i] = time_ns + min(by, TICK_NS - 1)
    return times


def _same(before: list[Block], after: list[Block]) -> bool:
    """Return whether all branches hold the same rows in order; times may differ within a tick."""
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
    if list(compress(old.steps, keep_old)) != list(compress(new.steps, keep_new)):
        return False
    times = zip(compress(old.times_ns, keep_old), compress(new.times_ns, keep_new), strict=True)
    if any(not 0 <= b - a < TICK_NS for a, b in times):
        return False
    # Bytes, not numbers: NaN is not equal to itself, and -0.0 is to 0.0.
    for a, b in zip(old.columns, new.columns, strict=True):
        left = type(a)("d", compress(a, keep_old))
        right = type(b)("d", compress(b, keep_new))
        if left.tobytes() != right.tobytes():
            return False
    return True
