"""Front end for INI: `configparser` reads it, and values are typed like overrides.

`[data.train]` is a table in a table, and so is `best.metric = ...`. Keys above the first section
stand at the top. `%(name)s` is the value of `name` in the same section or in `[DEFAULT]`, which
has no other use. The first mistake ends the reading; a value has the line of its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from configparser import (
    ConfigParser,
    DuplicateOptionError,
    DuplicateSectionError,
    InterpolationError,
    ParsingError,
)
from dataclasses import replace

from assay.config.sources.literals import MalformedError, read_value
from assay.config.sources.positions import (
    MAX_BYTES,
    MAX_VALUES,
    MAX_WORD,
    UnreadableError,
    duplicate,
    too_deep,
    too_large,
    too_long,
    too_many,
)
from assay.config.tree import (
    MAX_DEPTH,
    KeyPath,
    Node,
    Table,
    dotted,
    get_at,
    key_origin_at,
    parse_dotted,
    set_at,
)
from assay.core.diagnostics import Origin, Problem

MAX_TEXT = 1_000_000  # characters of one value after interpolation
_TOP = "<top>"
"""Section of the keys above the first header."""
_COMMENT = re.compile(r"\s[#;]")
_REFERENCE = re.compile(r"%\(([^()]+)\)s")


def read_all(text: str, source: str, *, excerpt: bool = False) -> tuple[Table, list[Problem]]:
    """Return the tree, or an empty one and the first mistake."""
    here = Origin(source=source, text=text if excerpt else None)
    try:
        return _IniReader(text.removeprefix("\ufeff"), here).read(), []
    except UnreadableError as stop:
        return Table({}, Origin(source=source)), [stop.problem]


class _Key(str):
    """Name of an option that knows its line."""

    line: int


class _Parser(ConfigParser):
    """Parser with keys in quotes, and nothing but a comment behind a header."""

    SECTCRE = re.compile(r"\[(?P<header>.+)\]\s*(?:[#;].*)?$")
    OPTCRE = re.compile(
        r'(?P<option>(?:"(?:[^"\\]|\\.)*+"|[^=:"]++)*+)(?P<vi>[=:])\s*(?P<value>.*)$'
    )

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.line = 0

    def read_text(self, source: str) -> None:
        self.read_file(self._lines(), source)

    def _lines(self) -> Iterator[str]:
        yield f"[{_TOP}]\n"
        for number, line in enumerate(self.text.split("\n"), start=1):
            self.line = number
            yield line + "\n"

    def optionxform(self, optionstr: str) -> str:
        """Return the name of an option, which is asked for while its line is read."""
        key = _Key(optionstr)
        key.line = self.line
        return key


class _IniReader:
    """Reader of one text. Raises UnreadableError at the first mistake."""

    def __init__(self, text: str, here: Origin) -> None:
        if large := too_large(text, here.source):
            raise UnreadableError(large)
        self.here = here
        self.parser = _Parser(text)
        self.length = 0  # of all values that hold others

    def read(self) -> Table:
        """Return the tree of all sections."""
        try:
            self.parser.read_text(self.here.source)
        except (DuplicateOptionError, DuplicateSectionError) as error:
            name = f"{error.section}.{getattr(error, 'option', '')}".strip(".")
            place = self.at((error.lineno or 1) - 1)
            raise UnreadableError(duplicate(name.removeprefix(f"{_TOP}."), place, None)) from None
        except ParsingError as error:
            line, text = error.errors[0]
            message = f"Source contains parsing errors: {text}"
            raise self.failure(message, line - 1, "write key = value, or [section]") from None
        root = Table({}, self.here)
        defaults = {id(key) for key in self.parser.defaults()}
        count = 0
        for section, line in self.sections():
            above = () if section == _TOP else self.path(section, line)
            if above and not isinstance(get_at(root, above), Table):
                root = self.put(root, above, Table({}, self.at(line)), line)
            for key in self.parser.options(section):
                assert isinstance(key, _Key)
                count += 1
                if count > MAX_VALUES:
                    raise UnreadableError(too_many(self.here.source))
                if id(key) not in defaults:
                    path = (*above, *self.path(key, key.line))
                    root = self.put(root, path, self.value(section, key), key.line)
        return root

    def sections(self) -> Iterator[tuple[str, int]]:
        """Yield each section with the line of its header."""
        lines: dict[str, int] = {}
        for number, line in enumerate(self.parser.text.split("\n"), start=1):
            if header := _Parser.SECTCRE.match(line.strip()):
                lines.setdefault(header["header"], number)
        for section in self.parser.sections():
            yield section, lines.get(section, 1)

    def put(self, root: Table, path: KeyPath, node: Node, line: int) -> Table:
        if len(path) > MAX_DEPTH:
            raise UnreadableError(too_deep(self.at(line)))
        if get_at(root, path) is not None:
            first = key_origin_at(root, path)
            raise UnreadableError(duplicate(dotted(path), self.at(line), first))
        try:
            return set_at(root, path, node, self.at(line))
        except KeyError as error:
            message = f"`{error.args[0]}` has a value already, so it cannot hold more"
            raise self.failure(message, line) from None

    def value(self, section: str, key: _Key) -> Node:
        """Return the value of an option, with what it takes from others, typed."""
        self.length += self.length_of(section, key, {})
        if self.length > MAX_BYTES:
            raise self.too_long_together(key)
        try:
            text = self.parser.get(section, key).rstrip()
        except InterpolationError as error:
            message = error.message.replace(f" in section '{_TOP}'", "")
            raise self.failure(message, key.line, "write %% for a percent sign") from None
        before, *comment = _COMMENT.split(text, maxsplit=1)
        is_bare = text[:1] not in tuple("[{\"'") and not (before.count('"') + before.count("'")) % 2
        if comment and is_bare:
            raise self.failure(
                "this may be a comment or a part of the value",
                key.line,
                "give a comment a line of its own, or put the whole text in quotes",
            )
        if len(text) > MAX_WORD and re.fullmatch(r"[+-]?[\d_.eE+-]+", text):
            raise UnreadableError(too_long(self.at(key.line)))
        try:
            return read_value(text, self.at(key.line))
        except MalformedError as error:
            raise self.failure(error.what, key.line, error.fix) from None

    def length_of(self, section: str, name: str, known: dict[str, int]) -> int:
        """Return about how long a value is with what it takes from others, which may take more."""
        if name not in known:
            known[name] = 0  # a circle is refused by configparser
            raw = self.parser.get(section, name, raw=True, fallback="")
            inside = [self.length_of(section, each, known) for each in _REFERENCE.findall(raw)]
            known[name] = len(raw) + sum(inside)
            if known[name] > MAX_TEXT:
                raise self.too_long_together(name)
        return known[name]

    def path(self, name: str, line: int) -> KeyPath:
        """Return the keys that a dotted name stands for."""
        if len(name) > MAX_WORD * 4:
            raise UnreadableError(too_long(self.at(line)))
        try:
            path = parse_dotted(name.strip())
        except ValueError:
            path = ()
        if not path or not all(isinstance(part, str) for part in path):
            raise self.failure(f"`{name}` is no name", line, 'write a.b, or "any text"')
        return path

    def at(self, line: int) -> Origin:
        return replace(self.here, line=line)

    def failure(self, message: str, line: int, fix: str = "") -> UnreadableError:
        origin = self.at(line)
        return UnreadableError(Problem(kind="syntax", message=message, origin=origin, fix=fix))

    def too_long_together(self, name: str) -> UnreadableError:
        message = "the values that %(...)s puts together are too long"
        origin = self.at(getattr(name, "line", 0))
        return UnreadableError(Problem(kind="too-large", message=message, origin=origin))
