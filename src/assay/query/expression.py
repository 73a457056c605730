"""Expressions that select runs: `valid/loss < 0.3 and model.hidden == 64 and tag ~ "cnn"`.

Nothing of an expression is ever evaluated: it is parsed to a condition, and its values become
parameters of a query.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import NoReturn, get_args

from assay.core.errors import InputError, choose
from assay.core.terminal import elide
from assay.formats.run_file import Kind, Status
from assay.store.conditions import (
    RUN_FIELDS,
    STATISTICS,
    Both,
    Condition,
    Either,
    Field,
    FieldComparison,
    Has,
    Mentions,
    Not,
    OneOf,
    Operator,
    Value,
)

MAX_TERMS = 200
MAX_LENGTH = 20_000
MAX_LISTED = 1_000  # SQLite finds the place of each among all of them
MAX_NESTING = 12  # SQLite's parser has room for 15 of the worst kind
_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_TEXT_FIELDS = {
    "status",
    "id",
    "kind",
    "tag",
    "reason",
    "parent",
    "config_hash",
    "sweep",
    "point",
    "group",
    "folder",
    "project",
}
_CLOSED: dict[str, tuple[str, ...]] = {
    "status": get_args(Status),
    "kind": get_args(Kind),
}
_WORDS = {"and", "or", "not", "in"}
_CONFIG = "config."
_SHOWN_CELLS = 80

# Possessive: no token is tried again in parts, so that the time grows with the length alone.
_TOKEN = re.compile(
    r"""\s*+(?:
      (?P<number>[+-]?(?:\d[\d_]*+(?:\.[\d_]*+)?+|\.\d++)(?:[eE][+-]?\d++)?+(?![\w./:@-])|[+-]?(?:inf|nan)(?![\w./:@-]))
    | (?P<duration>\d++(?:\.\d++)?+(?:s|min|m|h|d|w))(?![\w./:@-])
    | (?P<date>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d++)?+)?+(?:Z|[+-]\d\d:\d\d)?+)?+)
      (?![\w./:@-])
    | (?P<text>"(?:[^"\\]|\\.)*+"|'[^']*+')
    | (?P<quoted>`[^`]++`)
    | (?P<operator>==|!=|<=|>=|!~|=~|&&|\|\||[=<>~!(),\[\]])
    | (?P<name>[^\W\d](?:[\w./:@-]|\[\d++\])*+|\d[\w./:@-]*+)
    )""",
    re.VERBOSE,
)


class ExpressionError(InputError):
    """An expression cannot mean what it says; `start` and `end` are the place in its text."""

    def __init__(self, what: str, *, where: str, fix: str, start: int, end: int) -> None:
        super().__init__(what, where=where, fix=fix)
        self.start = start
        self.end = end


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names that an expression may use: metrics, results, keys of configs, labels."""

    metrics: Sequence[str] = ()
    results: Sequence[str] = ()
    config: Sequence[str] = ()
    labels: Sequence[str] = ()

    def of_key(self, key: str) -> str:
        """Return the name of a key of the configs, with `config.` where it alone means another."""
        found = field_named(key, self)
        return key if found == Field("config", key) else f"{_CONFIG}{key}"

    @property
    def all(self) -> list[str]:
        return [*RUN_FIELDS, "label", "note", "desc", *self.metrics, *self.results, *self.config]


@dataclass(frozen=True, slots=True)
class _Lexeme:
    kind: str
    text: str
    start: int
    end: int


def parse(text: str, names: KnownNames) -> Condition:
    """Return the condition stated by `text`.

    InputError with the place of a mistake and the nearest known name, and for a text that is too
    long or nested too deeply to be answered at once.

    >>> parse("not lr", KnownNames(config=["lr"]))
    Not(condition=Has(field=Field(kind='config', name='lr', statistic='last')))
    """
    return _ExpressionParser(text, names).whole()


def field_named(name: str, names: KnownNames) -> Field | None:
    """Return the field that a name stands for, None when no run has anything called that."""
    if name in RUN_FIELDS:
        return Field("run", name)
    match name:
        case "label" | "labels":
            return Field("label")
        case "note" | "notes":
            return Field("note")
        case "desc":
            return Field("desc")
    if name in names.metrics:
        return Field("metric", name)
    metric, _, statistic = name.rpartition(".")
    if metric in names.metrics and statistic in STATISTICS:
        return Field("metric", metric, statistic)
    if name in names.results:
        return Field("result", name)
    for key in (name, name.removeprefix(_CONFIG)):
        if key in names.config:
            return Field("config", key)
    return None


def describe_shadow(field: Field, names: KnownNames) -> str:
    """Return that a field hides a key of the configs that has its name, "" where none has."""
    is_other = field.kind in ("run", "metric", "result") and field.name != "tag"
    if not is_other or field.name not in names.config:
        return ""
    kind = "fact of each run" if field.kind == "run" else field.kind
    return f"`{field.name}` is the {kind}; the key of the configs is `{_CONFIG}{field.name}`"


def unknown_name(name: str, names: KnownNames) -> tuple[str, str]:
    """Return what is wrong with a name that no run has, and how to fix it."""
    metric, _, statistic = name.rpartition(".")
    if metric in names.metrics:
        return (
            f"a metric has no `{statistic}`",
            f"there are {', '.join(f'.{each}' for each in STATISTICS)}",
        )
    known = names.all
    nested = [f"`{each}`" for each in known if each.endswith(f".{name}")][:3]
    fix = f"did you mean {' or '.join(nested)}?" if nested else choose(name, known, n=3)
    return f"no run has anything called `{elide(name, _SHOWN_CELLS)}`", fix


def mentions(text: str) -> Mentions:
    """Return the condition that every word of `text` is found in what was said about a run.

    InputError for more words than are looked for at once.
    """
    words = tuple(text.split())
    if len(words) > MAX_TERMS or len(text) > MAX_LENGTH:
        what = f"At most {MAX_TERMS} words, of {MAX_LENGTH:,} characters, are looked for at once."
        raise InputError(what, fix=f"{len(words):,} words were given: give fewer")
    return Mentions(words)


def _write_name(field: Field) -> str:
    name = field.name
    if field.kind == "metric":
        name = name if field.statistic == "last" else f"{name}.{field.statistic}"
    elif field.kind == "config":
        name = f"{_CONFIG}{name}"
    elif field.kind in ("label", "note", "desc"):
        name = field.kind
    found = _TOKEN.fullmatch(name)
    is_plain = found is not None and found.lastgroup == "name" and name not in _WORDS
    return name if is_plain else f"`{name}`"


class _ExpressionParser:
    """Recursive descent: or, and, not, then one comparison."""

    def __init__(self, text: str, names: KnownNames) -> None:
        self.text = text
        self.names = names
        self.tokens = self._split()
        self.at = 0
        self.terms = 0
        self.nesting = 0
        self.listed = 0

    def whole(self) -> Condition:
        if self.now.kind == "end":
            self._wrong(
                self.now,
                "the expression is empty",
                "for example: valid/loss < 0.3 and status = finished",
            )
        condition = self._either()
        if self.now.kind != "end":
            fix = (
                "write `and` or `or` between two comparisons" if self.now.kind != "operator" else ""
            )
            self._wrong(self.now, f"{_quote(self.now)} is not expected here", fix)
        return condition

    @property
    def now(self) -> _Lexeme:
        return self.tokens[self.at]

    def _split(self) -> list[_Lexeme]:
        tokens: list[_Lexeme] = []
        at = 0
        end = len(self.text.rstrip())
        if end > MAX_LENGTH:
            what = f"the expression is too long: it has more than {MAX_LENGTH:,} characters"
            self._wrong(_Lexeme("end", "", MAX_LENGTH, end), what)
        while at < end:
            found = _TOKEN.match(self.text, at)
            if found is None or found.lastgroup is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                bad = _Lexeme("bad", self.text[at], at, at + 1)
                quotes = {
                    '"': "the quotes are not closed",
                    "'": "the quotes are not closed",
                    "`": "` is not closed",
                }
                what = quotes.get(self.text[at], f"`{self.text[at]}` has no meaning here")
                fix = (
                    ""
                    if self.text[at] in quotes
                    else "a name with other signs in it is written in `backquotes`"
                )
                self._wrong(bad, what, fix)
            kind = found.lastgroup
            tokens.append(_Lexeme(kind, found[kind], found.start(kind), found.end(kind)))
            at = found.end()
        return [*tokens, _Lexeme("end", "the end", end, end + 1)]

    def _take(self, *texts: str) -> bool:
        """Take the next token if it is one of these."""
        token = self.now
        is_it = token.kind in ("operator", "name") and token.text.lower() in texts
        self.at += is_it
        return is_it

    def _either(self) -> Condition:
        left = self._both()
        while self._take("or", "||"):
            left = Either(left, self._both())
        return left

    def _both(self) -> Condition:
        left = self._not()
        while self._take("and", "&&"):
            left = Both(left, self._not())
        return left

    def _not(self) -> Condition:
        self.terms += 1
        if self.terms > MAX_TERMS:
            self._wrong(self.now, f"the expression is too long: it has more than {MAX_TERMS} parts")
        token = self.now
        if not self._take("not", "!", "("):
            return self._comparison()
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            what = f"the expression is nested too deeply: more than {MAX_NESTING} `not` and `(`"
            self._wrong(token, what)
        inner = self._either() if token.text == "(" else Not(self._not())
        if token.text == "(" and not self._take(")"):
            self._wrong(self.now, f"a `)` is missing before {_quote(self.now)}")
        self.nesting -= 1
        return inner

    def _comparison(self) -> Condition:
        token = self.now
        if token.kind not in ("name", "quoted") or token.text.lower() in _WORDS:
            what = f"a name is expected here, not {_quote(token)}"
            is_swapped = token.kind in ("number", "text", "duration", "date")
            fix = "write the name first: `lr < 0.1`" if is_swapped else ""
            self._wrong(token, what, fix)
        self.at += 1
        field = self._field(token)
        operator = self.now
        if self._take("in"):
            return OneOf(field, tuple(self._values(field)))
        if operator.text.lower() == "not" and self.tokens[self.at + 1].text.lower() == "in":
            self.at += 2
            among = OneOf(field, tuple(self._values(field)))
            return Both(Has(field), Not(among))
        if not self._take("=", "==", "!=", "<", "<=", ">", ">=", "~", "=~", "!~"):
            return Has(field)
        sign: Operator = {"==": "=", "=~": "~"}.get(operator.text, operator.text)  # type: ignore[assignment]
        if _is_none(self.now) and sign in ("=", "!="):
            self.at += 1
            return Not(Has(field)) if sign == "=" else Has(field)
        compared = FieldComparison(field, sign, self._value(field, sign))
        if self.now.text in ("=", "==", "!=", "<", "<=", ">", ">="):
            fix = "write `0.1 < x < 0.5` as `x > 0.1 and x < 0.5`"
            self._wrong(self.now, "only two things are compared at once", fix)
        return compared

    def _values(self, field: Field) -> list[Value]:
        if not self._take("(", "["):
            self._wrong(
                self.now, f"a `(` is expected behind `in`, not {_quote(self.now)}", "x in (1, 2)"
            )
        values = [] if self.now.text == "]" else [self._value(field, "=")]
        while values and self._take(","):
            self.listed += 1
            if self.listed > MAX_LISTED:
                what = f"the expression is too long: it lists more than {MAX_LISTED:,} values"
                self._wrong(self.now, what)
            values.append(self._value(field, "="))
        if not self._take(")", "]"):
            self._wrong(self.now, f"a `)` is missing before {_quote(self.now)}")
        return values

    def _value(self, field: Field, operator: Operator) -> Value:
        token = self.now
        if _is_none(token) and operator not in ("~", "!~"):
            fix = "write `x = none or x in (1, 2)`; the text is written in quotes"
            self._wrong(token, f"`{token.text}` is compared with = and != alone", fix)
        value: Value
        match token.kind:
            case "number":
                value = self._number(token)
            case "duration":
                digits = re.match(r"[\d.]+", token.text)
                assert digits is not None
                value = float(digits[0]) * _UNITS_S[token.text[digits.end() :]]
                if field.name not in ("age", "duration") or field.kind != "run":
                    value = token.text
            case "text" if token.text[0] == '"':
                value = self._unescape(token)
            case "text":
                value = token.text[1:-1]
            case "date" if field.kind in ("config", "result") and operator not in ("~", "!~"):
                value = self._date(token)
            case "operator" if token.text == "[" and operator in ("=", "!="):
                return tuple(self._values(replace(field, name=f"{field.name}[]")))
            case "name" if token.text.lower() in ("true", "false"):
                value = token.text.lower() == "true"
            case "name" | "date" | "quoted" if token.text.lower() not in _WORDS:
                value = token.text.strip("`")
            case _:
                self._wrong(token, f"a value is expected here, not {_quote(token)}")
        self.at += 1
        return self._fitting(value, field, operator, token)

    def _date(self, token: _Lexeme) -> date:
        try:
            is_day = len(token.text) == len("2026-11-20")
            return (date if is_day else datetime).fromisoformat(token.text)
        except ValueError:
            self._wrong(token, f"{_quote(token)} is no date", "for example 2026-11-20")

    def _number(self, token: _Lexeme) -> int | float:
        for kind in (int, float):  # a whole number of thousands of digits is read as inf
            with contextlib.suppress(ValueError):
                return kind(token.text)
        self._wrong(token, f"{_quote(token)} is no number")

    def _unescape(self, token: _Lexeme) -> str:
        try:
            return str(json.loads(token.text, strict=False))
        except ValueError:
            self._wrong(
                token,
                "this text has a wrong escape in it",
                r"write \\ for one \, or use single quotes",
            )

    def _fitting(self, value: Value, field: Field, operator: Operator, token: _Lexeme) -> Value:
        """The value, if it can be compared with this field."""
        if field.kind == "metric" or (field.kind == "run" and field.name not in _TEXT_FIELDS):
            if operator in ("~", "!~"):
                self._wrong(
                    token,
                    f"`{_write_name(field)}` is a number: `{operator}` looks into texts",
                    describe_shadow(field, self.names),
                )
            if field.name == "created" and field.kind == "run":
                return self._moment(value, token)
            if isinstance(value, str | bool):
                fix = describe_shadow(field, self.names)
                if field.name in ("age", "duration"):
                    fix = "for example 30 min as 30min, or 2h, 7d, 1w"
                self._wrong(
                    token, f"`{_write_name(field)}` is a number, {_quote(token)} is none", fix
                )
            return value
        if field.kind == "run" or field.kind in ("label", "note", "desc"):
            if operator in ("<", "<=", ">", ">="):
                self._wrong(
                    token,
                    f"`{_write_name(field)}` is a text: `{operator}` does not fit",
                    "use = or ~ (a part)",
                )
            value = value if isinstance(value, str) else token.text
            known = _CLOSED.get(field.name, ()) if operator in ("=", "!=") else ()
            if known and value not in known:
                what = f"no run can have the {field.name} {_quote(token)}"
                self._wrong(token, what, choose(value, known))
        return value

    def _moment(self, value: Value, token: _Lexeme) -> int | date:
        """Return unix nanoseconds, or the day that is meant where no time is given."""
        text = str(value)
        try:
            moment = datetime.fromisoformat(text)
            is_day = len(text) == len("2026-11-20")
            return moment.date() if is_day else round(moment.timestamp() * 1e9)
        except (ValueError, OverflowError):
            self._wrong(token, f"{_quote(token)} is no date", "for example created > 2026-11-20")

    def _field(self, token: _Lexeme) -> Field:
        name = token.text.strip("`") if token.kind == "quoted" else token.text
        found = field_named(name, self.names)
        if found is not None:
            return found
        what, fix = unknown_name(name, self.names)
        self._wrong(token, what, fix)

    def _wrong(self, token: _Lexeme, what: str, fix: str = "") -> NoReturn:
        first, last = _line(self.text, token)
        line = self.text[first:last].replace("\t", " ")
        marked = " " * (token.start - first) + "^" * max(1, min(token.end, last) - token.start)
        raise ExpressionError(
            f"{what[0].upper()}{what[1:]}.",
            where=f"{line}\n       {marked}",
            fix=fix,
            start=token.start,
            end=max(token.end, token.start + 1),
        )


def _line(text: str, token: _Lexeme) -> tuple[int, int]:
    """The part of a long expression around a token: what fits on one line."""
    room = 70
    if len(text) <= room and "\n" not in text:
        return 0, len(text)
    first = max(text.rfind("\n", 0, token.start) + 1, token.start - room // 2)
    end = text.find("\n", token.start)
    return first, min(len(text) if end < 0 else end, first + room)


def _is_none(token: _Lexeme) -> bool:
    return token.kind == "name" and token.text.lower() in ("none", "null")


def _quote(token: _Lexeme) -> str:
    return token.text if token.kind == "end" else f"`{elide(token.text, _SHOWN_CELLS)}`"
