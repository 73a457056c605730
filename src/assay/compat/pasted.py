"""Names that a pasted text uses and nowhere defines: its imports were left out.

Supplied are modules and names of Python and torch that go by one name everywhere (`nn`, `Path`),
and names of older systems that are unambiguous.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import symtable
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.compat.names import PACKAGES, import_target, names_of
from assay.compat.tables import UNIMPORTED
from assay.config.translator import OlderName

_MODULES = (
    *("collections", "copy", "csv", "functools", "glob", "itertools", "json", "logging", "math"),
    *("os", "random", "re", "shutil", "sys", "time", "numpy", "tomlkit", "torch"),
)
_TYPES = (
    *("Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Mapping", "NewType", "Optional"),
    *("Sequence", "Set", "Tuple", "Type", "Union"),
)
USUAL_NAMES: Mapping[str, str] = {
    **{name: name for name in _MODULES},
    **{name: f"typing.{name}" for name in _TYPES},
    **{name: f"torch.utils.data.{name}" for name in ("DataLoader", "Dataset", "TensorDataset")},
    "F": "torch.nn.functional",
    "Path": "pathlib.Path",
    "dataclass": "dataclasses.dataclass",
    "field": "dataclasses.field",
    "lr_scheduler": "torch.optim.lr_scheduler",
    "nn": "torch.nn",
    "np": "numpy",
    "optim": "torch.optim",
}
"""Name -> what everybody means by it."""

_UNIMPORTED: Mapping[str, Mapping[str, OlderName]] = {"framework": UNIMPORTED}
"""System -> names that its texts use and do not say where from."""


def missing_names(text: str) -> dict[str, str]:
    """Return the names that a script reads and never binds, with the target meant by each.

    A name is left out, and raises NameError in the script, where nothing is known by it, or where
    two older systems have it and the script imports neither.

    >>> missing_names("am = Meter()")
    {'Meter': 'assay.record.meter.Meter'}
    """
    try:
        tree = ast.parse(text)
        unbound = _unbound_names(symtable.symtable(text, "<pasted>", "exec"))
    except SyntaxError:
        return {}  # the script itself reports it, with its place
    if any(isinstance(node, ast.ImportFrom) and _is_star(node) for node in ast.walk(tree)):
        return {}  # nobody knows what that brings
    imported = {PACKAGES[name] for name in _imported_packages(tree) if name in PACKAGES}
    found: dict[str, str] = {}
    for name in sorted(unbound):
        target = _target(name, imported)
        if target is not None:
            found[name] = target
    return found


def supply(names: Mapping[str, str]) -> dict[str, Any]:
    """Return the objects of `missing_names`, by name."""
    return {
        name: import_target(target) if "." in target else importlib.import_module(target)
        for name, target in names.items()
    }


def supply_with_note(text: str, file: str) -> dict[str, Any]:
    """Return the objects that a script or module uses without importing them; print a note."""
    names = missing_names(text)
    if names:
        listed = ", ".join(f"{name} ({target})" for name, target in names.items())
        print(f"note: {file} does not import {listed}: supplied", file=sys.stderr)
    return supply(names)


def imported_texts(text: str, folder: Path) -> Iterator[str]:
    """Yield the text of each module of a folder that a script imports, and that these import.

    Of a package it is every module, whichever of them are imported.
    """
    texts = [text]
    known: set[str] = set()
    while texts:
        try:
            packages = set(_imported_packages(ast.parse(texts.pop()))) - known
        except SyntaxError:
            continue  # whoever imports it reports it
        known |= packages
        for package in sorted(packages):
            for file in (folder / f"{package}.py", *sorted((folder / package).rglob("*.py"))):
                if file.is_file():
                    texts.append(file.read_text(encoding="utf-8", errors="replace"))
                    yield texts[-1]


class PastedModules(MetaPathFinder):
    """Finder of the modules in a folder, which are supplied with the names that they lack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a source file in the folder; other finders look for all else."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return None
        file = Path(spec.origin).resolve()
        if not file.is_relative_to(self.folder) or "site-packages" in file.parts:
            return None
        spec.loader = PastedLoader(fullname, spec.origin)
        return spec


class PastedLoader(SourceFileLoader):
    """Loader that puts the names which a module lacks into it before it runs."""

    def exec_module(self, module: ModuleType) -> None:
        text = self.get_source(module.__name__) or ""
        vars(module).update(supply_with_note(text, self.path))
        super().exec_module(module)


def _target(name: str, imported: set[str]) -> str | None:
    """Return what a name means: what the systems that the text imports call so, or all of them."""
    for systems in (imported, set(PACKAGES.values())):
        candidates = {
            entry.target
            for system in sorted(systems)
            for dotted, entry in _names_offered(system).items()
            if dotted.rpartition(".")[2] == name
        }
        if len(candidates) == 1:
            return candidates.pop()
        if not candidates and systems and name in USUAL_NAMES:
            return USUAL_NAMES[name]
    return None


def _names_offered(system: str) -> Mapping[str, OlderName]:
    """Return the names of a system but those that stand for torch itself (`oneflow.nn`)."""
    names = {**names_of(system), **_UNIMPORTED.get(system, {})}
    is_torch = {dotted: f"{each.target}.".startswith("torch.") for dotted, each in names.items()}
    return {dotted: each for dotted, each in names.items() if not is_torch[dotted]}


def _unbound_names(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that some scope reads and no scope of the module binds."""
    bound: set[str] = set()
    read: set[str] = set()
    for scope in _scopes(table):
        for symbol in scope.get_symbols():
            is_module = scope.get_type() == "module"
            if is_module or symbol.is_declared_global():
                if symbol.is_assigned() or symbol.is_imported():
                    bound.add(symbol.get_name())
                if symbol.is_referenced():
                    read.add(symbol.get_name())
            elif symbol.is_global() and symbol.is_referenced():
                read.add(symbol.get_name())
    return {name for name in read - bound if not hasattr(builtins, name) and name[:2] != "__"}


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _imported_packages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_star(node: ast.ImportFrom) -> bool:
    return any(alias.name == "*" for alias in node.names)
