"""Imports of older systems: `from thexp.frame import Meter` finds the class that stands for it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from assay.config.older_systems.entries import OlderName
from assay.config.older_systems.tables import PACKAGES, table_of, unmapped
from assay.core.errors import InputError


class UnmappedImportError(InputError, ImportError):
    """A name of an older system was imported that nothing here stands for."""


def install(*systems: str) -> None:
    """Let imports of older systems find their names in this process; of all systems without any.

    An installed package of the same name wins.
    """
    known = sorted(set(PACKAGES.values()))
    if unknown := [system for system in systems if system not in known]:
        raise InputError(
            f"`{unknown[0]}` is no older system.", fix=f"There are: {', '.join(known)}."
        )
    packages = {package for package, system in PACKAGES.items() if system in (systems or known)}
    finder = next((each for each in sys.meta_path if isinstance(each, OlderFinder)), None)
    if finder is None:
        finder = OlderFinder()
        sys.meta_path.append(finder)  # last: what is installed is found first
    finder.packages.update(packages)


def offer(error: ImportError) -> bool:
    """Make the package that was not found importable; return False if it is of no older system."""
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in PACKAGES:
        return False
    if package in _offered():
        return False
    install(PACKAGES[package])
    return True


_IMPORT = re.compile(rf"^\s*(?:from|import)\s+({'|'.join(PACKAGES)})\b", re.MULTILINE)


def names_left_out(text: str) -> dict[str, Any]:
    """Return the objects that a Python text uses without an import, by name.

    The text must import an older system that is not installed; else nothing is returned.
    """
    packages = set(_IMPORT.findall(text))
    if not packages or any(PathFinder.find_spec(package) for package in packages):
        return {}
    from assay.config.older_systems.pasted import missing_names, supply

    return supply(missing_names(text))


def _offered() -> frozenset[str]:
    """Return the packages that are found in this process."""
    finders = [each for each in sys.meta_path if isinstance(each, OlderFinder)]
    return frozenset(name for finder in finders for name in finder.packages)


class OlderFinder(MetaPathFinder, Loader):
    """Finder and loader of modules that only offer the names of an older system's table."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        if package not in self.packages:
            return None
        names = _table_at(fullname)
        is_known = fullname in names or any(name.startswith(f"{fullname}.") for name in names)
        if fullname != package and not is_known:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return OlderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Put a module that stands for a whole one in its place.

        Otherwise the names of the module are looked up when they are used.
        """
        older = _table_at(module.__name__).get(module.__name__)
        if older is not None:
            sys.modules[module.__name__] = importlib.import_module(older.target)


class OlderModule(ModuleType):
    """Module whose attributes are the targets of an older system's names."""

    def __getattr__(self, name: str) -> Any:
        names = _table_at(self.__name__)
        if name == "__all__":  # of `from flame.pytorch.typing_prelude import *`
            inside = [each.removeprefix(f"{self.__name__}.") for each in names]
            return [each for each in inside if "." not in each]
        if name.startswith("__"):
            raise AttributeError(name)
        dotted = f"{self.__name__}.{name}"
        if dotted in names:
            found = import_target(names[dotted].target)
            setattr(self, name, found)
            return found
        if any(each.startswith(f"{dotted}.") for each in names):
            return importlib.import_module(dotted)
        wrong = unmapped(dotted)
        raise UnmappedImportError(f"{wrong.message}.", fix=wrong.fix)


def _table_at(module: str) -> Mapping[str, OlderName]:
    """Return the table of the system whose package a dotted name begins with."""
    package = module.partition(".")[0]
    return table_of(PACKAGES[package])


def import_target(target: str) -> Any:
    """Return the module, class or function at a dotted path."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(target)
