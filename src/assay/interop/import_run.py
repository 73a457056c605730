"""Import of runs of other trackers: written as if recorded here, at their own time."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from assay.config.freeze import dump, hash_of_all_keys
from assay.config.secret_keys import without_secrets
from assay.config.tree import Table, from_plain
from assay.core.diagnostics import Origin
from assay.core.directory import create_file, discard, make_directory
from assay.core.errors import AssayError, RecordError
from assay.core.facts import Ended, RunFact, Started, Warned, check_metric_name
from assay.core.ids import folder_name
from assay.core.regular_file import hollowness, open_regular, read_bytes
from assay.core.secrets.replacement import Secrets
from assay.formats import run_file
from assay.formats.event_log import Edit, event_line
from assay.formats.json_codec import dumps, write_atomic
from assay.formats.run_file import Attempt, Code, RunFile
from assay.interop.foreign_run import ForeignFile, ForeignRun, ForeignSource, foreign_run_id
from assay.record import edits, readme
from assay.record.config_files import write_config
from assay.store.artifacts import Artifact, write_index
from assay.store.blobs import FileBlobs
from assay.store.layout import Project, RunFolder, refusal
from assay.store.series import Block
from assay.store.summaries import summaries
from assay.store.write_blocks import write_blocks

_MAX_SAID_BYTES = 256 << 20
_MAX_CREATED_NS = 4_102_444_800_000_000_000  # the year 2100: what is later is no time


def write_run(
    project: Project, found: ForeignSource, run: ForeignRun, *, before: RunFolder | None = None
) -> tuple[RunFolder, list[str]]:
    """Write a run folder, whole or not at all; return it and a sentence for each loss.

    It takes the place of `before`, the same run as it was imported earlier; what was said of that
    one since stays. RecordError when the run is there already and is not `before`.
    """
    created_ns = run.created_ns if 0 < run.created_ns < _MAX_CREATED_NS else time.time_ns()
    name = folder_name(datetime.fromtimestamp(created_ns / 1e9), found.run_id, run.tag)
    place = project.runs_dir / name
    temporary = project.runs_dir / f".import-{secrets.token_hex(6)}.tmp"
    try:
        if place.exists() and (before is None or before.path != place):
            raise RecordError(f"The run {found.run_id} is here already.", where=str(place))
        if (
            before is not None
            and run_file.IMPORTED + "from" not in run_file.read(before.path).values
        ):
            raise RecordError(
                "The run that has this id here was not imported.", where=str(before.path)
            )
        make_directory(project.runs_dir, project.folder_mode)
        temporary.mkdir(mode=project.folder_mode)
        warnings = _write(RunFolder(temporary), project, found, run, created_ns, before)
        _put_in_place(temporary, place, before)
    except OSError as error:
        raise refusal(error, project.runs_dir, "The run cannot be imported") from error
    finally:
        discard(temporary)
    return RunFolder(place), warnings


def _put_in_place(new: Path, place: Path, before: RunFolder | None) -> None:
    if before is None:
        os.rename(new, place)
        return
    aside = new.with_name(new.name.replace(".tmp", ".old.tmp"))
    os.rename(before.path, aside)
    try:
        os.rename(new, place)
    except OSError:
        os.rename(aside, before.path)
        raise
    discard(aside)


def _write(
    folder: RunFolder,
    project: Project,
    found: ForeignSource,
    run: ForeignRun,
    created_ns: int,
    before: RunFolder | None,
) -> list[str]:
    cleaner = Secrets.among(os.environ)
    run = _without_secrets(run, cleaner)
    warnings = [*run.warnings]
    tree = without_secrets(_config(run.config, warnings), cleaner, has_references=False)
    write_config(folder, dump(tree), {}, attempt=1)
    write_blocks(folder.metrics, _keep_valid(run.blocks, warnings))
    _copy(folder, run, warnings, cleaner)
    last = max((each.step for each in summaries(folder.metrics).values()), default=0)
    attempt = replace(_attempt(run, tree, created_ns), to_step=last)
    values = cleaner.tree(_values(run.values, warnings)) | _origin(found, run)
    record = RunFile(
        id=found.run_id,
        kind="train",
        tag=run.tag,
        parent=foreign_run_id(found.tool, run.parent) if run.parent else "",
        created_ns=created_ns,
        project=str(project.root),
        status=run.status,
        sealed=True,
        attempts=(attempt,),
        values=values,
    )
    readme.write_first(folder.readme, record, run.desc)
    _write_events(folder, run, attempt, warnings)
    run_file.write(folder.path, record)
    if before is not None:
        _keep_what_was_said(before, folder, record)
    else:
        _write_labels(folder, run.labels, run.user or found.tool, created_ns)
    return warnings


def _origin(found: ForeignSource, run: ForeignRun) -> dict[str, str]:
    """Return the values that say whence the run was imported."""
    path = os.path.abspath(found.path)
    about = {"from": found.tool, "path": path, "user": run.user, **run.about}
    return {run_file.IMPORTED + key: value for key, value in about.items() if value}


def _attempt(run: ForeignRun, tree: Table, created_ns: int) -> Attempt:
    """Return the one attempt of an imported run."""
    ended_ns = max(created_ns, run.ended_ns) if run.ended_ns < _MAX_CREATED_NS else created_ns
    return Attempt(
        number=1,
        started_ns=created_ns,
        ended_ns=ended_ns,
        status=run.status,
        reason=" ".join(run.reason.split()),
        command=tuple(run.command),
        host=run.host,
        config_hash=hash_of_all_keys(tree) if tree.items else "",
        seedless_hash=hash_of_all_keys(tree, seed=False) if tree.items else "",
        code=Code(git_commit=run.git_commit),
        environment=run.environment,
        seeds=_seeds(run.config),
    )


def _write_events(
    folder: RunFolder, run: ForeignRun, attempt: Attempt, warnings: Sequence[str]
) -> None:
    begun: list[RunFact] = [Started(attempt=1), *(Warned(message=each) for each in warnings)]
    for fact in begun:
        edits.append_line(folder.events, event_line(fact, attempt.started_ns))
    assert attempt.ended_ns is not None
    ended = Ended(status=run.status, step=attempt.to_step, reason=attempt.reason)
    edits.append_line(folder.events, event_line(ended, attempt.ended_ns))


def _write_labels(folder: RunFolder, labels: Sequence[str], who: str, at_ns: int) -> None:
    for label in dict.fromkeys(each.strip() for each in labels):
        if label:
            edits.append(folder, Edit(what="label", key=label, new=True, who=who, at_ns=at_ns))


def _keep_what_was_said(before: RunFolder, folder: RunFolder, record: RunFile) -> None:
    """Notes, labels, titles and the page of a run belong to the people who read it."""
    for old, new in ((before.edits, folder.edits), (before.readme, folder.readme)):
        with contextlib.suppress(FileNotFoundError):
            write_atomic(new, read_bytes(old, _MAX_SAID_BYTES), durable=False)
    readme.refresh(folder.readme, record)


def _config(config: Mapping[str, Any], warnings: list[str]) -> Table:
    """The config as a tree. What TOML cannot say as it is becomes text, and is told."""
    with contextlib.suppress(AssayError):
        dump(_tree(config))
        return _tree(config)
    kept: dict[str, Any] = {}
    for key, value in config.items():
        written = _as_text(value)
        for name, candidate in ((key, value), (key, written), (_as_text(key), written)):
            with contextlib.suppress(AssayError, ValueError, RecursionError):
                dump(_tree({name: candidate}))
                kept[name] = candidate
                break
        if key not in kept or kept[key] is not value:
            warnings.append(f"{_as_text(key)} in its config was kept as text")
    return _tree(kept)


def _values(values: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    kept = dict(values)
    for name, value in values.items():
        try:
            dumps(value)
        except (ValueError, RecursionError):
            kept[name] = _as_text(value)
            warnings.append(f"The result {_as_text(name)} was kept as text")
    return kept


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, default=str)
    except (ValueError, RecursionError):
        return f"({type(value).__name__})"


def _tree(config: Mapping[str, Any]) -> Table:
    tree = from_plain(dict(config), Origin(source="<imported>"))
    assert isinstance(tree, Table)
    return tree


def _seeds(config: Mapping[str, Any]) -> dict[str, int]:
    seed = config.get("seed")
    return {"seed": seed} if isinstance(seed, int) and not isinstance(seed, bool) else {}


def _keep_valid(blocks: Sequence[Block], warnings: list[str]) -> list[Block]:
    kept = []
    for block in blocks:
        try:
            for name in block.keys.names:
                check_metric_name(name)
        except RecordError as error:
            warnings.append(f"A curve was left out: {error.what}")
        else:
            kept.append(block)
    return kept


def _without_secrets(run: ForeignRun, cleaner: Secrets) -> ForeignRun:
    return replace(
        run,
        tag=cleaner.clean(run.tag),
        desc=cleaner.clean(run.desc),
        about=cleaner.tree(run.about),
        reason=cleaner.clean(run.reason),
        command=cleaner.command(run.command),
    )


def _copy(folder: RunFolder, run: ForeignRun, warnings: list[str], cleaner: Secrets) -> None:
    blobs = FileBlobs(folder.artifacts)
    kept: dict[tuple[str, str, int | None], Artifact] = {}
    for file in run.files:
        try:
            digest, size = _put(blobs, file)
        except OSError as error:
            warnings.append(f"{file.source!s:.500} could not be copied: {error.strerror or error}")
            continue
        kept[file.name, digest, file.step] = Artifact(
            name=file.name,
            digest=digest,
            size_bytes=size,
            at_ns=file.at_ns,
            kind=file.kind,
            step=file.step,
        )
    if kept:
        write_index(folder, list(kept.values()))
    if run.output:
        with _open_output(run.output) as given, os.fdopen(create_file(folder.output), "wb") as out:
            for line in given:
                out.write(
                    cleaner.clean(line.decode("utf-8", "surrogateescape")).encode(
                        "utf-8", "surrogateescape"
                    )
                )


def _open_output(output: Path | bytes) -> BinaryIO:
    if isinstance(output, bytes):
        return io.BytesIO(output)
    _refuse_hollow(output)
    return open(open_regular(output, follow=True), "rb")


def _put(blobs: FileBlobs, file: ForeignFile) -> tuple[str, int]:
    if isinstance(file.source, bytes):
        return blobs.put(file.source), len(file.source)
    _refuse_hollow(file.source)
    return blobs.put_file(file.source, follow=True)


def _refuse_hollow(path: Path) -> None:
    if why := hollowness(path.stat()):
        raise OSError(errno.EFBIG, why, str(path))
