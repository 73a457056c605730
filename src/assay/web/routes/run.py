"""Route of one run: everything about it that fits on a page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from assay.core.facts import Ended, Warned
from assay.formats.event_log import Edit
from assay.formats.json_codec import to_plain
from assay.formats.manifest import Checkpoint
from assay.formats.run_file import IMPORTED, Attempt, Summary
from assay.formats.verdict import Verdict
from assay.query.diff import flat
from assay.query.media_kind import Media
from assay.query.rerun import Command, commands_for, rerun_of
from assay.query.run import RunView
from assay.query.text_files import text_files
from assay.record.readme import readme_revision
from assay.store.artifacts import Artifact
from assay.store.blobs import FileBlobs
from assay.web.answers import (
    HomeOf,
    Model,
    RunId,
    make_router,
    read_or,
    row_of,
    spell_for_page,
    view_of,
)
from assay.web.routes.run_files import media_of_blob
from assay.web.routes.runs import RunLine, line_of
from assay.web.site import Home

router = make_router()


class NoteFacts(Model):
    text: str
    who: str
    at: float


class AttemptFacts(Model):
    """One launch or resume; times are unix seconds, `duration` is by a clock that nobody sets."""

    number: int
    started: float
    ended: float | None
    duration: float
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
    seeds: dict[str, int | str]


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
    """One kept file; `media` is "image", "audio", "video" or "".

    `is_too_large` is true for a picture that is too large to be shown.
    """

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
    commands: list[Command]
    rerun_refusal: str
    problems: list[str]


@router.get("/api/runs/{run_id}")
def run(home: HomeOf, run_id: RunId) -> RunFacts:
    """Return everything about a run that fits on a page."""
    row = row_of(home.catalog, run_id)
    view = view_of(home, run_id)
    problems: list[str] = []
    summaries = read_or(problems, lambda: _summaries(home, view), {})
    artifacts = read_or(problems, lambda: view.artifacts, ())
    checkpoints = _checkpoints(view, problems)
    problems += [view.best_damage] if view.best_damage else []
    newest = view.file.newest if view.file.attempts else None
    return RunFacts(
        line=line_of(row),
        status_text=view.status_text,
        desc=view.desc,
        desc_digest=readme_revision(view.desc),
        path=str(view.path.absolute()),
        config_path=view.file.config_path,
        parent=view.file.parent,
        origin=view.origin,
        exactness=(newest.resume or newest.exactness) if newest else "",
        config_hash=newest.config_hash if newest else "",
        seedless_hash=newest.seedless_hash if newest else "",
        notes=[_note(str(each.new), each) for each in view.notes],
        attempts=_attempts(view),
        checkpoints=checkpoints,
        metrics=[_metric(name, each) for name, each in summaries.items()],
        results=_results(view),
        artifacts=[_artifact(view, each) for each in artifacts],
        events=[_event(each.at_ns / 1e9, each.fact) for each in view.events],
        verdicts=[verdict_facts(each) for each in view.verdicts],
        texts=_texts(view),
        environment=dict(flat(view.environment)),
        snapshot=view.code.snapshot,
        code_files=view.code.files,
        left_out=list(view.code.left_out),
        git_commit=view.code.git_commit,
        git_dirty=view.code.git_dirty,
        commands=commands_for(view),
        rerun_refusal=rerun_of(view).refusal,
        problems=problems,
    )


def _note(text: str, edit: Edit) -> NoteFacts:
    return NoteFacts(text=text, who=edit.who, at=edit.at_ns / 1e9)


def _checkpoints(view: RunView, problems: list[str]) -> list[CheckpointFacts]:
    found = read_or(problems, lambda: view.all_checkpoints, [])
    best = view.best_checkpoint.name if view.best_checkpoint is not None else ""
    return [_checkpoint(each, is_best=each.name == best) for each in found]


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


def _texts(view: RunView) -> list[TextFacts]:
    files = text_files(view.folder)
    return [TextFacts(name=each.name, size=each.size_bytes) for each in files]


def _metric(name: str, summary: Summary) -> MetricFacts:
    return MetricFacts.of(summary, name=name)


def _summaries(home: Home, view: RunView) -> Mapping[str, Any]:
    if view.file.status != "running":
        return view.summaries
    tail = home.curves.tail(view.folder)
    tail.update()
    return tail.summaries()


def _attempts(view: RunView) -> list[AttemptFacts]:
    ends = [event.fact for event in view.events if isinstance(event.fact, Ended)]
    return [_attempt(view, each, ends) for each in view.file.attempts]


def _attempt(view: RunView, attempt: Attempt, ends: list[Ended]) -> AttemptFacts:
    traceback = ends[attempt.number - 1].traceback if attempt.number <= len(ends) else ""
    return AttemptFacts.of(
        attempt,
        started=attempt.started_ns / 1e9,
        ended=attempt.ended_ns / 1e9 if attempt.ended_ns is not None else None,
        duration=view.seconds_of(attempt),
        traceback=traceback,
        command=shlex.join(attempt.command),
        seeds=spell_for_page(dict(attempt.seeds)),
    )


def verdict_facts(verdict: Verdict) -> VerdictFacts:
    """Return a verdict as the page shows it."""
    first = verdict.difference
    return VerdictFacts.of(
        verdict,
        at=verdict.at_ns / 1e9,
        text=verdict.said,
        difference=first and DifferenceFacts.of(first, call=first.occurrence + 1),
        cause=verdict.cause or "",
        changed=spell_for_page(to_plain(dict(verdict.changed_inputs))),
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
            notes = [fact.partial, "at the stop" if fact.at_stop else ""]
            text = ", ".join([fact.split, *filter(None, notes)])
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
            note = _note(f"{edit.old!r} to {edit.new!r}", edit)
            edits.setdefault(edit.key, []).append(note)
    return [
        ResultFacts(name=name, value=value, edits=edits.get(name, []))
        for name, value in spell_for_page(view.values).items()
        if not name.startswith(IMPORTED)
    ]


def _artifact(view: RunView, artifact: Artifact) -> ArtifactFacts:
    store = FileBlobs(view.folder.artifacts)
    media, problem = Media(), ""
    try:
        media = media_of_blob(store, artifact.digest)
    except (OSError, KeyError):
        problem = "its content is not here"
    return ArtifactFacts.of(
        artifact,
        size=artifact.size_bytes,
        at=artifact.at_ns / 1e9,
        media=media.kind,
        content_type=media.content_type,
        width=media.width,
        height=media.height,
        is_too_large=media.is_too_large,
        problem=problem,
    )
