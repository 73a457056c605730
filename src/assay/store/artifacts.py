"""Artifacts of a run: files kept by content under `artifacts/`, named by a small index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.core.errors import RecordError
from assay.formats.json_codec import read_json, write_json
from assay.store.blobs import FileBlobs
from assay.store.layout import RunFolder, refusal

FORMAT = 1
INDEX_NAME = "index.json"
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Kept file. Its name is data: it need not be a valid file name, and may be given twice.

    `kind` says how it may be shown ("image", "audio", "video", "text", "table", "histogram",
    "figure"; "" is a file), `step` what step it belongs to.
    """

    name: str
    digest: str
    size_bytes: int
    at_ns: int
    kind: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    format: int = FORMAT
    artifacts: tuple[Artifact, ...] = ()


def artifacts(folder: RunFolder) -> tuple[Artifact, ...]:
    """Return the artifacts in the order kept. `FileBlobs(folder.artifacts)` has the bytes."""
    try:
        return read_json(
            folder.artifacts / INDEX_NAME, _Index, version=FORMAT, limit=MAX_BYTES
        ).artifacts
    except FileNotFoundError:
        return ()


def keep_artifact(
    folder: RunFolder,
    data: bytes,
    name: str,
    *,
    at_ns: int,
    kind: str = "",
    step: int | None = None,
) -> Artifact:
    """Keep `data` under `name`; equal content at the same name and step moves to the end."""
    digest = FileBlobs(folder.artifacts).put(data)
    fresh = Artifact(
        name=name, digest=digest, size_bytes=len(data), at_ns=at_ns, kind=kind, step=step
    )
    try:
        before: Sequence[Artifact] = artifacts(folder)
    except RecordError:  # the list is damaged; the bytes are not, and a run goes on
        before = ()
    others = (
        each for each in before if (each.name, each.digest, each.step) != (name, digest, step)
    )
    write_index(folder, (*others, fresh))
    return fresh


def write_index(folder: RunFolder, kept: Sequence[Artifact]) -> None:
    """Let these be the artifacts of a run; their bytes are there already."""
    index = folder.artifacts / INDEX_NAME
    try:
        write_json(index, _Index(artifacts=tuple(kept)), durable=False)
    except OSError as error:
        raise refusal(error, index, "The artifact cannot be kept") from error
