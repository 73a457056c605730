"""TOML with the place of every key and value: `tomllib` proves the text valid, our own scanner finds the places."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from assay.config.sources.places import (
    MAX_BYTES,
    MAX_MISTAKES,
    MAX_VALUES,
    MAX_WORD,
    Places,
    by_place,
    too_deep,
    too_large,
    too_long,
    too_many,
)
from assay.config.tree import MAX_DEPTH, NONE, KeyPath, Leaf, List, Node, Table, dotted, get_at, key_origin_at
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError


def read(text: str, source: str, *, excerpt: bool = False) -> Table:
    """The tree of a TOML text; ConfigError with every syntax error and duplicate in it.

    `excerpt` keeps the text in every origin, for a `source` that is no file.
    """
    root, problems = read_all(text, source, excerpt=excerpt)
    if problems:
        raise ConfigError(problems)
    return root


def read_all(text: str, source: str, *, excerpt: bool = False) -> tuple[Table, list[Problem]]:
    """The tree of what could be read, and what could not: a statement with a mistake is left out, the rest is there."""
    places = Places(text.removeprefix("\ufeff"), source, keep=excerpt)
    text = places.text
    refused = _refusal(places)
    if refused is not None:
        return Table({}, Origin(source=source)), [refused]
    problems: list[_Mistake] = []
    while True:
        try:
            parsed = tomllib.loads(text)
            root = _Scanner(places, text).document(parsed)
            break
        except _TooDeep as error:
            return Table({}, Origin(source=source)), [_too_deep(places, error.at)]
        except RecursionError:
            return Table({}, Origin(source=source)), [_too_deep(places, 0)]
        except ValueError as error:
            mistake = _mistake(places, text, str(error))
            problems.append(mistake)
            more = len(problems) < (MAX_MISTAKES if len(text) < MAX_BYTES // 8 else 1)
            smaller = _without(text, mistake) if more else text
            if smaller == text:
                root = Table({}, Origin(source=source))
                break
            text = smaller
    return root, sorted((_explained(found, root) for found in problems), key=by_place)


class _TooDeep(Exception):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


# --- what is refused before any parser sees it -----------------------------------------------------------------------

# Unclosed strings match too, up to where the parser would give up: otherwise scanning hostile text is quadratic.
_LONG_STRING = r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)' + r"|'''.*?(?:'{3,5}|\Z)"
_SHORT_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?' + r"|'[^'\n]*'?"
_LEXEME = re.compile(
    rf"(?P<string>{_LONG_STRING}|{_SHORT_STRING})|(?P<comment>#[^\n]*)|(?P<open>[\[{{])|(?P<close>[\]}}])"
    r"|(?P<newline>\n)|(?P<dot>\.)|(?P<break>[=,])|(?P<word>[\w+-]+)",
    re.DOTALL,
)


def _refusal(places: Places) -> Problem | None:
    """The problem of a text that would take a parser too long or too deep."""
    large = too_large(places.text, places.source)
    if large is not None:
        return large
    beyond = excess(places.text)
    if beyond is None:
        return None
    if beyond.lastgroup == "word":
        return too_long(places.origin(beyond.start(), beyond.end()))
    if beyond.lastgroup == "break":
        return too_many(places.source)
    return _too_deep(places, beyond.start())


def excess(text: str) -> re.Match[str] | None:
    """Where a text has too much (depth, values, one word) for the parser to be asked; None when it may be.

    Takes time in proportion to the text, whatever is in it.
    """
    depth = dots = breaks = 0
    for found in _LEXEME.finditer(text):
        match found.lastgroup:
            case "open":
                depth, dots = depth + 1, 0
            case "close":
                depth, dots = max(0, depth - 1), 0
            case "break":
                dots, breaks = 0, breaks + 1
                if breaks > 2 * MAX_VALUES:
                    return found
            case "newline":
                dots = 0
            case "dot":
                dots += 1
            case "word" if found.end() - found.start() > MAX_WORD:
                return found
        if depth > MAX_DEPTH or dots >= MAX_DEPTH:
            return found
    return None


def _too_deep(places: Places, at: int) -> Problem:
    return too_deep(places.origin(at, at + 1))


# --- positions in a text known to be valid ---------------------------------------------------------------------------

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")  # possessive: a way back for every comment takes gigabytes
_KEY = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+')
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'", re.DOTALL
)
_WORD = re.compile(
    r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)?)?(?=[\s,\]}#]|\Z)|[^\s,\]}#]+"
)


@dataclass(slots=True)
class _Box:
    """A table being filled. `given` is what tomllib made of it."""

    given: dict[str, Any]
    origin: Origin
    items: dict[str, _Box | _Rows | Node] = field(default_factory=dict)
    key_origins: dict[str, Origin] = field(default_factory=dict)

    def frozen(self) -> Table:
        items = {key: item.frozen() if isinstance(item, _Box | _Rows) else item for key, item in self.items.items()}
        return Table(items, self.origin, self.key_origins)


@dataclass(slots=True)
class _Rows:
    """An array of tables being filled."""

    rows: list[_Box]

    def frozen(self) -> List:
        return List(tuple(row.frozen() for row in self.rows), self.rows[0].origin)


class _Scanner:
    """Follows the statements of a valid text and puts what tomllib read at the places where it stands."""

    def __init__(self, places: Places, text: str) -> None:
        self.origin: Callable[[int, int], Origin] = places.origin
        self.text = text
        self.at = 0

    def document(self, given: dict[str, Any]) -> Table:
        root = here = _Box(given, self.origin(0, 0))
        depth = 0
        while self.skip(_BLANK) < len(self.text):
            if self.text[self.at] == "[":
                here, depth = self.header(root)
            else:
                self.pair(here, depth)
        return root.frozen()

    def header(self, root: _Box) -> tuple[_Box, int]:
        is_row = self.text.startswith("[[", self.at)
        self.at += 1 + is_row
        keys = self.keys()
        self.at += 1 + is_row
        origin = self.origin(keys[0][1], keys[-1][2])
        box = root
        for key, start, end in keys[:-1]:
            box = self.inner(box, key, self.origin(start, end), self.origin(start, end))
        key, start, end = keys[-1]
        if not is_row:
            box = self.inner(box, key, self.origin(start, end), origin)
            box.origin = origin
            return box, len(keys)
        rows = box.items.setdefault(key, _Rows([]))
        assert isinstance(rows, _Rows)
        box.key_origins.setdefault(key, self.origin(start, end))
        rows.rows.append(_Box(box.given[key][len(rows.rows)], origin))
        return rows.rows[-1], len(keys) + 1

    def pair(self, box: _Box, depth: int) -> None:
        """`a.b = value`, in a statement or in an inline table."""
        keys = self.keys()
        for key, start, end in keys[:-1]:
            box = self.inner(box, key, self.origin(start, end), self.origin(start, end))
        key, start, end = keys[-1]
        self.at += 1  # the equals sign
        self.skip(_SPACE)
        box.items[key] = self.value(box.given[key], depth + len(keys))
        box.key_origins[key] = self.origin(start, end)

    def inner(self, box: _Box, key: str, key_origin: Origin, origin: Origin) -> _Box:
        """The table `key` of `box`, made when it is met first; of an array of tables the last one."""
        if key not in box.items:
            box.items[key] = _Box(box.given[key], origin)
            box.key_origins[key] = key_origin
        found = box.items[key]
        if isinstance(found, _Rows):
            return found.rows[-1]
        assert isinstance(found, _Box)
        return found

    def keys(self) -> list[tuple[str, int, int]]:
        """The parts of a dotted key with their places; stops in front of `=` or `]`."""
        keys: list[tuple[str, int, int]] = []
        while True:
            start = self.skip(_SPACE)
            end = self.skip(_KEY)
            keys.append((_key_name(self.text[start:end]), start, end))
            self.skip(_SPACE)
            if self.text[self.at] != ".":
                break
            self.at += 1
        if len(keys) > MAX_DEPTH:
            raise _TooDeep(keys[MAX_DEPTH][1])
        return keys

    def value(self, given: Any, depth: int) -> Node:
        start = self.at
        if depth > MAX_DEPTH:
            raise _TooDeep(start)
        match given:
            case dict():
                self.at += 1
                box = _Box(given, self.origin(start, start))
                while self.text[self.skip(_BLANK)] != "}":
                    self.pair(box, depth)
                    self.skip_comma()
                self.at += 1
                box.origin = self.origin(start, self.at)
                return box.frozen()
            case list():
                self.at += 1
                items: list[Node] = []
                while self.text[self.skip(_BLANK)] != "]":
                    items.append(self.value(given[len(items)], depth + 1))
                    self.skip_comma()
                self.at += 1
                return List(tuple(items), self.origin(start, self.at))
            case str():
                return Leaf(None if given == NONE else given, self.origin(start, self.skip(_STRING)))
            case _:
                return Leaf(given, self.origin(start, self.skip(_WORD)))

    def skip_comma(self) -> None:
        if self.text[self.skip(_BLANK)] == ",":
            self.at += 1

    def skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.at)
        assert found is not None, f"the scanner lost its way at {self.at}"
        self.at = found.end()
        return self.at


def _key_name(raw: str) -> str:
    if raw[0] == "'":
        return raw[1:-1]
    if raw[0] != '"':
        return raw
    if "\\" not in raw:
        return raw[1:-1]
    try:
        name = tomllib.loads(f"name = {raw}")["name"]
    except ValueError:  # only while looking for mistakes: this one is told at its own place
        return raw[1:-1]
    assert isinstance(name, str)
    return name


# --- mistakes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mistake:
    """What is wrong with one statement. `path` is what a duplicate defines; `cut` the part to leave out, then go on."""

    problem: Problem
    path: KeyPath = ()
    cut: tuple[int, int]


_BROKEN_WORD = re.compile(r"[=,\[][ \t]*([+-]?\d[\w.:+-]*)\Z")
_AT = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_DOTTED = rf"(?:{_KEY.pattern})(?:[ \t]*\.[ \t]*(?:{_KEY.pattern}))*"
_PAIR_START = re.compile(rf"[ \t]*{_DOTTED}[ \t]*=(?!=)")
_HEADER_START = re.compile(rf"[ \t]*\[\[?[ \t]*{_DOTTED}[ \t]*\]")
_INLINE_KEY = re.compile(rf"(?<![A-Za-z0-9_-])({_KEY.pattern})[ \t]*=")
_HEADER_LIKE = re.compile(r"[ \t]*\[")


def _mistake(places: Places, text: str, message: str) -> _Mistake:
    """What tomllib complains about, at the place where a person would look."""
    found = _AT.search(message)
    what = message[: found.start()] if found else message
    at = len(text)
    if found and found["line"]:
        at = min(at, places.line_starts[int(found["line"]) - 1] + int(found["column"]) - 1)
    start, header = _statement(text, at)
    line = _line_start(text, at)
    if line > start and _starts_statement(text, line) and not what.startswith(("Cannot", "Duplicate")):
        # The next statement is where an unclosed list was noticed; it is not itself wrong.
        end = line
    else:
        end = _end_of_mistake(text, start, max(line, start))
    cut = (start, end)
    if what.startswith("Cannot"):
        keys = _keys_of(text, start)
        path = header + tuple(key for key, _, _ in keys)
        problem = _duplicate(places.origin(keys[0][1], keys[-1][2]), path)
        return _Mistake(problem=problem, path=path, cut=cut)
    if what.startswith("Duplicate inline table key"):
        # tomllib stands behind the second value: the key is the last of that name before it.
        stem = what.partition(" key ")[2]
        names = [key for key in _INLINE_KEY.finditer(text, start, at) if repr(_key_name(key[1])) == stem]
        places_of = [places.origin(key.start(1), key.end(1)) for key in names]
        path = (*header, *(key for key, _, _ in _keys_of(text, start)), _key_name(names[-1][1]))
        return _Mistake(problem=_duplicate(places_of[-1], path, first=places_of[0]), cut=cut)
    return _Mistake(problem=_syntax(places, text, what, at, start), cut=cut)


def _duplicate(origin: Origin, path: KeyPath, first: Origin | None = None) -> Problem:
    key = dotted(path)
    earlier = Problem(kind="duplicate-key", severity="note", message="first here", origin=first or origin)
    return Problem(
        kind="duplicate-key",
        message=f"`{key}` is given twice",
        origin=origin,
        key=key,
        fix="keep one of the two",
        related=(earlier,) if first else (),
    )


def _syntax(places: Places, text: str, what: str, at: int, start: int) -> Problem:
    end = at + 1
    line_end = text.find("\n", at)
    line_end = len(text) if line_end < 0 else line_end
    if text[at:line_end].strip() == "":
        end = at  # behind the end of the line: one caret there
    fix = ""
    related: tuple[Problem, ...] = ()
    message = what[:1].lower() + what[1:]
    if what.startswith("Expected newline") and (broken := _BROKEN_WORD.search(text, start, at)) is not None:
        # tomllib read the first half of `2020-13-01` or `1e` as a number.
        what, at = "Invalid value", broken.start(1)
    match what:
        case "Invalid value" | "Invalid date or datetime":
            word = re.compile(r"\([^)\n]*\)?|[^\s,\]}#=]+").match(text, at)
            raw = word[0] if word else ""
            end = at + max(1, len(raw))
            message = f"`{raw}` is no TOML value" if raw else "a value is missing"
            fix = _value_advice(raw)
        case "Unclosed array" | "Unclosed inline table":
            thing = "list" if what == "Unclosed array" else "table"
            message = f"this {thing} is not closed"
            opened = _opened(text, start, at)
            opened = at if opened is None else opened
            if _line_start(text, at) != _line_start(text, opened):
                noticed = Problem(
                    kind="syntax",
                    severity="note",
                    message="noticed here",
                    origin=places.origin(at, end),
                )
                related = (noticed,)
            at, end = opened, opened + 1
            fix = f"add the closing `{']' if thing == 'list' else '}'}`"
        case "Unterminated string" | 'Expected "\'"' | "Expected \"'''\"":
            at = _last_string(text, start)
            quotes = text[at : at + 3] if text.startswith(('"""', "'''"), at) else text[at]
            end = at + len(quotes)
            message, fix = "this string is not closed", f"add the closing `{quotes}`"
        case _ if what.startswith("Illegal character '\\n'"):
            message, fix = "this string is not closed", "close it before the end of the line"
            end = at
            at = _short_string_start(text, at)
        case "Expected '=' after a key in a key/value pair":
            message, fix = "`=` is missing after the key", "write key = value"
        case "Expected newline or end of document after a statement":
            end = max(line_end, end)
            message = "this is too much after the value"
            fix = "one `key = value` on a line; strings need quotes"
        case "Unescaped '\\' in a string" | "Invalid hex value" | "Escaped character is not a Unicode scalar value":
            at = text.rfind("\\", start, at)
            end = at + 2
            message = "`\\` in a string starts an escape, and this is none"
            fix = "double it, or use single quotes: 'C:\\data'"
    return Problem(kind="syntax", message=message, origin=places.origin(at, end), fix=fix, related=related)


def _value_advice(raw: str) -> str:
    if raw.lower() in ("true", "false"):
        return f"write {raw.lower()}"
    if raw.lower() in ("none", "null", "nil"):
        return f'write "{NONE}"'
    if raw.startswith("("):
        return f"write a list: [{raw.strip('()').strip().rstrip(',')}]"
    if re.fullmatch(r"[+-]?\.\d+\S*", raw):
        return f"write {raw.replace('.', '0.', 1)}"
    if re.fullmatch(r"[+-]?\d+\.(?:[eE]\S*)?", raw):
        return f"write {raw.replace('.', '.0', 1)}"
    return f'strings need quotes: "{raw}"' if re.fullmatch(r"[A-Za-z_@$./][^\"']*", raw) else ""


def _explained(found: _Mistake, root: Table) -> Problem:
    """A duplicate with a pointer to the first one, now that the rest has been read."""
    for length in range(len(found.path), 0, -1):
        path = found.path[:length]
        if get_at(root, path) is None:
            continue
        first = Problem(kind="duplicate-key", severity="note", message="first here", origin=key_origin_at(root, path))
        whole = length == len(found.path)
        message = found.problem.message if whole else f"`{dotted(path)}` has a value already, so it cannot hold more"
        return replace(found.problem, message=message, related=(first,))
    return found.problem


def _statements(text: str) -> Iterator[int]:
    """Where each statement starts, as far as brackets and strings can be trusted."""
    depth, fresh = 0, True
    for found in _LEXEME.finditer(text):
        match found.lastgroup:
            case "newline":
                fresh = fresh or depth == 0
                continue
            case "comment":
                continue
        if fresh:
            yield found.start()
            fresh = False
        match found.lastgroup:
            case "open":
                depth += 1
            case "close":
                depth = max(0, depth - 1)


def _statement(text: str, at: int) -> tuple[int, KeyPath]:
    """The start of the statement around `at`, and the header it stands under."""
    start = 0
    header: KeyPath = ()
    path: KeyPath = ()
    for begin in _statements(text):
        if begin > at or (begin == at and at == len(text)):
            break
        header = path
        start = begin
        if _HEADER_START.match(text, begin):
            path = tuple(key for key, _, _ in _keys_of(text, begin))
            header = ()
    return start, header


def _keys_of(text: str, start: int) -> list[tuple[str, int, int]]:
    """The dotted key a statement starts with."""
    at = start
    while text[at] in "[ \t":
        at += 1
    keys = []
    while (found := _KEY.match(text, at)) is not None:
        keys.append((_key_name(found[0]), found.start(), found.end()))
        dot = re.compile(r"[ \t]*\.[ \t]*").match(text, found.end())
        if dot is None:
            break
        at = dot.end()
    return keys


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _starts_statement(text: str, line: int) -> bool:
    return bool(_PAIR_START.match(text, line) or _HEADER_START.match(text, line))


def _end_of_mistake(text: str, start: int, at: int) -> int:
    """Where to go on after a mistake: behind its line; behind its table when the header is wrong; else where it looks
    as if the next statement begins."""
    header_only = bool(_HEADER_LIKE.match(text, start))
    line_end = text.find("\n", at)
    if not header_only and line_end >= 0 and _opened(text, start, line_end) is None:
        return line_end + 1
    while (line := text.find("\n", at) + 1) > 0:
        if _HEADER_START.match(text, line) or (not header_only and _PAIR_START.match(text, line)):
            return line
        at = line
    return len(text)


def _without(text: str, mistake: _Mistake) -> str:
    """`text` with blanks where the mistake is, so that every other place stays what it was."""
    start, end = mistake.cut
    return text[:start] + re.sub(r"[^\r\n]", " ", text[start:end]) + text[end:]


def _opened(text: str, start: int, at: int) -> int | None:
    """The innermost bracket that is open at `at`, None when all are closed."""
    opened: list[int] = []
    for found in _LEXEME.finditer(text, start, max(at, start + 1)):
        match found.lastgroup:
            case "open":
                opened.append(found.start())
            case "close" if opened:
                opened.pop()
    return opened[-1] if opened else None


def _last_string(text: str, start: int) -> int:
    """Where the last string begins: the one that the end of the text interrupts."""
    last = start
    for found in _LEXEME.finditer(text, start):
        if found.lastgroup == "string":
            last = found.start()
    return last


def _short_string_start(text: str, at: int) -> int:
    for found in _LEXEME.finditer(text, _line_start(text, at), at):
        if found.lastgroup == "string":
            start = found.start()
    return start
