"""A config file with its overrides, read into one tree."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from assay.config.freeze import origins_noted
from assay.config.merge import merge
from assay.config.references import Uses
from assay.config.resolver import Draws, with_recorded_values
from assay.config.settings import Settings
from assay.config.sources import ini, json, objects, python, toml, yaml
from assay.config.sources.positions import MAX_BYTES
from assay.config.translator import OlderConfig, translator
from assay.config.tree import Leaf, Node, Table, get_at, set_at, transform
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError, InputError
from assay.core.regular_file import NotRegularFileError, read_start

READERS: Mapping[str, Callable[..., tuple[Table, list[Problem]]]] = MappingProxyType(
    {
        ".toml": toml.read_all,
        ".json": json.read_all,
        ".jsonc": json.read_all,
        ".yaml": yaml.read_all,
        ".yml": yaml.read_all,
        ".ini": ini.read_all,
        ".cfg": ini.read_all,
    }
)
"""The text front ends by suffix. What has none of these is TOML; a `.py` is run."""

PYTHON = ".py"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Config:
    """Config as asked for, with its tree, its sources and its problems.

    `root` is the tree to build and to keep: merged, with value references replaced and without the
    sections that were only there to be copied from. `written` is the merged tree before that,
    `given` the file before anything was merged into it, with its variants and its sweep: see
    `expand`. `variant` and `point` ("2/6") say which of them this is, `assigned` what the point
    set. `files` holds every source exactly as given. `user_dirs` are searched for user modules,
    first match wins; `settings` are those of the project. `problems` is what went wrong so far, of
    which `read_problems` concern the text alone, and `notes` what was read as something else
    (`file_notes`: in the file); `check_shape` reports these and everything else. `named` is `root`
    with every target under its one name, once the signature stage has looked at it: the tree that
    is hashed. `unaliased` is the file with the keys of other systems as they were given, `older`
    the same for settings of them, None for a config of no other system.
    """

    root: Table
    written: Table
    given: Table
    path: Path | None
    files: Mapping[str, str]
    user_dirs: tuple[Path, ...]
    overrides: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    read_problems: tuple[Problem, ...] = ()
    file_notes: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    named: Table | None = None
    filled: Table | None = None
    unaliased: Table | None = None
    older: OlderConfig | None = None
    variant: str = ""
    point: str = ""
    assigned: tuple[tuple[str, Node], ...] = ()
    draws: Draws = field(default_factory=Draws)
    uses: Uses = field(default_factory=Uses)
    settings: Settings = field(default_factory=lambda: Settings(Path.cwd()))

    @property
    def user_dir(self) -> Path:
        """The first of `user_dirs`."""
        return self.user_dirs[0]

    @property
    def name(self) -> str:
        """Name of this config among those of its file; "" for the only one."""
        return " ".join(filter(None, [self.variant, f"point {self.point}" if self.point else ""]))


def load(
    given: str | os.PathLike[str] | Mapping[str, Any] | object,
    overrides: Sequence[str] = (),
    *,
    user_dir: str | os.PathLike[str] | None = None,
) -> Config:
    """Read the config of a file, a mapping, a `Params` or a dataclass.

    The suffix says how a file is written: .toml, .py, .json, .yaml or .ini. Other objects are
    copied. Whether keys and values make sense is for `check_shape` to say. Without `user_dir`, user
    modules are looked for in the folder of the config and then in `src/` there. Raises ConfigError
    with everything that could not be read.
    """
    return _sound(open_config(given, overrides, user_dir=user_dir))


def loads(
    text: str,
    overrides: Sequence[str] = (),
    *,
    source: str = "<string>",
    user_dir: str | os.PathLike[str] | None = None,
) -> Config:
    """Read the config in a string, TOML unless `source` ends in another suffix; like `load`.

    Without `user_dir`, user modules are looked for in the working directory.
    """
    return _sound(open_text(text, overrides, source=source, user_dir=user_dir))


def open_config(
    given: str | os.PathLike[str] | Mapping[str, Any] | object,
    overrides: Sequence[str] = (),
    *,
    user_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    outside: Mapping[str, Any] | None = None,
) -> Config:
    """Read a config like `load`, but keep the mistakes inside the file in `Config.problems`.

    Of several `user_dir` the first that has a module wins. `outside` are the values that a record
    keeps beside this config; its references to them have these values.
    """
    if not isinstance(given, str | os.PathLike):
        root, problems = objects.read_object(given, "<python>")
        return _config(root, problems, {}, overrides, None, user_dirs_of(user_dir, Path()))
    file = Path(given)
    source = os.fspath(given)
    user_dirs = user_dirs_of(user_dir, file.parent)
    text, problems = _text_of(file)
    files = {source: text}
    if problems:
        root = Table({}, Origin(source=source))
    elif file.suffix.lower() == PYTHON:
        read = python.read_all(text, source, path=file, user_dirs=user_dirs)
        root, problems, files = read.root, read.problems, read.files
    else:
        root, problems = READERS.get(file.suffix.lower(), toml.read_all)(text, source)
        if outside is not None:
            root = with_recorded_values(_with_noted_origins(root, text), outside)
    return _config(root, problems, files, overrides, file, user_dirs)


def open_text(
    text: str,
    overrides: Sequence[str] = (),
    *,
    source: str = "<string>",
    user_dir: str | os.PathLike[str] | None = None,
) -> Config:
    """Like `loads`, but keeps what is wrong in `Config.problems`."""
    read = READERS.get(Path(source).suffix.lower(), toml.read_all)
    root, problems = read(text, source, excerpt=True)
    return _config(root, problems, {source: text}, overrides, None, user_dirs_of(user_dir, Path()))


def open_tree(
    root: Table,
    overrides: Sequence[str],
    *,
    path: Path | None,
    files: Mapping[str, str],
    user_dirs: tuple[Path, ...],
) -> Config:
    """Return the config of a tree that was read before: `Config.unaliased`."""
    return _config(root, [], files, overrides, path, user_dirs)


def rename_targets(config: Config) -> Table:
    """Return the file as it was merged, with the names that targets of older systems have here."""

    def rename(node: Node, _: object) -> Node:
        target = node.target if isinstance(node, Table) else None
        older = translator().older_name(target) if target else None
        if older is None:
            return node
        assert isinstance(node, Table)
        kind = Leaf(older.target, node.items["type"].origin)
        return replace(node, items={**node.items, "type": kind})

    root = transform(config.written, rename)
    assert isinstance(root, Table)
    return root


def _sound(config: Config) -> Config:
    if config.problems:
        raise ConfigError(config.problems)
    return config


def _config(
    root: Table,
    read_problems: list[Problem],
    files: Mapping[str, str],
    overrides: Sequence[str],
    path: Path | None,
    user_dirs: tuple[Path, ...],
) -> Config:
    unaliased = root
    older = translator().older_config(root)
    told = [problem for problem in read_problems if problem.severity == "note"]
    read_problems = [problem for problem in read_problems if problem.severity != "note"]
    root, notes = translator().translate(root)
    notes = [*told, *notes]
    draws = Draws()
    uses = Uses()
    settings = Settings(path.resolve().parent if path is not None else Path.cwd())
    made = merge(
        root,
        overrides,
        draws,
        uses,
        settings,
        older=older,
        is_whole=not read_problems,
    )
    return Config(
        root=made.root,
        written=made.written,
        given=root,
        unaliased=unaliased,
        older=older,
        path=path,
        files=MappingProxyType(dict(files)),
        user_dirs=user_dirs,
        overrides=tuple(overrides),
        problems=(*read_problems, *made.problems),
        read_problems=tuple(read_problems),
        file_notes=tuple(notes),
        notes=(*notes, *made.notes),
        draws=draws,
        uses=uses,
        settings=settings,
    )


def _with_noted_origins(root: Table, text: str) -> Table:
    """Return the tree of a saved config with the origins that stand behind its values."""
    for path, note in origins_noted(text, root).items():
        leaf = get_at(root, path)
        assert isinstance(leaf, Leaf)
        root = set_at(root, path, replace(leaf, origin=replace(leaf.origin, note=note)))
    return root


def user_dirs_of(
    given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None, folder: Path
) -> tuple[Path, ...]:
    """Return the folders of user modules: those given, else that of a config and its `src`."""
    if given is None:
        return folder, folder / "src"
    paths = tuple(
        Path(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)
    )
    for path in paths:
        if not path.is_dir():
            raise InputError(
                f"The folder of user modules does not exist: {path}", fix="Check --user-dir."
            )
    return paths


def _text_of(file: Path) -> tuple[str, list[Problem]]:
    try:
        raw = read_start(file, MAX_BYTES + 1, follow=True)
    except FileNotFoundError:
        raise InputError(f"There is no config file {file}.", fix=_near_files(file)) from None
    except NotRegularFileError as error:
        fix = _near_files(file / "config.toml" if error.kind == "a folder" else file)
        raise InputError(f"{file} is {error.kind}, not a config file.", fix=fix) from None
    except (OSError, ValueError) as error:
        raise InputError(f"The config file {file} cannot be read: {error}") from error
    try:
        return raw.decode("utf-8"), []
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8").removeprefix("\ufeff")
        if len(raw) > MAX_BYTES:
            return good, []  # cut in the middle of a character; its size is refused next
        column = len(good) - (good.rfind("\n") + 1) + 1
        origin = Origin(source=str(file), line=good.count("\n") + 1, column=column)
        message = f"byte 0x{raw[error.start]:02x} is no UTF-8"
        return "", [
            Problem(kind="syntax", message=message, origin=origin, fix="save the file as UTF-8")
        ]


def _near_files(file: Path) -> str:
    try:
        names = sorted(path.name for path in file.parent.iterdir() if path.suffix in READERS)
    except (OSError, ValueError):
        return f"The folder {file.parent} does not exist."
    near = difflib.get_close_matches(file.name, names, n=3) or names[:3]
    if not near:
        return f"There is no config in {file.parent.resolve()}: write one, or give the path of one."
    return f"Near it there is: {', '.join(str(file.parent / name) for name in near)}."
