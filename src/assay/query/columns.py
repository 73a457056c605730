"""Columns of a list of runs: the value of a run in each, and how that value reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from typing import Any

from assay.core.formatting import age, duration, number
from assay.core.terminal import cell_count, elide
from assay.formats.json_codec import dumps
from assay.query.expression import KnownNames, field_named
from assay.store.cells import ChangedSetting, identify
from assay.store.conditions import RUN_FIELDS, Field

MISSING = object()
"""Stands for a key or result that a run does not have, where none is a value."""
DEFAULT_COLUMNS = ("status", "tag", "id", "best", "duration", "age")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the field that the index is asked for, and how its values read.

    `field` is None where no run has anything of this name. `read` makes of a cell of the index, and
    of the facts in `more`, what a program gets; None: the cell as it is. `to_right` None: where all
    values are numbers.
    """

    name: str
    field: Field | None
    show: Callable[[Any, int], str] = lambda value, now_ns: _show(value)
    read: Callable[..., Any] | None = None
    more: tuple[str, ...] = ()
    to_right: bool | None = False
    shorten: Callable[[str, int], str] = elide

    @property
    def kind(self) -> str:
        """Kind of the field, "missing" where no run has anything of this name."""
        return "missing" if self.field is None else self.field.kind

    @property
    def is_setting(self) -> bool:
        """True of keys of configs and of results, whose values keep their type."""
        return self.kind in ("config", "result", "missing")

    @property
    def statistic(self) -> str:
        """Statistic of a metric, "" for any other field."""
        return self.field.statistic if self.field is not None and self.kind == "metric" else ""

    @property
    def key(self) -> str:
        """The name that programs get: with the unit, where there is one."""
        return {"duration": "duration_s", "age": "created"}.get(self.name, self.name)

    def spell(self, value: Any) -> Any:
        """Return a value for the page: of a setting a number or text."""
        return spell_setting(value) if self.is_setting else value

    def show_all(self, values: Sequence[Any], now_ns: int) -> list[str]:
        """Return values as people read them; two settings that differ never read the same."""
        if self.is_setting:
            return show_apart(values)
        return ["-" if self.is_empty(each) else self.show(each, now_ns) for each in values]

    def is_empty(self, value: Any) -> bool:
        """Return whether a table has nothing to show; none and "" are values of a setting."""
        return value is MISSING or (not self.is_setting and value in (None, "", []))

    def export(self, value: Any) -> Any:
        """Return a value as plain data: a time as ISO text, None for nothing."""
        if value is MISSING or value is None:
            return None
        if self.name in ("age", "created"):
            return _local_time(value).isoformat(timespec="seconds")
        return plain_value(value)


def _fact(name: str, **how: Any) -> Column:
    return Column(name, Field("run", name), **how)


COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        _fact("status"),
        _fact("tag"),
        _fact("id"),
        _fact(
            "best",
            show=lambda best, now_ns: f"{best['metric']} {number(best['value'])}",
            read=lambda *best: _name_parts(best),
            more=("best_metric", "best_mode", "best_step"),
            shorten=lambda text, limit: _keep_number_whole(text, limit),
        ),
        _fact("duration", show=lambda seconds, now_ns: duration(seconds), to_right=True),
        # The age is a moment, so that it reads the same tomorrow; shown is how long ago that was.
        _fact(
            "age", show=age, read=lambda cell, created: created, more=("created",), to_right=True
        ),
        _fact("created", show=lambda ns, now_ns: f"{_local_time(ns):%Y-%m-%d %H:%M}"),
        _fact("kind"),
        _fact("step", to_right=True),
        _fact("attempts", to_right=True),
        _fact(
            "labels",
            show=lambda labels, now_ns: _show(", ".join(labels)),
            read=lambda cell, lines: lines.split("\n") if lines else [],
            more=("label_lines",),
        ),
        Column("note", Field("note")),
        _fact("reason"),
        _fact("parent"),
        _fact("sweep"),
        _fact("point"),
        _fact("config"),
        _fact("project"),
        _fact("folder"),
    )
}
"""Columns by name; any metric (`valid/acc`, `valid/acc.max`), result or config key is one, too."""


def find_column(name: str, names: KnownNames) -> Column:
    """Return the column of a name, which may be in backquotes as in an expression."""
    if name.startswith("`") and name.endswith("`"):
        name = name[1:-1]
    known = {"label": "labels", "notes": "note"}.get(name, name)
    if known in COLUMNS:
        return replace(COLUMNS[known], name=name)
    if name in RUN_FIELDS:
        return _fact(name)
    field = field_named(name, names)
    match field.kind if field is not None else "":
        case "metric":
            return Column(name, field, to_right=True)
        case "config" | "result":
            return Column(name, field, to_right=None, show=lambda value, now_ns: show_value(value))
        case _:
            return Column(name, field, to_right=None)


def _name_parts(best: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return the best value of the metric that a run watches with metric, mode and step."""
    value, metric, mode, step = best
    if value is None:
        return None
    return {"metric": metric, "mode": mode, "value": value, "step": step}


def _local_time(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9).astimezone()


def show_value(value: Any) -> str:
    """Return a value as people read it, None as `none`; a text that reads as another in quotes.

    >>> [show_value(value) for value in (True, "true", "relu", 1, "1", 0.5, None, "", [1, "a"])]
    ['true', '"true"', 'relu', '1', '"1"', '0.5', 'none', '""', '[1,"a"]']
    """
    match value:
        case None:
            return "none"
        case str() if _READS_AS_ANOTHER.fullmatch(value) or not value.isprintable():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return _show(value)


def show_apart(values: Sequence[Any]) -> list[str]:
    """Return values as people read them, with all digits where two that differ read the same.

    >>> show_apart([0.3, 0.1 + 0.2, 1, MISSING]), show_apart([0.1 + 0.2])
    (['0.3', '0.30000000000000004', '1', '-'], ['0.3'])
    """
    texts = ["-" if value is MISSING else show_value(value) for value in values]
    known = {identify(value) for value in values if value is not MISSING}
    if len(set(texts)) >= len(known) + (MISSING in values):
        return texts
    pairs = zip(values, texts, strict=True)
    return [repr(value) if isinstance(value, float) else text for value, text in pairs]


def plain_value(value: Any) -> Any:
    """Return a value as JSON has it: a date as ISO text, a changed setting in words."""
    if isinstance(value, ChangedSetting):
        return str(value)
    return value.isoformat() if isinstance(value, date | time) else value


def spell_setting(value: Any) -> str | int | float | None:
    """Return a value as a number, or as the text that people read."""
    is_plain = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return value if is_plain else show_value(value)


_READS_AS_ANOTHER = re.compile(
    r"|true|false|none|null|[+-]?(inf|nan|[\d_]*\.?[\d_]*(e[+-]?\d+)?)|[\[{\"].*|\d{4}-\d\d-\d\d.*"
    r"|\d\d:\d\d.*|\s.*|.*\s|-",
    re.IGNORECASE | re.DOTALL,
)


def _show(value: Any) -> str:
    match value:
        case float():
            return number(value)
        case str():
            return value if value.isprintable() else " ".join(value.split())
        case int() if not isinstance(value, bool):
            return str(value)
        case date() | time() | ChangedSetting():
            return str(plain_value(value))
        case _:
            return dumps(value)


def _keep_number_whole(text: str, limit: int) -> str:
    """Return a name and a number within `limit` cells; the name is shortened, never the number."""
    if cell_count(text) <= limit:
        return text
    name, _, value = text.rpartition(" ")
    room = limit - cell_count(value) - 1
    return f"{elide(name, room)} {value}" if room > 0 else elide(value, limit)
