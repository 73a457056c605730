"""Memory map over an extent of `metrics.bin` whose blocks are allocated beforehand."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from dataclasses import dataclass

from assay.formats import frames

EXTENT_BYTES = 1 << 18
MAX_EXTENT_BYTES = 1 << 21
_POPULATE_WRITE = 23


@dataclass(frozen=True, slots=True)
class MappedExtent:
    """Memory map at the beginning of an extent, and the file offset at which the extent ends."""

    map: mmap.mmap
    end: int

    def holds(self, need: int) -> bool:
        """Return whether a frame of `need` bytes fits and leaves a part of the extent free."""
        return len(self.map) - self.map.tell() >= _least_bytes(need)


def map_extent(descriptor: int, start: int, size: int, need: int) -> MappedExtent:
    """Allocate and map an extent of about `size` bytes from `start`; OSError without room."""
    end = (start // size + 1) * size
    while end - start < _least_bytes(need):
        end += size
    os.posix_fallocate(descriptor, start, end - start)
    # Written once as a whole, its pages are in memory, many at a time: a fault in each page costs
    # ten times that.
    os.pwrite(descriptor, bytes(end - start), start)
    # A map begins at a multiple of the granularity, an extent at any word: behind the head or a
    # compacted part.
    offset = start - start % mmap.ALLOCATIONGRANULARITY
    fresh = mmap.mmap(descriptor, end - offset, offset=offset)
    if sys.platform == "linux":
        # A kernel before 5.14 refuses: each page is looked up when it is first written to.
        with contextlib.suppress(OSError):
            fresh.madvise(_POPULATE_WRITE)
    fresh.seek(start - offset)
    return MappedExtent(fresh, end)


def _least_bytes(need: int) -> int:
    return frames.EXTENT_HEAD_BYTES + max(need, mmap.PAGESIZE // 2)
