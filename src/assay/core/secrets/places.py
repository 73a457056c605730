"""Places of a value that belongs to a secret name without being right behind it.

Below it, as in a table or on the next line; beside it, as in `name="password" value="..."`; in a
sentence about it; among the arguments of a call whose message ends with it.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal

from assay.core.secrets.names import is_like_password, is_opaque, is_secret, may_be_secret

Kind = Literal["text", "data", "code"]
"""Kind of a text: prose or output; values, as YAML; code, in which only strings are values."""

Span = tuple[int, int]

_MAX_BLOCK = 20_000
_MAX_ARGUMENTS = 8

# What has no end goes to the end of its line or text: the time stays linear.
_LITERALS = re.compile(
    r"""\"{3}(?:[^"\\]|\\.|"(?!""))*+(?:\"{3}|\Z) | '{3}(?:[^'\\]|\\.|'(?!''))*+(?:'{3}|\Z)
    | "(?:[^"\\\n]|\\.)*+"? | '(?:[^'\\\n]|\\.)*+'? | \#[^\n]*+ | //[^\n]*+
    | /\*(?:[^*]|\*(?!/))*+(?:\*/|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_PROSE = re.compile(
    r"""["'`*]{0,2} (?:[ \t]{1,4}(?!is\b|was\b)[\w@.'-]{1,40}){0,4}?
    [ \t]{1,4} (?:is|was|are|were|equals|to|be|becomes) (?:[ \t]{1,4}(?:now|still|set|to|just)){0,2}
    (?:[ \t]{0,2}[:=])? [ \t]{1,4} (?P<quote>["'`*]{0,2}) (?P<value>[^\s"'`*]{4,300})
    | ["'`*]{0,2} [ \t]{0,2} [:=] [ \t]{0,4} ["'`*]{0,2} (?P<assigned>[^\s"'`*]{4,300})""",
    re.VERBOSE | re.ASCII,
)
_OPENING = re.compile(
    r"(?P<quote>[\"'`])?[ \t]{0,8}(?:(?P<operator>[:=])[ \t]{0,8})?(?P<bracket>[{\[])"
)
_TOKEN = re.compile(
    r"""\\?"(?P<double>(?:[^"\\\n]|\\.)*+)" | \\?'(?P<single>(?:[^'\\\n]|\\.)*+)'
    | (?P<open>[\[{(]) | (?P<close>[\]})]) | \#[^\n]*+ | (?P<plain>[^\s"'\[\]{}(),:=#\\]++) | .""",
    re.VERBOSE | re.DOTALL,
)
_IS_KEY = re.compile(r"\\?[\"']?[ \t]{0,8}[:=](?!=)")
_LINE_ABOVE = re.compile(
    r"[\"'`]?[ \t]{0,4}:[ \t]{0,4}(?:[|>][+-]?\d?)?[ \t\r]{0,40}(?:\#[^\n]{0,200})?\n"
)
_LINE = re.compile(
    r"""(?P<indent>[ \t]*+)(?:-[ \t]++)* (?:[\w."'-]{1,100}[ \t]{0,8}[:=][ \t]{1,8})?
    (?P<quote>["']?) (?P<value>[^\n]*+)""",
    re.VERBOSE,
)
_HEADER_BEGIN = re.compile(r"[ \t]{0,40}\[{1,2}[\w.\-\"' ]{0,200}\Z")
_HEADER_END = re.compile(r"[\"']?\]{1,2}[ \t\r]{0,40}(?:[#;][^\n]{0,200})?(?:\n|\Z)")
_NAMED = re.compile(
    r"""(?:\b(?:name|key|id|type|property|env|field|var(?:iable)?)\\?["']?[ \t]{0,4}[=:>][ \t]{0,4}
    | \()\\?["']?\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_VALUE = (
    r"""(?:\\?"(?P<double>[^"\n\\]{1,2000})|\\?'(?P<single>[^'\n\\]{1,2000})"""
    r"""|(?P<plain>[^\s"'<>,;}\])\\]{1,2000}))"""
)
_BESIDE = re.compile(
    r"""\\?["']?\s{0,40}(?:[,;]\s{0,40})?
    (?:-?[\w:-]{1,40}\\?["']?\s{0,4}[=:]\s{0,4}(?:\"[^"\n]{0,200}\"|'[^'\n]{0,200}'|[\w.+-]{0,60})[\s,;]{1,40}){0,6}?
    \\?["']?(?:value|val|content|default|initial)\\?["']?\s{0,4}[=:]\s{0,4}"""
    + _VALUE
    + r"| </key>\s{0,40}<string>(?P<element>[^<\n]{1,2000})",
    re.VERBOSE | re.IGNORECASE,
)
_ATTRIBUTE = re.compile(rf"\b(?:value|content)[ \t]?=[ \t]?{_VALUE}", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"%(?:\(\w{1,40}\))?[-0-9.]{0,6}[srdi]|\{[^{}\"'\n]{0,40}\}")
_MESSAGE_END = re.compile(
    r"""["')\]]?[ \t]{0,4}(?:(?:[=:]|is|->)[ \t]{0,4}["'`(<\[]{0,2}
    (?:(?P<placeholder>%(?:\(\w{1,40}\))?[-0-9.]{0,6}[srdi]|\{[^{}"'\n]{0,40}\})|(?P<end>["'])))""",
    re.VERBOSE,
)
_ARGUMENT = re.compile(
    r"""[\s%,]{0,100}(?:\.format\()?[\s(]{0,20}(?:[A-Za-z_]\w{0,40}[ ]?=[ ]?)?[rbuRBU]{0,2}
    (?:\"(?P<double>[^"\n]{1,2000})\"|'(?P<single>[^'\n]{1,2000})'|[^\s"',()][^"',()\n]{0,200})
    (?P<next>\s{0,100},)?""",
    re.VERBOSE,
)
_PATTERNS = (_LITERALS, _PROSE, _OPENING, _TOKEN, _LINE_ABOVE, _LINE, _HEADER_BEGIN, _HEADER_END)
_MORE_PATTERNS = (_NAMED, _BESIDE, _ATTRIBUTE, _MESSAGE_END, _ARGUMENT)
PLACES = tuple(it.pattern for it in (*_PATTERNS, *_MORE_PATTERNS))


class Places:
    """Places near a name in one text; names are asked for in the order of the text."""

    def __init__(self, text: str, kind: Kind) -> None:
        self.text = text
        self.kind = kind
        self._searched = 0
        """Where the last block below a name ended: those within it belong to it."""

    def near(self, begin: int, end: int) -> list[Span]:
        """Return where values of the secret name at `begin:end` are, if not right behind it."""
        for search in (self._below, self._beside, self._in_sentence, self._among_arguments):
            if spans := list(search(begin, end)):
                return spans
        return []

    def is_loose(self, at: int) -> bool:
        """Return whether words may stand at this place: in code only in literals and comments."""
        return self.kind != "code" or self._literal_at(at) is not None

    def _in_sentence(self, begin: int, end: int) -> Iterator[Span]:
        match = _PROSE.match(self.text, end) if self.is_loose(begin) else None
        if match is None:
            return
        group = "value" if match["value"] else "assigned"
        word = match[group].rstrip(".,;:!?)]}>")
        is_quoted = bool(match["quote"]) and self.kind == "text"
        if is_like_password(word) or (is_quoted and len(word) > 5 and may_be_secret(word)):
            yield match.start(group), match.start(group) + len(word)

    # --------------------------------------------------------------------------------------- below

    def _below(self, begin: int, end: int) -> Iterator[Span]:
        if begin < self._searched:
            return
        opening = _OPENING.match(self.text, end)
        is_block = opening and opening["quote"] and opening["bracket"] == "{"
        if opening and (opening["operator"] or (is_block and self.kind != "code")):
            yield from self._in_brackets(opening.start("bracket"))
        elif above := _LINE_ABOVE.match(self.text, end):
            if self.is_loose(begin):
                yield from self._on_lines(above.end(), self._indent_of(begin), is_section=False)
        elif self.kind != "code" and self._is_header(begin, end):
            at = self.text.find("\n", end)
            if at >= 0:
                yield from self._on_lines(at + 1, -1, is_section=True)

    def _in_brackets(self, at: int) -> Iterator[Span]:
        """Yield the values in a table or list, of all depths."""
        depth = 0
        limit = min(len(self.text), at + _MAX_BLOCK)
        for token in _TOKEN.finditer(self.text, at, limit):
            self._searched = token.end()
            depth += (token["open"] is not None) - (token["close"] is not None)
            if depth == 0:
                return
            group = token.lastgroup
            if group not in ("double", "single", "plain") or _IS_KEY.match(self.text, token.end()):
                continue
            if self._is_value(token[group], is_plain=group == "plain"):
                yield token.span(group)

    def _on_lines(self, at: int, indent: int, *, is_section: bool) -> Iterator[Span]:
        """Yield the values of lines below a name: those deeper than `indent`, or of a section."""
        is_first = True
        limit = min(len(self.text), at + _MAX_BLOCK)
        while at < limit and (line := _LINE.match(self.text, at, limit)):
            self._searched = at
            at = line.end() + 1
            value = line["value"].rstrip().rstrip(",")
            if not value or value.startswith(("#", ";")):
                continue
            is_deeper = len(line["indent"].expandtabs()) > indent
            if (
                value.startswith("[")
                if is_section
                else not (is_deeper or (is_first and self.kind != "data"))
            ):
                return
            is_first = False
            if line["quote"]:
                value = value.partition(line["quote"])[0]
            is_plain = not line["quote"]
            if (is_section or is_deeper or is_plain) and self._is_value(value, is_plain=is_plain):
                yield line.start("value"), line.start("value") + len(value)

    def _is_value(self, value: str, *, is_plain: bool) -> bool:
        """Return whether what stands below a secret name is a value, and no word or code."""
        if self.kind == "data" or (self.kind == "text" and not is_plain):
            return may_be_secret(value)
        if self.kind == "code" and is_plain:
            return is_opaque(value, 20)
        return is_like_password(value)

    def _indent_of(self, at: int) -> int:
        begin = self.text.rfind("\n", 0, at) + 1
        line = self.text[begin : min(at, begin + 200)]
        return len(line.expandtabs()) - len(line.expandtabs().lstrip(" -"))

    def _is_header(self, begin: int, end: int) -> bool:
        line = self.text.rfind("\n", max(0, begin - 240), begin) + 1 or max(0, begin - 240)
        return bool(
            _HEADER_BEGIN.match(self.text, line, begin) and _HEADER_END.match(self.text, end)
        )

    # -------------------------------------------------------------------------------------- beside

    def _beside(self, begin: int, end: int) -> Iterator[Span]:
        """Yield the value of a pair of which the name is the other part."""
        text = self.text
        if text.startswith("</key>", end):
            match = _BESIDE.match(text, end)
        elif _NAMED.search(text, max(0, begin - 24), begin):
            match = _BESIDE.match(text, end)
            if match is None and (tag := text.rfind("<", max(0, begin - 400), begin)) >= 0:
                match = _ATTRIBUTE.search(text, tag, begin)
        else:
            return
        if match is None:
            return
        group = match.lastgroup or ""
        value = match[group]
        is_code = self.kind == "code"
        if is_like_password(value) if is_code else is_secret("password", value):
            yield match.span(group)

    def _among_arguments(self, begin: int, end: int) -> Iterator[Span]:
        """Yield the argument of a call that fills the place behind a name in its message."""
        literal = self._literal_at(begin) if self.kind == "code" else None
        if literal is None or self.text[literal[0]] not in "\"'":
            return
        behind = _MESSAGE_END.match(self.text, end, literal[1])
        if behind is None or (behind["end"] and behind.end() != literal[1]):
            return
        place = sum(1 for _ in _PLACEHOLDER.finditer(self.text, literal[0], end))
        at = literal[1]
        for number in range(min(place + 1, _MAX_ARGUMENTS)):
            argument = _ARGUMENT.match(self.text, at)
            if argument is None:
                return
            group = argument.lastgroup if argument.lastgroup != "next" else None
            group = "double" if argument["double"] else "single" if argument["single"] else group
            if number == place and group in ("double", "single"):
                if is_like_password(argument[group]):
                    yield argument.span(group)
            elif argument["next"] is None:
                return
            at = argument.end("next") if argument["next"] is not None else argument.end()

    # ------------------------------------------------------------------------------------ literals

    def _literal_at(self, at: int) -> Span | None:
        """Return the literal or comment of code around a place."""
        found = bisect_right(self._literals, (at, len(self.text))) - 1
        if found < 0:
            return None
        begin, end = self._literals[found]
        return (begin, end) if begin <= at < end else None

    @functools.cached_property
    def _literals(self) -> list[Span]:
        return [match.span() for match in _LITERALS.finditer(self.text)]
