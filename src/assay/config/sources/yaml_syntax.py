"""Syntax errors of PyYAML, explained from their marks and the text around them."""

from __future__ import annotations

import re
from typing import Any

from assay.config.sources.positions import (
    TextPositions,
)
from assay.core.diagnostics import Problem


class YamlFailure:
    """Syntax error of PyYAML, explained from its marks and the text around them.

    `at` is where the parser stopped, `start` where the construct that it was reading began; they
    may be equal. `flow` is where the flow collection opens that is being read, if one is. `cut` is
    an offset in the block to leave out, so that the rest can be read.
    """

    def __init__(
        self,
        places: TextPositions,
        text: str,
        error: Any,
        flow: int | None,
        *,
        is_scanner: bool,
    ) -> None:
        self.places = places
        self.text = text
        stop, begin = error.problem_mark, error.context_mark
        self.at = min(stop.index, len(text)) if stop else len(text)
        self.start = begin.index if begin else self.at
        # The scanner stops inside of a word, the parser between two.
        self.is_scanner = is_scanner
        self.opened = flow
        self.line = places.line_start(self.at)
        self.first = self.line + _indent(text[self.line : self.at])
        self.cut = self.at

    def problem(self) -> Problem:
        found = self.text[self.at : self.at + 1]
        if "\t" in (found, self.text[self.first : self.at][:1]):
            at = self.text.index("\t", self.first)
            return self.wrong("a tab cannot indent YAML", at, at + 1, "use spaces")
        return self.of_scanner(found) if self.is_scanner else self.of_parser(found)

    def of_scanner(self, found: str) -> Problem:
        """Explain a stop inside of a word."""
        began = self.text[self.start : self.start + 1]
        if self.start < self.at and began in ("'", '"'):
            return self.string()
        if found == ":":
            return self.colon()
        end = self.end_of_line(self.at)
        if found == "-" and self.start == self.at:
            return self.wrong("a list starts on a line of its own", self.at, end)
        if began in ("|", ">"):
            message = f"text behind `{began}` starts on the next line"
            return self.wrong(message, self.at, end, "use quotes for one line")
        if self.start == self.at or began in ("&", "*", "!", "%"):
            return self.no_value(self.start)
        end = self.end_of_line(self.start)
        return self.wrong("`:` is missing after the key", self.start, end, "write key: value")

    def of_parser(self, found: str) -> Problem:
        """Explain a stop between two words."""
        if found == ":" and self.text[self.line : self.at].rstrip()[-1:] in ("", "{", ","):
            return self.wrong("a key is missing", self.at, self.at + 1, "write key: value")
        if self.opened is not None:
            return self.refuse_unclosed(self.opened)
        if found in ("]", "}", ",", "!"):
            return self.no_value(self.at)
        if self.first < self.at:
            end = self.end_of_line(self.at)
            return self.wrong("this is too much after the value", self.at, end, "use quotes")
        message = "this fits neither the line above nor its indentation"
        fix = "what belongs together starts in the same column"
        return self.wrong(message, self.first, self.end_of_line(self.first), fix)

    def wrong(
        self, message: str, start: int, end: int, fix: str = "", noticed: int | None = None
    ) -> Problem:
        self.cut = start
        return yaml_problem(self.places, message, start, end, fix, noticed)

    def string(self) -> Problem:
        escape = self.text.rfind("\\", self.start, self.at + 1)
        end = self.end_of_line(self.start)
        is_new_document = self.text.startswith(("---", "..."), self.at)
        is_at_end = is_new_document or self.at >= len(self.text.rstrip())
        has_escape = escape >= max(self.start, self.at - len("\\U00000000"))
        if is_at_end:
            message, fix = "this string is not closed", "add the closing quote"
            problem = self.wrong(message, self.start, end, fix)
        elif self.text[self.start] == '"' and has_escape:
            fix = "double it, or use single quotes"
            problem = self.wrong("`\\` starts an escape, and this is none", escape, escape + 2, fix)
        else:
            problem = self.wrong("a key in quotes ends on its line", self.start, end)
        self.cut = self.start
        return problem

    def refuse_unclosed(self, opened: int) -> Problem:
        """Explain a flow collection that neither continues nor ends."""
        thing, closing = ("list", "]") if self.text[opened] == "[" else ("table", "}")
        has_moved = self.places.line_start(opened) != self.line
        if has_moved or self.at >= len(self.text.rstrip()):
            fix, noticed = f"add the closing `{closing}`", self.at if has_moved else None
            return self.wrong(f"this {thing} is not closed", opened, opened + 1, fix, noticed)
        problem = self.wrong(f"a comma or `{closing}` is missing", self.at, self.at + 1)
        self.cut = opened
        return problem

    def colon(self) -> Problem:
        """Explain `a: b: c`, or a key below one with a value or below a line without a colon."""
        if self.start < self.at or ":" in self.text[self.line : self.at]:
            fix = "put text that holds `: ` in quotes"
            return self.wrong("a second `:` on one line", self.at, self.at + 1, fix)
        above = self.text[: self.line].rstrip()
        start = self.places.line_start(len(above))
        start += _indent(self.text[start:])
        if ":" not in self.text[start : len(above)] and above:
            return self.wrong("`:` is missing after the key", start, len(above), "write key: value")
        fix = "put it in the column of that key"
        return self.wrong("this is indented below a key that has a value", self.first, self.at, fix)

    def no_value(self, at: int) -> Problem:
        found = re.compile(r"[^\s,\]}]+").match(self.text, at)
        end = found.end() if found else at + 1
        word = self.text[at:end]
        return self.wrong(
            f"`{word[:1]}` cannot start a value", at, end, f'put it in quotes: "{word}"'
        )

    def end_of_line(self, at: int) -> int:
        return at + max(1, len(self.text[at : self.places.line_end(at)].rstrip()))

    def text_without_it(self) -> str:
        """Return the text with blanks for the line around `cut` and what is indented below it."""
        text = self.text
        last = max(0, len(text.rstrip()) - 1)
        start = self.places.line_start(min(self.cut, last))
        end = self.places.line_end(start) + 1
        indent = _indent(text[start:])
        while end < len(text):
            below = text[end : self.places.line_end(end)]
            word = below.strip()
            if word and _indent(below) <= indent and word[0] not in "]}":
                break
            end = self.places.line_end(end) + 1
        blanks = re.sub(r"[^\r\n]", " ", text[start:end])
        return text[:start] + blanks + text[end:]


def _indent(text: str) -> int:
    """Return the number of spaces that a text begins with."""
    return len(text) - len(text.lstrip(" "))


def yaml_problem(
    places: TextPositions,
    message: str,
    start: int,
    end: int,
    fix: str = "",
    noticed: int | None = None,
) -> Problem:
    """Return a syntax error at [start, end), with a note on where it was noticed."""
    related: tuple[Problem, ...] = ()
    if noticed is not None:
        at = places.origin(noticed, noticed + 1)
        related = (Problem(kind="syntax", severity="note", message="noticed here", origin=at),)
    return Problem(
        kind="syntax", message=message, origin=places.origin(start, end), fix=fix, related=related
    )
