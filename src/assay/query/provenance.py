"""Run that made a file, found by content: copies count, whatever their place and name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay.core.errors import AssayError, InputError
from assay.core.regular_file import open_regular, read_bytes
from assay.formats import manifest as manifests
from assay.query.run import RunView
from assay.store.code_trees import code_blobs, read_tree
from assay.store.file_changes import file_changes, files_left
from assay.store.layout import Project, run_folders

What = Literal["checkpoint", "artifact", "file", "code"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """A run that has the file: as what, under which name, and of which step where it has one.

    A "file" was made in a folder that the run watched.
    """

    run: RunView
    what: What
    name: str
    step: int | None = None


def find_origins(path: Path, projects: Sequence[Project]) -> list[Provenance]:
    """Return the runs that have a file of this content, the oldest first.

    For a folder that is a checkpoint, its files are looked for. InputError when there is nothing to
    read.
    """
    digests = _digests(path)
    found = [origin for project in projects for origin in _origins(digests, project)]
    found.sort(key=lambda origin: origin.run.file.created_ns)
    first_code = next((origin for origin in found if origin.what == "code"), None)
    made = [origin for origin in found if origin.what != "code"]
    return made or ([first_code] if first_code else [])


def find_by_name(part: str, projects: Sequence[Project]) -> list[Provenance]:
    """Return artifacts, checkpoints and watched files with `part` in the name, the oldest first."""
    found = []
    for project in projects:
        for run in _views(project):
            found += [
                Provenance(run, "artifact", each.name)
                for each in run.artifacts
                if part in each.name
            ]
            found += [
                Provenance(run, "file", name) for name in files_left(run.folder) if part in name
            ]
            found += [
                Provenance(run, "checkpoint", f"{each.name}/{file.name}", each.step)
                for each in run.checkpoints
                if each.manifest is not None
                for file in each.manifest.files
                if part in f"{each.name}/{file.name}"
            ]
    return sorted(found, key=lambda origin: origin.run.file.created_ns)


def _digests(path: Path) -> dict[str, str]:
    """The digest of a file, or of each file of a checkpoint, with its name."""
    try:
        if path.is_dir():
            files = [
                each
                for each in sorted(path.iterdir())
                if each.is_file() and each.name != manifests.FILE_NAME
            ]
            if not files:
                raise InputError("There is no file in this folder.", where=str(path))
            return {_digest(each): each.name for each in files}
        return {_digest(path): path.name}
    except OSError as error:
        raise InputError(f"The file cannot be read: {error.strerror}.", where=str(path)) from error


def _digest(path: Path) -> str:
    with open(open_regular(path, follow=True), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _origins(digests: dict[str, str], project: Project) -> Iterator[Provenance]:
    trees: dict[str, dict[str, str]] = {}
    for run in _views(project):
        yield from _in_checkpoints(run, digests)
        yield from (
            Provenance(run, "artifact", each.name)
            for each in run.artifacts
            if each.digest in digests
        )
        watched = dict.fromkeys(
            each.path for each in file_changes(run.folder) if each.sha256 in digests
        )
        yield from (Provenance(run, "file", path) for path in watched)
        for snapshot in dict.fromkeys(attempt.code.snapshot for attempt in run.file.attempts):
            if snapshot and snapshot not in trees:
                trees[snapshot] = _tree(project, snapshot)
            yield from (
                Provenance(run, "code", name)
                for digest, name in trees.get(snapshot, {}).items()
                if digest in digests
            )


def _in_checkpoints(run: RunView, digests: dict[str, str]) -> Iterator[Provenance]:
    # Incomplete ones too: the file may have been moved away from there.
    for path in sorted(run.folder.checkpoints.glob(f"*/{manifests.FILE_NAME}")):
        try:
            text = read_bytes(path, manifests.MAX_BYTES).decode("utf-8", "replace")
            if not any(digest in text for digest in digests):
                continue  # most are like this, and need no closer look
            each = manifests.read(path.parent)
        except (OSError, AssayError):
            continue  # it is damaged, and no reason not to look at the others
        for file in each.files:
            if file.sha256 in digests:
                yield Provenance(run, "checkpoint", f"{each.name}/{file.name}", each.step)


def _tree(project: Project, snapshot: str) -> dict[str, str]:
    try:
        return {
            file.digest: name for name, file in read_tree(code_blobs(project), snapshot).items()
        }
    except (KeyError, AssayError):
        return {}


def _views(project: Project) -> Iterator[RunView]:
    for folder in run_folders(project):
        try:
            view = RunView(folder)
            if not view.error:
                yield view
        except AssayError:
            continue
