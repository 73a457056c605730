"""Reader for JSON with comments and with bare dates. The first syntax error ends the reading."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

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
from assay.config.sources.toml_tokens import beyond_floats, float_of, moment_of
from assay.config.tree import MAX_DEPTH, NONE, KeyPath, Leaf, List, Node, Scalar, Table, dotted
from assay.core.diagnostics import Origin, Problem

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9:.]+(?:[Zz]|[+-][0-9:]+)?)?|[0-9]{2}:[0-9:.]+"
# Unclosed strings and comments match up to where they must end: a second look at the same text
# would be quadratic.
_TOKEN = re.compile(
    r"(?P<blank>[ \t\r\n]++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*+"?)'
    r"|(?P<quoted>'[^'\n]*+'?)"
    r"|(?P<mark>[{}\[\],:])"
    rf"|(?P<word>{_DATE}|[^\s{{}}\[\],:\"'/#]++)"
    r"|(?P<odd>/\*|.)",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_WORDS: dict[str, Scalar] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_MEANT = {
    **{word.lower(): word for word in _WORDS},
    **{"none": "null", "nil": "null", "inf": "Infinity", "+inf": "Infinity", "-inf": "-Infinity"},
}


def read_all(text: str, source: str, *, excerpt: bool = False) -> tuple[Table, list[Problem]]:
    """Return the tree, and the mistakes: the first syntax error, or every duplicate key.

    Comments are `//` and `/* */`; a comma may stand behind the last item. NaN, Infinity and
    -Infinity are numbers.
    """
    places = TextPositions(text.removeprefix("\ufeff"), source, keep=excerpt)
    try:
        reader = _JsonReader(places)
        root = reader.document()
    except UnreadableError as stop:
        return Table({}, Origin(source=source)), [stop.problem]
    return root, sorted(reader.duplicates[:MAX_MISTAKES], key=by_place)


@dataclass(frozen=True, slots=True)
class _JsonToken:
    kind: str
    text: str
    start: int
    end: int

    def starts_value(self) -> bool:
        return self.kind in ("string", "quoted", "word") or self.text in ("{", "[")


class _JsonReader:
    """Reader of one value after the other; raises UnreadableError at the first syntax error."""

    def __init__(self, places: TextPositions) -> None:
        large = too_large(places.text, places.source)
        if large is not None:
            raise UnreadableError(large)
        self.places = places
        self.duplicates: list[Problem] = []
        self.values = 0
        self.tokens = self.scan()
        self.last_end = 0  # of the token before `here`
        self.here = next(self.tokens)

    def scan(self) -> Iterator[_JsonToken]:
        text = self.places.text
        for found in _TOKEN.finditer(text):
            kind = found.lastgroup
            assert kind is not None
            if found[0] == "/*":
                self.fail(
                    "this comment is not closed", found.start(), found.end(), "add the closing `*/`"
                )
            if found[0] == "#":
                self.fail("`#` starts no comment in JSON", found.start(), found.end(), "write //")
            if kind != "blank":
                yield _JsonToken(kind, found[0], found.start(), found.end())
        while True:
            yield _JsonToken("end", "", len(text), len(text))

    def step(self) -> _JsonToken:
        """Advance past the current token and return it."""
        token = self.here
        self.last_end = token.end
        self.here = next(self.tokens)
        return token

    def fail(
        self, message: str, start: int, end: int, fix: str = "", *, noticed: int | None = None
    ) -> NoReturn:
        related: tuple[Problem, ...] = ()
        if noticed is not None:
            at = self.places.origin(noticed, noticed + 1)
            related = (Problem(kind="syntax", severity="note", message="noticed here", origin=at),)
        origin = self.places.origin(start, end)
        raise UnreadableError(
            Problem(kind="syntax", message=message, origin=origin, fix=fix, related=related)
        )

    # --- values

    def document(self) -> Table:
        if self.here.kind == "end":
            self.fail("a config is a table, and here is nothing", 0, 0, "write { ... }")
        if self.here.text != "{":
            self.fail("a config is a table: it starts with `{`", self.here.start, self.here.end)
        root = self.value(())
        assert isinstance(root, Table)
        if self.here.kind != "end":
            text = self.here.text
            message = (
                f"`{text}` closes nothing"
                if text in ("}", "]")
                else "this is too much after the closing `}`"
            )
            self.fail(message, self.here.start, self.here.end)
        return root

    def value(self, path: KeyPath) -> Node:
        token = self.step()
        self.values += 1
        if self.values > MAX_VALUES:
            raise UnreadableError(too_many(self.places.source))
        if len(path) > MAX_DEPTH:
            raise UnreadableError(too_deep(self.places.origin(token.start, token.end)))
        if token.text == "{":
            return self.table(token, path)
        if token.text == "[":
            return self.list(token, path)
        value = self.string(token) if token.kind in ("string", "quoted") else self.scalar(token)
        return Leaf(None if value == NONE else value, self.places.origin(token.start, token.end))

    def table(self, opened: _JsonToken, path: KeyPath) -> Table:
        items: dict[str, Node] = {}
        origins: dict[str, Origin] = {}
        while self.here.text != "}":
            name, origin = self.key(opened)
            if self.here.text != ":":
                at = self.here.start if self.here.text.startswith("=") else self.last_end
                self.fail("`:` is missing after the key", at, at + 1, 'write "key": value')
            self.step()
            if not self.here.starts_value():
                self.fail("a value is missing", self.last_end, self.last_end)
            node = self.value((*path, name))
            if name in origins:
                self.duplicates.append(duplicate(dotted((*path, name)), origin, origins[name]))
            else:
                items[name], origins[name] = node, origin
            self.skip_comma(opened, "}")
        self.step()
        return Table(items, self.places.origin(opened.start, self.last_end), origins)

    def list(self, opened: _JsonToken, path: KeyPath) -> List:
        items: list[Node] = []
        while self.here.text != "]":
            if self.here.text == ",":
                self.fail("a value is missing before the comma", self.here.start, self.here.end)
            if not self.here.starts_value():
                self.refuse_unclosed(opened, "]")
            items.append(self.value((*path, len(items))))
            self.skip_comma(opened, "]")
        self.step()
        return List(tuple(items), self.places.origin(opened.start, self.last_end))

    def key(self, opened: _JsonToken) -> tuple[str, Origin]:
        token = self.here
        match token.kind:
            case "string" | "quoted":
                self.step()
                return self.string(token), self.places.origin(token.start, token.end)
            case "word":
                name = token.text.rstrip("=")
                self.fail(
                    "a key needs double quotes",
                    token.start,
                    token.start + len(name),
                    f'write "{name}"',
                )
        if token.kind == "end" or token.text == "]":
            self.refuse_unclosed(opened, "}")
        what = "a key is missing before the comma" if token.text == "," else "a key is missing"
        self.fail(what, token.start, token.end)

    def skip_comma(self, opened: _JsonToken, closing: str) -> None:
        """Advance past the comma behind an item; stop in front of the closing bracket."""
        if self.here.text == ",":
            self.step()
            return
        if self.here.text == closing:
            return
        is_key = closing == "]" and re.compile(r"\s*:").match(self.places.text, self.here.end)
        if self.here.starts_value() and not is_key:
            self.fail(
                "a comma is missing", self.last_end, self.last_end, "put one behind this value"
            )
        self.refuse_unclosed(opened, closing)

    def refuse_unclosed(self, opened: _JsonToken, closing: str) -> NoReturn:
        if self.here.kind == "odd":
            self.fail(f"`{self.here.text}` does not belong here", self.here.start, self.here.end)
        thing = "table" if closing == "}" else "list"
        noticed = min(self.here.start, len(self.places.text.rstrip()))
        fix = f"add the closing `{closing}`"
        self.fail(f"this {thing} is not closed", opened.start, opened.end, fix, noticed=noticed)

    def string(self, token: _JsonToken) -> str:
        raw = token.text
        if token.kind == "quoted":
            self.fail(
                "strings need double quotes",
                token.start,
                token.end,
                f"write {json.dumps(raw.strip(chr(39)))}",
            )
        if len(raw) < 2 or raw[-1] != '"' or _is_escaped(raw):
            self.fail(
                "this string is not closed",
                token.start,
                token.end,
                "close it before the end of the line",
            )
        if "\\" not in raw and raw.isprintable():
            return raw[1:-1]
        wrong = next(
            (
                found
                for found in re.finditer(r"\\.|[\0-\x1f]", raw)
                if not _ESCAPE.match(raw, found.start())
            ),
            None,
        )
        if wrong is not None:
            start = token.start + wrong.start()
            end = token.start + wrong.end()
            if wrong[0][0] == "\\":
                self.fail("`\\` starts an escape, and this is none", start, end, r"double it: \\")
            self.fail("a control character in a string", start, end, "write it as an escape")
        text: str = json.loads(raw)
        if not text.isascii() and re.search("[\ud800-\udfff]", text):
            self.fail("half of a surrogate pair is no text", token.start, token.end)
        return text

    def scalar(self, token: _JsonToken) -> Scalar:
        raw = token.text
        if raw in _WORDS:
            return _WORDS[raw]
        if len(raw) > MAX_WORD:
            raise UnreadableError(too_long(self.places.origin(token.start, token.end)))
        number = _NUMBER.fullmatch(raw)
        if number is not None:
            found = float_of(raw) if number["fraction"] else int(raw)
            if found is None:
                self.fail(f"`{raw}` is no JSON value", token.start, token.end, beyond_floats(raw))
            return found
        moment = moment_of(raw)
        if moment is None:
            self.fail(f"`{raw}` is no JSON value", token.start, token.end, _advice(raw))
        return moment[0]


def _is_escaped(raw: str) -> bool:
    """Return whether the last quote belongs to an escape."""
    before = raw[1:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _advice(raw: str) -> str:
    meant = _MEANT.get(raw.lower())
    if meant is not None:
        return f"write {meant}"
    if re.fullmatch(r"\+[1-9][0-9]*", raw):
        return f"write {raw[1:]}"
    if re.fullmatch(r"[+-]?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?", raw) and any(
        c.isdigit() for c in raw
    ):
        return f"write {json.dumps(float(raw))}"
    return f'strings need quotes: "{raw}"' if re.fullmatch(r"[A-Za-z_@$.-][^\"']*", raw) else ""
