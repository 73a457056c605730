"""Names of older systems in configs and imports: `alchemy.plugins.Seeding` has a target here.

`from thexp.frame import Meter` finds the class that stands for it.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from assay.core.errors import InputError, nearest

PACKAGES: Mapping[str, str] = {
    "alchemy": "alchemy",
    "tensorboardX": "framework",
    "hiddenlayer": "framework",
    "thexp": "thexp",
    "flame": "flame",
    "injector": "flame",
    "libai": "libai",
    "oneflow": "libai",
    "flowvision": "libai",
}
"""Package that texts of an older system import -> the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderName:
    """Name of an older system: its target here, and how the same is said here.

    `keys` are arguments that set a key of the config: `{"seed": "seed"}`.
    """

    target: str
    instead: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmappedName:
    """Message and fix for a name of an older system that is not in its table."""

    message: str
    fix: str


@cache
def table_of(system: str) -> Mapping[str, OlderName]:
    """Return what stands for each name of a system, by its dotted path there."""
    # Here: only a config or a script that names an older system needs the tables.
    from assay.config.older_systems.tables import NAMES

    return NAMES[system]


def system_of(target: str) -> str:
    """Return the older system that a target begins with, "" for none."""
    top = target.partition(".")[0].partition(":")[0]
    return PACKAGES.get(top, "") if top != target else ""


def explain_unmapped(target: str) -> UnmappedName:
    """Return the error of a name that its system may have had, and that is not in the table."""
    system = system_of(target)
    names = table_of(system)
    last = target.replace(":", ".").rpartition(".")[2]
    by_last = {name.rpartition(".")[2]: name for name in names}
    near = nearest(target, list(names), cutoff=0.75)
    if not near:
        near = [by_last[name] for name in nearest(last, list(by_last))]
    fix = f"docs/compat/{system}.md lists the names that are known"
    if near:
        instead = names[near[0]].instead
        here = f" Here: {instead}." if instead else ""
        fix = f"did you mean `{near[0]}`?{here} {fix}"
    return UnmappedName(
        message=f"`{target}` of {system} has nothing here that stands for it", fix=fix
    )


def names_of(system: str) -> Mapping[str, OlderName]:
    """Return the names of one system, by their dotted path there.

    From then on, modules of the user may import the system's packages.
    """
    install(system)
    return table_of(system)


def older_name(target: str) -> OlderName | None:
    """Return the entry of a target; None for one that no older system has.

    >>> older_name("alchemy.plugins.Seeding").target
    'assay.compat.alchemy.plugins.Seeding'
    >>> older_name("oneflow.nn.Linear").target
    'torch.nn.Linear'
    """
    system = system_of(target)
    if not system:
        return None
    names = names_of(system)
    dotted = target.replace(":", ".")
    if dotted in names:
        return names[dotted]
    module, _, name = dotted.rpartition(".")
    place = names[module].target if module in names else ""
    if not place.startswith("torch."):
        return None
    return OlderName(target=f"{place}.{name}", instead=f"`{place}.{name}`")


# --- imports --------------------------------------------------------------------------------------


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


def offer_import(error: ImportError) -> bool:
    """Make the package that was not found importable; return False if it is of no older system."""
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in PACKAGES:
        return False
    if package in _offered_packages():
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


def _offered_packages() -> frozenset[str]:
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
        wrong = explain_unmapped(dotted)
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
