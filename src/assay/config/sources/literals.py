"""Values typed without quotes: on the command line, in environment variables, in INI files.

A text that begins with a bracket is a list or a table, or a mistake: TOML, or the same with words
that need no quotes, as in `[q_proj, v_proj]`. One that begins with a quote ends with it. Every
other text is a value of TOML, a word such as none, a number such as `.5`, or itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from assay.config.sources.positions import MAX_WORD
from assay.config.sources.toml import value_in
from assay.config.sources.toml_tokens import float_of
from assay.config.tree import (
    MAX_DEPTH,
    KeyPath,
    Leaf,
    List,
    Node,
    Scalar,
    Table,
    as_text_leaf,
    plain,
    transform,
)
from assay.core import schema
from assay.core.diagnostics import Origin
from assay.core.errors import InputError

MAX_VALUE = 100_000  # characters; longer ones stay text
_NUMBER = re.compile(r"[+-]?(?:\d+\.\d*|\d+(?=[eE])|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""Numbers that TOML spells otherwise; `007` is none: as a float it would lose its zeros."""
_QUOTED = re.compile(r"""\s*("(?:[^"\\\n]|\\.)*"|'[^'\n]*')\s*(?=[,\]}]|\Z)""")
_BARE = re.compile(r"(?:\$\{[^{}]*\}|[^,\[\]{}()\n])*")
_KEY = re.compile(r"\s*(?P<key>[A-Za-z_][\w-]*)\s*(?P<equals>=?)", re.ASCII)
_SHOWN = 80  # characters of a value in a message
BRACKETS = ("[", "{", "(")
_QUOTES = ("'", '"')
_NOWHERE = Origin(source="<value>")


class MalformedError(InputError):
    """Text that begins with a bracket and is no list or table; `fix` is the form to write."""


def value_of(text: str) -> Any:
    """Return the value that `text` is. Raises MalformedError for half a list or table.

    >>> value_of("1e-3"), value_of("True"), value_of(".5"), value_of("adam")
    (0.001, True, 0.5, 'adam')
    >>> value_of("[1, 2]"), value_of("[q_proj,'a,b']"), value_of("{act = relu}")
    ([1, 2], ['q_proj', 'a,b'], {'act': 'relu'})
    """
    return plain(read_value(text, _NOWHERE))


def read_value(text: str, origin: Origin) -> Node:
    """Return the node that `text` is, at `origin`. Each scalar keeps the text it was typed as.

    Raises MalformedError for a text that begins with a bracket and is no list or table, and for one
    that begins with a quote and is no text in quotes, nor items of which the first has them.
    """
    bare = text.strip()
    if bare[:1] not in BRACKETS:
        value = _scalar(text)
        if bare[:1] in _QUOTES and value == text and items_of(text, origin) is None:
            raise _half_quote_error(bare)
        return Leaf(value, origin, typed=text)
    if len(bare) > MAX_VALUE:
        raise MalformedError(
            f"this value is longer than {MAX_VALUE:,} characters", fix="write it in a file"
        )
    node = value_in(bare)
    if node is None:
        return _Structure(bare, origin).read()

    def place(part: Node, _: object) -> Node:
        if isinstance(part, Leaf):
            return Leaf(part.value, origin, typed=_text_at(bare, part.origin))
        if isinstance(part, List):
            return List(part.items, origin)
        return Table(part.items, origin)

    return transform(node, place)


def value_for(path: KeyPath, text: str, origin: Origin) -> Node:
    """Return the node for `text`, typed without quotes, as the value at `path`.

    Raises MalformedError for a text that begins with a bracket and is no list or table.
    """
    value = read_value(text, origin)
    standard = schema.find(path)
    if standard is None or not isinstance(value, Leaf) or value.value is None:
        return value
    match standard.kind:
        case "text" | "period" | "steps" | "duration" | "choice":
            # A text is what stands in its quotes, and any other value what was typed.
            return value if isinstance(value.value, str) else replace(value, value=text)
        case "names" if text.strip():
            items = items_of(text, value.origin) or [value]
            names = [as_text_leaf(item) if isinstance(item, Leaf) else item for item in items]
            return List(tuple(names), value.origin)
        case _:
            return value


def items_of(text: str, origin: Origin) -> list[Node] | None:
    """Return the items of `a, 'b,c', [d]`, typed without brackets around them; None if it is none.

    One item with a comma behind it is a list; without one it is no list.
    """
    bare = text.strip()
    if "," not in bare or bare[0] in BRACKETS or len(bare) > MAX_VALUE:
        return None
    try:
        items = _Structure(f"[{bare}]", origin).read()
    except MalformedError:
        return None
    assert isinstance(items, List)
    is_many = len(items.items) > 1 or bare.endswith(",")
    return list(items.items) if is_many else None


def _half_quote_error(text: str) -> MalformedError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    fix = f"put the whole text in quotes: {json.dumps(shown, ensure_ascii=False)}"
    return MalformedError(f"`{shown}` begins with a quote that does not end it", fix=fix)


def quote(text: str) -> str:
    """Return `text` as it is typed to be read as a text: bare where that reads as itself.

    >>> quote("adam"), quote("none"), quote("(a)")
    ('adam', '"none"', '"(a)"')
    """
    try:
        is_itself = value_of(text) == text
    except MalformedError:
        is_itself = False
    return text if is_itself else json.dumps(text, ensure_ascii=False)


def _scalar(text: str) -> Scalar:
    bare = text.strip()
    match bare.lower():
        case "null" | "none":
            return None
        case "true" | "false":
            return bare.lower() == "true"
    if not bare or len(bare) > MAX_VALUE:
        return text
    node = value_in(bare)
    if isinstance(node, Leaf):
        return node.value
    number = float_of(bare) if len(bare) <= MAX_WORD and _NUMBER.fullmatch(bare) else None
    return text if number is None else number


def _text_at(text: str, origin: Origin) -> str | None:
    is_one_line = origin.line == origin.end_line == 1
    return text[origin.column - 1 : origin.end_column - 1] if is_one_line else None


class _Structure:
    """Reader of a list or table whose words need no quotes."""

    def __init__(self, text: str, origin: Origin) -> None:
        self.text = text
        self.origin = origin
        self.at = 0

    def read(self) -> Node:
        node = self.value(0)
        if self.at < len(self.text):
            raise self.refuse("is more than one value", f"[{self.text}]")
        return node

    def value(self, depth: int) -> Node:
        """Return the value that begins here, and go behind it and its spaces."""
        if depth > MAX_DEPTH:
            raise self.refuse("is nested too deep", "")
        self.skip()
        first = self.text[self.at : self.at + 1]
        if first == "(":
            inside = self.text[self.at + 1 :].rpartition(")")[0] or self.text[self.at + 1 :]
            raise self.refuse("begins like a list, which has square brackets", f"[{inside}]")
        if first in BRACKETS:
            self.at += 1
            node = self.list(depth) if first == "[" else self.table(depth)
            self.skip()
            return node
        return self.scalar()

    def scalar(self) -> Leaf:
        found = _QUOTED.match(self.text, self.at) or _BARE.match(self.text, self.at)
        assert found is not None
        text = found[0].strip()
        is_open = text[:1] in ("'", '"') and (len(text) == 1 or text[-1] != text[0])
        following = self.text[found.end() : found.end() + 1]
        if not text or is_open or following in ("[", "{", "("):
            raise self.refuse("has an item that is not closed, or empty", self.example())
        self.at = found.end()
        return Leaf(_scalar(text), self.origin, typed=text)

    def list(self, depth: int) -> List:
        items: list[Node] = []
        while not self.ends("]"):
            items.append(self.value(depth + 1))
            self.comma("]")
        return List(tuple(items), self.origin)

    def table(self, depth: int) -> Table:
        items: dict[str, Node] = {}
        while not self.ends("}"):
            found = _KEY.match(self.text, self.at)
            if found is None or not found["equals"] or found["key"] in items:
                raise self.refuse("begins like a table, which has keys", "{a = 1, b = 2}")
            self.at = found.end()
            items[found["key"]] = self.value(depth + 1)
            self.comma("}")
        return Table(items, self.origin)

    def ends(self, bracket: str) -> bool:
        """Return whether the list or table ends here, and go behind its end."""
        self.skip()
        is_end = self.text.startswith(bracket, self.at)
        self.at += is_end
        return is_end

    def comma(self, bracket: str) -> None:
        """Go behind a comma, which may stand before the end."""
        self.skip()
        if self.text.startswith(",", self.at):
            self.at += 1
        elif not self.text.startswith(bracket, self.at):
            missing = f"{self.text}{bracket}" if self.at == len(self.text) else self.example()
            raise self.refuse(f"has no `{bracket}` at its end", missing)

    def skip(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1

    def example(self) -> str:
        return "[a, b]" if self.text[0] == "[" else "{a = 1, b = 2}"

    def refuse(self, message: str, form: str) -> MalformedError:
        text = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."
        forms = [f"write {form}"] if form and len(form) <= _SHOWN else []
        if self.text[0] == "{" and form.startswith("{a"):
            forms.append("[a, b] for a list")
        fix = ", or ".join([*forms, f"in quotes for a text: '{json.dumps(text)}'"])
        return MalformedError(f"`{text}` {message}", fix=fix)
