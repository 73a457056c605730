"""Names that come from a file of somebody else, as places inside of one folder and nowhere else."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from assay.core.errors import InputError


def safe_path(folder: Path, name: str) -> Path:
    """Return `folder/name` for a relative name with `/`; InputError when it would leave it.

    >>> safe_path(Path("runs"), "a/b.txt").as_posix()
    'runs/a/b.txt'
    """
    path = PurePosixPath(name)
    parts = name.split("/")
    is_bad = not name or path.is_absolute() or any(part in ("", ".", "..") for part in parts)
    if is_bad or "\\" in name or "\0" in name or ":" in parts[0]:
        raise InputError(f"A name in it leads out of its folder: {name!r}.", where=str(folder))
    return folder.joinpath(*parts)
