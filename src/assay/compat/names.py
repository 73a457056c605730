"""Names of older systems in configs and imports: `alchemy.plugins.Seeding` has a target here.

`from thexp.frame import Meter` finds the class that stands for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from assay.config.translator import OlderName, UnmappedName
from assay.core.errors import InputError, nearest

PACKAGES: Mapping[str, str] = {
    "alchemy": "alchemy",
    "loguru": "alchemy",
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


@cache
def table_of(system: str) -> Mapping[str, OlderName]:
    """Return what stands for each name of a system, by its dotted path there."""
    # Here: only a config or a script that names an older system needs the tables.
    from assay.compat.tables import NAMES

    return NAMES[system]


def system_of(target: str) -> str:
    """Return the older system that a target begins with, "" for none."""
    top = target.partition(".")[0].partition(":")[0]
    return PACKAGES.get(top, "") if top != target else ""


def explain_unmapped(target: str) -> UnmappedName:
    """Return the error of a name that its system may have had, and that is not in the table."""
    system = system_of(target)
    names = table_of(system)
    dotted = target.replace(":", ".")
    near = _nearest_name(dotted, names)
    fix = f"docs/compat/{system}.md lists the names that are known"
    if near:
        known = names.get(near)
        here = f" Here: {known.instead}." if known is not None and known.instead else ""
        fix = f"did you mean `{near}`?{here} {fix}"
    return UnmappedName(
        message=f"`{target}` of {system} has nothing here that stands for it", fix=fix
    )


def _nearest_name(dotted: str, names: Mapping[str, OlderName]) -> str:
    """Return the name or module that a dotted name may mean: of the same module, then of any."""
    module, _, last = dotted.rpartition(".")
    modules = {name.rpartition(".")[0] for name in names}
    beside = {name.removeprefix(f"{module}."): name for name in (*modules, *names)}
    beside = {name: full for name, full in beside.items() if full != name and "." not in name}
    if near := nearest(last, list(beside)):
        return beside[near[0]]
    behind = _module_behind(module)
    public = dir(importlib.import_module(behind)) if behind else []
    if near := nearest(last, [name for name in public if name[0] != "_"], cutoff=0.7):
        return f"{module}.{near[0]}"
    if near := nearest(dotted, [*names, *modules], cutoff=0.75):
        return near[0]
    by_last = {name.rpartition(".")[2]: name for name in names}
    return next((by_last[name] for name in nearest(last, list(by_last), cutoff=0.7)), "")


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
    package, _, inside = dotted.partition(".")
    whole = names.get(package)
    if whole is None or not whole.is_module:
        return None
    here = f"{whole.target}.{inside}"
    return OlderName(target=here, instead=f"`{here}`")


# --- imports --------------------------------------------------------------------------------------


class UnmappedImportError(InputError, ImportError):
    """A name of an older system was imported that nothing here stands for."""


class UnmappedNameError(InputError, AttributeError):
    """A name of an older system was used that nothing here stands for."""


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
    from assay.compat.pasted import missing_names, supply

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
        """Return the spec of a module that the tables know; UnmappedImportError for any other."""
        package, _, inside = fullname.partition(".")
        if package not in self.packages:
            return None
        names = _table_at(fullname)
        is_known = any(name.startswith(f"{fullname}.") for name in names)
        if not inside or is_known or _module_behind(fullname):
            return ModuleSpec(fullname, self, is_package=True)
        if isinstance(sys.modules.get(fullname.rpartition(".")[0]), OlderModule):
            wrong = explain_unmapped(fullname)
            raise UnmappedImportError(f"{wrong.message}.", fix=wrong.fix)
        return None  # a package of the user that is called so

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return OlderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the names of the module are looked up when they are used."""


class OlderModule(ModuleType):
    """Module whose attributes are the targets of an older system's names."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # of `from flame.pytorch.typing_prelude import *`
            return self._public_names()
        if name.startswith("__"):
            raise AttributeError(name)
        dotted = f"{self.__name__}.{name}"
        names = _table_at(dotted)
        if dotted in names and not names[dotted].is_module:
            found = import_target(names[dotted].target)
        elif (behind := _module_behind(dotted)) or any(
            each.startswith(f"{dotted}.") for each in names
        ):
            found = importlib.import_module(dotted)
        elif (behind := _module_behind(self.__name__)) and hasattr(
            importlib.import_module(behind), name
        ):
            found = getattr(importlib.import_module(behind), name)
        else:
            wrong = explain_unmapped(dotted)
            raise UnmappedNameError(f"{wrong.message}.", fix=wrong.fix)
        setattr(self, name, found)
        return found

    def _public_names(self) -> list[str]:
        inside = [each.removeprefix(f"{self.__name__}.") for each in _table_at(self.__name__)]
        behind = _module_behind(self.__name__)
        others = dir(importlib.import_module(behind)) if behind else []
        return [each for each in (*inside, *others) if "." not in each and each[0] != "_"]


def _module_behind(dotted: str) -> str:
    """Return the module that stands for a whole one of an older system; "" for none."""
    names = _table_at(dotted)
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        above = names.get(".".join(parts[:count]))
        if above is not None and above.is_module:
            behind = ".".join((above.target, *parts[count:]))
            return behind if _is_module(behind) else ""
    return ""


@cache
def _is_module(dotted: str) -> bool:
    try:
        return importlib.util.find_spec(dotted) is not None
    except ModuleNotFoundError:  # what lies above it is no package
        return False


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
