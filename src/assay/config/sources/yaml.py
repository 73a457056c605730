"""Front end for YAML: PyYAML reads plain data by the core schema of YAML 1.2, with bounded aliases.

`no` is text and `010` is ten. No tag makes an object. `<<` merges a table into the one it is in.
The first syntax error, in the words of PyYAML, ends the reading; all other mistakes are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from assay.config.sources.positions import (
    MAX_BYTES,
    MAX_MISTAKES,
    MAX_VALUES,
    MAX_WORD,
    UnreadableError,
    by_place,
    duplicate,
    too_deep,
    too_large,
    too_long,
    too_many,
)
from assay.config.sources.toml_tokens import beyond_floats, float_of, moment_of
from assay.config.tree import MAX_DEPTH, NONE, KeyPath, Leaf, List, Node, Scalar, Table, dotted
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import MissingExtraError

_SLOW_BYTES = MAX_BYTES // 16  # without libyaml, reading takes thirty times as long
_TAG = "tag:yaml.org,2002:"
_RESOLVERS = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)
"""Plain words by the core schema of YAML 1.2: tag, pattern, first characters ("\\0": no word)."""
_HINTS = {
    ":": "put text that holds `: ` in quotes",
    **dict.fromkeys("@`%*&!|>", "put text that begins so in quotes"),
    "-": "a list starts on a line of its own",
}
"""Hints by the character at which PyYAML stopped."""
_CLOSING = {"[": "]", "{": "}", "'": "'", '"': '"'}


def read_all(text: str, source: str, *, excerpt: bool = False) -> tuple[Table, list[Problem]]:
    """Return the tree of what could be read, and its mistakes. Needs the extra `yaml`.

    Dates are no part of the core schema: write `!!timestamp 2024-01-31`.
    """
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise MissingExtraError("A config in YAML", extra="yaml") from None
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = text.removeprefix("\ufeff")
    here = Origin(source=source, text=text if excerpt else None)
    empty = Table({}, Origin(source=source))
    refused = too_large(text, source, limit=_SLOW_BYTES if base is yaml.SafeLoader else MAX_BYTES)
    if refused is not None:
        return empty, [refused]
    reader = _YamlReader(here)
    try:
        reader.check_size(yaml.parse(text, Loader=base))
        root = yaml.compose(text, Loader=_core_loader(base))
        table = reader.root(root)
    except UnreadableError as stop:
        return empty, [stop.problem]
    except yaml.YAMLError as error:
        return empty, [_syntax_error(error, here, text)]
    return table, sorted(reader.problems[:MAX_MISTAKES], key=by_place)


def _core_loader(base: Any) -> Any:
    """Return a loader that takes plain words for what the core schema says."""
    loader: Any = type("CoreLoader", (base,), {"yaml_implicit_resolvers": {}})
    for tag, pattern, first in _RESOLVERS:
        letters = [letter.replace("\0", "") for letter in first]
        loader.add_implicit_resolver(_TAG + tag, re.compile(rf"(?:{pattern})\Z"), letters)
    return loader


def _syntax_error(error: Any, here: Origin, text: str) -> Problem:
    """Return what PyYAML says, at its mark, with a note on what it was reading."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # a character that no YAML may hold, which has no mark
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        place = replace(here, line=line, column=column)
        return Problem(kind="syntax", message=error.reason, origin=place)
    begun = error.context_mark
    is_at_end = mark.index >= len(text.rstrip())
    related: tuple[Problem, ...] = ()
    if error.context and begun is not None and not is_at_end:
        origin = _place(here, begun)
        related = (Problem(kind="syntax", severity="note", message=error.context, origin=origin),)
    indent = text[text.rfind("\n", 0, mark.index) + 1 : mark.index + 1]
    opened = text[begun.index : begun.index + 1] if begun is not None else ""
    if "\t" in indent and not indent.strip():
        fix = "indent with spaces"
    elif opened in _CLOSING and (begun.line < mark.line or is_at_end):
        fix = f"add the closing `{_CLOSING[opened]}`"
    else:
        fix = _HINTS.get(text[mark.index : mark.index + 1], "")
    place = _place(here, begun if is_at_end and begun is not None else mark)
    return Problem(kind="syntax", message=error.problem, origin=place, fix=fix, related=related)


def _place(here: Origin, start: Any, end: Any = None) -> Origin:
    """Return the origin of what stands between two marks of PyYAML."""
    end = end or start
    return replace(
        here,
        line=start.line + 1,
        column=start.column + 1,
        end_line=end.line + 1,
        end_column=end.column + 1,
    )


class _YamlReader:
    """Maker of a tree from composed nodes. An alias is the node that it names, once more."""

    def __init__(self, here: Origin) -> None:
        self.here = here
        self.problems: list[Problem] = []
        self.values = 0
        self.open: set[int] = set()
        """Tables and lists around the node that is read, by id."""

    def check_size(self, events: Iterator[Any]) -> None:
        """Raise UnreadableError for too much, before nodes are composed by recursion."""
        depth = values = 0
        for event in events:
            kind = type(event).__name__
            values += kind in ("ScalarEvent", "MappingStartEvent", "SequenceStartEvent")
            depth += kind.endswith("StartEvent") and kind[0] in "MS"
            depth -= kind in ("MappingEndEvent", "SequenceEndEvent")
            if depth > MAX_DEPTH + 2:  # the stream and the root are no levels
                raise UnreadableError(too_deep(_place(self.here, event.start_mark)))
            if values > 2 * MAX_VALUES:  # keys and values
                raise UnreadableError(too_many(self.here.source))

    def root(self, node: Any) -> Table:
        """Return the tree of a document, which is a table or empty."""
        if node is None or self.is_null(node):
            return Table({}, replace(self.here, line=1, column=1))
        root = self.node(node, ())
        if isinstance(root, Table):
            return root
        self.wrong("a config is a table", node)
        return Table({}, self.origin(node))

    def node(self, node: Any, path: KeyPath) -> Node | None:
        """Return the tree of a node; None, with a problem, if it has no meaning."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise UnreadableError(too_many(self.here.source))
        if len(path) > MAX_DEPTH:
            raise UnreadableError(too_deep(self.origin(node)))
        kind = node.id
        if kind == "scalar":
            return self.scalar(node)
        if id(node) in self.open:
            self.wrong("this stands inside of itself", node)
            return None
        if node.tag != _TAG + ("map" if kind == "mapping" else "seq"):
            self.refuse_tag(node)
        self.open.add(id(node))
        made = self.table(node, path) if kind == "mapping" else self.row(node, path)
        self.open.remove(id(node))
        return made

    def row(self, node: Any, path: KeyPath) -> List:
        items = [self.node(item, (*path, i)) for i, item in enumerate(node.value)]
        return List(tuple(item for item in items if item is not None), self.origin(node))

    def table(self, node: Any, path: KeyPath) -> Table:
        items: dict[str, Node] = {}
        origins: dict[str, Origin] = {}
        merged: list[Table] = []
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                merged += self.tables_to_merge(value, path)
                continue
            name = self.key(key)
            made = self.node(value, (*path, name if name is not None else ""))
            if name is None:
                continue
            if name in origins:
                here = self.origin(key)
                self.problems.append(duplicate(dotted((*path, name)), here, origins[name]))
                continue
            origins[name] = self.origin(key)
            if made is not None:
                items[name] = made
        for table in merged:
            for name in table.items.keys() - origins.keys():
                items[name], origins[name] = table.items[name], table.key_origin(name)
        return Table(items, self.origin(node), {name: origins[name] for name in items})

    def tables_to_merge(self, node: Any, path: KeyPath) -> list[Table]:
        parts = node.value if node.id == "sequence" else [node]
        tables = [self.node(part, path) for part in parts]
        if not all(isinstance(table, Table) for table in tables):
            self.wrong("`<<` merges tables, not values", node)
        return [table for table in tables if isinstance(table, Table)]

    def key(self, node: Any) -> str | None:
        """Return the text of a key; None, with a problem, for anything else."""
        if node.id != "scalar":
            self.wrong("a key is text, not a table or list", node)
        elif len(node.value) > MAX_WORD:
            self.problems.append(too_long(self.origin(node)))
        elif not self.is_null(node):
            return str(node.value)
        elif node.value:
            fix = f'put it in quotes: "{node.value}"'
            self.wrong(f"`{node.value}` is null, and a key is text", node, fix)
        else:
            self.wrong("a key is missing", node, "write key: value")
        return None

    def is_null(self, node: Any) -> bool:
        return bool(node.tag == _TAG + "null")

    def scalar(self, node: Any) -> Leaf | None:
        """Return the meaning of a scalar; None, with a problem, if it has none."""
        text, kind = node.value, node.tag.removeprefix(_TAG)
        read = _KINDS.get(kind)
        if read is None:
            self.refuse_tag(node)
            return None
        is_long = len(text) > MAX_WORD and kind not in ("str", "merge")
        found = None if is_long else read(text)
        if found is not None:
            return Leaf(None if found[0] == NONE else found[0], self.origin(node))
        if is_long:
            self.problems.append(too_long(self.origin(node)))
        else:
            self.wrong(
                f"`{text}` is no {kind}", node, beyond_floats(text) if kind == "float" else ""
            )
        return None

    def refuse_tag(self, node: Any) -> None:
        shown = node.tag.replace(_TAG, "!!")
        fix = 'a config is plain data: write type: "package.Name"'
        self.wrong(f"the tag `{shown}` is not allowed", node, fix)

    def wrong(self, message: str, node: Any, fix: str = "") -> None:
        origin = self.origin(node)
        self.problems.append(Problem(kind="syntax", message=message, origin=origin, fix=fix))

    def origin(self, node: Any) -> Origin:
        return _place(self.here, node.start_mark, node.end_mark)


def _read_null(text: str) -> tuple[Scalar] | None:
    return (None,) if text.lower() in ("", "~", "null") else None


def _read_bool(text: str) -> tuple[Scalar] | None:
    return (text.lower() == "true",) if text.lower() in ("true", "false") else None


def _read_int(text: str) -> tuple[Scalar] | None:
    try:
        return (int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),)
    except ValueError:
        return None


def _read_float(text: str) -> tuple[Scalar] | None:
    word = text.lower().replace(".inf", "inf").replace(".nan", "nan")
    try:
        number = float(word) if word.lstrip("+-") in ("inf", "nan") else float_of(word)
    except ValueError:
        return None
    return None if number is None else (number,)


_KINDS: Mapping[str, Callable[[str], tuple[Scalar] | None]] = {
    "str": lambda text: (text,),
    "merge": lambda text: (text,) if text == "<<" else None,
    "null": _read_null,
    "bool": _read_bool,
    "int": _read_int,
    "float": _read_float,
    "timestamp": moment_of,
}
"""Reader of the scalars of each tag."""
