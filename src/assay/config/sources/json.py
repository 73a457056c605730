"""JSON with comments. What standard JSON can say it says here too; dates, which it has no word for, stand bare."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from assay.config.sources.places import (
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

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9:.]+(?:[Zz]|[+-][0-9:]+)?)?|[0-9]{2}:[0-9:.]+"
# Unclosed strings and comments match up to where they must end: a second look at the same text would be quadratic.
_TOKEN = re.compile(
    r"(?P<blank>[ \t\r\n]++|//[^\n]*+)"
    r"|(?P<hash>#[^\n]*+)"
    r"|(?P<comment>/\*(?:[^*]|\*(?!/))*+(?:\*/)?)"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*+"?)'
    r"|(?P<quoted>'[^'\n]*+'?)"
    r"|(?P<mark>[{}\[\],:])"
    rf"|(?P<word>{_DATE}|[^\s{{}}\[\],:\"'/#]++)"
    r"|(?P<odd>.)",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_WORDS: dict[str, Scalar] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_MEANT = {
    "none": "null",
    "nil": "null",
    "true": "true",
    "false": "false",
    "nan": "NaN",
    "inf": "Infinity",
    "+inf": "Infinity",
    "-inf": "-Infinity",
    "null": "null",
    "infinity": "Infinity",
}
_CLOSING = {"{": "}", "[": "]"}


def read_all(text: str, source: str, *, excerpt: bool = False) -> tuple[Table, list[Problem]]:
    """The tree of what could be read, and every mistake.

    Comments are `//` and `/* */`; a comma may stand behind the last item. NaN, Infinity and -Infinity are numbers.
    """
    places = Places(text.removeprefix("\ufeff"), source, keep=excerpt)
    empty = Table({}, Origin(source=source))
    refused = too_large(places.text, source)
    if refused is not None:
        return empty, [refused]
    reader = _Reader(places)
    try:
        root = reader.document()
    except _Refused as stop:
        return empty, [stop.problem]
    except _Enough:
        root = empty
    return root, sorted(reader.problems, key=by_place)


class _Refused(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Enough(Exception):
    """Nobody reads more mistakes than these."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int

    def starts_value(self) -> bool:
        return self.kind in ("string", "quoted", "word") or self.text in ("{", "[")


class _Reader:
    """Reads a value after the other and goes on behind a mistake."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.problems: list[Problem] = []
        self.tokens = self.scan()
        self.open: list[str] = []  # the brackets that the next value lies in
        self.values = 0
        self.last_end = 0  # behind the token before `here`
        self.reopened = -1  # where a list that is not closed was noticed
        self.is_cut = False  # by a comment that is not closed: what is missing may stand in it
        self.here = next(self.tokens)
        self.ahead = next(self.tokens)

    def scan(self) -> Iterator[_Token]:
        text = self.places.text
        for found in _TOKEN.finditer(text):
            kind = found.lastgroup
            assert kind is not None
            if kind == "comment" and (len(found[0]) < 4 or not found[0].endswith("*/")):
                self.wrong("this comment is not closed", found.start(), found.start() + 2, "add the closing `*/`")
                self.is_cut = True
            elif kind == "hash":
                self.wrong("`#` starts no comment in JSON", found.start(), found.start() + 1, "write //")
            elif kind not in ("blank", "comment"):
                yield _Token(kind, found[0], found.start(), found.end())
        while True:
            yield _Token("end", "", len(text), len(text))

    def step(self) -> _Token:
        """Goes past the token that is here, and gives it."""
        token = self.here
        self.last_end = token.end
        self.here, self.ahead = self.ahead, next(self.tokens)
        return token

    def wrong(
        self, message: str, start: int, end: int, fix: str = "", *, noticed: int | None = None, kind: str = "syntax"
    ) -> None:
        related: tuple[Problem, ...] = ()
        if noticed is not None:
            at = self.places.origin(noticed, noticed + 1)
            related = (Problem(kind="syntax", severity="note", message="noticed here", origin=at),)
        origin = self.places.origin(start, end)
        self.told(Problem(kind=kind, message=message, origin=origin, fix=fix, related=related))

    def told(self, problem: Problem) -> None:
        if self.is_cut and self.here.kind == "end":
            return
        self.problems.append(problem)
        if len(self.problems) >= MAX_MISTAKES:
            raise _Enough

    # --- values

    def document(self) -> Table:
        root: Node | None = None
        if self.here.kind == "end":
            self.wrong("a config is a table, and here is nothing", 0, 0, "write { ... }")
        elif self.here.text == "{":
            root = self.value(())
        else:
            self.wrong("a config is a table: it starts with `{`", self.here.start, self.here.end)
            return Table({}, self.places.origin(0, 0))
        if self.here.kind != "end":
            text = self.here.text
            message = f"`{text}` closes nothing" if text in ("}", "]") else "this is too much after the closing `}`"
            self.wrong(message, self.here.start, self.here.end)
        return root if isinstance(root, Table) else Table({}, self.places.origin(0, 0))

    def value(self, path: KeyPath) -> Node | None:
        """The value that starts here; None when it is none, which has been told."""
        token = self.here
        self.values += 1
        if self.values > MAX_VALUES:
            raise _Refused(too_many(self.places.source))
        if token.text in _CLOSING:
            if len(self.open) > MAX_DEPTH:
                raise _Refused(too_deep(self.places.origin(token.start, token.end)))
            self.open.append(token.text)
            self.step()
            try:
                return self.table(token, path) if token.text == "{" else self.list(token, path)
            finally:
                self.open.pop()
        self.step()
        origin = self.places.origin(token.start, token.end)
        match token.kind:
            case "string" | "quoted":
                text = self.string(token)
                return None if text is None else Leaf(None if text == NONE else text, origin)
            case _:
                found = self.scalar(token)
                return None if found is None else Leaf(found[0], origin)

    def table(self, opened: _Token, path: KeyPath) -> Table:
        items: dict[str, Node] = {}
        seen: dict[str, Origin] = {}
        while not self.is_closed(opened):
            key = self.key()
            if key is None:
                continue
            name, origin = key
            told = self.here.text != ":"
            if told:
                self.no_colon()
            else:
                self.step()
            if not self.here.starts_value():
                if not told:
                    self.wrong("a value is missing", self.last_end, self.last_end)
                self.separated()
                continue
            node = self.value((*path, name))
            if name in seen:
                self.told(duplicate(dotted((*path, name)), origin, seen[name]))
            elif node is not None:
                items[name] = node
            seen.setdefault(name, origin)
            self.separated()
        return Table(items, self.places.origin(opened.start, self.last_end), {key: seen[key] for key in items})

    def list(self, opened: _Token, path: KeyPath) -> List:
        items: list[Node] = []
        while not self.is_closed(opened):
            if self.here.starts_value():
                node = self.value((*path, len(items)))
                if node is not None:
                    items.append(node)
            else:
                what = "a value is missing before the comma" if self.here.text == "," else "this is no JSON value"
                self.wrong(what, self.here.start, self.here.end)
                if self.here.text != ",":
                    self.step()
            self.separated()
        return List(tuple(items), self.places.origin(opened.start, self.last_end))

    def is_closed(self, opened: _Token) -> bool:
        """Whether the table or list ends here; goes past its bracket. Tells one that is missing or stray."""
        closing = _CLOSING[opened.text]
        while True:
            if self.here.text == closing:
                self.step()
                return True
            is_bracket = self.here.text in ("}", "]")
            is_key = opened.text == "[" and "{" in self.open and self.ahead.text == ":" and self.here.starts_value()
            if self.here.kind == "end" or is_key or any(_CLOSING[each] == self.here.text for each in self.open[:-1]):
                what = "table" if opened.text == "{" else "list"
                seen = min(self.here.start, len(self.places.text.rstrip()))
                fix = f"add the closing `{closing}`"
                self.wrong(f"this {what} is not closed", opened.start, opened.end, fix, noticed=seen)
                self.reopened = self.here.start
                return True
            if not is_bracket:
                return False
            self.wrong(f"`{self.here.text}` closes nothing", self.here.start, self.here.end)
            self.step()
            if self.here.text == ",":
                self.step()

    def no_colon(self) -> None:
        fix = 'write "key": value'
        if self.here.text.startswith("="):
            self.wrong("`:` is missing after the key", self.here.start, self.here.start + 1, fix)
            self.step()
        else:
            self.wrong("`:` is missing after the key", self.last_end, self.last_end, fix)

    def key(self) -> tuple[str, Origin] | None:
        token = self.here
        origin = self.places.origin(token.start, token.end)
        match token.kind:
            case "string" | "quoted":
                self.step()
                name = self.string(token)
                return None if name is None else (name, origin)
            case "word":
                self.step()
                name = token.text.rstrip("=")
                self.wrong("a key needs double quotes", token.start, token.start + len(name), f'write "{name}"')
                return name, self.places.origin(token.start, token.start + len(name))
        what = "a key is missing before the comma" if token.text == "," else "a key is missing"
        self.wrong(what, token.start, token.end)
        if token.text in _CLOSING or token.kind == "odd":
            self.step() if token.kind == "odd" else self.value(())
        if self.here.text in (",", ":"):
            self.step()
        return None

    def separated(self) -> None:
        """Goes past the comma behind an item. A missing one is told; what cannot be an item is told and left out."""
        while True:
            if self.here.text == ",":
                self.step()
                return
            if self.here.text in ("}", "]") or self.here.kind == "end":
                return
            if self.here.starts_value():
                is_next_key = self.ahead.text == ":" and (self.open[-1] == "[" or self.here.start == self.reopened)
                if not is_next_key:  # else the list is not closed, and that is told
                    self.wrong("a comma is missing", self.last_end, self.last_end, "put one behind this value")
                return
            stray = self.step()
            self.wrong(f"`{stray.text}` does not belong here", stray.start, stray.end)
            if self.here.starts_value():
                self.value(())

    def string(self, token: _Token) -> str | None:
        raw = token.text
        if token.kind == "quoted":
            self.wrong("strings need double quotes", token.start, token.end, f"write {json.dumps(raw.strip(chr(39)))}")
            return raw.strip("'")
        if len(raw) < 2 or not raw.endswith('"') or _is_escaped(raw):
            self.wrong("this string is not closed", token.start, token.end, "close it before the end of the line")
            return None
        if "\\" not in raw and raw.isprintable():
            return raw[1:-1]
        try:
            text = json.loads(raw)
            assert isinstance(text, str)
            text.encode()
        except json.JSONDecodeError as error:
            at = token.start + min(error.pos, len(raw) - 1)
            if raw[error.pos : error.pos + 1] not in ("\\", "") and raw[error.pos - 1] == "\\":
                at -= 1
            is_escape = self.places.text[at] == "\\"
            message = "`\\` starts an escape, and this is none" if is_escape else "a control character in a string"
            self.wrong(message, at, at + 1 + is_escape, r"double it: \\" if is_escape else "write it as an escape")
            return None
        except UnicodeEncodeError:
            self.wrong("half of a surrogate pair is no text", token.start, token.end)
            return None
        return text

    def scalar(self, token: _Token) -> tuple[Scalar] | None:
        raw = token.text
        if raw in _WORDS:
            return (_WORDS[raw],)
        if len(raw) > MAX_WORD:
            self.told(too_long(self.places.origin(token.start, token.end)))
            return None
        number = _NUMBER.fullmatch(raw)
        if number is not None:
            return (float(raw) if number["fraction"] else int(raw),)
        if re.fullmatch(_DATE, raw):
            try:
                value: Scalar = tomllib.loads(f"value = {raw}")["value"]
                return (value,)
            except ValueError:
                pass
        self.wrong(f"`{raw}` is no JSON value", token.start, token.end, _advice(raw))
        return None


def _is_escaped(raw: str) -> bool:
    """Whether the last quote belongs to an escape."""
    before = raw[1:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _advice(raw: str) -> str:
    meant = _MEANT.get(raw.lower())
    if meant is not None:
        return f"write {meant}"
    if re.fullmatch(r"\+[1-9][0-9]*", raw):
        return f"write {raw[1:]}"
    if re.fullmatch(r"[+-]?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?", raw) and any(c.isdigit() for c in raw):
        return f"write {json.dumps(float(raw))}"
    return f'strings need quotes: "{raw}"' if re.fullmatch(r"[A-Za-z_@$.-][^\"']*", raw) else ""
