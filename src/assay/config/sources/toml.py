"""Parser for TOML 1.1 that keeps the origin of every key and value and recovers from mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NoReturn

from assay.config.sources import toml_tokens as tokens
from assay.config.sources.positions import (
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
from assay.config.tree import MAX_DEPTH, NONE, KeyPath, Leaf, List, Node, Scalar, Table, dotted
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError


def read_toml(text: str, source: str, *, excerpt: bool = False) -> Table:
    """Return the tree of a TOML text. Raises ConfigError with every syntax error and duplicate.

    `excerpt` keeps the text in every origin, for a `source` that is no file.
    """
    root, problems = read_all(text, source, excerpt=excerpt)
    if problems:
        raise ConfigError(problems)
    return root


def read_all(text: str, source: str, *, excerpt: bool = False) -> tuple[Table, list[Problem]]:
    """Return the tree without faulty statements, and the mistakes from top to bottom."""
    places = TextPositions(text.removeprefix("\ufeff"), source, keep=excerpt)
    try:
        parser = _TomlParser(places)
        parser.document()
    except UnreadableError as stop:
        return Table({}, Origin(source=source)), [stop.problem]
    except RecursionError:  # of a caller that has few frames left
        return Table({}, Origin(source=source)), [too_deep(places.origin(0, 1))]
    return parser.root.freeze(), sorted(parser.problems, key=by_place)


def value_in(text: str) -> Node | None:
    """Return the one value that `text` is; None when it is no TOML value, or more than one."""
    try:
        return _read_value(text)
    except (UnreadableError, AbandonedError, RecursionError):
        return None


@lru_cache(maxsize=64)  # each of thousands of variants reads the whole list of a sweep again
def _read_value(text: str) -> Node | None:
    return _TomlParser(TextPositions(text, "<value>", keep=False)).single()


# --- tables being filled --------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class TableBuilder:
    """Table that may still grow.

    Made by its own header (`is_headed`), by dotted keys under the header of `dotted_in`, or, with
    neither, by the header of a table inside of it.
    """

    path: KeyPath
    origin: Origin
    is_headed: bool = False
    dotted_in: TableBuilder | None = None
    items: dict[str, TableBuilder | TableArray | Node] = field(default_factory=dict)
    key_origins: dict[str, Origin] = field(default_factory=dict)

    def add(self, key: str, item: TableBuilder | TableArray | Node, key_origin: Origin) -> None:
        self.items[key] = item
        self.key_origins[key] = key_origin

    def grows_in(self, owner: TableBuilder) -> bool:
        """Return True if dotted keys in `owner` may add to this table."""
        return not self.is_headed and self.dotted_in in (None, owner)

    def freeze(self) -> Table:
        items = {
            key: item.freeze() if isinstance(item, TableBuilder | TableArray) else item
            for key, item in self.items.items()
        }
        return Table(items, self.origin, self.key_origins)


@dataclass(slots=True, eq=False)
class TableArray:
    """Array of tables that may still grow: `[[plugins]]`."""

    rows: list[TableBuilder]

    def freeze(self) -> List:
        return List(tuple(row.freeze() for row in self.rows), self.rows[0].origin)


@dataclass(frozen=True, slots=True)
class TomlKey:
    """One part of a dotted key."""

    name: str
    start: int
    end: int


class AbandonedError(Exception):
    """Statement that cannot be read any further; the mistake has been noted."""

    def __init__(self, *, resume: int) -> None:
        super().__init__(resume)
        self.resume = resume


# --- the parser -----------------------------------------------------------------------------------


class _TomlParser:
    """Parser of one statement after the other.

    A mistake inside a value is noted and the value is read on, so that all mistakes of a list are
    found. A mistake after which nothing is sure abandons the statement. Either way the statement
    leaves nothing in the tree.
    """

    def __init__(self, places: TextPositions) -> None:
        large = too_large(places.text, places.source)
        if large is not None:
            raise UnreadableError(large)
        self.places = places
        self.origin = places.origin
        self.text = places.text
        self.at = 0
        self.closings: list[str] = []  # brackets that the statement has yet to close
        self.values = 0
        self.root = TableBuilder((), self.origin(0, 0))
        self.problems: list[Problem] = []

    def document(self) -> None:
        here = self.root
        while self.skip(tokens.BLANK) < len(self.text):
            try:
                if self.text[self.at] == "[":
                    here = self.detach()  # unless the header is right
                    here = self.header()
                elif self.text[self.at] in "]}":
                    self.abandon(f"`{self.text[self.at]}` closes nothing", self.at, self.at + 1)
                else:
                    self.pair(here)
                self.end_statement()
            except AbandonedError as stop:
                self.at = stop.resume
                self.closings.clear()

    def single(self) -> Node | None:
        """Return the value that the whole text is; None when it is none, or more."""
        self.skip(tokens.SPACE)
        node = self.value(())
        self.skip(tokens.SPACE)
        return node if self.at == len(self.text) and not self.problems else None

    # --- mistakes

    def wrong(
        self, message: str, start: int, end: int, fix: str = "", *, noticed: int | None = None
    ) -> None:
        """Note a syntax error at [start, end), and the line on which it was noticed, if another."""
        related: tuple[Problem, ...] = ()
        line_start = self.places.line_start
        if noticed is not None and line_start(noticed) != line_start(start):
            behind = min(noticed + 1, self.places.line_end(noticed))
            at = self.origin(noticed, behind)
            related = (Problem(kind="syntax", severity="note", message="noticed here", origin=at),)
        origin = self.origin(start, end)
        self.note(Problem(kind="syntax", message=message, origin=origin, fix=fix, related=related))

    def note(self, problem: Problem) -> None:
        """Add a problem; stop reading at the number that nobody reads through."""
        self.problems.append(problem)
        if len(self.problems) == MAX_MISTAKES:
            raise AbandonedError(resume=len(self.text))

    def abandon(self, message: str, start: int, end: int, fix: str = "") -> NoReturn:
        """Note a syntax error and give the statement up.

        Reading resumes on the next line; within brackets on the next line that begins a statement.
        """
        self.wrong(message, start, end, fix)
        resume = self.places.line_end(max(start, self.at)) + 1
        while self.closings and resume < len(self.text) and not self.begins_statement(resume):
            resume = self.places.line_end(resume) + 1
        raise AbandonedError(resume=min(resume, len(self.text)))

    def twice(self, box: TableBuilder, keys: list[TomlKey], index: int) -> None:
        """Note that `keys[index]` is in `box` already, so that this statement cannot define it."""
        origin = self.origin(keys[0].start, keys[-1].end)
        name = keys[index].name
        path = (*box.path, name)
        problem = duplicate(dotted(path), origin, box.key_origins[name])
        if index < len(keys) - 1:
            shown, fix = dotted(path), problem.fix
            message = f"`{shown}` has a value already, so it cannot hold more"
            if isinstance(box.items[name], TableBuilder | TableArray):
                message = f"`{shown}` has a header of its own, so a dotted key cannot add to it"
                fix = "write the key under that header"
            whole = dotted((*path, *(key.name for key in keys[index + 1 :])))
            problem = replace(problem, message=message, fix=fix, key=whole)
        self.note(problem)

    # --- statements

    def header(self) -> TableBuilder:
        """Read `[a.b]` or `[[a.b]]` and return the table that it opens.

        Returns a detached table when the header may open none.
        """
        is_row = self.text.startswith("[[", self.at)
        opening, closing = ("[[", "]]") if is_row else ("[", "]")
        self.at += len(opening)
        start = self.at
        keys = self.keys()
        if not self.text.startswith(closing, self.at):
            self.refuse_unclosed_header(opening, closing, self.text[start : keys[-1].end].strip())
        self.at += len(closing)
        box = self.root
        for index, key in enumerate(keys[:-1]):
            inner = self.inner(box, key)
            if isinstance(inner, TableArray):
                inner = inner.rows[-1]
            elif not isinstance(inner, TableBuilder):
                self.twice(box, keys, index)
                return self.detach()
            box = inner
        opened = self.open_row(box, keys) if is_row else self.open_table(box, keys)
        if opened is None:
            self.twice(box, keys, len(keys) - 1)
        return opened or self.detach()

    def detach(self) -> TableBuilder:
        """Return a table outside of the tree, for the pairs below a header with a mistake."""
        return TableBuilder((), self.root.origin)

    def refuse_unclosed_header(self, opening: str, closing: str, name: str) -> NoReturn:
        is_at_end = self.at == len(self.text)
        is_whole = is_at_end or self.text.startswith(("\n", "\r", "#", "]"), self.at)
        fix = "a name with other characters needs quotes"
        if is_whole:
            fix = f"write {opening}{name}{closing}"
        self.abandon("this header is not closed", self.at, self.at + 1, fix)

    def open_row(self, box: TableBuilder, keys: list[TomlKey]) -> TableBuilder | None:
        """Add a table to the array at the last key; None when something else is there."""
        last = keys[-1]
        rows = box.items.get(last.name, TableArray([]))
        if not isinstance(rows, TableArray):
            return None
        path = (*box.path, last.name, len(rows.rows))
        row = TableBuilder(path, self.origin(keys[0].start, last.end), is_headed=True)
        rows.rows.append(row)
        if last.name not in box.items:
            box.add(last.name, rows, self.origin(last.start, last.end))
        return row

    def open_table(self, box: TableBuilder, keys: list[TomlKey]) -> TableBuilder | None:
        """Return the table at the last key; None when its header or its dotted keys were there."""
        table = self.inner(box, keys[-1])
        if not isinstance(table, TableBuilder) or table.is_headed or table.dotted_in is not None:
            return None
        table.is_headed = True
        table.origin = self.origin(keys[0].start, keys[-1].end)
        return table

    def pair(self, owner: TableBuilder) -> None:
        """Read `a.b = value`, in a statement or in an inline table, into `owner`."""
        count = len(self.problems)
        keys = self.keys()
        if self.text[self.at : self.at + 1] != "=":
            self.no_equals(keys)
        self.at += 1
        self.skip(tokens.SPACE)
        node = self.value((*owner.path, *(key.name for key in keys)))
        if len(self.problems) > count:
            return
        box = owner
        for index, key in enumerate(keys[:-1]):
            inner = self.inner(box, key)
            if not isinstance(inner, TableBuilder) or not inner.grows_in(owner):
                self.twice(box, keys, index)
                return
            inner.dotted_in = owner
            box = inner
        last = keys[-1]
        if last.name in box.items:
            self.twice(box, keys, len(keys) - 1)
        else:
            box.add(last.name, node, self.origin(last.start, last.end))

    def inner(self, box: TableBuilder, key: TomlKey) -> TableBuilder | TableArray | Node:
        """Return the item at `key` in `box`, a new table if there is none."""
        if key.name not in box.items:
            origin = self.origin(key.start, key.end)
            box.add(key.name, TableBuilder((*box.path, key.name), origin), origin)
        return box.items[key.name]

    def no_equals(self, keys: list[TomlKey]) -> NoReturn:
        last = keys[-1]
        word = tokens.WORD.match(self.text, last.start)
        if word is not None and last.end == self.at < word.end():
            odd = self.text[self.at]
            if odd.isalnum():
                message = f"`{odd}` cannot stand in a key without quotes"
                self.abandon(message, self.at, self.at + 1, f'write "{word[0]}"')
        self.abandon("`=` is missing after the key", self.at, self.at + 1, "write key = value")

    def end_statement(self) -> None:
        """Skip the rest of a line, which holds at most a comment."""
        start = self.skip(tokens.SPACE)
        if self.text.startswith(("\n", "\r\n", "#"), start) or start == len(self.text):
            return
        rest = self.text[start : self.places.line_end(start)].rstrip()
        fix = "one `key = value` on a line; strings need quotes"
        if rest.startswith(", "):
            fix = "a list needs brackets: [1, 2]"
        self.abandon("this is too much after the value", start, start + max(1, len(rest)), fix)

    def keys(self) -> list[TomlKey]:
        """Read a dotted key and the blanks behind it."""
        keys: list[TomlKey] = []
        while not keys or self.text[self.at : self.at + 1] == ".":
            self.at += bool(keys)
            start = self.skip(tokens.SPACE)
            found = tokens.BARE_KEY.match(self.text, start)
            if found is not None:
                name, self.at = found[0], found.end()
            elif self.text.startswith(("'", '"'), start):
                name = self.string(self.text[start])
            else:
                self.no_key(start)
            if len(name) > MAX_WORD:
                self.note(too_long(self.origin(start, self.at)))
            keys.append(TomlKey(name, start, self.at))
            if len(keys) > MAX_DEPTH:
                raise self.too_deep(start)
            self.skip(tokens.SPACE)
        return keys

    def no_key(self, start: int) -> NoReturn:
        found = tokens.WORD.match(self.text, start)
        if tokens.CONTROL.match(self.text, start):
            self.abandon("a character that no TOML may hold", start, start + 1)
        if found is None:
            self.abandon("a key is missing", start, start + 1, "write key = value")
        self.abandon(f"`{found[0]}` is no key", start, found.end(), f'write "{found[0]}" = value')

    # --- values

    def value(self, path: KeyPath) -> Node:
        """Read the value that starts here; after a mistake in it the node is meaningless."""
        start = self.at
        self.values += 1
        if self.values > MAX_VALUES:
            raise UnreadableError(too_many(self.places.source))
        if len(path) > MAX_DEPTH:
            raise self.too_deep(start)
        match self.text[start : start + 1]:
            case "[":
                items: list[Node] = []
                self.read_brackets("]", lambda: items.append(self.value((*path, len(items)))))
                return List(tuple(items), self.origin(start, self.at))
            case "{":
                box = TableBuilder(path, self.origin(start, start))
                self.read_brackets("}", lambda: self.pair(box))
                box.origin = self.origin(start, self.at)
                return box.freeze()
            case "'" | '"' as quote:
                is_long = self.text.startswith(quote * 3, start)
                text = self.string(quote * 3 if is_long else quote)
                return Leaf(None if text == NONE else text, self.origin(start, self.at))
            case _:
                value = self.word()
                return Leaf(value, self.origin(start, self.at))

    def read_brackets(self, closing: str, item: Callable[[], None]) -> None:
        """Read from the bracket that opens here to `closing`, calling `item` where one starts."""
        opened = self.at
        self.at += 1
        self.closings.append(closing)
        end = -1  # of an item that no comma follows yet
        while True:
            start = self.skip(tokens.BLANK)
            here = self.text[start : start + 1]
            if here == closing:
                self.at += 1
                break
            if here == ",":
                if end < 0:
                    self.wrong("a value is missing before the comma", start, start + 1)
                self.at += 1
                end = -1
                continue
            thing = "list" if closing == "]" else "table"
            is_outer = here in self.closings
            if is_outer or not here or self.is_next_statement(opened, closing, has_comma=end < 0):
                fix = f"add the closing `{closing}`"
                self.wrong(f"this {thing} is not closed", opened, opened + 1, fix, noticed=start)
                if is_outer:  # read on behind the bracket that is there
                    break
                raise AbandonedError(resume=start)
            if here in "]}":
                self.wrong(f"`{here}` closes no {thing}", start, start + 1, f"write `{closing}`")
                self.at += 1
                break
            if end == start:
                self.abandon("a comma or a quote is missing", end, end + 1)
            if end >= 0:
                self.wrong("a comma is missing", end, end, "put one behind this value")
            item()
            end = self.at
        self.closings.pop()

    def is_next_statement(self, opened: int, closing: str, *, has_comma: bool) -> bool:
        """Distinguish a statement behind the unclosed bracket at `opened` from one more item."""
        line = self.places.line_start(self.at)
        if line <= opened or self.text[line : self.at].strip():
            return False
        if closing == "}":
            return self.text[self.at] == "[" or not (has_comma or self.is_closed_later(closing))
        if tokens.PAIR_START.match(self.text, line):
            return True
        header = tokens.NAMED_HEADER_START if has_comma else tokens.HEADER_START
        return bool(header.match(self.text, line)) and not self.is_closed_later(closing)

    def is_closed_later(self, closing: str) -> bool:
        """Search for the bracket that closes the innermost one, up to the next sure statement."""
        depth = 0
        for found in tokens.BRACKET.finditer(self.text, self.at):
            match found.lastgroup:
                case "open":
                    depth += 1
                case "close" if depth == 0:
                    return found[0] == closing
                case "close":
                    depth -= 1
                case "newline" if depth == 0:
                    statement = tokens.PAIR_START if closing == "]" else tokens.HEADER_START
                    if statement.match(self.text, found.end()):
                        return False
        return False

    def word(self) -> Scalar:
        """Read a number, date, time or truth value."""
        start = self.at
        found = tokens.WORD.match(self.text, start)
        word = found[0] if found else ""
        if len(word) > MAX_WORD:
            self.at += len(word)
            self.note(too_long(self.origin(start, self.at)))
            return None
        scalar = tokens.scalar_of(word)
        if scalar is not None:
            self.at += len(word)
            return scalar[0]
        line_end = self.places.line_end(start)
        if tokens.CONTROL.match(self.text, start):
            self.abandon("a character that no TOML may hold", start, start + 1)
        if not word:
            self.abandon("a value is missing", start, min(start + 1, line_end))
        if not self.closings:  # then all words up to a comment were meant
            word = re.split(r"\s+#|\s*$", self.text[start:line_end], maxsplit=1)[0]
        self.at += len(word)
        self.wrong(f"`{word}` is no TOML value", start, self.at, tokens.advice(word))
        return None

    def string(self, quotes: str) -> str:
        """Read a string that starts with `quotes`."""
        start = self.at
        found = tokens.STRINGS[quotes].match(self.text, start)
        if found is None and len(quotes) == 3:
            self.at = len(self.text)
            fix = f"add the closing `{quotes}`"
            self.abandon("this string is not closed", start, start + 3, fix)
        if found is None:
            line = self.text[start : self.places.line_end(start)]
            end = start + len(line.rstrip())
            fix = "close it before the end of the line"
            self.abandon("this string is not closed", start, end, fix)
        self.at = found.end()
        text, at = found[0][len(quotes) : -len(quotes)], start + len(quotes)
        odd = tokens.CONTROL.search(text)
        if odd is not None:
            message = "a control character in a string"
            self.wrong(message, at + odd.start(), at + odd.end(), "write it as an escape")
        if len(quotes) == 3:
            lead = 2 if text.startswith("\r\n") else int(text.startswith("\n"))
            text, at = text[lead:], at + lead
        if quotes[0] == '"' and "\\" in text:
            return tokens.ESCAPE.sub(
                lambda escape: self.unescape(escape, at + escape.start(), quotes), text
            )
        return text.replace("\r\n", "\n")

    def unescape(self, escape: re.Match[str], at: int, quotes: str) -> str:
        """Return the text of an escape; note one that is none."""
        if escape[0] == "\r\n":
            return "\n"
        if escape["short"]:
            return tokens.SHORT_ESCAPES[escape["short"]]
        if escape["fold"] and len(quotes) == 3:
            return ""
        code = int(escape["x"] or escape["u"] or escape["U"] or "d800", 16)
        if code < 0xD800 or 0xDFFF < code < 0x110000:
            return chr(code)
        fix = "double it, or use single quotes: 'C:\\data'"
        self.wrong("`\\` in a string starts an escape, and this is none", at, at + 2, fix)
        return ""

    # --- places

    def skip(self, pattern: re.Pattern[str]) -> int:
        """Advance past the match of `pattern`, which always matches; return the new offset."""
        found = pattern.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return self.at

    def begins_statement(self, line: int) -> bool:
        return bool(
            tokens.PAIR_START.match(self.text, line) or tokens.HEADER_START.match(self.text, line)
        )

    def too_deep(self, at: int) -> UnreadableError:
        return UnreadableError(too_deep(self.origin(at, at + 1)))
