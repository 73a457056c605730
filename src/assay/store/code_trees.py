"""Code as it was: a tree is a blob that names the blobs of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.core.errors import RecordError
from assay.core.json_codec import dumps, from_plain, parse_json
from assay.core.ports import Blobs
from assay.store.blobs import FileBlobs
from assay.store.layout import Project

FORMAT = 1
MAX_FILES = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """One file of a tree. `mode` is 0o644 or 0o755; a link is kept as the file that it led to."""

    digest: str
    mode: int = 0o644
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Files by path with `/`: relative to the project, or absolute when they lie outside of it."""

    format: int = FORMAT
    files: Mapping[str, CodeFile]


def code_blobs(project: Project) -> FileBlobs:
    """The store of a project's code, which is as private as its runs."""
    return FileBlobs(project.code_dir, mode=project.folder_mode)


def put_tree(blobs: Blobs, files: Mapping[str, CodeFile]) -> str:
    """Keep a tree and return its digest; the same files give the same digest."""
    tree = Tree(files=dict(sorted(files.items())))
    return blobs.put(dumps(tree).encode("utf-8", "surrogateescape"))


def read_tree(blobs: Blobs, digest: str) -> dict[str, CodeFile]:
    """Return the files of a tree; KeyError where it is missing, as after copying a folder."""
    try:
        data = parse_json(blobs.get(digest).decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise RecordError(f"The code snapshot {digest[:12]} is no tree.") from error
    tree = from_plain(Tree, data)
    if tree.format > FORMAT:
        raise RecordError(
            f"The code snapshot {digest[:12]} has format {tree.format}; this assay knows {FORMAT}.",
            fix="Read it with the assay that wrote it, or a newer one.",
        )
    if len(tree.files) > MAX_FILES:
        what = (
            f"The code snapshot {digest[:12]} names {len(tree.files)} files; at most {MAX_FILES} "
            "are read."
        )
        raise RecordError(what)
    return dict(tree.files)


def read_file(blobs: Blobs, digest: str, path: str) -> bytes:
    """One file out of a tree. KeyError when it is not in it, or not here."""
    return blobs.get(read_tree(blobs, digest)[path].digest)
