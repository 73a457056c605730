"""Config of a run in its folder: `config.toml` resolved, and `config/` with the files as given."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from assay.core.directory import make_directory
from assay.core.regular_file import read_bytes
from assay.core.secrets.replacement import Secrets
from assay.formats.json_codec import write_atomic
from assay.record.redaction import content_kind
from assay.store.layout import RunFolder

MAX_BYTES = 64 << 20
_MAX_NAME_BYTES = 200


def write_config(
    folder: RunFolder,
    text: str,
    files: Mapping[str, str],
    *,
    attempt: int,
    secrets: Secrets | None = None,
) -> None:
    """Write `config.toml` of an attempt and its given files; those of earlier attempts stay.

    `text` comes without secrets, but for those that became known since; they are replaced here, as
    those in the files are.
    """
    secrets = secrets or Secrets()
    config = secrets.without_known(text.encode("utf-8", "surrogateescape"), numbers=False)
    if attempt > 1 and _differs(folder, config):
        kept = folder.config_dir / f"before-attempt-{attempt}"
        make_directory(kept)
        write_atomic(kept / "config.toml", read_bytes(folder.config_toml, MAX_BYTES), durable=False)
    write_atomic(folder.config_toml, config, durable=False)
    names = _kept_names(files)
    for name, content in files.items():
        path = folder.config_dir / names[name]
        data = secrets.clean(content, content_kind(name)).encode("utf-8", "surrogateescape")
        if path.exists() and read_bytes(path, MAX_BYTES) != data:
            path = folder.config_dir / f"attempt-{attempt}" / names[name]
        make_directory(path.parent)
        write_atomic(path, data, durable=False)


def _differs(folder: RunFolder, config: bytes) -> bool:
    before = folder.config_toml
    return before.exists() and read_bytes(before, MAX_BYTES) != config


def _kept_names(given: Iterable[str]) -> dict[str, PurePosixPath]:
    """Return the kept path of each file, below parent folders where two names are equal."""
    names = {name: _file_name(name) for name in given}
    counts = Counter(last.casefold() for last in names.values())
    kept = {name: PurePosixPath(last) for name, last in names.items()}
    alike = {
        name: Path(os.path.abspath(name))
        for name, last in names.items()
        if counts[last.casefold()] > 1
    }
    if alike:
        shared = len(Path(os.path.commonpath([path.parent for path in alike.values()])).parts)
        for name, path in alike.items():
            kept[name] = PurePosixPath(*map(_file_name, path.parent.parts[shared:]), names[name])
    return kept


def _file_name(name: str) -> str:
    """A name that stays inside of the folder it is put into, whatever the path was."""
    last = name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    if (
        last in ("", ".", "..")
        or not last.isprintable()
        or len(last.encode("utf-8", "replace")) > _MAX_NAME_BYTES
    ):
        import hashlib  # few names need it

        return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16] + ".toml"
    return last
