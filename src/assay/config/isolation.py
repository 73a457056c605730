"""Isolation of user code: imported for one run, and removed from the OS process at its end."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.config.user_modules import UserModules
from assay.core.code_places import add_user_code, lies_under
from assay.core.errors import InputError

# Imported a second time, these would break the process: their C parts can be loaded once only.
_NEVER_AGAIN = frozenset({"__main__", "assay", "numpy", "torch"})


def roots_of(user_dirs: Sequence[Path]) -> tuple[str, ...]:
    """Return folders in the form of `lies_under`: absolute, as given and with links resolved."""
    opening = _find_opening(user_dirs)
    if opening is not None:
        return opening.roots
    given = [os.path.abspath(folder) for folder in user_dirs]
    return tuple(dict.fromkeys([*map(os.path.realpath, given), *given]))


def is_user_module(module: ModuleType, roots: Sequence[str]) -> bool:
    """Return True for a module of the user's, without touching its attributes.

    Some modules import their whole package on the first attribute access.
    """
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return False
    file = names.get("__file__")
    if isinstance(file, str):
        return lies_under(file, roots)
    try:  # a folder without __init__.py: no file, but places
        places = list(names.get("__path__") or ())
    except (KeyError, TypeError):  # its parent has left already
        return False
    return any(isinstance(place, str) and lies_under(place + os.sep, roots) for place in places)


@contextmanager
def user_code(user_dirs: Sequence[Path]) -> Iterator[None]:
    """Search imports in `user_dirs` first, and set aside modules already loaded under those names.

    A Python config is read inside of it, and so are check, build and run. At the end the modules of
    these folders leave `sys.modules`, the names they registered are forgotten, and everything is as
    before. Opened again with the same folders while open, it changes nothing. The standard library,
    torch, numpy and assay are never set aside.
    """
    opening = _open(user_dirs)
    try:
        yield
    finally:
        _close(opening)


def while_open(enter: Callable[[tuple[str, ...]], Callable[[], None]]) -> None:
    """Call `enter` with the folders of each `user_code`, and what it returns when that closes."""
    with _lock:
        _enters.append(enter)
        for opening in _openings:
            opening.exits.append(enter(opening.roots))


def results_until_closed(user_dirs: Sequence[Path]) -> dict[Hashable, Any]:
    """Return a mapping that lives as long as `user_code(user_dirs)` is open.

    While it is, no module is imported anew. A new mapping where it is not open.
    """
    opening = _find_opening(user_dirs)
    return opening.results if opening is not None else {}


class _Opening:
    """User folders of one run, and the modules set aside for them."""

    def __init__(self, user_dirs: Sequence[Path], folders: list[str]) -> None:
        self.user_dirs = tuple(user_dirs)
        self.roots = roots_of(user_dirs)
        self.folders = folders
        self.results: dict[Hashable, Any] = {}
        self.names = (
            frozenset(UserModules(user_dirs).names()) - sys.stdlib_module_names - _NEVER_AGAIN
        )
        self.thread = threading.get_ident()
        self.exits: list[Callable[[], None]] = []
        self.hidden: dict[str, ModuleType] = {}
        self.uses = 1


_openings: list[_Opening] = []
_enters: list[Callable[[tuple[str, ...]], Callable[[], None]]] = []
_lock = threading.RLock()


def _find_opening(user_dirs: Sequence[Path]) -> _Opening | None:
    """Return the innermost opening that was made for exactly these folders."""
    same = tuple(user_dirs)
    return next((each for each in reversed(_openings) if each.user_dirs == same), None)


def _open(user_dirs: Sequence[Path]) -> _Opening:
    with _lock:
        folders = [os.path.realpath(folder) for folder in user_dirs]
        for opening in reversed(_openings):
            if set(folders) <= set(opening.folders):
                opening.uses += 1
                return opening
        wanted = _Opening(user_dirs, folders)
        for opening in reversed(_openings):
            clash = sorted(wanted.names & opening.names)
            if clash and opening.thread != wanted.thread:
                raise InputError(
                    "Two runs at once in one process, and both have their own module"
                    f" `{clash[0]}`.",
                    where=", ".join(wanted.folders),
                    fix="Run them one after another, or each in a process of its own.",
                )
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in wanted.names or _is_removable(name, module, wanted.roots):
                wanted.hidden[name] = sys.modules.pop(name)
        sys.path[:0] = wanted.folders
        add_user_code(wanted.roots)
        wanted.exits = [enter(wanted.roots) for enter in _enters]
        importlib.invalidate_caches()  # files written a moment ago are seen
        _openings.append(wanted)
        return wanted


def _close(opening: _Opening) -> None:
    with _lock:
        opening.uses -= 1
        if opening.uses:
            return
        _openings.remove(opening)
        for name, module in list(sys.modules.items()):
            if _is_removable(name, module, opening.roots):
                del sys.modules[name]
        sys.modules.update(opening.hidden)
        for leave in opening.exits:
            leave()
        for folder in opening.folders:
            if folder in sys.path:  # unless the user's code took it out
                sys.path.remove(folder)


def _is_removable(name: str, module: ModuleType, roots: Sequence[str]) -> bool:
    if name.partition(".")[0] in _NEVER_AGAIN or not is_user_module(module, roots):
        return False
    file = vars(module).get("__file__")
    return not (isinstance(file, str) and file.endswith(tuple(EXTENSION_SUFFIXES)))
