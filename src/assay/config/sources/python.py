"""Configs that are Python files: they are run, and their names become the tree.

What a config imports from another is a fresh copy, so that editing it changes nobody else's.
Modules of the user that were loaded on the way leave the process again.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import threading
import types
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.config.isolation import user_code
from assay.config.lazy import Section, calling_frame
from assay.config.sources.objects import OversizedError, TreeMaker, lift
from assay.config.sources.positions import MAX_BYTES, too_deep
from assay.config.sources.python_syntax import (
    compile_config,
    find_keys_given_twice,
    lines_of_imports,
    syntax_problem,
)
from assay.config.sources.relaxed_omegaconf import relax
from assay.config.sources.sections import tree_of_names
from assay.config.translator import translator
from assay.config.tree import Table
from assay.config.user_modules import UserModules
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import AssayError, ConfigError, InputError, did_you_mean
from assay.core.regular_file import read_bytes, read_start

DEFAULTS = Path(__file__).resolve().parents[1] / "defaults"
_OWN = str(DEFAULTS.parent)
_ORIGINS = "__origins__"
"""Attribute of a module that an import gets: the origin of each value, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonConfig:
    """Tree of a config file, its problems, and the texts of it and its imports."""

    root: Table
    problems: list[Problem]
    files: dict[str, str]


def read_all(text: str, source: str, *, path: Path, user_dirs: Sequence[Path]) -> PythonConfig:
    """Execute a config file and return what came of it."""
    loading = _Loading(user_dirs)
    start = Origin(source=source)
    root = Table({}, start)
    with loading.active():
        try:
            names = loading.run(path, source=source, text=text)
            values = _public(names.bound)
            maker = TreeMaker(loading.sources, start)
            root, problems = tree_of_names(values, names.origins, names.imported, maker)
        except OversizedError as stop:
            problems = [stop.problem]
        except ConfigError as error:
            problems = list(error.problems)
        except RecursionError:
            problems = [too_deep(start)]
    return PythonConfig(
        root=root,
        problems=[*problems, *loading.notes],
        files={source: text, **loading.texts},
    )


def get_config(path: str | os.PathLike[str]) -> Section:
    """Return the names of the Python config at `path` as attributes: fresh copies at every call.

    `path` is relative to the file that asks, then to the working directory; "defaults/train.py"
    comes with assay.
    """
    frame = calling_frame()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    asking = frame.f_globals.get("__file__") if frame is not None else None
    file = _find(os.fspath(path), Path(asking).parent if isinstance(asking, str) else None)
    loading = _current.get()
    if loading is not None:
        return _section_of(loading.view(loading.config(file)))
    loading = _Loading((file.parent, file.parent / "src"))
    with loading.active():
        return _section_of(loading.view(loading.config(file)))


def _find(path: str, beside: Path | None) -> Path:
    given = Path(path)
    places = (
        [given]
        if given.is_absolute()
        else [*([beside / given] if beside else []), Path.cwd() / given]
    )
    if given.parts[:1] == ("defaults",):
        places.append(DEFAULTS.joinpath(*given.parts[1:]))
    for place in places:
        if place.is_file():
            return place
    known = [f"defaults/{file.name}" for file in sorted(DEFAULTS.glob("[a-z]*.py"))]
    fix = did_you_mean(path, known) or f"With assay come {', '.join(known)}."
    raise InputError(
        f"There is no config {path} in {' or in '.join(str(place.parent) for place in places)}.",
        fix=fix,
    )


def _public(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that a config offers: no modules, and none with a leading underscore."""
    return {
        name: value
        for name, value in values.items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def _section_of(module: types.ModuleType) -> Section:
    made = Section.without_place()
    for name, value in _public(vars(module)).items():
        dict.__setitem__(made, name, value)
    return made


# --- running --------------------------------------------------------------------------------------

_current: ContextVar[_Loading | None] = ContextVar("assay_config_loading", default=None)
_lock = threading.RLock()


class _Names(MutableMapping[str, Any]):
    """Names of a config while it runs, each with the line that bound it last.

    A name that an import binds has the origin that it has in the config it comes from.
    """

    def __init__(self, module: types.ModuleType, source: str, import_lines: Container[int]) -> None:
        self.module = module
        self.bound = vars(module)
        self.source = source
        self.import_lines = import_lines
        self.origins: dict[str, Origin] = {}
        self.imported: set[str] = set()
        self.given: Mapping[int, Origin] = {}
        """Origins of the values that the last import brought, by id."""

    def __setitem__(self, name: str, value: Any) -> None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.module.__file__:
            frame = frame.f_back  # of `locals().update(...)`
        line = frame.f_lineno if frame is not None else 0
        self.bound[name] = value
        self.origins[name] = Origin(source=self.source, line=line)
        self.imported.discard(name)
        if line in self.import_lines:
            self.imported.add(name)
            self.origins[name] = self.given.get(id(value), self.origins[name])

    def __getitem__(self, name: str) -> Any:
        return self.bound[name]

    def __delitem__(self, name: str) -> None:
        del self.bound[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.bound)

    def __len__(self) -> int:
        return len(self.bound)


class _Loading:
    """Execution of a config and the configs that it imports: each once, handed out as copies."""

    def __init__(self, user_dirs: Sequence[Path]) -> None:
        self.user_dirs = [Path(os.path.abspath(folder)) for folder in user_dirs]
        here = os.getcwd()
        is_searched = here in map(os.path.abspath, sys.path)  # of `python -m`, or PYTHONPATH
        self.folders = [*self.user_dirs, Path(here)] if is_searched else self.user_dirs
        """Folders in which an import finds another config."""
        self.sources: dict[str, str] = {}
        """Name that users know, by the path of each file that was read."""
        self.texts: dict[str, str] = {}
        """Text by that name, without the files that come with assay."""
        self.configs: dict[Path, _Names] = {}
        self.running: list[Path] = []
        self.notes: list[Problem] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """While open, this is what configs are loaded into, and the user's modules are found."""
        with _lock, user_code(self.user_dirs):
            token = _current.set(self)
            try:
                yield
            finally:
                _current.reset(token)

    def run(self, path: Path, *, source: str, text: str, name: str = "") -> _Names:
        """Execute a config file. Raises ConfigError with what went wrong in it."""
        tree, code = compile_config(path, source, text)
        self.sources[str(path)] = source
        if not path.is_relative_to(DEFAULTS):
            self.texts[source] = text
        if twice := list(find_keys_given_twice(tree, source)):
            raise ConfigError(twice)
        module = types.ModuleType(name or self.name_of(path))
        module.__file__ = str(path)
        names = _Names(module, source, lines_of_imports(tree))
        importer = self.importer(path, names)
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": importer}
        module.__dict__.update(self.supply(source, text))
        self.execute(code, names, path)
        memo: dict[int, Any] = {}
        for key, value in list(names.bound.items()):
            if not key.startswith("__"):
                names.bound[key] = lift(value, memo)
        return names

    def importer(self, path: Path, into: _Names) -> Callable[..., types.ModuleType]:
        """Return the `__import__` of the config at `path`."""
        packages: dict[str, types.ModuleType] = {}

        def import_here(
            name: str,
            globals: Mapping[str, Any] | None = None,
            locals: Mapping[str, Any] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> types.ModuleType:
            names = tuple(fromlist or ())
            into.given = {}
            if not names and (config := self.find_config(name)) is not None:
                return self.bind(packages, name, self.view(self.configs[config]))
            module = self.import_from(path, name, globals, locals, names, level)
            into.given = getattr(module, _ORIGINS, {})
            return module

        return import_here

    def find_config(self, name: str) -> Path | None:
        """Return the config of the user that `name` imports, executed; None for other modules."""
        for folder in self.folders:
            file = folder.joinpath(*name.split(".")).with_suffix(".py")
            if _is_config(file):
                self.config(file, name)
                return Path(os.path.abspath(file))
        return None

    def bind(
        self, packages: dict[str, types.ModuleType], name: str, module: types.ModuleType
    ) -> types.ModuleType:
        """Return what `import a.b.c` binds: the package `a`, in which `module` is at `b.c`."""
        parts = name.split(".")
        for depth in range(len(parts) - 1, 0, -1):
            above = ".".join(parts[:depth])
            package = packages.setdefault(above, types.ModuleType(above))
            setattr(package, parts[depth], module)
            module = package
        return module

    def execute(self, code: types.CodeType, names: _Names, path: Path) -> None:
        """Run the code of a config, whose module is found by its name meanwhile."""
        module = names.module
        name = module.__name__
        before = sys.modules.get(name)
        sys.modules[name] = module
        self.running.append(path)
        try:
            exec(code, module.__dict__, names)
        except (OversizedError, ConfigError, KeyboardInterrupt):
            raise
        except BaseException as error:
            # The user's program may raise anything, SystemExit included: it is shown at its line.
            raise ConfigError([self.problem_of(error, path)]) from error
        finally:
            self.running.pop()
            del sys.modules[name]
            if before is not None:
                sys.modules[name] = before

    def supply(self, source: str, text: str) -> dict[str, Any]:
        """Return the names that a config of an older system uses without importing them."""
        found = translator().names_left_out(text)
        if found:
            message = f"{', '.join(found)} of an older system: used without an import, supplied"
            note = Problem(
                kind="alias", severity="note", message=message, origin=Origin(source=source)
            )
            self.notes.append(note)
        return found

    def config(self, path: Path, name: str = "") -> _Names:
        """Return the config file at `path`, executed once."""
        path = Path(os.path.abspath(path))
        if path in self.running:
            chain = " -> ".join(
                str(each) for each in [*self.running[self.running.index(path) :], path]
            )
            raise ImportError(f"configs import each other: {chain}")
        if path not in self.configs:
            raw = read_start(path, MAX_BYTES + 1, follow=True)
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise ImportError(f"{path} is no UTF-8: {error}") from None
            self.configs[path] = self.run(path, source=_show_path(path), text=text, name=name)
        return self.configs[path]

    def view(self, config: _Names, names: Sequence[str] = ("*",)) -> types.ModuleType:
        """Return a module with copies of the data of `config`, for one importer to edit."""
        made = types.ModuleType(config.module.__name__)
        memo: dict[int, Any] = {}
        origins: dict[int, Origin] = {}
        for name, value in config.bound.items():
            wanted = "*" in names or name in names
            copy = deepcopy(value, memo) if wanted and _is_data(value) else value
            made.__dict__[name] = copy
            if name in config.origins:
                origins[id(copy)] = config.origins[name]
        made.__dict__[_ORIGINS] = origins
        return made

    def name_of(self, path: Path) -> str:
        """Return the name by which a config file can be imported."""
        for folder in self.user_dirs:
            if path.is_relative_to(folder):
                return ".".join(path.relative_to(folder).with_suffix("").parts)
        return path.stem

    # --- imports of configs

    def import_from(
        self,
        path: Path,
        name: str,
        globals: Mapping[str, Any] | None,
        locals: Mapping[str, Any] | None,
        names: tuple[str, ...],
        level: int,
    ) -> types.ModuleType:
        """Return the module that an import statement in the config at `path` gets."""
        if level:
            folder = path.parents[level - 1] if level <= len(path.parents) else path.parent
            return self.relative(folder, name, names, "." * level)
        if names and f"{name}.".startswith("assay.config.defaults."):
            return self.relative(
                DEFAULTS, name.removeprefix("assay.config.defaults").lstrip("."), names, f"{name} "
            )
        if names:
            for folder in self.folders:
                found = folder.joinpath(*name.split("."))
                if _is_config(found.with_suffix(".py")):
                    return self.view(self.config(found.with_suffix(".py"), name), names)
                if found.is_dir() and any(_is_config(found / f"{each}.py") for each in names):
                    return self.relative(folder, name, names, "")
        try:
            module = builtins.__import__(name, globals, locals, names, 0)
        except ModuleNotFoundError as error:
            if not translator().offer_import(error):
                raise
            return self.import_from(path, name, globals, locals, names, level)
        return relax(module) if name == "omegaconf" else module

    def relative(
        self, folder: Path, name: str, names: tuple[str, ...], shown: str
    ) -> types.ModuleType:
        """Return a config below `folder`; for a folder of configs, the ones that are asked for."""
        place = folder.joinpath(*name.split(".")) if name else folder
        file = place.with_suffix(".py") if name else place / "__init__.py"
        if not file.is_file():
            file = place / "__init__.py"
        own = types.ModuleType(name or folder.name)
        if file.is_file():
            own = self.view(self.config(file), names)
        for each in names:
            if not hasattr(own, each) and (place / f"{each}.py").is_file():
                setattr(own, each, self.view(self.config(place / f"{each}.py")))
        missing = [each for each in names if each != "*" and not hasattr(own, each)]
        if not file.is_file() and missing:
            absent = place / missing[0] if place.is_dir() else place
            known = [each.stem for each in absent.parent.glob("*.py")]
            near = did_you_mean(absent.name, known)
            hint = f"; {near}" if near else ""
            raise ModuleNotFoundError(
                f"there is no config {absent}.py{hint}", name=f"{shown}{name}"
            )
        return own

    # --- what a config raises

    def problem_of(self, error: BaseException, path: Path) -> Problem:
        """Return the error at the innermost line of a config, with a note on its source."""
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            trace = trace.tb_next
        inside = [i for i, (file, _) in enumerate(frames) if file in self.sources]
        place = Origin(source=self.sources[str(path)])
        related: list[Problem] = []
        if inside:
            file, line = frames[inside[-1]]
            place = Origin(source=self.sources[file], line=line)
            file, line = frames[-1]
            is_ours = file.startswith(_OWN) or "importlib" in file
            if inside[-1] < len(frames) - 1 and not is_ours:
                related = [_note_at(Origin(source=file, line=line))]
        if isinstance(error, SyntaxError) and error.filename:
            related = [replace(syntax_problem(error, error.filename), severity="note")]
        kind = "import-failed" if isinstance(error, ImportError) else "raised"
        message, fix = self.explain(error)
        return Problem(kind=kind, message=message, origin=place, fix=fix, related=tuple(related))

    def explain(self, error: BaseException) -> tuple[str, str]:
        """Return an error in one line, and how to fix it, as far as that is known."""
        if isinstance(error, AssayError) and hasattr(error, "fix"):
            return error.what, error.fix
        lines = str(error).splitlines()
        kind = type(error).__name__
        message = f"{kind}: {lines[0]}" if lines else kind
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if not missing or missing.startswith("."):
            return message, ""
        package = missing.partition(".")[0]
        near = did_you_mean(package, UserModules(self.user_dirs).names())
        return message, near or "give the folder your modules are in: --user-dir DIR"


def _note_at(origin: Origin) -> Problem:
    """Return the note on the line outside of all configs that raised."""
    return Problem(kind="import-failed", severity="note", message="raised here", origin=origin)


def _show_path(path: Path) -> str:
    """Return a path relative to the working directory, where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _is_data(value: Any) -> bool:
    if isinstance(value, dict | list):
        return True
    return (
        not isinstance(value, type | types.ModuleType)
        and hasattr(value, "keys")
        and hasattr(value, "__getitem__")
    )


def _is_config(file: Path) -> bool:
    """Return whether a file holds settings; a module that defines classes is code."""
    try:
        tree = ast.parse(read_bytes(file, MAX_BYTES, follow=True))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return not any(isinstance(statement, ast.ClassDef) for statement in tree.body)
