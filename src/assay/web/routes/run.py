"""Routes of one run: everything its folder tells, each part when it is asked for."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse

from assay.core.errors import AssayError, RecordError
from assay.core.event_log import Ended, Warned
from assay.core.json_codec import to_plain
from assay.core.manifest import Checkpoint
from assay.core.run_file import IMPORTED, Attempt, Summary
from assay.core.verdict import Verdict
from assay.query.config_rows import config_files, config_rows
from assay.query.diff import code_store, flat
from assay.query.media_kind import HEAD_BYTES, MAX_PIXELS, Media, media_of
from assay.query.next_commands import commands_for
from assay.query.previous_run import previous_run
from assay.query.rerun import rerun_of
from assay.query.run import RunView
from assay.query.text_files import read_text, text_files, text_part
from assay.store.artifacts import Artifact
from assay.store.blobs import FileBlobs
from assay.store.code_trees import CodeFile, read_tree
from assay.web.answers import PROBLEMS, HomeOf, MissingError, Model, row_of
from assay.web.routes.runs import RunLine, line_of
from assay.web.site import Home

MAX_TEXT_BYTES = 4 << 20
MAX_CODE_BYTES = 2 << 20

router = APIRouter(responses=PROBLEMS)

RunId = Annotated[str, Path(max_length=64, pattern="^[a-z0-9]+$")]


class NoteFacts(Model):
    text: str
    who: str
    at: float


class AttemptFacts(Model):
    """One launch or resume; times are unix seconds."""

    number: int
    started: float
    ended: float | None
    status: str
    reason: str
    traceback: str
    from_step: int
    to_step: int
    command: str
    host: str
    pid: int
    devices: list[str]
    changed: list[str]
    changed_code: list[str]
    exactness: str
    seeds: dict[str, int]


class CheckpointFacts(Model):
    name: str
    step: int | None
    kind: str
    at: float | None
    size: int
    is_best: bool
    problem: str


class MetricFacts(Model):
    name: str
    last: float | str
    step: int
    count: int
    min: float | str
    at_min: int
    max: float | str
    at_max: int
    mean: float | str


class ArtifactFacts(Model):
    """One kept file. `media` is "image", "audio", "video", or ""; a picture that is too large says
    so."""

    name: str
    digest: str
    size: int
    at: float
    kind: str
    step: int | None
    media: str
    content_type: str
    width: int
    height: int
    is_too_large: bool
    problem: str


class EventFacts(Model):
    at: float
    kind: str
    step: int | None
    text: str


class DifferenceFacts(Model):
    """First place at which two runs differ; `left` and `right` are what each had there."""

    step: int
    phase: str
    module: str
    name: str
    op: str
    call: int
    left: str
    right: str


class VerdictFacts(Model):
    at: float
    question: str
    equal: bool
    text: str
    runs: list[str]
    first_step: int
    last_step: int
    difference: DifferenceFacts | None
    cause: str
    note: str
    changed: dict[str, Any]


class TextFacts(Model):
    name: str
    size: int


class NextCommand(Model):
    line: str
    purpose: str


class ResultFacts(Model):
    """A result that is no curve; `edits` are later corrections, each with what was there before."""

    name: str
    value: Any
    edits: list[NoteFacts]


class RunFacts(Model):
    """Everything about a run that fits on a page.

    `rerun_refusal` says why the queue cannot train it again, "" when it can.
    """

    line: RunLine
    status_text: str
    desc: str
    desc_digest: str
    path: str
    config_path: str
    parent: str
    origin: dict[str, str]
    exactness: str
    config_hash: str
    seedless_hash: str
    notes: list[NoteFacts]
    attempts: list[AttemptFacts]
    checkpoints: list[CheckpointFacts]
    metrics: list[MetricFacts]
    results: list[ResultFacts]
    artifacts: list[ArtifactFacts]
    events: list[EventFacts]
    verdicts: list[VerdictFacts]
    texts: list[TextFacts]
    environment: dict[str, str]
    snapshot: str
    code_files: int
    left_out: list[str]
    git_commit: str
    git_dirty: bool
    commands: list[NextCommand]
    rerun_refusal: str
    problems: list[str]


class ConfigLine(Model):
    key: str
    value: str
    kind: str
    origin: str


class ConfigFacts(Model):
    text: str
    rows: list[ConfigLine]
    files: dict[str, str]
    problem: str


class CodeLine(Model):
    """One file of a snapshot; `change` is what became of it since the run before: added, changed,
    removed, or ""."""

    path: str
    size: int
    change: str


class CodeFacts(Model):
    """The code of a run. `previous` is the run before it of its tag, "" when there is none."""

    files: list[CodeLine]
    previous: str
    missing: str
    patch: str


def view_of(home: Home, run_id: str) -> RunView:
    """Return a run to look at; MissingError when it is not there, or went away at this moment."""
    row = row_of(home.catalog, run_id)
    try:
        return RunView(row.path)
    except RecordError:
        raise
    except AssayError as error:
        raise MissingError(
            f"The run {run_id} is gone.", fix="it was removed while it was shown"
        ) from error


@router.get("/api/runs/{run_id}")
def run(home: HomeOf, run_id: RunId) -> RunFacts:
    """Return everything about a run that fits on a page."""
    row = row_of(home.catalog, run_id)
    view = view_of(home, run_id)
    problems: list[str] = []
    summaries = _or_nothing(problems, lambda: _summaries(home, view), {})
    artifacts = _or_nothing(problems, lambda: view.artifacts, ())
    checkpoints = _or_nothing(problems, lambda: view.all_checkpoints, [])
    best = view.best_checkpoint.name if view.best_checkpoint is not None else ""
    ends = [event.fact for event in view.events if isinstance(event.fact, Ended)]
    return RunFacts(
        line=line_of(row),
        status_text=view.status_text,
        desc=view.desc,
        desc_digest=digest_of(view.desc),
        path=str(view.path.absolute()),
        config_path=view.file.config_path,
        parent=view.file.parent,
        origin=view.origin,
        exactness=view.file.newest.exactness if view.file.attempts else "",
        config_hash=view.file.newest.config_hash if view.file.attempts else "",
        seedless_hash=view.file.newest.seedless_hash if view.file.attempts else "",
        notes=[
            NoteFacts(text=str(note.new), who=note.who, at=note.at_ns / 1e9) for note in view.notes
        ],
        attempts=[_attempt(each, ends) for each in view.file.attempts],
        checkpoints=[_checkpoint(each, is_best=each.name == best) for each in checkpoints],
        metrics=[_metric(name, each) for name, each in summaries.items()],
        results=_results(view),
        artifacts=[_artifact(view, each) for each in artifacts],
        events=[_event(each.at_ns / 1e9, each.fact) for each in view.events],
        verdicts=[verdict_facts(each) for each in view.verdicts],
        texts=[TextFacts(name=each.name, size=each.size_bytes) for each in text_files(view.folder)],
        environment=dict(flat(view.environment)),
        snapshot=view.code.snapshot,
        code_files=view.code.files,
        left_out=list(view.code.left_out),
        git_commit=view.code.git_commit,
        git_dirty=view.code.git_dirty,
        commands=[NextCommand(line=each.line, purpose=each.purpose) for each in commands_for(view)],
        rerun_refusal=rerun_of(view).refusal,
        problems=problems,
    )


def _checkpoint(checkpoint: Checkpoint, *, is_best: bool) -> CheckpointFacts:
    facts = CheckpointFacts(
        name=checkpoint.name,
        step=checkpoint.step,
        kind="",
        at=None,
        size=0,
        is_best=is_best,
        problem=checkpoint.why,
    )
    manifest = checkpoint.manifest
    if manifest is not None:
        facts.kind = manifest.kind
        facts.at = manifest.created_ns / 1e9
        facts.size = sum(file.size_bytes for file in manifest.files)
    return facts


def _metric(name: str, summary: Summary) -> MetricFacts:
    return MetricFacts(
        name=name,
        last=summary.last,
        step=summary.step,
        count=summary.count,
        min=summary.min,
        at_min=summary.at_min,
        max=summary.max,
        at_max=summary.at_max,
        mean=summary.mean,
    )


@router.get("/api/runs/{run_id}/config")
def config(home: HomeOf, run_id: RunId) -> ConfigFacts:
    """Return the config of a run: as a text, key by key with origins, and the files it was given
    as."""
    view = view_of(home, run_id)
    problems: list[str] = []
    rows = _or_nothing(problems, lambda: config_rows(view), [])
    return ConfigFacts(
        text=view.config_text,
        rows=[
            ConfigLine(key=row.key, value=row.value, kind=row.kind, origin=row.origin)
            for row in rows
        ],
        files=config_files(view),
        problem=" ".join(problems),
    )


@router.get("/api/runs/{run_id}/code")
def code(home: HomeOf, run_id: RunId) -> CodeFacts:
    """Return the files of the code as it was, with what changed since the run before."""
    view = view_of(home, run_id)
    tree, missing = _tree(view)
    before = previous_run(view)
    theirs = _tree(before)[0] if before is not None else {}
    lines = [
        CodeLine(
            path=path, size=file.size_bytes, change=_change(path, tree, theirs) if theirs else ""
        )
        for path, file in tree.items()
    ]
    if theirs and tree:
        lines += [
            CodeLine(path=path, size=0, change="removed") for path in theirs if path not in tree
        ]
    patch = _patch(view)
    return CodeFacts(
        files=sorted(lines, key=lambda line: line.path),
        previous=before.id if before is not None else "",
        missing=missing,
        patch=patch,
    )


@router.get("/api/runs/{run_id}/code/file", response_class=Response)
def code_file(
    home: HomeOf, run_id: RunId, path: Annotated[str, Query(max_length=4_000)]
) -> Response:
    """Return one file of the snapshot as text. The path is looked up in the snapshot, never on a
    disk."""
    view = view_of(home, run_id)
    tree, missing = _tree(view)
    file = tree.get(path)
    if file is None:
        raise MissingError(missing or f"The code of {run_id} has no file {path!r}.")
    try:
        data = code_store(view).get(file.digest)
    except KeyError:
        raise MissingError(
            "The content of this file is not here.", fix="its project's code store is elsewhere"
        ) from None
    return plain_text(data[:MAX_CODE_BYTES], is_cut=len(data) > MAX_CODE_BYTES)


@router.get("/api/runs/{run_id}/text", response_class=Response)
def text(
    home: HomeOf,
    run_id: RunId,
    name: Annotated[str, Query(max_length=40)],
    start: Annotated[int, Query(ge=0, le=2**53)] = 0,
    end: Annotated[int | None, Query(ge=0, le=2**53)] = None,
) -> Response:
    """Return a part of the log, of what was printed, or of another rank's output; at most 4 MB at
    once."""
    view = view_of(home, run_id)
    last = min(start + MAX_TEXT_BYTES, start + MAX_TEXT_BYTES if end is None else end)
    data = text_part(view.folder, name, start, last)
    if data is None:
        raise MissingError(f"The run {run_id} has no text {name!r}.")
    return plain_text(data)


@router.get("/api/runs/{run_id}/blobs/{digest}", response_class=Response)
def blob(
    request: Request,
    home: HomeOf,
    run_id: RunId,
    digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")],
) -> Response:
    """Return the bytes of an artifact by their digest: one that the run names, and no other
    file."""
    view = view_of(home, run_id)
    found = next((each for each in view.artifacts if each.digest == digest), None)
    store = FileBlobs(view.folder.artifacts)
    if found is None or digest not in store:
        raise MissingError("The run has no such artifact, or its content is not here.")
    path = store.path(digest)
    if path.is_symlink() or not path.is_file():
        raise MissingError("The content of this artifact is no file.")
    media = _media(store, digest)
    headers = {
        # Whatever it says that it is: shown by itself it is a document without scripts, without an
        # origin.
        "content-security-policy": "sandbox; default-src 'none'",
        "content-disposition": "inline" if media.kind else f'attachment; filename="{digest[:12]}"',
        "cache-control": "private, max-age=31536000, immutable",
    }
    return FileResponse(path, media_type=media.content_type, headers=headers)


def plain_text(data: bytes, *, is_cut: bool = False) -> Response:
    """Return bytes as a text that no browser takes for anything else."""
    headers = {"x-cut": "1"} if is_cut else {}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)


def digest_of(text: str) -> str:
    """Return a short digest: whoever changes a text says which one he has seen."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _or_nothing(problems: list[str], read: Any, nothing: Any) -> Any:
    """Return what `read` returns; of what is damaged nothing, and the page says so."""
    try:
        return read()
    except (AssayError, OSError) as error:
        problems.append(error.what if isinstance(error, AssayError) else str(error))
        return nothing


def _summaries(home: Home, view: RunView) -> Mapping[str, Any]:
    if view.file.status != "running":
        return view.file.summaries
    tail = home.curves.tail(view.folder)
    tail.update()
    return tail.summaries()


def _attempt(attempt: Attempt, ends: list[Ended]) -> AttemptFacts:
    traceback = ends[attempt.number - 1].traceback if attempt.number <= len(ends) else ""
    return AttemptFacts(
        number=attempt.number,
        started=attempt.started_ns / 1e9,
        ended=attempt.ended_ns / 1e9 if attempt.ended_ns is not None else None,
        status=attempt.status,
        reason=attempt.reason,
        traceback=traceback,
        from_step=attempt.from_step,
        to_step=attempt.to_step,
        command=shlex.join(attempt.command),
        host=attempt.host,
        pid=attempt.pid,
        devices=list(attempt.devices),
        changed=list(attempt.changed),
        changed_code=list(attempt.changed_code),
        exactness=attempt.exactness,
        seeds=dict(attempt.seeds),
    )


def verdict_facts(verdict: Verdict) -> VerdictFacts:
    """Return a verdict as the page shows it."""
    first = verdict.difference
    return VerdictFacts(
        at=verdict.at_ns / 1e9,
        question=verdict.question,
        equal=verdict.equal,
        text=verdict.said,
        runs=list(verdict.runs),
        first_step=verdict.first_step,
        last_step=verdict.last_step,
        difference=None
        if first is None
        else DifferenceFacts(
            step=first.step,
            phase=first.phase,
            module=first.module,
            name=first.name,
            op=first.op,
            call=first.occurrence + 1,
            left=first.left,
            right=first.right,
        ),
        cause=verdict.cause or "",
        note=verdict.note,
        changed=to_plain(dict(verdict.changed_inputs)),
    )


def _event(at: float, fact: Any) -> EventFacts:
    """Return an event in one line."""
    kind = type(fact).__name__.lower()
    step = getattr(fact, "step", None)
    match kind:
        case "started":
            text = f"attempt {fact.attempt}" + (
                f" from {fact.checkpoint}" if fact.checkpoint else ""
            )
        case "evaluated":
            text = fact.split + (f", {fact.partial}" if fact.partial else "")
        case "saved":
            text = f"{fact.name}{', the best so far' if fact.best else ''}"
        case "changed":
            text = f"{fact.what}: {fact.before} to {fact.after}"
        case "ended":
            text = f"{fact.status}{f': {fact.reason}' if fact.reason else ''}"
        case _:
            text = fact.message if isinstance(fact, Warned) else ""
    return EventFacts(at=at, kind=kind, step=step, text=text)


def _results(view: RunView) -> list[ResultFacts]:
    edits: dict[str, list[NoteFacts]] = {}
    for edit in view.edits:
        if edit.what == "value":
            note = NoteFacts(
                text=f"{edit.old!r} to {edit.new!r}", who=edit.who, at=edit.at_ns / 1e9
            )
            edits.setdefault(edit.key, []).append(note)
    return [
        ResultFacts(name=name, value=value, edits=edits.get(name, []))
        for name, value in view.values.items()
        if not name.startswith(IMPORTED)
    ]


def _artifact(view: RunView, artifact: Artifact) -> ArtifactFacts:
    store = FileBlobs(view.folder.artifacts)
    media, problem = Media(), ""
    try:
        media = _media(store, artifact.digest)
    except (OSError, KeyError):
        problem = "its content is not here"
    return ArtifactFacts(
        name=artifact.name,
        digest=artifact.digest,
        size=artifact.size_bytes,
        at=artifact.at_ns / 1e9,
        kind=artifact.kind,
        step=artifact.step,
        media=media.kind,
        content_type=media.content_type,
        width=media.width,
        height=media.height,
        is_too_large=media.width * media.height > MAX_PIXELS,
        problem=problem,
    )


def _media(store: FileBlobs, digest: str) -> Media:
    descriptor = os.open(
        store.path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    with open(descriptor, "rb") as file:
        return media_of(file.read(HEAD_BYTES))


def _tree(view: RunView) -> tuple[dict[str, CodeFile], str]:
    """Return the files of the snapshot, or why there are none."""
    if not view.code.snapshot:
        return {}, f"No code was kept with {view.id}."
    try:
        return read_tree(code_store(view), view.code.snapshot), ""
    except (KeyError, AssayError):
        return (
            {},
            f"The code of {view.id} is not here: its folder was copied without its project's code "
            "store.",
        )


def _change(path: str, tree: Mapping[str, CodeFile], before: Mapping[str, CodeFile]) -> str:
    if path not in before:
        return "added"
    return "" if before[path].digest == tree[path].digest else "changed"


def _patch(view: RunView) -> str:
    number = view.file.newest.number if view.file.attempts else 1
    return read_text(view.folder.patch(number)) or "" if view.code.patch else ""
