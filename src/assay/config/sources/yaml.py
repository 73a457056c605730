"""Reader for YAML as plain data: core schema of 1.2, no tags that make objects, bounded aliases.

PyYAML's marks say where it stopped; the reason is found in the text there. Its messages are never
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from typing import Any

from assay.config.sources.positions import (
    MAX_BYTES,
    MAX_MISTAKES,
    MAX_VALUES,
    MAX_WORD,
    TextPositions,
    UnreadableError,
    by_place,
    duplicate,
    too_deep,
    too_large,
    too_long,
    too_many,
)
from assay.config.sources.toml_tokens import beyond_floats, float_of, moment_of
from assay.config.sources.yaml_syntax import (
    YamlFailure,
    yaml_problem,
)
from assay.config.tree import MAX_DEPTH, NONE, KeyPath, Leaf, List, Node, Scalar, Table, dotted
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import MissingExtraError, did_you_mean

_SLOW_BYTES = MAX_BYTES // 16  # without libyaml, reading takes thirty times as long
_TAG = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"(?P<sign>[-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def read_all(text: str, source: str, *, excerpt: bool = False) -> tuple[Table, list[Problem]]:
    """Return the tree of what could be read, and every mistake. Needs the extra `yaml`.

    Dates are no part of the core schema: write `!!timestamp 2024-01-31`. `<<` merges a table into
    the one it is in.
    """
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise MissingExtraError("A config in YAML", extra="yaml") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    places = TextPositions(text.removeprefix("\ufeff"), source, keep=excerpt)
    empty = Table({}, Origin(source=source))
    limit = _SLOW_BYTES if loader is yaml.SafeLoader else MAX_BYTES
    refused = too_large(places.text, source, limit=limit)
    if refused is not None:
        return empty, [refused]
    odd = [
        yaml_problem(places, "a character that no YAML may hold", *found.span())
        for found in islice(_UNPRINTABLE.finditer(places.text), MAX_MISTAKES)
    ]
    if odd:
        return empty, odd
    try:
        return _read_around_mistakes(yaml, loader, places)
    except UnreadableError as stop:
        return empty, [stop.problem]


def _read_around_mistakes(
    yaml: Any, loader: Any, places: TextPositions
) -> tuple[Table, list[Problem]]:
    """Parse, blank the block with the first syntax error, and repeat until the rest parses."""
    text = places.text
    mistakes: list[Problem] = []
    while True:
        composer = _Composer(places)
        try:
            composer.follow(yaml.parse(text, Loader=loader))
        except yaml.MarkedYAMLError as error:
            is_scanner = isinstance(error, yaml.scanner.ScannerError)
            flow = composer.open_flow(text)
            failure = YamlFailure(places, text, error, flow, is_scanner=is_scanner)
            mistakes.append(failure.problem())
            more = len(mistakes) < MAX_MISTAKES and len(text) < MAX_BYTES // 8
            smaller = failure.text_without_it() if more else text
            if smaller != text:
                text = smaller
                continue
        # A text with holes was read behind the last mistake: only its own mistakes are reported.
        problems = [*mistakes, *composer.problems][:MAX_MISTAKES]
        return composer.root(), sorted(problems, key=by_place)


@dataclass(slots=True)
class _Made:
    """Finished node with its size and depth: an alias adds all of that again."""

    node: Node | None
    size: int
    height: int


@dataclass(slots=True)
class _Open:
    """Table or list under construction."""

    is_table: bool
    start: int
    is_flow: bool
    anchor: str | None
    is_key: bool
    path: KeyPath
    key: tuple[str, Origin] | None = None
    is_merge: bool = False
    awaits_value: bool = False
    items: dict[str, Node] = field(default_factory=dict)
    rows: list[Node] = field(default_factory=list)
    seen: dict[str, Origin] = field(default_factory=dict)
    merged: list[Table] = field(default_factory=list)
    size: int = 1
    height: int = 1
    end: int = 0


class _Composer:
    """Builder of a tree from a parser's events, without recursion and without making any object."""

    def __init__(self, places: TextPositions) -> None:
        self.places = places
        self.problems: list[Problem] = []
        self.open: list[_Open] = []
        self.anchors: dict[str, _Made | None] = {}  # None while what it names is being read
        self.values = 0
        self.documents = 0
        self.made: Node | None = None

    def open_flow(self, text: str) -> int | None:
        """Return where the flow collection that is being read opens; None outside of any."""
        if not self.open or not self.open[-1].is_flow:
            return None
        brackets = [
            each.start for each in self.open if text[each.start : each.start + 1] in ("[", "{")
        ]
        return brackets[-1] if brackets else None

    def root(self) -> Table:
        return self.made if isinstance(self.made, Table) else Table({}, self.places.origin(0, 0))

    def follow(self, events: Iterator[Any]) -> None:
        for event in events:
            start, end = event.start_mark.index, event.end_mark.index
            match type(event).__name__:
                case "DocumentStartEvent":
                    self.documents += 1
                    if self.documents > 1:
                        self.wrong(
                            "a second document starts here; a config is one",
                            start,
                            end,
                            "remove it",
                        )
                        return
                case "ScalarEvent":
                    self.scalar(event, start, end)
                case "AliasEvent":
                    self.alias(event.anchor, start, end)
                case "MappingStartEvent" | "SequenceStartEvent":
                    self.enter(event, start, end)
                case "MappingEndEvent" | "SequenceEndEvent":
                    self.leave(end)

    def wrong(self, message: str, start: int, end: int, fix: str = "") -> None:
        self.problems.append(yaml_problem(self.places, message, start, end, fix))

    # --- values

    def enter(self, event: Any, start: int, end: int) -> None:
        is_table = type(event).__name__ == "MappingStartEvent"
        if len(self.open) > MAX_DEPTH:
            raise UnreadableError(too_deep(self.places.origin(start, start + 1)))
        self.count(1)
        if event.tag not in (None, "!", _TAG + ("map" if is_table else "seq")):
            self.tag(event.tag, start, end)
        top = self.open[-1] if self.open else None
        is_key = top is not None and top.is_table and not top.awaits_value
        if is_key:
            self.wrong("a key is text, not a table or list", start, end)
        self.open.append(
            _Open(
                is_table, start, bool(event.flow_style), event.anchor, is_key, self.path(), end=end
            )
        )
        if event.anchor is not None:
            self.anchors[event.anchor] = None

    def leave(self, end: int) -> None:
        done = self.open.pop()
        if done.is_flow:
            done.end = end
        origin = self.places.origin(done.start, done.end)
        node: Node
        if done.is_table:
            items, key_origins = dict(done.items), {key: done.seen[key] for key in done.items}
            for table in done.merged:
                for key, item in table.items.items():
                    if key not in items and key not in done.seen:
                        items[key], key_origins[key] = item, table.key_origin(key)
            node = Table(items, origin, key_origins)
        else:
            node = List(tuple(done.rows), origin)
        made = _Made(node, done.size, done.height)
        if done.anchor is not None:
            self.anchors[done.anchor] = made
        if done.is_key:
            self.open[-1].key, self.open[-1].awaits_value = None, True
        else:
            self.put(made, done.end)

    def put(self, made: _Made, end: int) -> None:
        """Add a value to the open table or list."""
        if not self.open:
            self.finish(made.node)
            return
        top = self.open[-1]
        top.size += made.size
        top.height = max(top.height, made.height + 1)
        top.end = max(top.end, end)
        if not top.is_table:
            if made.node is not None:
                top.rows.append(made.node)
            return
        key, is_merge = top.key, top.is_merge
        top.key, top.is_merge, top.awaits_value = None, False, False
        if key is None:
            return
        name, origin = key
        if is_merge:
            self.merge(top, made.node, origin)
            return
        if name in top.seen:
            self.problems.append(duplicate(dotted((*top.path, name)), origin, top.seen[name]))
        elif made.node is not None:
            top.items[name] = made.node
        top.seen.setdefault(name, origin)

    def finish(self, node: Node | None) -> None:
        """Keep the root of the document, which is a table or empty."""
        self.made = node
        is_empty = node is None or (isinstance(node, Leaf) and node.value is None)
        if node is not None and not is_empty and not isinstance(node, Table):
            message = "a config is a table"
            self.problems.append(Problem(kind="syntax", message=message, origin=node.origin))

    def merge(self, top: _Open, node: Node | None, origin: Origin) -> None:
        """Note the tables that `<<` merges into the open one."""
        tables = node.items if isinstance(node, List) else (node,)
        if all(isinstance(table, Table) for table in tables):
            top.merged += [table for table in tables if isinstance(table, Table)]
            return
        message = "`<<` merges tables, not values"
        self.problems.append(Problem(kind="syntax", message=message, origin=origin))

    def path(self) -> KeyPath:
        """Return the path of the next value."""
        if not self.open:
            return ()
        top = self.open[-1]
        if not top.is_table:
            return (*top.path, len(top.rows))
        return (*top.path, top.key[0]) if top.key else top.path

    def scalar(self, event: Any, start: int, end: int) -> None:
        top = self.open[-1] if self.open else None
        origin = self.places.origin(start, end)
        if top is not None and top.is_table and not top.awaits_value:
            top.awaits_value = True
            if event.anchor is not None:
                self.anchors[event.anchor] = _Made(Leaf(event.value, origin), 1, 1)
            top.is_merge = event.value == "<<" and not event.style
            if len(event.value) > MAX_WORD:
                self.problems.append(too_long(origin))
            elif (
                not event.style
                and event.tag in (None, _TAG + "null")
                and _plain(event.value) == (None,)
            ):
                what = (
                    f"`{event.value}` is null, and a key is text"
                    if event.value
                    else "a key is missing"
                )
                self.wrong(
                    what,
                    start,
                    end,
                    f'put it in quotes: "{event.value}"' if event.value else "write key: value",
                )
            else:
                top.key = (event.value, origin)
            return
        self.count(1)
        found = self.value(event, origin)
        made = _Made(None if found is None else Leaf(found[0], origin), 1, 1)
        if event.anchor is not None:
            self.anchors[event.anchor] = made
        self.put(made, end)

    def count(self, values: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise UnreadableError(too_many(self.places.source))

    def alias(self, name: str, start: int, end: int) -> None:
        made = self.anchors.get(name)
        if made is None:
            inside = " of itself" if name in self.anchors else ""
            message = f"`*{name}` stands inside{inside}" if inside else f"`*{name}` names nothing"
            fix = (
                ""
                if inside
                else did_you_mean(name, self.anchors) or f"give it a meaning first: &{name}"
            )
            self.wrong(message, start, end, fix)
            made = _Made(None, 1, 1)
        top = self.open[-1] if self.open else None
        if top is not None and top.is_table and not top.awaits_value:
            top.awaits_value = True
            if isinstance(made.node, Leaf) and isinstance(made.node.value, str):
                top.key = (made.node.value, self.places.origin(start, end))
            elif made.node is not None:
                self.wrong("a key is text, not a table or list", start, end)
            return
        self.count(made.size)
        if len(self.open) + made.height > MAX_DEPTH + 1:
            raise UnreadableError(too_deep(self.places.origin(start, end)))
        self.put(made, end)

    def value(self, event: Any, origin: Origin) -> tuple[Scalar] | None:
        """Return the meaning of a scalar; None, with a problem, if it has none."""
        text: str = event.value
        tag: str | None = event.tag
        if tag is None:
            found = (text,) if event.style else _plain(text)
        elif tag in ("!", _TAG + "str"):
            found = (text,)
        elif tag == _TAG + "timestamp":
            found = _timestamp(text)
        elif tag in (_TAG + "null", _TAG + "bool", _TAG + "int", _TAG + "float"):
            found = _plain(text)
            wanted = {"null": type(None), "bool": bool, "int": int, "float": float}[
                tag.removeprefix(_TAG)
            ]
            if found is not None and wanted is float and type(found[0]) is int:
                number = float_of(str(found[0]))
                found = None if number is None else (number,)
            if found is not None and type(found[0]) is not wanted:
                found = None
        else:
            self.tag(tag, event.start_mark.index, event.end_mark.index)
            return None
        if found is None:
            is_long = len(text) > MAX_WORD
            what = tag.removeprefix(_TAG) if tag else "float"
            fix = beyond_floats(text) if what == "float" and _FLOAT.fullmatch(text) else ""
            message = f"`{text}` is no {what}"
            problem = Problem(kind="syntax", message=message, origin=origin, fix=fix)
            self.problems.append(too_long(origin) if is_long else problem)
            return None
        return (None,) if found[0] == NONE else found

    def tag(self, tag: str, start: int, end: int) -> None:
        shown = tag.replace(_TAG, "!!")
        self.wrong(
            f"the tag `{shown}` is not allowed",
            start,
            end,
            'a config is plain data: write type: "package.Name"',
        )


def _plain(text: str) -> tuple[Scalar] | None:
    """Return a plain scalar by the core schema of YAML 1.2; None for a number that is too long.

    Or that no float is near.
    """
    if text in _WORDS:
        return (_WORDS[text],)
    special = _SPECIAL.fullmatch(text)
    if special is not None:
        return (float(f"{special['sign'] or ''}{text.lower().lstrip('+-.')}"),)
    if not text[:1].isdigit() and text[:1] not in "+-.":
        return (text,)
    is_int = _INT.fullmatch(text) is not None
    if not is_int and _FLOAT.fullmatch(text) is None:
        return (text,)
    if len(text) > MAX_WORD:
        return None
    if not is_int:
        number = float_of(text)
        return None if number is None else (number,)
    return (int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),)


def _timestamp(text: str) -> tuple[Scalar] | None:
    return moment_of(text) if len(text) <= MAX_WORD else None


# --- mistakes -------------------------------------------------------------------------------------
