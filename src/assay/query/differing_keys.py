"""In which keys of their configs runs differ."""

from __future__ import annotations

from assay.query.found_runs import FoundRuns
from assay.store.cells import to_cell


def differing_keys(found: FoundRuns) -> list[str]:
    """Return the config keys that differ between the runs, sorted, without tag and desc."""
    values: dict[str, list[object]] = {}
    total = 0
    for index in found.indexes:
        folders = [row.written.folder for row in found.rows if row.index is index]
        for items in index.all_items("config", folders).values():
            for key, value in items.items():
                values.setdefault(key, [None] * total).append(value)
            total += 1
            for others in values.values():
                others += [None] * (total - len(others))
    left_out = ("tag", "desc")
    return [
        key
        for key, each in sorted(values.items())
        if key not in left_out and any(to_cell(value) != to_cell(each[0]) for value in each)
    ]
