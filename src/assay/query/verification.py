"""Verification of a record, part by part: what checksums bear out, and what nothing can."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay.core.errors import AssayError
from assay.core.regular_file import open_regular
from assay.formats.manifest import Checkpoint
from assay.query.run import RunView
from assay.store.authorship import is_own
from assay.store.blobs import FileBlobs
from assay.store.code_trees import code_blobs, read_tree
from assay.store.layout import Project

PartState = Literal["as written", "damaged", "unverified"]

_NO_CHECKSUM = "it has no checksum: whoever may write into the folder may change it"


@dataclass(frozen=True, slots=True)
class VerifiedPart:
    """One part of a record; `why` says by what it was verified, or what is wrong."""

    name: str
    verdict: PartState
    why: str


def verify_record(view: RunView) -> list[VerifiedPart]:
    """Read a whole record, and compare all that has a checksum with it."""
    return [*_texts(view), *_curves(view), *_checkpoints(view), *_verify_kept(view)]


def _texts(view: RunView) -> Iterator[VerifiedPart]:
    folder = view.folder
    damages = " ".join(view.damages)
    is_signed = not view.error and is_own(folder, view.file)
    for path in (folder.run_json, folder.config_toml):
        if path.exists() and path.name not in damages and not view.error:
            yield VerifiedPart(
                path.name,
                "as written" if is_signed else "unverified",
                "what chooses its code is as your key signed it"
                if is_signed
                else "your key did not sign it",
            )
    if view.error:
        yield VerifiedPart(folder.run_json.name, "damaged", view.error)
    for path in (folder.events, folder.edits, folder.log, folder.output, folder.readme):
        if path.exists() and path.name not in damages:
            yield VerifiedPart(path.name, "unverified", _NO_CHECKSUM)
    for sentence in view.damages:
        if sentence.removesuffix(".") != view.error.removesuffix("."):
            yield VerifiedPart(sentence.split()[0].removesuffix(","), "damaged", sentence)


def _curves(view: RunView) -> Iterator[VerifiedPart]:
    folder = view.folder.metrics
    damages = " ".join(view.damages)
    if f"{folder.name} " in damages or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        name = f"{folder.name}/{path.name}"
        if name not in damages:
            yield VerifiedPart(name, "as written", "each row is as its checksum says")


def _checkpoints(view: RunView) -> Iterator[VerifiedPart]:
    for checkpoint in view.all_checkpoints:
        if checkpoint.is_damaged:
            yield VerifiedPart(checkpoint.name, "damaged", checkpoint.why.removesuffix("."))
        elif not checkpoint.why:
            yield _checkpoint(checkpoint)


def _checkpoint(checkpoint: Checkpoint) -> VerifiedPart:
    assert checkpoint.manifest is not None  # of a complete one
    if not checkpoint.manifest.is_as_digested:
        why = "its parts are not those that were written"
        return VerifiedPart(checkpoint.name, "damaged", why)
    for file in checkpoint.manifest.files:
        try:
            digest = _digest(checkpoint.path / file.name)
        except OSError as error:
            return VerifiedPart(checkpoint.name, "damaged", f"{file.name}: {error.strerror}")
        if digest != file.sha256:
            return VerifiedPart(checkpoint.name, "damaged", f"{file.name} is not what was written")
    return VerifiedPart(checkpoint.name, "as written", "each file is as its manifest says")


def _verify_kept(view: RunView) -> Iterator[VerifiedPart]:
    if view.artifacts:
        digests = [artifact.digest for artifact in view.artifacts]
        yield _blobs("artifacts", FileBlobs(view.folder.artifacts), digests)
    if view.code.snapshot:
        blobs = code_blobs(Project(Path(view.file.project)))
        try:
            files = read_tree(blobs, view.code.snapshot).values()
        except (KeyError, OSError, AssayError):
            yield VerifiedPart("code", "unverified", "it is not here")
        else:
            yield _blobs("code", blobs, [file.digest for file in files])


def _blobs(name: str, blobs: FileBlobs, digests: Iterable[str]) -> VerifiedPart:
    for digest in digests:
        try:
            blobs.get(digest)
        except KeyError:
            return VerifiedPart(name, "damaged", f"{digest[:12]} is missing")
        except AssayError as error:
            return VerifiedPart(name, "damaged", error.what)
    return VerifiedPart(name, "as written", "each file is as its digest says")


def _digest(path: Path) -> str:
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
