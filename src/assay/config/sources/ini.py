"""Reader for INI in the dialect of `configparser`, with origins; values are typed like overrides.

`[data.train]` is a table in a table, and so is `best.metric = ...`. Keys above the first section
stand at the top. `%(name)s` is the value of `name` in the same section or in `[DEFAULT]`, which
has no other use. The first syntax error ends the reading.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NoReturn

from assay.config.sources import toml
from assay.config.sources.literals import MalformedError, read_value
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
from assay.config.sources.toml import TableBuilder
from assay.config.tree import (
    MAX_DEPTH,
    KeyPath,
    Node,
    Table,
    dotted,
    parse_dotted,
    relocate,
)
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean

DEFAULT = "DEFAULT"
MAX_TEXT = 1_000_000  # characters of one value after interpolation
_HEADER = re.compile(r"\[(?P<name>.+)\]\s*(?P<rest>.*)")
_OPTION = re.compile(r'(?P<key>(?:"(?:[^"\\]|\\.)*+"|[^=:"]++)*+)[=:]\s*(?P<value>.*)')
_BAD_OPTION = re.compile(r"(?P<key>[^=:]*+)[=:]")
_COMMENT = re.compile(r"\s[#;]")
_PERCENT = re.compile(r"%%|%\((?P<name>[^()]+)\)s|%")


def read_all(text: str, source: str, *, excerpt: bool = False) -> tuple[Table, list[Problem]]:
    """Return the tree, and the mistakes: the first syntax error, or every duplicate key."""
    places = TextPositions(text.removeprefix("\ufeff"), source, keep=excerpt)
    try:
        reader = _IniReader(places)
        reader.lines()
        root = reader.tree()
    except UnreadableError as stop:
        return Table({}, Origin(source=source)), [stop.problem]
    return root, sorted(reader.duplicates[:MAX_MISTAKES], key=by_place)


@dataclass(slots=True)
class _Option:
    """Option `key = value`, with the offset of each line of the value."""

    name: str
    key_origin: Origin
    lines: list[tuple[int, str]]

    def raw(self) -> str:
        return "\n".join(text for _, text in self.lines).rstrip()

    def place(self, index: int) -> int:
        """Return the offset in the file of the character `index` of the value."""
        for start, text in self.lines:
            if index <= len(text):
                return start + index
            index -= len(text) + 1
        return self.lines[-1][0]


@dataclass(slots=True)
class _Section:
    name: str
    origin: Origin
    path: KeyPath = ()
    options: dict[str, _Option] = field(default_factory=dict)


class _IniReader:
    """Reader of lines into sections, then of sections into a tree.

    Raises UnreadableError at the first syntax error.
    """

    def __init__(self, places: TextPositions) -> None:
        large = too_large(places.text, places.source)
        if large is not None:
            raise UnreadableError(large)
        self.places = places
        self.duplicates: list[Problem] = []
        self.top = _Section("", places.origin(0, 0))
        self.sections = {"": self.top}
        self.interpolated: dict[tuple[str, str], str] = {}
        self.added = 0

    def fail(self, message: str, start: int, end: int, fix: str = "") -> NoReturn:
        raise UnreadableError(
            Problem(kind="syntax", message=message, origin=self.places.origin(start, end), fix=fix)
        )

    # --- lines, by the rules of configparser

    def lines(self) -> None:
        section, option = self.top, None
        indent = at = values = 0
        for line in self.places.text.split("\n"):
            start = at
            at = at + len(line) + 1
            bare = line.strip()
            here = start + len(line) - len(line.lstrip())
            if not bare:
                if option is not None:
                    option.lines.append((start, ""))
                continue
            if bare[0] in "#;":
                continue
            if option is not None and here - start > indent:
                option.lines.append((here, bare))
                continue
            indent = here - start
            option = None
            if bare[0] == "[":
                section = self.header(bare, here)
                continue
            option = self.option(section, bare, here)
            values += 1
            if values > MAX_VALUES:
                raise UnreadableError(too_many(self.places.source))

    def header(self, text: str, at: int) -> _Section:
        found = _HEADER.fullmatch(text)
        line_end = at + len(text)
        if found is None:
            self.fail("this header is not closed", at, line_end, "write [section]")
        if found["rest"] and found["rest"][0] not in "#;":
            rest = at + found.start("rest")
            self.fail("this is too much after the header", rest, line_end)
        name = found["name"]
        start = at + 1
        origin = self.places.origin(start, start + len(name))
        section = _Section(name.strip(), origin, self.path(name, start))
        first = self.sections.setdefault(section.name, section)
        if first is not section:
            self.duplicates.append(duplicate(section.name, section.origin, first.origin))
        return first

    def option(self, section: _Section, text: str, at: int) -> _Option:
        found = _OPTION.fullmatch(text)
        if found is None or not found["key"].strip():
            broken = _BAD_OPTION.match(text)
            if broken is None:
                self.fail("`=` is missing after the key", at, at + len(text), "write key = value")
            width = max(1, len(broken["key"].rstrip()))
            fix = 'write key = value, or "any text" = value'
            self.fail("this is no key", at, at + width, fix)
        name = found["key"].rstrip()
        origin = self.places.origin(at, at + len(name))
        first_line = (at + found.start("value"), found["value"])
        option = _Option(name, origin, [first_line])
        first = section.options.setdefault(option.name, option)
        if first is not option:
            key = f"{section.name}.{option.name}".removeprefix(".")
            self.duplicates.append(duplicate(key, origin, first.key_origin))
        return option

    def path(self, name: str, at: int) -> KeyPath:
        """Return the keys that a dotted name stands for."""
        if len(name) > MAX_WORD * 4:
            raise UnreadableError(too_long(self.places.origin(at, at + len(name))))
        try:
            path = parse_dotted(name.strip())
        except ValueError:
            path = ()
        if not path or not all(isinstance(part, str) for part in path):
            self.fail(f"`{name}` is no name", at, at + len(name), 'write a.b, or "any text"')
        if len(path) > MAX_DEPTH:
            raise UnreadableError(too_deep(self.places.origin(at, at + len(name))))
        return path

    # --- the tree

    def tree(self) -> Table:
        root = TableBuilder((), self.top.origin)
        for section in self.sections.values():
            if section.name == DEFAULT:
                for option in section.options.values():
                    self.text(section, option.name)
                continue
            box = self.descend(root, section.path, section.origin)
            if box is None:
                continue
            if section.path:
                box.origin = section.origin
            for option in section.options.values():
                self.put(box, section, option)
        return root.freeze()

    def descend(
        self, box: TableBuilder, path: KeyPath, origin: Origin, *, above: KeyPath = ()
    ) -> TableBuilder | None:
        """Return the table at `path` in `box`, made if missing; None, noted, for a value."""
        for i, part in enumerate(path):
            assert isinstance(part, str)
            inner = box.items.setdefault(part, TableBuilder((*box.path, part), origin))
            if not isinstance(inner, TableBuilder):
                key = dotted((*above, *path[: i + 1]))
                problem = duplicate(key, origin, box.key_origins[part])
                message = f"`{key}` has a value already, so it cannot hold more"
                self.duplicates.append(replace(problem, message=message))
                return None
            box.key_origins.setdefault(part, origin)
            box = inner
        return box

    def put(self, box: TableBuilder, section: _Section, option: _Option) -> None:
        *above, key = self.path(option.name, self.offset(option.key_origin))
        assert isinstance(key, str)
        if len(section.path) + len(above) >= MAX_DEPTH:
            raise UnreadableError(too_deep(option.key_origin))
        node = self.node(section, option)
        inner = self.descend(box, tuple(above), option.key_origin, above=section.path)
        if inner is None:
            return
        if key in inner.items:
            first = inner.key_origins[key]
            self.duplicates.append(
                duplicate(dotted((*section.path, *above, key)), option.key_origin, first)
            )
            return
        inner.items[key], inner.key_origins[key] = node, option.key_origin

    def offset(self, origin: Origin) -> int:
        return self.places.line_starts[origin.line - 1] + origin.column - 1

    def node(self, section: _Section, option: _Option) -> Node:
        """Return the value of an option, typed."""
        raw = option.raw()
        text = self.text(section, option.name)
        first = option.lines[0]
        last = option.lines[raw.count("\n")]
        origin = self.places.origin(first[0], last[0] + len(last[1]))
        comment = _COMMENT.search(raw)
        before = raw[: comment.start()] if comment else ""
        if (
            comment
            and raw[0] not in "[{\"'"
            and before.count('"') % 2 == before.count("'") % 2 == 0
        ):
            at = option.place(comment.start() + 1)
            fix = "give a comment a line of its own, or put the whole text in quotes"
            self.fail("this may be a comment or a part of the value", at, at + 1, fix)
        if text[:1] and text[0] in "[{\"'":
            return self.read_as_toml(text, option, origin, is_raw=text == raw)
        if len(text) > MAX_WORD and re.fullmatch(r"[+-]?[\d_.eE+-]+", text):
            raise UnreadableError(too_long(origin))
        try:
            return read_value(text, origin)
        except MalformedError as error:
            problem = Problem(kind="syntax", message=error.what, origin=origin, fix=error.fix)
            raise UnreadableError(problem) from None

    def read_as_toml(self, text: str, option: _Option, origin: Origin, *, is_raw: bool) -> Node:
        """Return a list, inline table or quoted string; one origin for all if interpolated."""
        lead = "value = "

        def offset(line: int, column: int) -> int:
            start, _ = option.lines[min(line, len(option.lines)) - 1]
            return start + column - 1 - (len(lead) if line == 1 else 0)

        def move(inner: Origin) -> Origin:
            if not is_raw:
                return origin
            start = offset(inner.line, inner.column)
            end = offset(inner.end_line, inner.end_column)
            return self.places.origin(start, end)

        root, problems = toml.read_all(lead + text, self.places.source)
        for problem in problems:
            related = tuple(replace(each, origin=move(each.origin)) for each in problem.related)
            here = replace(problem, origin=move(problem.origin), related=related)
            raise UnreadableError(here)
        if len(root.items) > 1:
            message = "this is more than one value"
            raise UnreadableError(Problem(kind="syntax", message=message, origin=origin))
        return relocate(root.items["value"], move)

    # --- interpolation

    def text(self, section: _Section, name: str, trail: tuple[str, ...] = ()) -> str:
        """Return the value of an option with its %(...)s replaced."""
        known = (section.name, name)
        if known not in self.interpolated:
            option = section.options.get(name) or self.sections.get(DEFAULT, self.top).options[name]
            self.interpolated[known] = self.interpolate(section, option, (*trail, name))
        return self.interpolated[known]

    def interpolate(self, section: _Section, option: _Option, trail: tuple[str, ...]) -> str:
        raw = option.raw()
        if "%" not in raw:
            return raw
        default = self.sections.get(DEFAULT)
        names = {**(default.options if default else {}), **section.options}
        parts: list[str] = []
        end = length = 0
        for found in _PERCENT.finditer(raw):
            at = option.place(found.start())
            place = (at, at + len(found[0]))
            if found[0] == "%%":
                piece = "%"
            else:
                name = self.check_name(found, names, trail, place)
                piece = self.text(section, name, trail)
            parts += [raw[end : found.start()], piece]
            end = found.end()
            length += len(parts[-2]) + len(piece)
            if length > MAX_TEXT or self.added + length > MAX_BYTES:
                message = "the values that %(...)s puts together are too long"
                origin = self.places.origin(*place)
                raise UnreadableError(Problem(kind="too-large", message=message, origin=origin))
        self.added += length
        return "".join([*parts, raw[end:]])

    def check_name(
        self,
        found: re.Match[str],
        names: Collection[str],
        trail: tuple[str, ...],
        place: tuple[int, int],
    ) -> str:
        """Return the name in `%(name)s`; raise UnreadableError for an unknown or circular one."""
        name = found["name"]
        escape = "write %% for a percent sign"
        if name is None:
            self.fail("`%` starts a `%(name)s`, and this is none", *place, escape)
        if name in trail:
            circle = " -> ".join((*trail[trail.index(name) :], name))
            self.fail(f"this value needs itself: {circle}", *place)
        if name not in names or len(trail) > MAX_DEPTH // 2:
            message = f"`{found[0]}` names no value of this section or of [{DEFAULT}]"
            self.fail(message, *place, did_you_mean(name, names) or escape)
        return name
