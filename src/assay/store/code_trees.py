"""Code of a run: the tree of its files in the store, and writing them into a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import InputError, RecordError
from assay.core.formatting import size
from assay.core.ports import Blobs
from assay.formats.json_codec import dataclass_from, dumps, parse_json
from assay.formats.project import ASSAY_DIR
from assay.store.blobs import FileBlobs
from assay.store.layout import Project, refusal
from assay.store.safe_path import safe_path

FORMAT = 1
MAX_FILES = 200_000
PACK_SUFFIX = ".tar.gz"
"""End of the name of a packed run."""


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
    tree = dataclass_from(Tree, data)
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


MAX_BYTES = 8 << 30
OUTSIDE = "outside"
"""The folder for code that lay outside of the project."""

_NEVER_LINKED = frozenset({".assay", ".git", "__pycache__"})
_ELSEWHERE = "Name another folder with --to."


def place_of(name: str, to: Path) -> Path:
    """Return the path for a file of a code tree; files outside of the project go to `outside/`."""
    return (
        safe_path(to / OUTSIDE, name.lstrip("/")) if name.startswith("/") else safe_path(to, name)
    )


def path_in_copy(path: Path, root: Path, to: Path) -> Path:
    """Return the place below `to` of a path in the project `root`, or outside of it."""
    for home in (root, root.resolve()):
        if path.is_relative_to(home):
            return to / path.relative_to(home)
    return place_of(path.as_posix(), to)


def write_tree(files: Mapping[str, CodeFile], blobs: Blobs, to: Path) -> list[Path]:
    """Write all files of a tree below `to`; RecordError when one is missing or too large."""
    written: list[Path] = []
    total = 0
    for name, file in files.items():
        path = place_of(name, to)
        try:
            data = blobs.get(file.digest)
        except KeyError:
            raise RecordError(
                f"The file {name} of this run's code is not here.", where=file.digest
            ) from None
        total += len(data)
        if total > MAX_BYTES:
            raise RecordError(
                f"The code of this run is larger than {size(MAX_BYTES)}: it is not written."
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if file.mode & 0o100 else 0o644)
        except OSError as error:
            raise refusal(error, path, "The file cannot be restored", fix=_ELSEWHERE) from error
        written.append(path)
    return written


def holds_records_alone(root: Path) -> bool:
    """Return whether a project has nothing but its records, and packs of runs, in its folder."""
    own = {ASSAY_DIR, Project(root).runs_dir.name}
    names = {path.name for path in root.iterdir()} - own
    return not any(not name.endswith(PACK_SUFFIX) for name in names)


def write_beside_records(files: Mapping[str, CodeFile], blobs: Blobs, root: Path) -> list[Path]:
    """Write a tree into the folder of a project that holds records alone, past its records."""
    own = (f"{ASSAY_DIR}/", f"{Project(root).runs_dir.name}/")
    return write_tree({n: f for n, f in files.items() if not n.startswith(own)}, blobs, root)


def link_rest(source: Path, to: Path, *, skipped: Path) -> None:
    """Link everything below `source` that was not kept with the code: data, above all."""
    for path in _entries(source):
        place = to / path.name
        if path.name in _NEVER_LINKED or path == skipped:
            continue
        is_above = skipped.is_relative_to(path)
        if path.is_dir() and not path.is_symlink() and (place.is_dir() or is_above):
            place.mkdir(exist_ok=True)
            link_rest(path, place, skipped=skipped)
        # A module that is not in the snapshot is none of that code.
        elif path.suffix != ".py" and not os.path.lexists(place):
            place.symlink_to(path)


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return


def make_room(folder: Path, *, force: bool) -> Path | None:
    """Make `folder` exist and be empty; `force` moves old content aside and returns where."""
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            folder.mkdir(parents=True, exist_ok=True)
            return None
        if not force:
            raise InputError(
                "There is something in this folder.",
                where=str(folder),
                fix="--to another one, or --force moves it away",
            )
        numbers = (folder.with_name(f"{folder.name}.old-{i}") for i in range(1, 10_000))
        aside = next(path for path in numbers if not os.path.lexists(path))
        os.rename(folder, aside)
        folder.mkdir(parents=True)
    except OSError as error:
        raise refusal(error, folder, "The folder cannot be made", fix=_ELSEWHERE) from error
    return aside
