"""YAML as plain data: the core schema of YAML 1.2, no tags that make objects, aliases counted by what they add."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, time
from importlib import import_module
from itertools import islice
from typing import Any

from assay.config.sources.places import (
    MAX_BYTES,
    MAX_MISTAKES,
    MAX_VALUES,
    MAX_WORD,
    Places,
    by_place,
    duplicate,
    too_deep,
    too_large,
    too_long,
    too_many,
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
    """The tree of what could be read, and every mistake. Needs the extra `yaml`.

    Dates are no part of the core schema: write `!!timestamp 2024-01-31`. `<<` merges a table into the one it is in.
    """
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise MissingExtraError("A config in YAML", extra="yaml") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    places = Places(text.removeprefix("\ufeff"), source, keep=excerpt)
    empty = Table({}, Origin(source=source))
    refused = too_large(places.text, source, limit=MAX_BYTES if loader is not yaml.SafeLoader else _SLOW_BYTES)
    if refused is not None:
        return empty, [refused]
    odd = [
        _problem(places, "a character that no YAML may hold", *found.span())
        for found in islice(_UNPRINTABLE.finditer(places.text), MAX_MISTAKES)
    ]
    if odd:
        return empty, odd
    text = places.text
    mistakes: list[Problem] = []
    while True:
        composer = _Composer(places)
        try:
            composer.follow(yaml.parse(text, Loader=loader))
        except _Refused as stop:
            return empty, [stop.problem]
        except yaml.MarkedYAMLError as error:
            problem, cut = _mistake(places, text, error)
            mistakes.append(problem)
            more = len(mistakes) < MAX_MISTAKES and len(text) < MAX_BYTES // 8
            smaller = _without(text, *cut) if more else text
            if smaller != text:
                text = smaller
                continue
        # What is read behind the last mistake is part of a text with holes: only its own mistakes are told.
        return composer.root(), sorted([*mistakes, *composer.problems][:MAX_MISTAKES], key=by_place)


class _Refused(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(slots=True)
class _Made:
    """A node, how many it stands for and how deep it is: an alias adds all of that again."""

    node: Node | None
    size: int
    height: int


@dataclass(slots=True)
class _Open:
    """A table or list being read."""

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
    """Follows the events of a parser and puts the tree together, without recursion and without making any object."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.problems: list[Problem] = []
        self.open: list[_Open] = []
        self.anchors: dict[str, _Made | None] = {}  # None while what it names is being read
        self.values = 0
        self.documents = 0
        self.made: Node | None = None

    def root(self) -> Table:
        return self.made if isinstance(self.made, Table) else Table({}, self.places.origin(0, 0))

    def follow(self, events: Iterator[Any]) -> None:
        for event in events:
            start, end = event.start_mark.index, event.end_mark.index
            match type(event).__name__:
                case "DocumentStartEvent":
                    self.documents += 1
                    if self.documents > 1:
                        self.wrong("a second document starts here; a config is one", start, end, "remove it")
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
        self.problems.append(_problem(self.places, message, start, end, fix))

    # --- values

    def enter(self, event: Any, start: int, end: int) -> None:
        is_table = type(event).__name__ == "MappingStartEvent"
        if len(self.open) > MAX_DEPTH:
            raise _Refused(too_deep(self.places.origin(start, start + 1)))
        self.count(1)
        if event.tag not in (None, "!", _TAG + ("map" if is_table else "seq")):
            self.tag(event.tag, start, end)
        top = self.open[-1] if self.open else None
        is_key = top is not None and top.is_table and not top.awaits_value
        if is_key:
            self.wrong("a key is text, not a table or list", start, end)
        self.open.append(_Open(is_table, start, bool(event.flow_style), event.anchor, is_key, self.path(), end=end))
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
        """Gives a value to the table or list that is open."""
        if not self.open:
            self.made = made.node
            if made.node is not None and not isinstance(made.node, Table):
                is_empty = isinstance(made.node, Leaf) and made.node.value is None
                if not is_empty:
                    origin = made.node.origin
                    self.problems.append(Problem(kind="syntax", message="a config is a table", origin=origin))
            return
        top = self.open[-1]
        top.size += made.size
        top.height = max(top.height, made.height + 1)
        top.end = max(top.end, end)
        if not top.is_table:
            if made.node is not None:
                top.rows.append(made.node)
            return
        key, is_merge, top.key, top.is_merge, top.awaits_value = top.key, top.is_merge, None, False, False
        if key is None:
            return
        name, origin = key
        if is_merge:
            tables = made.node.items if isinstance(made.node, List) else (made.node,)
            if all(isinstance(table, Table) for table in tables):
                top.merged += [table for table in tables if isinstance(table, Table)]
            else:
                self.problems.append(Problem(kind="syntax", message="`<<` merges tables, not values", origin=origin))
            return
        if name in top.seen:
            self.problems.append(duplicate(dotted((*top.path, name)), origin, top.seen[name]))
        elif made.node is not None:
            top.items[name] = made.node
        top.seen.setdefault(name, origin)

    def path(self) -> KeyPath:
        """Where the next value belongs."""
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
                return
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
            raise _Refused(too_many(self.places.source))

    def alias(self, name: str, start: int, end: int) -> None:
        made = self.anchors.get(name)
        if made is None:
            inside = " of itself" if name in self.anchors else ""
            message = f"`*{name}` stands inside{inside}" if inside else f"`*{name}` names nothing"
            fix = "" if inside else did_you_mean(name, self.anchors) or f"give it a meaning first: &{name}"
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
            raise _Refused(too_deep(self.places.origin(start, end)))
        self.put(made, end)

    def value(self, event: Any, origin: Origin) -> tuple[Scalar] | None:
        """What a scalar means; None when it means nothing, which is told."""
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
            wanted = {"null": type(None), "bool": bool, "int": int, "float": float}[tag.removeprefix(_TAG)]
            if found is not None and wanted is float and type(found[0]) is int:
                found = (float(found[0]),)
            if found is not None and type(found[0]) is not wanted:
                found = None
        else:
            self.tag(tag, event.start_mark.index, event.end_mark.index)
            return None
        if found is None:
            is_long = len(text) > MAX_WORD
            message = f"`{text}` is no {tag.removeprefix(_TAG)}" if tag else ""
            problem = Problem(kind="syntax", message=message, origin=origin)
            self.problems.append(too_long(origin) if is_long else problem)
            return None
        return (None,) if found[0] == NONE else found

    def tag(self, tag: str, start: int, end: int) -> None:
        shown = tag.replace(_TAG, "!!")
        self.wrong(
            f"the tag `{shown}` is not allowed", start, end, 'a config is plain data: write type: "package.Name"'
        )


def _plain(text: str) -> tuple[Scalar] | None:
    """A plain scalar as the core schema of YAML 1.2 reads it; None when it is too long to be a number."""
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
        return (float(text),)
    return (int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),)


def _timestamp(text: str) -> tuple[Scalar] | None:
    if len(text) > MAX_WORD or "\n" in text:
        return None
    try:
        found = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return None
    return (found,) if isinstance(found, date | time) else None


# --- mistakes --------------------------------------------------------------------------------------------------------


def _problem(places: Places, message: str, start: int, end: int, fix: str = "", noticed: int | None = None) -> Problem:
    related: tuple[Problem, ...] = ()
    if noticed is not None:
        at = places.origin(noticed, noticed + 1)
        related = (Problem(kind="syntax", severity="note", message="noticed here", origin=at),)
    return Problem(kind="syntax", message=message, origin=places.origin(start, end), fix=fix, related=related)


def _mistake(places: Places, text: str, error: Any) -> tuple[Problem, tuple[int, int]]:
    """What the parser complains about where a person would look, and the part of the text to leave out next."""
    context, what = str(error.context or ""), str(error.problem or "")
    at = min(error.problem_mark.index if error.problem_mark else len(text), len(text))
    start = error.context_mark.index if error.context_mark else at
    line = _line_start(text, at)
    has_moved = _line_start(text, start) != line
    if "quoted scalar" in context or "double-quoted" in context:
        if "escape" in what or "hexdecimal" in what:
            at = text.rfind("\\", start, at + 1)
            fix = "double it, or use single quotes"
            problem = _problem(places, "`\\` starts an escape, and this is none", at, at + 2, fix)
        else:
            end = _line_end(text, start)
            problem = _problem(places, "this string is not closed", start, end, "add the closing quote")
        return problem, _block(text, start)
    if "flow sequence" in context or "flow mapping" in context:
        thing, closing = ("list", "]") if "sequence" in context else ("table", "}")
        if has_moved or at >= len(text.rstrip()):
            message, fix = f"this {thing} is not closed", f"add the closing `{closing}`"
            return _problem(places, message, start, start + 1, fix, noticed=at if has_moved else None), _block(
                text, start
            )
        message = f"a comma or `{closing}` is missing"
        return _problem(places, message, at, at + 1), _block(text, start)
    if "simple key" in context:
        end = _line_end(text, start)
        return _problem(places, "`:` is missing after the key", start, end, "write key: value"), _block(text, start)
    if "mapping values are not allowed" in what:
        return _values_not_allowed(places, text, at, line), _block(text, at)
    if "cannot start any token" in what or "tab character" in what:
        return _no_token(places, text, at), _block(text, at)
    if "block mapping" in context or "block collection" in context:
        fix = "what belongs together starts in the same column"
        start = line + len(text[line:at]) - len(text[line:at].lstrip(" "))
        end = _line_end(text, start)
        return _problem(places, "this fits neither the line above nor its indentation", start, end, fix), _block(
            text, at
        )
    message = what[:1].lower() + what[1:] if what else "this is no YAML"
    return _problem(places, message, at, at + 1), _block(text, at)


def _values_not_allowed(places: Places, text: str, at: int, line: int) -> Problem:
    """`a: b: c`, or a key below one that has a value, or below a line without a colon."""
    before = text[line:at]
    if ":" in before:
        start = line + before.index(":") + 1
        start += len(text[start:at]) - len(text[start:at].lstrip())
        return _problem(places, "a second `:` on one line", at, at + 1, "put text that holds `: ` in quotes")
    above = text[:line].rstrip()
    start = _line_start(text, len(above))
    start += len(text[start:]) - len(text[start:].lstrip(" "))
    if ":" not in text[start : len(above)] and above:
        return _problem(places, "`:` is missing after the key", start, len(above), "write key: value")
    start = line + len(before) - len(before.lstrip(" "))
    return _problem(
        places, "this is indented below a key that has a value", start, at, "put it in the column of that key"
    )


def _no_token(places: Places, text: str, at: int) -> Problem:
    character = text[at : at + 1]
    if character == "\t":
        return _problem(places, "a tab cannot indent YAML", at, at + 1, "use spaces")
    found = re.compile(r"[^\s,\]}]+").match(text, at)
    end = found.end() if found else at + 1
    word = text[at:end]
    return _problem(places, f"`{character}` cannot start a value", at, end, f'put it in quotes: "{word}"')


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return at + max(1, len(text[at:end].rstrip()))


def _block(text: str, at: int) -> tuple[int, int]:
    """The line around `at` and what is indented below it."""
    start = _line_start(text, min(at, max(0, len(text.rstrip()) - 1)))
    end = text.find("\n", start) + 1 or len(text)
    indent = len(text[start:]) - len(text[start:].lstrip(" "))
    while end < len(text):
        stop = text.find("\n", end) + 1 or len(text)
        below = text[end:stop]
        if below.strip() and len(below) - len(below.lstrip(" ")) <= indent and below.strip()[0] not in "]}":
            break
        end = stop
    return start, end


def _without(text: str, start: int, end: int) -> str:
    """`text` with blanks where the mistake is, so that every other place stays what it was."""
    return text[:start] + re.sub(r"[^\r\n]", " ", text[start:end]) + text[end:]
