"""Record of what a config in Python reads from outside: variables, and the words of the command."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ARGV = "argv"

_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_ACCESSORS = ("<frozen os>", "<frozen _collections_abc>", "<frozen posixpath>", os.__file__)
"""Code of Python through which others read a variable: `os.getenv`, `get`, `expanduser`."""

_READERS = ("__getitem__", "__iter__", "__len__", "__contains__", "__eq__", "__add__", "__repr__")
_READERS_OF_LISTS = ("__reversed__", "copy", "count", "index", "pop")


@contextmanager
def reads_from_outside(is_own: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """While open, fill the mapping with each variable (`env:X`) and `argv` that own code reads.

    `is_own` says whether a file has code of the config. What a package reads because such code
    calls it counts too. What Python's own library reads for itself (the width of the terminal), or
    a package while it is imported, or assay, does not. A variable that is not set is None.
    """
    found: dict[str, Any] = {}
    thread = threading.get_ident()
    variables = dict(os.environ)
    words = list(sys.argv)
    is_open = True

    def is_here() -> bool:
        return is_open and threading.get_ident() == thread

    def tell_variable(name: object) -> None:
        if isinstance(name, str) and f"env:{name}" not in found and is_here():
            callers = _files_of(sys._getframe(2))
            reader = next((file for file in callers if not file.startswith(_ACCESSORS)), "")
            if not _is_of_python(reader) and _is_for(is_own, [reader, *callers]):
                found[f"env:{name}"] = variables.get(name)

    def tell_words(*_: object) -> None:
        if ARGV not in found and is_here() and _is_for(is_own, _files_of(sys._getframe(2))):
            found[ARGV] = words

    # `os.environ` is imported by name, so it stays the same object; all its reading methods use
    # this one.
    before: Any = type(os.environ)
    environment: Any = os.environ
    environment.__class__ = _telling(before, ("__getitem__",), tell_variable)
    told_words: Any = _telling(list, (*_READERS, *_READERS_OF_LISTS), tell_words)(words)
    argv, sys.argv = sys.argv, told_words
    try:
        yield found
    finally:
        is_open = False
        environment.__class__ = before
        if sys.argv is told_words:
            sys.argv = argv
            argv[:] = list.__iter__(told_words)


def _telling(base: type, names: tuple[str, ...], tell: Callable[..., None]) -> type:
    """Return a class like `base` whose methods of these names call `tell` first."""

    def method(name: str) -> Callable[..., Any]:
        plain: Callable[..., Any] = getattr(base, name)

        def tells(self: Any, *args: Any) -> Any:
            tell(*args)
            return plain(self, *args)

        return tells

    return type(base.__name__, (base,), {"__hash__": None, **{n: method(n) for n in names}})


def _files_of(frame: FrameType | None) -> Iterator[str]:
    """Yield the files of the code that runs, the innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _is_of_python(file: str) -> bool:
    is_in_package = "site-packages" in file or "dist-packages" in file
    return file.startswith(("<frozen", _PYTHON)) and not is_in_package


def _is_for(is_own: Callable[[str], bool], files: Iterable[str]) -> bool:
    """Return whether the config's code is on the stack before an import, or code of assay."""
    for file in files:
        if file.startswith(("<frozen importlib", _OURS)):
            return False
        if is_own(file):
            return True
    return False
