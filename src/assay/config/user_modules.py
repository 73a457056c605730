"""What user modules define, found by parsing their files: nothing of the user's is run to check a config."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModule:
    """One file of the user's. `names` is what it defines at top level; None when parsing cannot tell.

    `syntax_error` is what is wrong with the file, with `line` and `column`, when it cannot be parsed.
    """

    path: Path
    names: frozenset[str] | None
    syntax_error: str = ""
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a dotted target leads. `module` is None for a folder without `__init__.py`; `rest` is the path inside."""

    module: UserModule | None
    folder: Path | None
    rest: tuple[str, ...]


class UserModules:
    """The modules below some folders, each file parsed once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._parsed: dict[Path, UserModule] = {}

    def names(self) -> list[str]:
        """Modules and packages right below the folders."""
        return sorted({name for folder in self.folders for name in modules_in(folder)})

    def find(self, target: str) -> Found | None:
        """What `package.module.Name` or `package.module:Name` leads to; None when the first part is no user module."""
        dotted, _, inside = target.partition(":")
        parts = dotted.split(".")
        for folder in self.folders:
            if _is_module(folder, parts[0]):
                return self._descend(folder, parts, tuple(inside.split(".")) if inside else ())
        return None

    def _descend(self, folder: Path, parts: list[str], inside: tuple[str, ...]) -> Found:
        for i, part in enumerate(parts):
            file, package = folder / f"{part}.py", folder / part
            if package.is_dir() and (package / "__init__.py").is_file():
                module = self._module(package / "__init__.py")
                rest = tuple(parts[i + 1 :])
                if not rest or not _is_module(package, rest[0]):
                    return Found(module=module, folder=package, rest=rest + inside)
                folder = package
            elif file.is_file():
                return Found(module=self._module(file), folder=None, rest=tuple(parts[i + 1 :]) + inside)
            elif package.is_dir():
                folder = package
            else:
                return Found(module=None, folder=folder, rest=tuple(parts[i:]) + inside)
        return Found(module=None, folder=folder, rest=inside)

    def _module(self, path: Path) -> UserModule:
        if path not in self._parsed:
            self._parsed[path] = _parse(path)
        return self._parsed[path]


def modules_in(folder: Path) -> list[str]:
    """Names that can be imported from `folder`."""
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
        return package.is_dir() and any(entry.suffix == ".py" or _is_package(entry) for entry in package.iterdir())
    except OSError:
        return False


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _parse(path: Path) -> UserModule:
    try:
        if path.stat().st_size > MAX_BYTES:
            return UserModule(path=path, names=None)
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        return UserModule(
            path=path, names=None, syntax_error=error.msg, line=error.lineno or 1, column=max(1, error.offset or 1)
        )
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, absurd nesting
        return UserModule(path=path, names=None, syntax_error=str(error) or "it nests too deep", line=1, column=1)
    except OSError:
        return UserModule(path=path, names=None)
    names = set(_defined(tree.body))
    is_open = "*" in names or "__getattr__" in names
    return UserModule(path=path, names=None if is_open else frozenset(names))


def _defined(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that these statements bind, branches and loops included; "*" when they cannot be known."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.Import():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in statement.names)
            case ast.Assign():
                for target in statement.targets:
                    yield from _bound(target)
            case ast.AnnAssign() | ast.AugAssign():
                yield from _bound(statement.target)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="globals"))))):
                yield "*"
            case _:
                if isinstance(statement, ast.For | ast.AsyncFor):
                    yield from _bound(statement.target)
                for part in ("body", "orelse", "finalbody"):
                    yield from _defined(getattr(statement, part, ()))
                for handler in getattr(statement, "handlers", ()):
                    yield from _defined(handler.body)
                for case in getattr(statement, "cases", ()):
                    yield from _defined(case.body)


def _bound(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name():
            yield target.id
        case ast.Tuple() | ast.List():
            for item in target.elts:
                yield from _bound(item)
        case ast.Starred():
            yield from _bound(target.value)
        case ast.Subscript(value=ast.Call(func=ast.Name(id="globals"))):
            yield "*"
