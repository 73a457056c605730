"""Reading of one run's folder into a row of the index."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError
from assay.core.ids import id_of_folder
from assay.core.regular_file import file_size, mtime_ns_of, read_bytes, read_start
from assay.formats import defaults_file
from assay.formats.event_log import Edit, labels_of, read_edits
from assay.formats.json_codec import dumps, parse_numbers
from assay.formats.metrics_file import metrics_state
from assay.formats.run_file import Attempt, RunFile, Summary
from assay.store.best_damage import best_damage
from assay.store.cells import to_cell
from assay.store.changed_settings import changed_settings, setting_hash
from assay.store.config_items import MAX_CONFIG_BYTES, config_items
from assay.store.index_rows import ChangedRun, IndexRow, Item, storable
from assay.store.layout import RunFolder, no_folder, run_in

_README_BLOCK = "<!-- assay: begin"
_MOST_TEXT = 200_000
_MOST_TAG = 1000
_MOST_ITEMS = 20_000


def read_record(
    folder: RunFolder, mtime_ns: int, summarize: Callable[[RunFolder], str] | None = None
) -> ChangedRun:
    """Read a run. `mtime_ns` is the time of change of its folder before it is read.

    `summarize` returns the summaries of an open run as JSON. A record that cannot be read gives a
    row whose `error` says why.
    """
    readme_mtime_ns = mtime_ns_of(folder.readme)
    edits_size = file_size(folder.edits)
    _, metrics_mtime_ns = metrics_state(folder.metrics)
    run, error = run_in(folder)
    if error and no_folder(folder):
        run = _nameless_run(folder)
        return ChangedRun(_row(folder, run, error, mtime_ns, {}), [], run.id, 0)
    edits = _edits(folder) if edits_size else []
    if run is None:
        run = _nameless_run(folder)
    corrected = {edit.key: edit.new for edit in edits if edit.what == "value"}
    values = parse_numbers({**run.values, **corrected})
    tags = [edit.new for edit in edits if edit.what == "tag" and isinstance(edit.new, str)]
    tag = tags[-1] if tags else run.tag
    is_open = run.status == "running"
    numbers = {} if is_open and summarize else read_summaries(folder)
    summaries_json = summarize(folder) if is_open and summarize else dumps(numbers)
    row = _row(folder, run, error, mtime_ns, {} if is_open else numbers)
    row = row._replace(
        tag=tag[:_MOST_TAG],
        step=last_step(summaries_json) if run.status == "running" else row.step,
        summaries_json=summaries_json,
        edits_json=dumps(edits) if edits else "",
        edits_size=edits_size,
        metrics_mtime_ns=metrics_mtime_ns,
    )
    page = _text_of(folder.readme)
    items = list(islice(_items(folder, run, values, edits, page), _MOST_ITEMS))
    texts = [row.id, tag, page, *(str(edit.new) for edit in edits if edit.what == "note")]
    return ChangedRun(row, items, _search_text(texts, items), readme_mtime_ns)


def _search_text(texts: Sequence[str], items: Sequence[Item]) -> str:
    """Return the texts of a run and its labels, as a search compares them."""
    labels = [item.name for item in items if item.kind == "label"]
    return "\n".join([*texts, *labels]).casefold()


def _nameless_run(folder: RunFolder) -> RunFile:
    """Return a run of which only the folder is known."""
    run_id = id_of_folder(folder.path.name) or ""
    return RunFile(id=run_id, kind="train", created_ns=_created_ns(folder))


def _row(
    folder: RunFolder, run: RunFile, error: str, mtime_ns: int, numbers: Mapping[str, Summary]
) -> IndexRow:
    """Return the row of `run.json`, without what lies beside it.

    `numbers` are the summaries of a run that has ended.
    """
    best = run.best
    if best is not None and best_damage(folder, run, numbers):
        best = None
    newest = run.attempts[-1] if run.attempts else None
    return IndexRow(
        folder=folder.path.name,
        id=run.id,
        kind=run.kind,
        tag=run.tag[:_MOST_TAG],
        status="" if error else run.status,
        created_ns=run.created_ns,
        seconds=run.seconds,
        started_ns=newest.started_ns if newest else run.created_ns,
        attempts=len(run.attempts),
        step=newest.to_step if newest else 0,
        reason=newest.reason[:_MOST_TAG] if newest else "",
        best_metric=best.metric if best else "",
        best_mode=best.mode if best else "",
        best_value=best.value if best else None,
        best_step=best.step if best else None,
        project=run.project,
        parent=run.parent,
        config_hash=newest.config_hash if newest else "",
        seedless_hash=setting_hash(run),
        sweep=_find_launched(run.attempts, "sweep"),
        point=_find_launched(run.attempts, "point"),
        sealed=int(run.sealed),
        error=error,
        summaries_json="{}",
        edits_json="",
        folder_mtime_ns=mtime_ns,
        edits_size=0,
        metrics_mtime_ns=0,
    )


def _find_launched(attempts: Sequence[Attempt], name: str) -> str:
    """Return a text of the launch metadata, "" without one.

    A resumed attempt does not repeat it.
    """
    values = (attempt.launch.get(name) for attempt in attempts)
    return next((value[:_MOST_TAG] for value in values if isinstance(value, str)), "")


def _edits(folder: RunFolder) -> list[Edit]:
    try:
        return list(read_edits(folder.edits))
    except OSError:  # it is no file, or one of gigabytes: the run is listed without
        return []


def last_step(summaries_json: str) -> int:
    """Return the last step of which anything was logged: that of a run that has written no end."""
    return max((int(each["step"]) for each in json.loads(summaries_json).values()), default=0)


def _items(
    folder: RunFolder, run: RunFile, values: Mapping[str, Any], edits: Sequence[Edit], page: str
) -> Iterator[Item]:
    written: list[Item] = []
    with contextlib.suppress(OSError, ValueError, RecursionError):
        text = read_bytes(folder.config_toml, MAX_CONFIG_BYTES).decode("utf-8")
        written = list(config_items(text))
    known = {item.name: item.value for item in written if item.kind == "config"}
    changed = changed_settings(folder, run, known)
    for item in written:
        is_changed = item.kind == "config" and item.name in changed
        yield item._replace(value=to_cell(changed[item.name])) if is_changed else item
    yield from (Item("config", key, to_cell(changed[key])) for key in changed.keys() - known)
    yield from (Item("changed", key, str(value)) for key, value in changed.items())
    taken = read_defaults(folder, run)
    unwritten = taken.keys() - known.keys() - changed.keys()
    yield from (Item("default", key, to_cell(taken[key])) for key in unwritten)
    yield from (Item._make(storable(item)) for item in _facts(values, edits, page))


def read_defaults(folder: RunFolder, run: RunFile) -> dict[str, Any]:
    """Return the values by key that a run took where its config has none, its seed among them."""
    found: dict[str, Any] = dict(run.attempts[-1].seeds) if run.attempts else {}
    with contextlib.suppress(OSError, AssayError):
        path = folder.path / defaults_file.FILE_NAME
        found |= _parse_defaults(read_bytes(path, defaults_file.MAX_BYTES))
    return found


@lru_cache(maxsize=64)
def _parse_defaults(data: bytes) -> Mapping[str, Any]:
    """Return the values in a file of defaults, which most runs of a project have in common."""
    return {
        each.key: defaults_file.parse_value(each.value)
        for each in defaults_file.decode(data)
        if not each.injected
    }


def _facts(values: Mapping[str, Any], edits: Sequence[Edit], page: str) -> Iterator[Item]:
    """Yield what was written about a run besides its config."""
    for name, value in values.items():
        yield Item("result", name, to_cell(value))
    yield from (Item("label", label, 1) for label in labels_of(edits))
    notes = [str(edit.new) for edit in edits if edit.what == "note"]
    if notes:
        yield Item("note", "", notes[-1])
    if desc := read_description(page):
        yield Item("desc", "", desc)


def read_description(page: str) -> str:
    """Return the user's part of a README: between the title and the generated block."""
    own = page.partition(_README_BLOCK)[0].strip()
    title, _, body = own.partition("\n")
    return body.strip() if title.startswith("# ") else own


def _text_of(path: Path) -> str:
    try:
        return read_start(path, _MOST_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


def live_summaries(folder: RunFolder) -> str:
    """Return the summaries of a run as JSON, read from its metrics."""
    return dumps(read_summaries(folder))


def read_summaries(folder: RunFolder) -> Mapping[str, Summary]:
    """Return the summaries of a run; none where its metrics cannot be read."""
    from assay.store.summaries import summaries  # here: a list of known runs must not pay for it

    try:
        return summaries(folder.metrics)
    except (OSError, AssayError):
        return {}


def _created_ns(folder: RunFolder) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(time.mktime(time.strptime(folder.path.name[:11], "%y%m%d-%H%M"))) * 1_000_000_000
    return 0
