"""Verification of a record, part by part: what checksums bear out, what is damaged and lost."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay.core.errors import AssayError, RecordError
from assay.core.regular_file import open_regular
from assay.formats import run_file
from assay.formats.event_log import read_lines
from assay.formats.manifest import Checkpoint, checkpoints
from assay.formats.metrics_file import (
    NAMES_FILE,
    DamagedRows,
    metrics_state,
    row_bytes,
    row_values,
    values_of_file,
)
from assay.formats.run_file import RunFile, Status, Summary
from assay.store.artifacts import artifacts
from assay.store.authorship import is_own
from assay.store.best_damage import best_damage
from assay.store.blobs import FileBlobs
from assay.store.code_trees import code_blobs, read_tree
from assay.store.layout import Project, RunFolder
from assay.store.series import MetricsContents, read_contents

PartState = Literal["as written", "damaged", "unverified"]

MOST_CHECKED_BYTES = 1 << 30
"""Curves that take longer than a second or two to read through are not looked at for damage."""

_ENDED = ("finished", "failed", "stopped")
_NO_CHECKSUM = "it has no checksum: whoever may write into the folder may change it"
_NAMED = 3


@dataclass(frozen=True, slots=True)
class VerifiedPart:
    """One part of a record; `why` says by what it was verified, or what is wrong."""

    name: str
    verdict: PartState
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """Record as it was read: `file` is the content of `run.json`, None with its `error`."""

    folder: RunFolder
    file: RunFile | None
    error: str
    status: Status
    config_text: str
    summaries: Mapping[str, Summary]

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDED


def find_damages(record: ReadRecord) -> tuple[VerifiedPart, ...]:
    """Return the damaged parts, the most important first; large files are not read through."""
    folder = record.folder
    curves = _check_metrics(record)
    found = [(folder.run_json.name, record.error), (curves.partition(" ")[0], curves)]
    if record.file is not None:
        claims = record.summaries if record.has_ended else {}
        found.append(("best.json", best_damage(folder, record.file, claims)))
    for path in (folder.events, folder.edits):
        found.append((path.name, _check_lines(path, may_be_cut=not record.has_ended)))
    found.append((folder.config_toml.name, _check_config(record)))
    try:
        artifacts(folder)
    except AssayError as problem:
        found.append(("artifacts", f"The list of artifacts is damaged: {problem.what}"))
    return tuple(
        VerifiedPart(name, "damaged", f"{sentence.removesuffix('.')}.")
        for name, sentence in found
        if sentence
    )


def verify_record(record: ReadRecord) -> list[VerifiedPart]:
    """Read a whole record, and compare all that has a checksum with it."""
    damaged = find_damages(record)
    names = {part.name for part in damaged}
    sound = (
        part
        for part in _verify_files(record)
        if names.isdisjoint((part.name, part.name.partition("/")[0]))
    )
    return [*sound, *damaged, *_verify_checkpoints(record.folder), *_verify_kept(record)]


def describe_altered_config(folder: RunFolder, file: RunFile | None) -> str:
    """Return a sentence about a config that is not what was written, "" for one that is."""
    digest = file.newest.config_digest if file is not None and file.attempts else ""
    if not digest or run_file.digest_of_config(folder.config_toml) == digest:
        return ""
    return "config.toml is damaged: it is not what was written"


def _check_config(record: ReadRecord) -> str:
    try:
        tomllib.loads(record.config_text)
    except (ValueError, RecursionError) as problem:
        return f"config.toml cannot be read: {problem}"
    return describe_altered_config(record.folder, record.file)


def _check_lines(path: Path, *, may_be_cut: bool) -> str:
    """Return a sentence about unreadable lines, "" for none.

    `may_be_cut` permits one, as a killed run may have cut off its last line.
    """
    try:
        unreadable = read_lines(path).unreadable
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    if unreadable > (1 if may_be_cut else 0):
        return f"{path.name} is damaged: {unreadable} of its lines cannot be read"
    return ""


def _check_metrics(record: ReadRecord) -> str:
    """Return one sentence about what cannot be read of the curves.

    It is "" when all can be, and for curves that are too long. The last row of a run that has not
    ended may have been cut off when it was killed.
    """
    folder = record.folder.metrics
    has_ended = record.file is not None and record.file.status in _ENDED
    size, _ = metrics_state(folder)
    if size > MOST_CHECKED_BYTES:
        return ""
    if not folder.exists():
        return "metrics is missing" if has_ended else ""
    try:
        contents = read_contents(folder)
    except RecordError as error:
        return f"metrics cannot be read: {error.what}"
    places = [each for each in contents.damages if has_ended or not each.torn]
    lost = dict(contents.missing) if has_ended else _count_lost(places)
    told = [_rows_of(contents, values, rows) for values, rows in lost.items()]
    if contents.nameless:
        told.append(f"{_count_rows(contents.nameless)} without their names")
    unreadable = f"{', '.join(told)} cannot be read"
    if places:
        ending = f": {unreadable}" if told else ". No row is lost"
        return f"metrics/{places[0].file} is damaged {_where(places)}{ending}"
    if told:
        what = "is not what was written" if lost else f"/{NAMES_FILE} is damaged"
        return f"metrics{' ' if lost else ''}{what}: {unreadable}"
    return f"metrics/{NAMES_FILE} is damaged. No row is lost" if contents.damaged_names else ""


def _count_lost(places: Iterable[DamagedRows]) -> dict[int, int]:
    """Return how many rows of each number of values are in damaged places."""
    lost: dict[int, int] = {}
    for each in places:
        values = values_of_file(each.file) or 1
        rows = -(-(each.end - each.begin) // row_bytes(values))
        lost[values] = lost.get(values, 0) + rows
    return lost


def _rows_of(contents: MetricsContents, values: int, rows: int) -> str:
    """Return so many rows of a file in words, with the metrics that they may be of."""
    sets = [keys.names for keys in contents.sets if row_values(len(keys.names)) == values]
    names = list(dict.fromkeys(name for each in sets for name in each))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    of = f" of {', '.join(names[:_NAMED])}{more}" if names else ""
    return _count_rows(rows) + of


def _count_rows(rows: int) -> str:
    return f"{rows} {'row' if rows == 1 else 'rows'}"


def _where(places: list[DamagedRows]) -> str:
    size = sum(each.end - each.begin for each in places)
    if len(places) == 1:
        return f"at byte {places[0].begin} ({size} bytes)"
    return f"in {len(places)} places ({size} bytes, the first at byte {places[0].begin})"


def _verify_files(record: ReadRecord) -> Iterator[VerifiedPart]:
    """Yield the files of texts and rows, as if none of them were damaged."""
    folder = record.folder
    if record.file is not None:
        signed = "what chooses its code is as your key signed it"
        is_signed = is_own(folder, record.file)
        verdict: PartState = "as written" if is_signed else "unverified"
        for path in (folder.run_json, folder.config_toml):
            if path.exists():
                why = signed if is_signed else "your key did not sign it"
                yield VerifiedPart(path.name, verdict, why)
    for path in (folder.events, folder.edits, folder.log, folder.output, folder.readme):
        if path.exists():
            yield VerifiedPart(path.name, "unverified", _NO_CHECKSUM)
    for path in sorted(folder.metrics.iterdir()) if folder.metrics.is_dir() else ():
        name = f"{folder.metrics.name}/{path.name}"
        yield VerifiedPart(name, "as written", "each row is as its checksum says")


def _verify_checkpoints(folder: RunFolder) -> Iterator[VerifiedPart]:
    for checkpoint in checkpoints(folder.checkpoints):
        if checkpoint.is_damaged:
            yield VerifiedPart(checkpoint.name, "damaged", checkpoint.why.removesuffix("."))
        elif not checkpoint.why:
            damage = _check_files(checkpoint)
            why = damage or "each file is as its manifest says"
            yield VerifiedPart(checkpoint.name, "damaged" if damage else "as written", why)


def _check_files(checkpoint: Checkpoint) -> str:
    """Return which file of a checkpoint is not what was written, "" for none."""
    assert checkpoint.manifest is not None  # of a complete one
    if not checkpoint.manifest.is_as_digested:
        return "its parts are not those that were written"
    for file in checkpoint.manifest.files:
        try:
            with open(open_regular(checkpoint.path / file.name), "rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            return f"{file.name}: {error.strerror}"
        if digest != file.sha256:
            return f"{file.name} is not what was written"
    return ""


def _verify_kept(record: ReadRecord) -> Iterator[VerifiedPart]:
    """Yield the files that a run kept and its code."""
    try:
        kept = artifacts(record.folder)
    except RecordError:
        kept = ()
    if kept:
        digests = [artifact.digest for artifact in kept]
        yield _verify_blobs("artifacts", FileBlobs(record.folder.artifacts), digests)
    file = record.file
    if file is not None and file.attempts and (snapshot := file.newest.code.snapshot):
        blobs = code_blobs(Project(Path(file.project)))
        try:
            files = read_tree(blobs, snapshot).values()
        except (KeyError, OSError, AssayError):
            yield VerifiedPart("code", "unverified", "it is not here")
        else:
            yield _verify_blobs("code", blobs, [file.digest for file in files])


def _verify_blobs(name: str, blobs: FileBlobs, digests: Iterable[str]) -> VerifiedPart:
    for digest in digests:
        try:
            blobs.get(digest)
        except KeyError:
            return VerifiedPart(name, "damaged", f"{digest[:12]} is missing")
        except AssayError as error:
            return VerifiedPart(name, "damaged", error.what)
    return VerifiedPart(name, "as written", "each file is as its digest says")
