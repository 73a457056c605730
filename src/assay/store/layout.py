"""Layout on disk: the project, its runs, and the names of the files in a run's folder."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from assay.core.directory import (
    Directory,
    LinkedFolderError,
    file_mode,
    make_directory,
    open_directory,
)
from assay.core.errors import AssayError, InputError, RecordError, did_you_mean
from assay.core.ids import folder_name, id_of_folder
from assay.core.regular_file import NotRegularFileError, kind_of_mode, read_bytes
from assay.formats import run_file
from assay.formats.json_codec import write_atomic
from assay.formats.lease import FILE_NAME as LEASE_NAME
from assay.formats.project import (
    ASSAY_DIR,
    FOLDER_MODES,
    RUNS_DIR_VARIABLE,
    project_root,
    read_setting,
    records_around,
    runs_dir_of,
    settings_file,
    why_not_ours,
)
from assay.formats.run_file import RunFile

_WATCHED = "files"  # folders that the user's own program fills
LINKS_TO_CHECKPOINTS = "checkpt"
"""Folder of a record in which an older system's `best` and `latest` lead to checkpoints."""

_GITIGNORE = (
    "# assay's own: everything here but the settings can be made again or belongs to this "
    "machine\n*\n"
)
_RUNS_GITIGNORE = (
    "# Records of runs: large, and made by assay. Delete this file to commit them.\n*\n"
)
_GITIGNORE += "!.gitignore\n!settings.toml\n"
_SHARED_FOLDERS = ("tables", "views")
_SETTINGS = (
    '# Settings of this project; commit this file.\n# runs_dir = "runs"\n# permissions = "group"\n'
)


_FILES_OF_RUN = frozenset(
    {
        *(run_file.FILE_NAME, "README.md", "config.toml", "defaults.json"),
        *("events.jsonl", "edits.jsonl", "files.jsonl"),
        *("log.txt", "output.txt", "heartbeat.bin", "stacks.txt"),
        *("cfg.toml", "canvas.html"),  # of older systems
    }
)
_FOLDERS_OF_RUN = frozenset(
    {
        *(
            "config",
            "metrics",
            "checkpoints",
            "artifacts",
            "figures",
            "trace",
            "ranks",
            "board",
            _WATCHED,
        ),
        *("backup", "report"),  # of older systems
    }
)
_PATCH_OF_RUN = re.compile(r"dirty(-[1-9][0-9]{0,8})?\.patch")
_MOST_LEVELS = 40
_MOST_IGNORED_BYTES = 1 << 20
_MOST_NAME = 1000
_MOST_PART = 255  # bytes, of all file systems in use


def why_not_of_record(name: str) -> str:
    """Return why a file of this relative name, with `/`, is no part of a record; "" if it may be.

    >>> why_not_of_record("checkpoints/step-000000009/model.safetensors")
    ''
    >>> [why_not_of_record(name) for name in (".assay/settings.toml", "model.py")]
    ['a part of it is hidden', 'a record has no such file']
    """
    head, *rest = name.split("/")
    if len(rest) >= _MOST_LEVELS or len(name) > _MOST_NAME:
        return "it is longer or deeper than any of a record"
    if not all((head, *rest)):
        return "it leads out of its folder"
    if any(part.startswith(".") for part in (head, *rest)):
        return "a part of it is hidden"
    if any(len(os.fsencode(part)) > _MOST_PART or "\\" in part for part in (head, *rest)):
        return "not every file system can have it"
    # A byte that is no text is one half of a pair; all else has to be shown as it is.
    if not all(each.isprintable() or "\udc80" <= each <= "\udcff" for each in name):
        return "it has characters that cannot be shown"
    if rest:
        return "" if head in _FOLDERS_OF_RUN else "a record has no such folder"
    is_known = head in _FILES_OF_RUN or _PATCH_OF_RUN.fullmatch(head) is not None
    return "" if is_known else "a record has no such file"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The names inside one run's folder. Nothing here says that a file exists."""

    path: Path

    @property
    def id(self) -> str:
        """The run's id: from the folder's name, or from `run.json` when the folder was renamed."""
        return id_of_folder(self.path.name) or run_file.read(self.path).id

    @property
    def run_json(self) -> Path:
        return self.path / run_file.FILE_NAME

    @property
    def readme(self) -> Path:
        return self.path / "README.md"

    @property
    def config_toml(self) -> Path:
        return self.path / "config.toml"

    @property
    def config_dir(self) -> Path:
        return self.path / "config"

    def config_of_attempt(self, number: int, newest: int) -> Path:
        """Return the saved config of an attempt; one after it may have moved it aside."""
        for later in range(number + 1, newest + 1):
            kept = self.config_dir / f"before-attempt-{later}" / "config.toml"
            if kept.is_file():
                return kept
        return self.config_toml

    def patch(self, attempt: int = 1) -> Path:
        """Return the file of uncommitted changes at the beginning of an attempt."""
        return self.path / ("dirty.patch" if attempt == 1 else f"dirty-{attempt}.patch")

    @property
    def files(self) -> Path:
        """Log of changes in watched folders."""
        return self.path / "files.jsonl"

    @property
    def metrics(self) -> Path:
        """Folder of the metrics (`formats.metrics_file`)."""
        return self.path / "metrics"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def edits(self) -> Path:
        return self.path / "edits.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def output(self) -> Path:
        return self.path / "output.txt"

    @property
    def ranks(self) -> Path:
        return self.path / "ranks"

    @property
    def lease(self) -> Path:
        return self.path / LEASE_NAME

    @property
    def heartbeat(self) -> Path:
        """Newest heartbeat of a run in one OS process, while it trains."""
        return self.path / "heartbeat.bin"

    @property
    def stacks(self) -> Path:
        """Stacks of all threads of such a run, written whenever somebody asks."""
        return self.path / "stacks.txt"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def trace(self) -> Path:
        return self.path / "trace"

    def trace_file(self, attempt: int, rank: int = 0) -> Path:
        """Fingerprints that one rank took in an attempt."""
        return self.trace / f"{attempt}-{rank}.bin"


@dataclass(frozen=True, slots=True)
class Project:
    """Folder with `.assay/`. `is_new` tells that it has just become one."""

    root: Path
    is_new: bool = False

    @property
    def assay_dir(self) -> Path:
        return self.root / ASSAY_DIR

    @property
    def settings(self) -> Path:
        return settings_file(self.root)

    @property
    def code_dir(self) -> Path:
        """The store of code snapshots."""
        return self.assay_dir / "code"

    @property
    def runs_dir(self) -> Path:
        """Folder of the runs (`runs_dir_of`)."""
        return runs_dir_of(self.root)

    @property
    def folder_mode(self) -> int:
        """Permissions of new runs and kept code: private, or also the group's. umask narrows them.

        What is written inside of a folder is as open as that is.
        """
        wanted = read_setting(self.root, "permissions") or "private"
        if wanted not in FOLDER_MODES:
            fix = did_you_mean(wanted, FOLDER_MODES) or f"it is {' or '.join(FOLDER_MODES)}"
            raise InputError(
                f"`permissions` cannot be {wanted!r}.", where=str(self.settings), fix=fix
            )
        return FOLDER_MODES[wanted]


def find_project(start: Path) -> Project | None:
    """Return the project around `start`: the nearest folder with `.assay/` at or above it."""
    root = project_root(start)
    return None if root is None else Project(root)


def open_project(start: Path, *, create: bool = False) -> Project:
    """The project that `start` lies in; when there is none, `start` itself.

    With `create` it then becomes one: `.assay/` with its own `.gitignore` and a file of settings.
    """
    found = find_project(start)
    if found is not None:
        return found
    return make_project(start) if create else Project(start.absolute())


def make_project(root: Path) -> Project:
    """Make `root` a project, even inside of another one; leave an existing one as it is."""
    project = Project(root.absolute(), is_new=True)
    why = ""
    if os.path.lexists(project.assay_dir):
        why = why_not_ours(project.root, project.root)
    if not why and (records := records_around(project.root)) is not None:
        why = f"it lies among the records in {records}"
    if why:
        raise InputError(f"This folder cannot become a project: {why}.", where=str(project.root))
    try:
        make_directory(project.assay_dir)
        _write_new(project.assay_dir / ".gitignore", _GITIGNORE)
        _write_new(project.settings, _SETTINGS, mode=file_mode(FOLDER_MODES["private"]))
    except OSError as error:
        fix = (
            "Make a folder above it a project (assay init), or make it writable; --no-file leaves "
            "no record."
        )
        raise refusal(
            error, project.assay_dir, "The project folder cannot be made", fix=fix
        ) from error
    return project


def shared_folder(project: Project, name: str) -> Path:
    """Return a folder of `.assay/` that is committed with the project; make it if missing.

    InputError or RecordError when it cannot be made.
    """
    assert name in _SHARED_FOLDERS
    folder = project.assay_dir / name
    ignore = project.assay_dir / ".gitignore"
    try:
        make_directory(folder)
        is_there = os.path.lexists(ignore)
        text = read_bytes(ignore, _MOST_IGNORED_BYTES).decode() if is_there else _GITIGNORE
        if f"!{name}/**" not in text:
            line_end = "" if text.endswith("\n") else "\n"
            ignore.write_text(f"{text}{line_end}!{name}/\n!{name}/**\n", encoding="utf-8")
    except OSError as error:
        raise refusal(error, folder, "The folder cannot be made") from error
    return folder


def create_run_folder(project: Project, *, run_id: str, tag: str, created: datetime) -> RunFolder:
    """Make a new, empty folder for a run. It never shares a folder with another run."""
    folder = project.runs_dir / folder_name(created, run_id, tag)
    try:
        _make_runs_dir(project)
        folder.mkdir(mode=project.folder_mode)
    except OSError as error:
        raise refusal(error, folder, "The folder of the run cannot be made") from error
    return RunFolder(folder)


def _make_runs_dir(project: Project) -> None:
    """Make the folder of runs; inside of a git repository it ignores itself."""
    folder = project.runs_dir
    make_directory(folder, project.folder_mode)
    if any(os.path.lexists(each / ".git") for each in folder.parents):
        _write_new(folder / ".gitignore", _RUNS_GITIGNORE)


def run_folders(project: Project) -> list[RunFolder]:
    """Return the folders of all runs, the oldest first; none where no folder is."""
    return [
        RunFolder(Path(entry.path))
        for entry in sorted(scan_runs(project.runs_dir), key=lambda each: each.name)
    ]


def refuse_links(folder: RunFolder) -> None:
    """Raise InputError when a part of a record is a link, which writes would follow."""
    linked = _first_link(folder)
    if linked:
        raise InputError(
            f"`{linked}` of this run is a link: what the run writes would land where it leads.",
            where=str(folder.path),
            fix="Put what it leads to in its place, or remove the link.",
        )


def _first_link(folder: RunFolder) -> str:
    """Return the name of a link in a run's folder, outside of watched folders; "" for none."""
    try:
        with open_directory(folder.path) as opened:
            for entry in sorted(opened.entries(), key=lambda entry: entry.name):
                if entry.is_symlink():
                    return entry.name
                if entry.is_dir(follow_symlinks=False) and entry.name != _WATCHED:
                    with opened.folder(entry.name) as inner:
                        for each in inner.entries():
                            if each.is_symlink() and not _is_own_link(inner, each.name):
                                return f"{entry.name}/{each.name}"
    except OSError as error:
        raise refusal(error, folder.path, "The run cannot be written to") from error
    return ""


def _is_own_link(folder: Directory, name: str) -> bool:
    """Return whether a link of `checkpt/` leads to a checkpoint of the same record."""
    if folder.path.name != LINKS_TO_CHECKPOINTS:
        return False
    above, _, checkpoint = folder.read_link(name).rpartition("/")
    return above == "../checkpoints" and checkpoint not in ("", ".", "..")


def run_in(folder: RunFolder) -> tuple[RunFile | None, str]:
    """Read what a run is, or say why that cannot be done."""
    if why := no_folder(folder):
        return None, why
    try:
        return run_file.read(folder.path), ""
    except FileNotFoundError:
        return None, run_file.MISSING
    except RecordError as error:
        return None, error.what


def no_folder(folder: RunFolder) -> str:
    """Return why there is no run folder in this place, "" when there is one."""
    try:
        kind = kind_of_mode(os.lstat(folder.path).st_mode)
    except OSError as error:
        return f"its folder cannot be read: {error.strerror}"
    return "" if kind == "a folder" else f"it is {kind or 'a file'}, not a folder"


def scan_runs(runs_dir: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the directory entries of run folders, or of links in their place, unordered."""
    try:
        with os.scandir(runs_dir) as entries:
            for entry in entries:
                if id_of_folder(entry.name) is not None and not entry.is_file(
                    follow_symlinks=False
                ):
                    yield entry
    except FileNotFoundError:
        return
    except OSError as error:
        raise refusal(error, runs_dir, "The folder of the runs cannot be read") from error


def refusal(error: OSError, path: Path, what: str, *, fix: str = "") -> AssayError:
    """Return an error that explains an OSError in one sentence; `fix` replaces the usual advice."""
    if isinstance(error, LinkedFolderError | NotRegularFileError):
        return InputError(f"{what}: {error.strerror}.", where=str(error.filename or path), fix=fix)
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return InputError(f"{what}: no permission.", where=str(path), fix=fix or _ELSEWHERE)
        case errno.EROFS:
            return InputError(
                f"{what}: the disk is read-only.", where=str(path), fix=fix or _ELSEWHERE
            )
        case errno.ENOSPC | errno.EDQUOT:
            return RecordError(
                f"{what}: the disk is full.",
                where=str(path),
                fix="Free some space, then run it again.",
            )
        case errno.EEXIST | errno.ENOTDIR:
            return InputError(f"{what}: something else is in its place.", where=str(path), fix=fix)
        case _:
            return RecordError(f"{what}: {error.strerror or error}.", where=str(path), fix=fix)


_ELSEWHERE = f"Let runs go elsewhere: set {RUNS_DIR_VARIABLE}, or make the folder writable."


def _write_new(path: Path, text: str, *, mode: int | None = None) -> None:
    if not path.exists():
        write_atomic(path, text.encode("utf-8"), durable=False, mode=mode)
