"""Configs that are Python files: they are run, and their names become the tree.

What a config imports from another is a fresh copy, so that editing it changes nobody else's.
Modules of the user that were loaded on the way leave the process again.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.config.lazy import Section, calling_frame
from assay.config.sources.objects import OversizedError, lift, mark_sections, tree_of_module
from assay.config.sources.outside_reads import reads_from_outside
from assay.config.sources.positions import MAX_BYTES, duplicate, too_deep, too_large
from assay.config.sources.source_map import SourceFile
from assay.config.translator import translator
from assay.config.tree import Table
from assay.config.user_modules import UserModules
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import AssayError, ConfigError, InputError, did_you_mean
from assay.core.regular_file import read_bytes, read_start

DEFAULTS = Path(__file__).resolve().parents[1] / "defaults"
_OWN = str(DEFAULTS.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonConfig:
    """Tree of a config file, its problems, the texts of it and its imports, and what it read."""

    root: Table
    problems: list[Problem]
    files: dict[str, str]
    outside: Mapping[str, Any]


def read_all(text: str, source: str, *, path: Path, user_dirs: Sequence[Path]) -> PythonConfig:
    """Execute a config file and return what came of it."""
    loading = _Loading(user_dirs)
    empty = Table({}, Origin(source=source))
    with loading.active(), reads_from_outside(loading.is_own) as outside:
        try:
            module = loading.run(path, source=source, text=text)
            root, problems = tree_of_module(module, loading.files[str(path)], loading.files)
        except OversizedError as stop:
            root, problems = empty, [stop.problem]
        except ConfigError as error:
            root, problems = empty, list(error.problems)
        except RecursionError:
            root, problems = empty, [too_deep(Origin(source=source))]
    files = {source: text, **loading.texts()}
    problems = [*problems, *loading.notes]
    return PythonConfig(root=root, problems=problems, files=files, outside=outside)


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
        return _names(loading.view(loading.config(file)))
    loading = _Loading((file.parent, file.parent / "src"))
    with loading.active():
        return _names(loading.view(loading.config(file)))


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


def _names(module: types.ModuleType) -> Section:
    made = Section()
    for name, value in vars(module).items():
        if not name.startswith("_") and not isinstance(value, types.ModuleType):
            dict.__setitem__(made, name, value)
    return made


# --- running --------------------------------------------------------------------------------------

_current: ContextVar[_Loading | None] = ContextVar("assay_config_loading", default=None)
_lock = threading.RLock()


class _Loading:
    """Execution of a config and the configs that it imports: each once, handed out as copies."""

    def __init__(self, user_dirs: Sequence[Path]) -> None:
        self.user_dirs = [Path(os.path.abspath(folder)) for folder in user_dirs]
        self.files: dict[str, SourceFile] = {}
        self.modules: dict[Path, types.ModuleType] = {}
        self.running: list[Path] = []
        self.notes: list[Problem] = []

    def texts(self) -> dict[str, str]:
        """Return the texts that were read, without those that come with assay."""
        return {
            file.source: file.text
            for path, file in self.files.items()
            if not Path(path).is_relative_to(DEFAULTS)
        }

    def is_own(self, filename: str) -> bool:
        """Return whether code of this file belongs to the config: of it, or of the user's."""
        if filename in self.files:
            return True
        path = Path(filename)
        is_below = any(path.is_relative_to(folder) for folder in self.user_dirs)
        return is_below and not {"site-packages", "dist-packages"}.intersection(path.parts)

    @contextmanager
    def active(self) -> Iterator[None]:
        """While open, this is what configs are loaded into, and the user's modules are found."""
        with _lock, _user_modules(self.user_dirs):
            token = _current.set(self)
            try:
                yield
            finally:
                _current.reset(token)

    def run(self, path: Path, *, source: str, text: str, name: str = "") -> types.ModuleType:
        """Execute a config file. Raises ConfigError with what went wrong in it."""
        tree, code = _compile(path, source, text)
        self.files[str(path)] = file = SourceFile(str(path), source, text, tree)
        if twice := list(file.find_keys_given_twice()):
            raise ConfigError([duplicate(*each) for each in twice])
        name = name or self.name_of(path)
        module = types.ModuleType(name)
        module.__file__ = str(path)
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self.importer(path)}
        module.__dict__.update(self.supply(file))
        self.execute(code, module, path)
        memo: dict[int, Any] = {}
        for key, value in list(vars(module).items()):
            if not key.startswith("__"):
                entry = file.name(key)
                expression = entry.value if entry is not None else None
                module.__dict__[key] = lift(value, expression, memo)
        mark_sections(vars(module), file, memo)
        return module

    def importer(self, path: Path) -> Callable[..., types.ModuleType]:
        """Return the `__import__` of the config at `path`."""

        def import_here(
            name: str,
            globals: Mapping[str, Any] | None = None,
            locals: Mapping[str, Any] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> types.ModuleType:
            return self.import_from(path, name, globals, locals, tuple(fromlist or ()), level)

        return import_here

    def execute(self, code: types.CodeType, module: types.ModuleType, path: Path) -> None:
        """Run the code of a config, whose module is found by its name meanwhile."""
        name = module.__name__
        before = sys.modules.get(name)
        sys.modules[name] = module
        self.running.append(path)
        try:
            exec(code, module.__dict__)
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

    def supply(self, file: SourceFile) -> dict[str, Any]:
        """Return the names that a config of an older system uses without importing them."""
        found = translator().names_left_out(file.text)
        if found:
            message = f"{', '.join(found)} of an older system: used without an import, supplied"
            note = Problem(
                kind="alias", severity="note", message=message, origin=Origin(source=file.source)
            )
            self.notes.append(note)
        return found

    def config(self, path: Path, name: str = "") -> types.ModuleType:
        """Return the config file at `path`, executed once."""
        path = Path(os.path.abspath(path))
        if path in self.running:
            chain = " -> ".join(
                str(each) for each in [*self.running[self.running.index(path) :], path]
            )
            raise ImportError(f"configs import each other: {chain}")
        if path not in self.modules:
            raw = read_start(path, MAX_BYTES + 1, follow=True)
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise ImportError(f"{path} is no UTF-8: {error}") from None
            self.modules[path] = self.run(path, source=_show_path(path), text=text, name=name)
        return self.modules[path]

    def view(self, module: types.ModuleType, names: Sequence[str] = ("*",)) -> types.ModuleType:
        """Return `module` with copies of its data, for one importer to edit."""
        made = types.ModuleType(module.__name__)
        memo: dict[int, Any] = {}
        for name, value in vars(module).items():
            wanted = "*" in names or name in names
            made.__dict__[name] = deepcopy(value, memo) if wanted and _is_data(value) else value
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
            for folder in self.user_dirs:
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
        return _relax(module) if name == "omegaconf" else module

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
            frames.append((trace.tb_frame.f_code, trace.tb_lasti, trace.tb_lineno))
            trace = trace.tb_next
        inside = [i for i, (code, _, _) in enumerate(frames) if code.co_filename in self.files]
        place = Origin(source=self.files[str(path)].source)
        related: list[Problem] = []
        if inside:
            place = self.place_of(*frames[inside[-1]])
            code, _, line = frames[-1]
            is_below = inside[-1] < len(frames) - 1
            is_ours = code.co_filename.startswith(_OWN) or "importlib" in code.co_filename
            if is_below and not is_ours:
                there = Origin(source=code.co_filename, line=line)
                related = [_note_at(there)]
        if isinstance(error, SyntaxError) and error.filename:
            related = [replace(_syntax(error, error.filename), severity="note")]
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

    def place_of(self, code: types.CodeType, instruction: int, line: int) -> Origin:
        file = self.files[code.co_filename]
        for i, (first, last, column, end) in enumerate(code.co_positions()):
            if i == instruction // 2 and first and last and column is not None and end is not None:
                return file.origin((first, column, last, end))
        return Origin(source=file.source, line=line)


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


def _relax(module: types.ModuleType) -> types.ModuleType:
    """omegaconf for a config: what is made of it takes calls too, as it takes numbers."""

    def with_objects(flags: Mapping[str, bool] | None) -> dict[str, bool]:
        return {"allow_objects": True, **(flags or {})}

    class OmegaConf(module.OmegaConf):  # type: ignore[misc, name-defined]
        @staticmethod
        def create(
            obj: Any = None, parent: Any = None, flags: Mapping[str, bool] | None = None
        ) -> Any:
            content = {} if obj is None else obj
            return module.OmegaConf.create(content, parent, flags=with_objects(flags))

    class DictConfig(module.DictConfig):  # type: ignore[misc, name-defined]
        def __init__(
            self, content: Any, *args: Any, flags: Mapping[str, bool] | None = None, **more: Any
        ) -> None:
            super().__init__(content, *args, flags=with_objects(flags), **more)

    class ListConfig(module.ListConfig):  # type: ignore[misc, name-defined]
        def __init__(
            self, content: Any, *args: Any, flags: Mapping[str, bool] | None = None, **more: Any
        ) -> None:
            super().__init__(content, *args, flags=with_objects(flags), **more)

    made = types.ModuleType(module.__name__)
    made.__dict__.update(
        vars(module), OmegaConf=OmegaConf, DictConfig=DictConfig, ListConfig=ListConfig
    )
    return made


@contextmanager
def _user_modules(folders: Sequence[Path]) -> Iterator[None]:
    """Import from `folders` first within this block, and forget their modules at its end."""
    roots = [os.path.realpath(folder) for folder in folders]
    names = (
        set(UserModules(folders).names())
        - sys.stdlib_module_names
        - {"assay", "torch", "numpy", "__main__"}
    )

    def is_theirs(name: str) -> bool:
        if name.partition(".")[0] not in names:
            return False
        module = sys.modules[name]
        places = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]
        return any(
            isinstance(each, str) and os.path.realpath(each).startswith(tuple(roots))
            for each in places
        )

    hidden = {
        name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names
    }
    sys.path[:0] = [str(folder) for folder in folders]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for folder in folders:
            if str(folder) in sys.path:  # unless the config took it out
                sys.path.remove(str(folder))
        for name in [name for name in list(sys.modules) if is_theirs(name)]:
            del sys.modules[name]
        sys.modules.update(hidden)


def _syntax(error: SyntaxError, source: str) -> Problem:
    line, column = error.lineno or 1, max(1, error.offset or 1)
    origin = Origin(
        source=source,
        line=line,
        column=column,
        end_line=error.end_lineno or 0,
        end_column=error.end_offset or 0,
    )
    return Problem(kind="syntax", message=error.msg, origin=origin)


# --- from names to sections -----------------------------------------------------------------------


def _compile(path: Path, source: str, text: str) -> tuple[ast.Module, types.CodeType]:
    """Parse and compile a config file. Raises ConfigError at the first syntax error."""
    refused = too_large(text, source)
    if refused is not None:
        raise OversizedError(refused)
    try:
        tree = ast.parse(text, filename=str(path))
        return tree, compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ConfigError([_syntax(error, source)]) from None
    except (RecursionError, MemoryError):
        raise OversizedError(too_deep(Origin(source=source))) from None
    except ValueError as error:
        problem = Problem(kind="syntax", message=str(error), origin=Origin(source=source))
        raise ConfigError([problem]) from None
