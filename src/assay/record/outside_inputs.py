"""Inputs of a run that its record does not hold: variables, files, edited libraries.

Files are those that the process opens, by an audit hook, and those that the config names. Native
readers and the workers of a loader open files unseen. Variables are those that the modules of the
user name by a text.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from assay.record.environment import VARIABLES
from assay.record.recorder import RunRecorder
from assay.record.snapshot import is_secret_file
from assay.store.layout import Project

_TEXT = re.compile(r"""["']([^"'\n\\]{1,200})["']""")
_READS_VARIABLES = ("environ", "getenv")
_OF_THE_SHELL = ("PATH", "HOME", "PWD", "OLDPWD", "TMPDIR", "SHLVL", "_", "USER", "TERM")
_STEERING = ("PYTHON", "ASSAY", "LD_", "DYLD_")
"""Prefixes of variables that say how the process is started, which a replay does otherwise."""

_MAX_HASHED_BYTES = 64 << 20
_MAX_FILES = 256
_MAX_IN_FOLDER = 64
_MAX_OPENED = 10_000
"""Paths that are kept until somebody looks: a data set may have a file for each sample."""

_INSTALLED_NS = 60 * 10**9
"""Time within which an installer may write a file after the list of those that it installs."""

_PACKAGES = f"{os.sep}site-packages{os.sep}"
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sys", "/usr", "/var")

Inputs = dict[str, dict[str, str]]

_opened: dict[str, None] | None = None
_is_hooked = False


@contextmanager
def noting_opened_files() -> Iterator[None]:
    """Inside, note the files that this process opens for reading, for `look_for_inputs`."""
    global _opened, _is_hooked
    if not _is_hooked:  # it cannot be taken away again, and outside of here does nothing
        _is_hooked = True
        sys.addaudithook(_note_open)
    before, _opened = _opened, {}
    try:
        yield
    finally:
        _opened = before


def _note_open(event: str, arguments: tuple[Any, ...]) -> None:
    """Note a file; called for all audited events of all threads, so it is quick and never fails."""
    if event != "open" or _opened is None or len(_opened) >= _MAX_OPENED:
        return
    path, _, flags = arguments
    is_read = type(path) is str and not flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    if not is_read or path.endswith((".py", ".pyc")):
        return
    # What the house itself opens, as code that it keeps, is recorded in another way.
    if not sys._getframe(1).f_code.co_filename.startswith(_OURS):
        _opened[path] = None


def look_for_inputs(recorder: RunRecorder, folders: Sequence[Path], values: object) -> None:
    """Let the recorder's thread look once for what a run has read, and again at the end.

    `folders` are those of the user's modules, `values` those of the config.
    """
    project = Project(Path(recorder.run.project))
    inputs = OutsideInputs(
        project.root,
        folders,
        texts_of(values),
        {} if _opened is None else _opened,
        written=project.runs_dir,
        since_ns=recorder.run.newest.started_ns,
    )
    has_looked: list[bool] = []

    def look_once() -> None:
        if not has_looked:
            has_looked.append(True)
            look()

    def look() -> None:
        recorder.set_inputs(inputs.find())

    recorder.each_second(look_once, at_end=look)


class OutsideInputs:
    """Finder of the inputs of a run; a file that the run writes itself is none.

    `root` is the project, by which files in it are named; `folders` are those of the user's
    modules, `texts` the values of the config, `opened` the files that the process has opened,
    `written` a folder that the run writes.
    """

    def __init__(
        self,
        root: Path,
        folders: Sequence[Path],
        texts: Iterable[str],
        opened: Mapping[str, object],
        *,
        written: Path,
        since_ns: int,
    ) -> None:
        self._root = os.path.abspath(root)
        self._folders = tuple(dict.fromkeys([self._root, *map(os.path.abspath, folders)]))
        self._texts = sorted({*texts} - {"", "."})
        self._opened = opened
        self._written = os.path.abspath(written)
        self._since_ns = since_ns
        self._left_bytes = _MAX_HASHED_BYTES
        self._digests: dict[str, str] = {}
        self._libraries: dict[str, str] = {}
        self._seen: set[str] = set()
        self._own: list[str] = []
        self._installed_ns: dict[str, int] = {}

    def find(self) -> Inputs:
        """Return variables, files and edited library files by name; call it again for new ones.

        `edited_ns` is when a library file was edited, in ns since 1970.
        """
        for path in self._new_libraries():
            if len(self._libraries) < _MAX_FILES:
                self._libraries[path] = self._digest(path)
        for path in self._files():
            if path not in self._digests and len(self._digests) < _MAX_FILES:
                self._digests[path] = self._digest(path)
        files = {path: text for path, text in self._digests.items() if not self._is_written(path)}
        return {
            "variables": _variables([text for path in self._own if (text := _read(path))]),
            "files": {self._name(path): text for path, text in sorted(files.items())},
            "libraries": {_library_name(path): text for path, text in self._libraries.items()},
            "edited_ns": {_library_name(path): _edited_ns(path) for path in self._libraries},
        }

    def _new_libraries(self) -> list[str]:
        """Return files of libraries other than as installed, of modules that were loaded since."""
        bases = sorted(map(os.path.abspath, sys.path), key=len, reverse=True)
        standard = sysconfig.get_path("stdlib")
        skipped = (_OURS, standard + os.sep, os.path.realpath(standard) + os.sep)
        found: list[str] = []
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            is_command = name == "__main__"  # the one of `assay` itself
            if is_command or not isinstance(path, str) or path in self._seen:
                continue
            self._seen.add(path)
            path = os.path.abspath(path)
            if _PACKAGES not in path and self._is_inside(path):
                self._own.append(path)
            elif _PACKAGES in path or not path.startswith(skipped):
                base = next((each for each in bases if path.startswith(each + os.sep)), "")
                if base not in self._installed_ns:
                    self._installed_ns[base] = _newest_installation(base) + _INSTALLED_NS
                with suppress(OSError):
                    if os.stat(path).st_mtime_ns > self._installed_ns[base]:
                        found.append(path)
        return found

    def _files(self) -> Iterator[str]:
        """Yield the files that the config names, or that lie in a folder of it, and the opened."""
        for text in self._texts:
            for base in (os.getcwd(), self._root):
                # No link is followed: a replay has links in the place of the data.
                path = os.path.abspath(os.path.join(base, os.path.expanduser(text)))
                holds_project = (self._root + os.sep).startswith(path + os.sep)
                is_folder = not holds_project and os.path.isdir(path)
                found = _files_in(path) if is_folder else [path]
                yield from filter(self._is_input, found)
        for path in map(os.path.abspath, list(self._opened)):
            if self._is_inside(path) or _is_of_user(path):
                yield from filter(self._is_input, [path])

    def _is_input(self, path: str) -> bool:
        name = os.path.basename(path)
        is_code = name.endswith((".py", ".pyc")) or _PACKAGES in path
        is_kept = is_code or path.startswith(self._written + os.sep) or is_secret_file(name)
        return not is_kept and os.path.isfile(path)

    def _is_inside(self, path: str) -> bool:
        return any(path.startswith(folder + os.sep) for folder in self._folders)

    def _is_written(self, path: str) -> bool:
        """Return True for a file that was changed since the run began: it may be its output."""
        try:
            return os.stat(path).st_mtime_ns >= self._since_ns
        except OSError:
            return True

    def _digest(self, path: str) -> str:
        """Return the size of a file and a digest of it; its time where it is too large to read."""
        try:
            status = os.stat(path)
            size = f"{status.st_size:,} bytes"
            if status.st_size > self._left_bytes:
                return f"{size}, of {status.st_mtime_ns}"
            self._left_bytes -= status.st_size
            with open(path, "rb") as file:
                return f"{size}, {blake2b(file.read(), digest_size=8).hexdigest()}"
        except OSError as error:
            return error.strerror or "cannot be read"

    def _name(self, path: str) -> str:
        base = next((each for each in self._folders if path.startswith(each + os.sep)), "")
        return os.path.relpath(path, base).replace(os.sep, "/") if base else path


def _is_of_user(path: str) -> bool:
    """Return whether a file lies in no folder of the system, of libraries, of caches."""
    places = (*_SYSTEM, sys.prefix, sys.base_prefix, tempfile.gettempdir())
    is_hidden = f"{os.sep}." in path
    return not is_hidden and not any(path.startswith(place + os.sep) for place in places)


def texts_of(values: object) -> Iterator[str]:
    """Yield the texts in plain data.

    >>> list(texts_of({"a": ["x", 1], "b": "y"}))
    ['x', 'y']
    """
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for each in values.values():
            yield from texts_of(each)
    elif isinstance(values, list | tuple):
        for each in values:
            yield from texts_of(each)


def _variables(sources: Sequence[str]) -> dict[str, str]:
    """Return the variables of the environment that code names which reads some."""
    names = {
        text
        for source in sources
        if any(word in source for word in _READS_VARIABLES)
        for text in _TEXT.findall(source)
    }
    names.difference_update(VARIABLES, _OF_THE_SHELL)
    return {
        name: os.environ[name]
        for name in sorted(names)
        if name in os.environ and not name.startswith(_STEERING)
    }


def _newest_installation(folder: str) -> int:
    """Return when the newest package of a folder was installed; what is newer was edited."""
    newest = -_INSTALLED_NS
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.endswith(".dist-info"):
                with suppress(OSError):
                    newest = max(newest, os.stat(f"{entry.path}{os.sep}RECORD").st_mtime_ns)
    return newest


def _library_name(path: str) -> str:
    """Return the path of a library's file from the folder that is searched for modules."""
    bases = [each for each in map(os.path.abspath, sys.path) if path.startswith(each + os.sep)]
    return os.path.relpath(path, max(bases, key=len)).replace(os.sep, "/") if bases else path


def _edited_ns(path: str) -> str:
    try:
        return str(os.stat(path).st_mtime_ns)
    except OSError:
        return ""


def _files_in(folder: str) -> list[str]:
    """Return the first files in a folder, in the order of their names."""
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        found += [os.path.join(place, name) for name in sorted(names)]
        if len(found) >= _MAX_IN_FOLDER:
            break
    return found[:_MAX_IN_FOLDER]


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return None
