"""Config of a run key by key, with the origin of each value and the defaults taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay.config.overrides import is_override
from assay.config.sources import toml
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    dotted,
    get_at,
    parse_dotted,
    same,
    walk,
)
from assay.core.errors import AssayError
from assay.formats import defaults_file
from assay.query.diff import write_value
from assay.query.run import RunView
from assay.query.text_files import read_text

Kind = Literal["file", "override", "default", "injected", "resolved"]


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One value.

    `origin` is a place (`digits.toml:12`, `from env:X`), an argument, or whose default it is.
    """

    key: str
    value: str
    kind: Kind
    origin: str


def config_rows(run: RunView) -> list[ConfigRow]:
    """Return the values of the saved config in its order, then the defaults.

    ConfigError when the config is damaged.
    """
    from assay.config.freeze import origins_noted  # hashes, which a diff of runs does without

    given = _read_given(run)
    overrides = _overrides(run)
    origins = origins_noted(run.config_text, run.config_tree)
    rows = [
        _row(path, node, given, overrides, origins.get(path, ""))
        for path, node in _leaves(run.config_tree)
    ]
    known = {row.key for row in rows}
    for each in defaults_file.read(run.path):
        kind: Kind = "injected" if each.injected else "default"
        if each.key not in known:
            rows.append(ConfigRow(each.key, each.value, kind, each.owner))
    return rows


def flat_config(run: RunView) -> dict[str, str]:
    """Return the saved config as text by dotted key. ConfigError when it is damaged."""
    return {dotted(path): write_value(node) or "" for path, node in _leaves(run.config_tree)}


def config_files(run: RunView) -> dict[str, str]:
    """Return the files that the config was given as, by name."""
    folder = run.folder.config_dir
    found = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() and not folder.is_symlink() else ():
        text = read_text(path)
        if text is not None:
            found[path.relative_to(folder).as_posix()] = text
    return found


def _leaves(root: Table) -> Iterator[tuple[KeyPath, Node]]:
    """Yield what is one value to a reader: scalars, and lists of scalars as a whole."""
    inside: KeyPath | None = None
    for path, node in walk(root):
        if inside is not None and path[: len(inside)] == inside:
            continue
        inside = None
        if isinstance(node, Leaf):
            yield path, node
        elif isinstance(node, List) and all(isinstance(item, Leaf) for item in node.items):
            inside = path
            yield path, node
        elif isinstance(node, Table) and not node.items and path:
            yield path, node


def _row(
    path: KeyPath,
    node: Node,
    given: Sequence[tuple[str, Table]],
    overrides: dict[KeyPath, str],
    origin: str,
) -> ConfigRow:
    key = dotted(path)
    value = write_value(node) or ""
    for length in range(len(path), 0, -1):
        if path[:length] in overrides:
            return ConfigRow(key, value, "override", overrides[path[:length]])
    for name, root in given:
        there = get_at(root, path)
        if there is not None and same(there, node):
            return ConfigRow(
                key, value, "file", f"{name}:{there.origin.line}" if there.origin.line else name
            )
    # A script that gave its config as a dictionary has no file that could be named.
    return ConfigRow(key, value, "resolved" if given or origin else "file", origin)


def _read_given(run: RunView) -> list[tuple[str, Table]]:
    """Return the given config files that are data; a config in Python is not executed here."""
    found = []
    for name, text in config_files(run).items():
        if Path(name).suffix == ".toml":
            try:
                found.append((name, toml.read_toml(text, name)))
            except AssayError:
                continue
    return found


def _overrides(run: RunView) -> dict[KeyPath, str]:
    """Return the keys that arguments of the command set, with the argument."""
    if not run.file.attempts:
        return {}
    found = {}
    for argument in run.file.newest.command:
        if is_override(argument):
            key = argument.lstrip("+").partition("=")[0]
            found[parse_dotted(key)] = argument
    return found
