"""Writing of metrics that are known as a whole, as those of an imported run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from assay.core.directory import create_file, make_directory
from assay.formats import metrics_file
from assay.formats.metrics_file import MAX_SETS, NAMES_FILE, KeySet, row_values, rows_file
from assay.store.row_scan import row_type

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.store.series import Block


def write_blocks(folder: Path, blocks: Sequence[Block]) -> None:
    """Write rows into a new folder, in the order of their times; as given where these are equal.

    Rows of a branch of a block have a set of their own, as no rewind tells the branch.
    """
    import numpy as np  # here: whoever lists runs must not pay for it

    make_directory(folder)
    sets: dict[KeySet, int] = {}
    places = _places(blocks)
    rows: dict[int, list[NDArray[np.void]]] = {}
    for block, own_places in zip(blocks, places, strict=True):
        values = row_values(len(block.keys.names))
        part = np.zeros(len(block.steps), row_type(values))
        for branch in np.unique(block.branches).tolist():
            keys = replace(block.keys, branch=branch)
            part["set"][block.branches == branch] = sets.setdefault(keys, MAX_SETS + len(sets))
        part["place"], part["step"], part["time"] = own_places, block.steps, block.times_ns
        part["values"][:, : len(block.keys.names)] = block.values
        rows.setdefault(values, []).append(part)
    lines = [metrics_file.line_of({"format": metrics_file.FORMAT})]
    lines += [metrics_file.line_of_set(number, keys) for keys, number in sets.items()]
    ends = {}
    for values, parts in rows.items():
        whole = np.concatenate(parts)
        whole = whole[np.argsort(whole["place"], kind="stable")]
        view = memoryview(whole.tobytes())
        size = whole.dtype.itemsize
        whole["crc"] = [crc32(view[at + 4 : at + size]) for at in range(0, len(view), size)]
        _write(folder / rows_file(values), whole.tobytes())
        ends[str(values)] = len(whole)
    lines.append(metrics_file.line_of({"end": ends, "attempt": 1}))
    _write(folder / NAMES_FILE, b"".join(lines))


def _places(blocks: Sequence[Block]) -> list[NDArray[np.int64]]:
    """Return the places of the rows of each block among all rows."""
    import numpy as np

    if not blocks:
        return []
    times = np.concatenate([block.times_ns for block in blocks])
    places = np.empty(len(times), np.int64)
    own = np.concatenate([block.places for block in blocks])
    places[np.lexsort((own, times))] = np.arange(len(times))
    return np.split(places, np.cumsum([len(block.steps) for block in blocks])[:-1])


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(create_file(path), "wb") as file:
        file.write(data)
