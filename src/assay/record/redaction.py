"""Secrets taken out of files, of a whole record, and of its code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import AssayError
from assay.core.regular_file import read_bytes
from assay.formats import metrics_file, run_file
from assay.formats.json_codec import write_atomic
from assay.formats.metrics_file import NAMES_FILE
from assay.formats.run_file import digest_of_config
from assay.store import authorship
from assay.store.code_trees import code_blobs, put_tree, read_tree
from assay.store.layout import Project
from assay.store.referenced_blobs import find_unshared

if TYPE_CHECKING:
    from assay.core.ports import Blobs
    from assay.core.secrets.places import Kind
    from assay.core.secrets.replacement import Secrets
    from assay.formats.run_file import Code, RunFile
    from assay.store.layout import RunFolder

# fmt: off
_OF_VALUES = frozenset({
    ".bash", ".cfg", ".cmake", ".conf", ".env", ".gradle", ".ini", ".json", ".json5", ".jsonl",
    ".mk", ".properties", ".ps1", ".sh", ".sql", ".tf", ".toml", ".xml", ".yaml", ".yml", ".zsh",
})
_OF_WORDS = frozenset({"", ".bib", ".html", ".md", ".rst", ".tex", ".txt"})
# fmt: on


def content_kind(name: str) -> Kind:
    """Return how the file of this name writes values.

    >>> content_kind("conf/db.yaml"), content_kind("README.md"), content_kind("train.py")
    ('data', 'text', 'code')
    """
    suffix = os.path.splitext(name)[1].lower()
    return "data" if suffix in _OF_VALUES else "text" if suffix in _OF_WORDS else "code"


def clean_run(folder: RunFolder, run: RunFile, secrets: Secrets) -> RunFile:
    """Replace secrets that became known later in all that is written of a run; return the run.

    What of it was made here is signed anew.
    """
    own = authorship.own_attempts(folder, run)
    blobs = code_blobs(Project(Path(run.project)))
    is_config_whole = digest_of_config(folder.config_toml) == run.newest.config_digest
    attempts = run.attempts
    if run.project:  # of a run without one no code is kept
        attempts = tuple(
            replace(each, code=clean_code(each.code, blobs, secrets)) for each in attempts
        )
    run_file.write(folder.path, replace(run, attempts=attempts))
    clean_record(folder, secrets)
    clean = run_file.read(folder.path)
    if is_config_whole:
        newest = replace(clean.newest, config_digest=digest_of_config(folder.config_toml))
        clean = replace(clean, attempts=(*clean.attempts[:-1], newest))
    if clean.newest.number in own:  # what chooses its code was changed by us
        clean = authorship.sign(folder, clean, own)
    run_file.write(folder.path, clean)
    for old, new in zip(run.attempts, clean.attempts, strict=True):
        if old.code.snapshot != new.code.snapshot:
            blobs.discard(find_unshared(old.code.snapshot, folder, blobs))
    return clean


def clean_record(folder: RunFolder, secrets: Secrets) -> None:
    """Replace known secrets in all texts of a record; what users keep in it stays as it is."""
    for path in _texts(folder):
        clean_file(path, secrets)
    with contextlib.suppress(FileNotFoundError):
        clean_metric_names(folder.metrics, secrets)


def clean_metric_names(folder: Path, secrets: Secrets) -> None:
    """Replace known secrets in the names of metrics; names stay different."""
    path = folder / NAMES_FILE
    lines = []
    for value in metrics_file.objects_of(read_bytes(path, metrics_file.MAX_NAMES_BYTES)):
        if "set" in value:
            value["names"] = list(secrets.names(value["names"]))
        lines.append(metrics_file.line_of(value))
    write_atomic(path, b"".join(lines))


def clean_code(code: Code, blobs: Blobs, secrets: Secrets) -> Code:
    """Return a snapshot without known secrets; it is the same one if it has none."""
    try:
        files = read_tree(blobs, code.snapshot) if code.snapshot else {}
        clean = dict(files)
        for name, file in files.items():
            data = blobs.get(file.digest)
            without = secrets.without_known(data)
            if without != data:
                clean[name] = replace(file, digest=blobs.put(without))
        return code if clean == files else replace(code, snapshot=put_tree(blobs, clean))
    except (OSError, KeyError, AssayError):  # what is not here any more leaks nothing
        return code


def clean_file(path: Path, secrets: Secrets) -> None:
    """Replace known secrets in a file of lines of any size; leave a file without one alone."""
    numbers = content_kind(path.name) != "data"
    try:
        with path.open("rb") as file:
            if all(secrets.without_known(line, numbers=numbers) == line for line in file):
                return
    except FileNotFoundError:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with path.open("rb") as file, temporary.open("wb") as out:
        for line in file:
            out.write(secrets.without_known(line, numbers=numbers))
    os.replace(temporary, path)


def _texts(folder: RunFolder) -> Iterator[Path]:
    names = (folder.path, folder.config_dir, folder.ranks)
    for place in names:
        for path in place.iterdir() if place == folder.path else place.rglob("*"):
            is_text = path.suffix in _OF_VALUES | _OF_WORDS | {".patch"}
            if (
                is_text
                and not path.name.startswith(".")
                and path.is_file()
                and not path.is_symlink()
            ):
                yield path
