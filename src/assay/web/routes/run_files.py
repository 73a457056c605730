"""Routes of the files of a run: its config, its code, its texts and its artifacts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

from fastapi import Path, Query, Request, Response
from fastapi.responses import FileResponse

from assay.core.errors import AssayError
from assay.query.config_rows import ConfigRow, config_files, config_rows
from assay.query.diff import code_store, previous_run
from assay.query.media_kind import HEAD_BYTES, Media, media_of
from assay.query.run import RunView
from assay.query.text_files import read_text, text_part
from assay.store.blobs import FileBlobs
from assay.store.code_trees import CodeFile, read_tree
from assay.web.answers import (
    HomeOf,
    MissingError,
    Model,
    RunId,
    make_router,
    plain_text,
    read_or,
    view_of,
)

MAX_TEXT_BYTES = 4 << 20


MAX_CODE_BYTES = 2 << 20
router = make_router()


class ConfigFacts(Model):
    text: str
    rows: list[ConfigRow]
    files: dict[str, str]
    problem: str


class CodeLine(Model):
    """One file of a snapshot; `change` since the run before: added, changed, removed or ""."""

    path: str
    size: int
    change: str


class CodeFacts(Model):
    """The code of a run. `previous` is the run before it of its tag, "" when there is none."""

    files: list[CodeLine]
    previous: str
    missing: str
    patch: str


@router.get("/api/runs/{run_id}/config")
def config(home: HomeOf, run_id: RunId) -> ConfigFacts:
    """Return the config of a run: as text, key by key with origins, and as the files given."""
    view = view_of(home, run_id)
    problems: list[str] = []
    rows = read_or(problems, lambda: config_rows(view), [])
    return ConfigFacts(
        text=view.config_text,
        rows=rows,
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
    """Return one file of the snapshot as text.

    The path is looked up in the snapshot, never on a disk.
    """
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
    """Return a part of the log, the standard output or another rank's output, of at most 4 MB."""
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
    """Return the bytes of an artifact by digest; only artifacts that the run names are served."""
    view = view_of(home, run_id)
    found = next((each for each in view.artifacts if each.digest == digest), None)
    store = FileBlobs(view.folder.artifacts)
    if found is None or digest not in store:
        raise MissingError("The run has no such artifact, or its content is not here.")
    path = store.path(digest)
    if path.is_symlink() or not path.is_file():
        raise MissingError("The content of this artifact is no file.")
    media = media_of_blob(store, digest)
    headers = {
        # Whatever it says that it is: shown by itself it is a document without scripts, without an
        # origin.
        "content-security-policy": "sandbox; default-src 'none'",
        "content-disposition": "inline" if media.kind else f'attachment; filename="{digest[:12]}"',
        "cache-control": "private, max-age=31536000, immutable",
    }
    return FileResponse(path, media_type=media.content_type, headers=headers)


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


def media_of_blob(store: FileBlobs, digest: str) -> Media:
    """Return the kind and size of a medium, from the first bytes of its blob."""
    descriptor = os.open(
        store.path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    with open(descriptor, "rb") as file:
        return media_of(file.read(HEAD_BYTES))
