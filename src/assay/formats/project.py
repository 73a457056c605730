"""Project of a folder: the nearest folder with `.assay/` above it that the user may trust.

What lies among records is data, whoever put it there: no project, no settings, no modules.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from assay.core.errors import InputError
from assay.core.ids import id_of_folder
from assay.core.regular_file import read_bytes, read_start
from assay.formats.run_file import FILE_NAME as RUN_FILE

ASSAY_DIR = ".assay"
SETTINGS_NAME = "settings.toml"
RUNS_DIR_VARIABLE = "ASSAY_RUNS_DIR"
MAX_SETTINGS_BYTES = 1_000_000
FOLDER_MODES = {"private": 0o700, "group": 0o770}
"""The permissions of run folders and of kept code, by what the setting `permissions` says.

The settings themselves, which name commands and trusted packages, are as open as those.
"""

_SHARED_VARIABLE = "ASSAY_SHARED"
"""Names project folders, separated as in PATH, that are used although another user owns them."""

_told: set[Path] = set()


def project_root(start: Path) -> Path | None:
    """Return the nearest folder with `.assay/`, at `start` or above it.

    A project decides which packages configs may call and where runs are written. One that another
    user has put above `start` is skipped with a warning. Users are trusted with their own folders.
    InputError where ASSAY_RUNS_DIR has left no project, as a project in it would be a record.
    """
    start = start.absolute()
    skipped: dict[Path, str] = {}
    found = below_runs_dir = None
    for folder in (start, *start.parents):
        if not os.path.lexists(folder / ASSAY_DIR):
            continue
        why = why_not_ours(folder, start)
        if not why and (records := records_around(folder)) is not None:
            why = f"it lies among the records in {records}"
            if records in _spellings_of_runs_dir(None):
                why += f", the folder of runs by {RUNS_DIR_VARIABLE}"
                below_runs_dir = below_runs_dir or folder
        if not why:
            found = folder
            break
        if why != _NO_FOLDER:
            skipped[folder] = why
    if found is None and below_runs_dir is not None:
        raise InputError(
            f"{below_runs_dir} is not used as a project: {skipped[below_runs_dir]}.",
            where=f"{RUNS_DIR_VARIABLE}={os.environ[RUNS_DIR_VARIABLE]}",
            fix=f"Unset it, or let it name a folder for runs alone: {below_runs_dir / 'runs'}",
        )
    for folder, why in skipped.items():
        if folder not in _told:
            import logging  # only where one is skipped

            _told.add(folder)
            logging.getLogger("assay").warning("%s is not used as a project: %s.", folder, why)
    return found


def records_around(place: Path) -> Path | None:
    """Return the folder of records, or the record, that `place` is or lies in; None outside of all.

    That is the folder of one run, wherever it is; a folder `.assay`, where removed runs are; and
    the folder of runs of a project around it.
    """
    place = place.absolute()
    return _records_around(place) or _records_around(place.resolve())


def _records_around(place: Path) -> Path | None:
    runs_dirs = _spellings_of_runs_dir(None)
    # From the outermost on: a project below records is none, whatever it says of its own runs.
    for folder in reversed((place, *place.parents)):
        if folder.name == ASSAY_DIR or folder in runs_dirs or _is_record(folder):
            return folder
        has_project = folder != place and os.path.lexists(folder / ASSAY_DIR)
        if has_project and not why_not_ours(folder, place):
            runs_dirs = _spellings_of_runs_dir(folder)
    return None


def _spellings_of_runs_dir(root: Path | None) -> tuple[Path, ...]:
    """Return the folder of runs of the project `root`, or of the environment, by all its names."""
    if root is None and not os.environ.get(RUNS_DIR_VARIABLE):
        return ()
    runs_dir = runs_dir_of(root or Path())
    return Path(os.path.normpath(runs_dir)), runs_dir.resolve()


def _is_record(folder: Path) -> bool:
    """Return whether a folder is the record of a run, also of a damaged one."""
    path = folder / RUN_FILE
    if not os.path.lexists(path):
        return False
    if id_of_folder(folder.name):
        return True
    try:
        data = read_start(path, _MOST_BYTES, follow=True)
    except OSError:
        return False
    if len(data) == _MOST_BYTES:
        return True
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return b'"id"' in data
    return isinstance(facts, dict) and "kind" in facts


_MOST_BYTES = 1 << 20
"""Size of a `run.json` above which nobody looks whether it is one of ours."""


def runs_dir_of(root: Path) -> Path:
    """Return the folder of runs: ASSAY_RUNS_DIR, else `runs_dir` of the settings, else `runs/`."""
    given = os.environ.get(RUNS_DIR_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    return root / (os.path.expanduser(read_setting(root, "runs_dir")) or "runs")


def read_setting(root: Path, name: str) -> str:
    """Return a setting of a project that is text; "" without one.

    InputError for settings that are no TOML.
    """
    file = settings_file(root)
    try:
        text = read_bytes(file, MAX_SETTINGS_BYTES, follow=True).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    if not re.search(rf"""^[\s\["']*{name}\b""", text, re.MULTILINE):
        return ""
    import tomllib  # most settings hold nothing

    try:
        value = tomllib.loads(text).get(name, "")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"The settings are no TOML: {error}", where=str(file)) from error
    if not isinstance(value, str):
        raise InputError(f"`{name}` must be text in quotes.", where=str(file))
    return value


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
