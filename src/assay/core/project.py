"""Project of a folder: the nearest folder with `.assay/` above it that the user may trust."""

from __future__ import annotations

import os
import stat
from pathlib import Path

ASSAY_DIR = ".assay"
SETTINGS_NAME = "settings.toml"
FOLDER_MODES = {"private": 0o700, "group": 0o770}
"""The permissions of run folders and of kept code, by what the setting `permissions` says."""

_SHARED_VARIABLE = "ASSAY_SHARED"
"""Names project folders, separated as in PATH, that are used although another user owns them."""

_told: set[Path] = set()


def project_root(start: Path) -> Path | None:
    """Return the nearest folder with `.assay/`, at `start` or above it.

    A project decides which packages configs may call and where runs are written. One that another
    user has put above `start` is skipped with a warning. Users are trusted with their own folders.
    """
    start = start.absolute()
    for folder in (start, *start.parents):
        if not os.path.lexists(folder / ASSAY_DIR):
            continue
        why = why_not_ours(folder, start)
        if not why:
            return folder
        if why != _NO_FOLDER and folder not in _told:
            import logging  # only for a project of another user

            _told.add(folder)
            logging.getLogger("assay").warning("%s is not used as a project: %s.", folder, why)
    return None


def settings_file(root: Path) -> Path:
    """Return where the settings of the project `root` are; people commit this file."""
    return root / ASSAY_DIR / SETTINGS_NAME


_NO_FOLDER = "there is no folder .assay"


def why_not_ours(root: Path, start: Path) -> str:
    """Return why a user who works in `start` may not use the project `root`, "" if they may.

    The project must belong to them, to root, or to the owner of `start`, or be declared as shared.
    """
    place = root / ASSAY_DIR
    try:
        status = os.lstat(place)
    except OSError:
        return _NO_FOLDER
    if stat.S_ISLNK(status.st_mode):
        return f"{place} is a link"
    if not stat.S_ISDIR(status.st_mode):
        return _NO_FOLDER
    if not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0, _owner(start)):
        return ""
    if str(root) in os.environ.get(_SHARED_VARIABLE, "").split(os.pathsep):
        return ""
    return (
        f"{place} belongs to {_name(status.st_uid)}. Set {_SHARED_VARIABLE}={root} if you share it"
    )


def _owner(start: Path) -> int | None:
    """Return the user that owns the nearest existing folder."""
    for folder in (start, *start.parents):
        try:
            return os.stat(folder).st_uid
        except OSError:
            continue
    return None


def _name(user: int) -> str:
    try:
        import pwd  # Windows has none

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return f"user {user}"
