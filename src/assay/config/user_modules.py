"""Definitions of user modules, found by parsing: a check runs no user code."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from assay.config.translator import translator
from assay.core.diagnostics import Origin
from assay.core.regular_file import read_bytes

MAX_BYTES = 8 * 1024 * 1024
MAX_FILES = 20_000  # looked at for registered names


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModule:
    """File of the user. `names` are its top-level definitions; None when parsing cannot tell.

    `syntax_error` is what is wrong with the file, with `line` and `column`, when it cannot be
    parsed.
    """

    path: Path
    names: frozenset[str] | None
    syntax_error: str = ""
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLocation:
    """File of a dotted target; `module` is None for a namespace package, `rest` the path inside."""

    module: UserModule | None
    folder: Path | None
    rest: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredName:
    """Class or function under `@register`: short name, kind (or ""), and place."""

    name: str
    kind: str
    module: str
    qualname: str
    origin: Origin

    @property
    def target(self) -> str:
        """Target of the registered object."""
        return (
            f"{self.module}:{self.qualname}"
            if "." in self.qualname
            else f"{self.module}.{self.qualname}"
        )


class UserModules:
    """Modules below some folders, each file parsed once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._parsed: dict[Path, UserModule] = {}

    @cached_property
    def registered(self) -> dict[str, list[RegisteredName]]:
        """Objects under `@register` by name, searched for once a config uses a short name."""
        found: dict[str, list[RegisteredName]] = {}
        for file, module in _files_below(self.folders):
            for each in _registered_in(file, module):
                found.setdefault(each.name, []).append(each)
        return found

    def names(self) -> list[str]:
        """Return the modules and packages right below the folders."""
        return list(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted({name for folder in self.folders for name in modules_in(folder)}))

    def find(self, target: str) -> TargetLocation | None:
        """Return the location of `package.module.Name`, or None outside of user modules."""
        dotted, _, inside = target.partition(":")
        parts = dotted.split(".")
        for folder in self.folders:
            if _is_module(folder, parts[0]):
                return self._descend(folder, parts, tuple(inside.split(".")) if inside else ())
        return None

    def _descend(self, folder: Path, parts: list[str], inside: tuple[str, ...]) -> TargetLocation:
        for i, part in enumerate(parts):
            file = folder / f"{part}.py"
            package = folder / part
            if package.is_dir() and (package / "__init__.py").is_file():
                module = self._module(package / "__init__.py")
                rest = tuple(parts[i + 1 :])
                if not rest or not _is_module(package, rest[0]):
                    return TargetLocation(module=module, folder=package, rest=rest + inside)
                folder = package
            elif file.is_file():
                return TargetLocation(
                    module=self._module(file), folder=None, rest=tuple(parts[i + 1 :]) + inside
                )
            elif package.is_dir():
                folder = package
            else:
                return TargetLocation(module=None, folder=folder, rest=tuple(parts[i:]) + inside)
        return TargetLocation(module=None, folder=folder, rest=inside)

    def _module(self, path: Path) -> UserModule:
        if path not in self._parsed:
            self._parsed[path] = _parse(path)
        return self._parsed[path]


def read_class(target: str, modules: UserModules) -> ast.ClassDef | None:
    """Return the definition of a class by its dotted or registered name, None where there is none.

    Only a class at the top of its file is found, in the module that defines it.
    """
    known = modules.registered.get(target, []) if target.isidentifier() else []
    found = modules.find(known[0].target if known else target)
    if found is None or found.module is None or len(found.rest) != 1:
        return None
    try:
        tree = ast.parse(read_bytes(found.module.path, MAX_BYTES, follow=True))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    classes = (each for each in tree.body if isinstance(each, ast.ClassDef))
    return next((each for each in classes if each.name == found.rest[0]), None)


def modules_in(folder: Path) -> list[str]:
    """Return the names that can be imported from `folder`."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    files = [entry.stem for entry in entries if entry.suffix == ".py" and entry.stem != "__init__"]
    packages = [entry.name for entry in entries if (entry / "__init__.py").is_file()]
    return [name for name in files + packages if name.isidentifier()]


def _is_module(folder: Path, name: str) -> bool:
    if not name.isidentifier():
        return False
    package = folder / name
    if (folder / f"{name}.py").is_file() or (package / "__init__.py").is_file():
        return True
    try:
        return package.is_dir() and any(
            entry.suffix == ".py" or _is_package(entry) for entry in package.iterdir()
        )
    except OSError:
        return False


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _parse(path: Path) -> UserModule:
    try:
        tree = ast.parse(read_bytes(path, MAX_BYTES, follow=True))
    except SyntaxError as error:
        return UserModule(
            path=path,
            names=None,
            syntax_error=error.msg,
            line=error.lineno or 1,
            column=max(1, error.offset or 1),
        )
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, absurd nesting
        return UserModule(
            path=path, names=None, syntax_error=str(error) or "it nests too deep", line=1, column=1
        )
    except OSError:
        return UserModule(path=path, names=None)
    names = set(_defined_names(tree.body))
    is_open = "*" in names or "__getattr__" in names
    return UserModule(path=path, names=None if is_open else frozenset(names))


def _defined_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, in branches and loops too; "*" if they are unknown."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.Import():
                yield from (
                    alias.asname or alias.name.partition(".")[0] for alias in statement.names
                )
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in statement.names)
            case ast.Assign():
                for target in statement.targets:
                    yield from _bound_names(target)
            case ast.AnnAssign() | ast.AugAssign():
                yield from _bound_names(statement.target)
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="globals"))))
            ):
                yield "*"
            case _:
                if isinstance(statement, ast.For | ast.AsyncFor):
                    yield from _bound_names(statement.target)
                for part in ("body", "orelse", "finalbody"):
                    yield from _defined_names(getattr(statement, part, ()))
                for handler in getattr(statement, "handlers", ()):
                    yield from _defined_names(handler.body)
                for case in getattr(statement, "cases", ()):
                    yield from _defined_names(case.body)


def _bound_names(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name():
            yield target.id
        case ast.Tuple() | ast.List():
            for item in target.elts:
                yield from _bound_names(item)
        case ast.Starred():
            yield from _bound_names(target.value)
        case ast.Subscript(value=ast.Call(func=ast.Name(id="globals"))):
            yield "*"


# --- registered names -----------------------------------------------------------------------------


def _files_below(folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files that can be imported from `folders` with their modules; no environments."""
    own = {os.path.realpath(folder) for folder in folders}
    count = 0
    for root in folders:
        todo = [(str(root), "")]
        while todo:
            folder, package = todo.pop()
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                stem, suffix = os.path.splitext(entry.name)
                if suffix == ".py" and stem.isidentifier():
                    count += 1
                    if count > MAX_FILES:
                        return
                    yield (
                        Path(entry.path),
                        package.rstrip(".") if stem == "__init__" else package + stem,
                    )
                elif (
                    entry.name.isidentifier()
                    and entry.name != "__pycache__"
                    and _may_enter(entry, own)
                ):
                    todo.append((entry.path, f"{package}{entry.name}."))


def _may_enter(entry: os.DirEntry[str], own: set[str]) -> bool:
    try:
        is_inside = entry.is_dir(follow_symlinks=False) and os.path.realpath(entry.path) not in own
    except OSError:
        return False
    return is_inside and not os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))


def _registered_in(file: Path, module: str) -> tuple[RegisteredName, ...]:
    try:
        state = file.stat()
    except OSError:
        return ()
    return _registered_as_of(file, module, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2000)
def _registered_as_of(
    file: Path, module: str, _mtime_ns: int, _size: int
) -> tuple[RegisteredName, ...]:
    return tuple(_read_registered(file, module))


def _read_registered(file: Path, module: str) -> Iterator[RegisteredName]:
    try:
        raw = read_bytes(file, MAX_BYTES, follow=True)
        if b"register" not in raw:
            return
        tree = ast.parse(raw)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # told when something in it is named
    names = _registering_names(tree)
    lines = raw.decode("utf-8", "replace").split("\n")
    for qualname, statement in _definitions(tree.body, ""):
        for decorator in statement.decorator_list:
            mark = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _is_register(mark, names):
                name, kind = _registration(decorator, statement.name)
                yield RegisteredName(
                    name=name,
                    kind=kind,
                    module=module,
                    qualname=qualname,
                    origin=_at_name(file, statement, lines),
                )


def _registering_names(tree: ast.Module) -> dict[str, str]:
    """Return what a file may write `register` with or below, and what each of these names means.

    A class whose base registers does so, too; one that is imported from elsewhere may.
    """
    names = dict.fromkeys(_without_import(tree), "")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            is_ours = not node.level and _is_registering(node.module or "")
            for alias in node.names:
                if is_ours or alias.name[:1].isupper():
                    names[alias.asname or alias.name] = alias.name if is_ours else ""
        elif isinstance(node, ast.Import):
            imported = [alias for alias in node.names if _is_registering(alias.name)]
            names |= {alias.asname or alias.name.partition(".")[0]: "" for alias in imported}
    for qualname, statement in _definitions(tree.body, ""):
        bases = statement.bases if isinstance(statement, ast.ClassDef) else []
        if any(ast.unparse(base).partition(".")[0] in names for base in bases):
            names[qualname] = ""
    return names


def _is_registering(module: str) -> bool:
    return module.partition(".")[0] in ("assay", *translator().PACKAGES)


def _is_register(mark: ast.expr, names: Mapping[str, str]) -> bool:
    """Return whether a decorator is `register`, `Task.register` or `alchemy.task.Task.register`."""
    first, _, rest = ast.unparse(mark).partition(".")
    return (rest or names.get(first, "")).rpartition(".")[2] == "register" and first in names


def _without_import(tree: ast.Module) -> set[str]:
    """Return the `Name` of each `Name.register` and each base that nothing in the file binds.

    Code pasted from a text of an older system leaves its imports out, or imports `*` of it.
    """
    bound = set()
    read = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=[ast.alias(name="*")]) if _is_registering(
                module
            ):
                pass
            case ast.Import() | ast.ImportFrom():
                bound |= {(each.asname or each.name).partition(".")[0] for each in node.names}
            case ast.ClassDef() | ast.FunctionDef():
                bound.add(node.name)
                bases = node.bases if isinstance(node, ast.ClassDef) else []
                read |= {base.id for base in bases if isinstance(base, ast.Name)}
            case ast.Name(ctx=ast.Store()):
                bound.add(node.id)
            case ast.Attribute(attr="register", value=ast.Name(id=name)):
                read.add(name)
    return set() if "*" in bound else read - bound


def _definitions(
    body: Iterable[ast.stmt], outer: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the classes and functions that can be named from outside, nested ones included."""
    for statement in body:
        match statement:
            case ast.ClassDef():
                yield outer + statement.name, statement
                yield from _definitions(statement.body, f"{outer}{statement.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield outer + statement.name, statement
            case _:
                for part in ("body", "orelse", "finalbody"):
                    yield from _definitions(getattr(statement, part, ()), outer)
                for handler in getattr(statement, "handlers", ()):
                    yield from _definitions(handler.body, outer)


def _registration(decorator: ast.expr, own_name: str) -> tuple[str, str]:
    """Return name and kind of `@register`, `@register("name")`, `@register(Kind, name="n")`."""
    if not isinstance(decorator, ast.Call):
        return own_name, ""
    given = [
        *decorator.args,
        *(keyword.value for keyword in decorator.keywords if keyword.arg in ("name", "kind")),
    ]
    names = [
        part.value
        for part in given
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    kinds = [part for part in given if isinstance(part, ast.Name | ast.Attribute)]
    kind = ast.unparse(kinds[0]).rpartition(".")[2] if kinds else ""
    return (names[0] if names else own_name), kind


def _at_name(
    file: Path, statement: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]
) -> Origin:
    """Return the origin of the name in `class Name`."""
    line = lines[statement.lineno - 1]
    start = line.find(
        statement.name, len(line.encode()[: statement.col_offset].decode(errors="replace"))
    )
    column = max(start, 0) + 1
    return Origin(
        source=str(file),
        line=statement.lineno,
        column=column,
        end_column=column + len(statement.name),
    )
