"""A config file with its overrides, read into one tree."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from assay.config import overrides as cli
from assay.config import references, toml_source
from assay.config.tree import Table
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError, InputError

NOT_YET = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON", ".py": "Python", ".ini": "INI", ".cfg": "INI"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Config:
    """What was asked for.

    `root` is the tree to build and to keep: merged, with value references replaced and without the sections that were
    only there to be copied from. `written` is the merged tree before that. `files` holds every source exactly as given.
    `user_dirs` is where user modules are looked for, first match wins. `problems` is what went wrong while reading;
    `check_shape` tells these and everything else.
    """

    root: Table
    written: Table
    path: Path | None
    files: Mapping[str, str]
    user_dirs: tuple[Path, ...]
    overrides: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def user_dir(self) -> Path:
        """The first of `user_dirs`."""
        return self.user_dirs[0]


def load(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), *, user_dir: str | os.PathLike[str] | None = None
) -> Config:
    """The config in the file `path`; ConfigError with everything that could not be read or referred to.

    Whether its keys and values make sense is for `check_shape` to tell. Without `user_dir`, user modules are looked
    for in the folder of the config and then in `src/` there.
    """
    return _sound(open_config(path, overrides, user_dir=user_dir))


def loads(
    text: str,
    overrides: Sequence[str] = (),
    *,
    source: str = "<string>",
    user_dir: str | os.PathLike[str] | None = None,
) -> Config:
    """The config in a string; like `load`. Without `user_dir`, user modules are looked for in the working directory."""
    return _sound(open_text(text, overrides, source=source, user_dir=user_dir))


def open_config(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), *, user_dir: str | os.PathLike[str] | None = None
) -> Config:
    """Like `load`, but what is wrong inside the file is kept in `Config.problems`: for `check_shape` to tell it all."""
    file = Path(path)
    text, problems = _text_of(file)
    return _config(text, overrides, str(path), file, _user_dirs(user_dir, file.parent), problems)


def open_text(
    text: str,
    overrides: Sequence[str] = (),
    *,
    source: str = "<string>",
    user_dir: str | os.PathLike[str] | None = None,
) -> Config:
    """Like `loads`, but keeps what is wrong in `Config.problems`."""
    return _config(text, overrides, source, None, _user_dirs(user_dir, Path()), [])


def _sound(config: Config) -> Config:
    if config.problems:
        raise ConfigError(config.problems)
    return config


def _config(
    text: str,
    overrides: Sequence[str],
    source: str,
    path: Path | None,
    user_dirs: tuple[Path, ...],
    problems: list[Problem],
) -> Config:
    if problems:
        root, read_problems = Table({}, Origin(source=source)), problems
    else:
        root, read_problems = toml_source.read_all(text, source, excerpt=path is None)
    written, override_problems = cli.apply(root, overrides)
    resolved, reference_problems = references.resolved(written)
    resolved = _without_templates(written, resolved)
    if read_problems:
        # A part of the file is missing from the tree: whether a name leads somewhere cannot be judged.
        reference_problems = [problem for problem in reference_problems if problem.kind != "unknown-reference"]
        override_problems = [problem for problem in override_problems if problem.kind != "unknown-key"]
    return Config(
        root=resolved,
        written=written,
        path=path,
        files=MappingProxyType({source: text}),
        user_dirs=user_dirs,
        overrides=tuple(overrides),
        problems=(*read_problems, *override_problems, *reference_problems),
    )


def _without_templates(written: Table, resolved: Table) -> Table:
    """`resolved` without sections of the user's own that only value references mention: their values are in place."""
    standard = {key.name for key in schema.SECTIONS}
    objects = {str(target[0]) for _, target, _ in references.objects_used(resolved) if target}
    gone = references.names_used(written) - standard - objects
    if not gone:
        return resolved
    return Table(
        {key: node for key, node in resolved.items.items() if key not in gone},
        resolved.origin,
        {key: origin for key, origin in resolved.key_origins.items() if key not in gone},
    )


def _user_dirs(given: str | os.PathLike[str] | None, folder: Path) -> tuple[Path, ...]:
    if given is None:
        return folder, folder / "src"
    path = Path(given)
    if not path.is_dir():
        raise InputError(f"The folder of user modules does not exist: {path}", fix="Check --user-dir.")
    return (path,)


def _text_of(file: Path) -> tuple[str, list[Problem]]:
    language = NOT_YET.get(file.suffix.lower())
    if language is not None:
        raise InputError(
            f"{file} looks like {language}; a config is read from TOML only, for now.", fix=f"Write {file.stem}.toml."
        )
    try:
        with file.open("rb") as stream:
            raw = stream.read(toml_source.MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"There is no config file {file}.", fix=_near_files(file)) from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder, not a config file.", fix=_near_files(file / "config.toml")) from None
    except (OSError, ValueError) as error:
        raise InputError(f"The config file {file} cannot be read: {error}") from error
    try:
        return raw.decode("utf-8"), []
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8").removeprefix("\ufeff")
        if len(raw) > toml_source.MAX_BYTES:
            return good, []  # cut in the middle of a character; its size is refused next
        column = len(good) - (good.rfind("\n") + 1) + 1
        origin = Origin(source=str(file), line=good.count("\n") + 1, column=column)
        message = f"byte 0x{raw[error.start]:02x} is no UTF-8"
        return "", [Problem(kind="syntax", message=message, origin=origin, fix="save the file as UTF-8")]


def _near_files(file: Path) -> str:
    try:
        stems = sorted(path.stem for path in file.parent.iterdir() if path.suffix == ".toml")
    except (OSError, ValueError):
        return f"The folder {file.parent} does not exist."
    near = difflib.get_close_matches(file.stem, stems, n=3) or stems[:3]
    if not near:
        return f"There is no TOML file in {file.parent.resolve()}."
    return f"Near it there is: {', '.join(str(file.parent / f'{stem}.toml') for stem in near)}."
