"""Conditions on runs as plain data, and the parameterised SQL that they become."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, assert_never

from assay.store.cells import list_cells, to_cell
from assay.store.index_rows import storable

FieldKind = Literal["run", "metric", "config", "result", "label", "note", "desc"]
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "~", "!~"]
Value = str | int | float | bool | date | tuple[Any, ...]

RUN_FIELDS = {
    "status": "COALESCE(now.status, CASE runs.status WHEN '' THEN 'damaged' ELSE runs.status END)",
    "duration": "CASE runs.status WHEN '' THEN NULL ELSE COALESCE(now.seconds, runs.seconds) END",
    "age": "(:now_ns - runs.created_ns) / 1e9",
    "created": "runs.created_ns",
    "id": "runs.id",
    "kind": "runs.kind",
    "tag": "runs.tag",
    "step": "runs.step",
    "attempts": "runs.attempts",
    "best": "runs.best_value",
    "reason": "NULLIF(CASE runs.error WHEN '' THEN runs.reason ELSE runs.error END, '')",
    "parent": "NULLIF(runs.parent, '')",
    "config_hash": "runs.config_hash",
    "sweep": "NULLIF(runs.sweep, '')",
    "point": "NULLIF(runs.point, '')",
    "group": "COALESCE(NULLIF(runs.seedless_hash, ''), runs.folder)",
    "folder": "runs.folder",
    "project": ":project",
}
"""SQL for facts of a run, by name. Durations and ages are seconds, `created` is unix ns.

Runs of one `group` differ in nothing but their seed.
"""

_LABELS = "FROM items WHERE kind = 'label' AND folder = runs.folder"
RUN_COLUMNS = RUN_FIELDS | {
    "best_metric": "runs.best_metric",
    "best_mode": "runs.best_mode",
    "best_step": "runs.best_step",
    "config": "NULLIF(substr(runs.config_hash, 1, 16), '')",
    "folder": ":runs_dir || runs.folder",
    "labels": f"(SELECT group_concat(name, ', ') {_LABELS})",
    "label_lines": f"(SELECT group_concat(name, char(10)) {_LABELS})",
}
"""SQL for what a run can show of these and beside them; a folder with its path."""

STATISTICS = ("last", "min", "max", "mean", "count")


@dataclass(frozen=True, slots=True)
class Field:
    """Field that is compared. `statistic` is one of STATISTICS for a metric, else ""."""

    kind: FieldKind
    name: str = ""
    statistic: str = "last"


@dataclass(frozen=True, slots=True)
class FieldComparison:
    """Comparison of a field with a value; False for a run without one, also for `!=` and `!~`."""

    field: Field
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """A field that equals one of several values."""

    field: Field
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Has:
    """There is something in this field."""

    field: Field


@dataclass(frozen=True, slots=True)
class Not:
    """The runs that do not fulfil a condition."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Both:
    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class Either:
    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class Mentions:
    """Condition that every word is in tag, description, notes, labels or README, in any case."""

    words: tuple[str, ...]


Condition = FieldComparison | OneOf | Has | Not | Both | Either | Mentions
_Test = Callable[[str], str]


class Sql:
    """The WHERE of a condition, and its parameters by name."""

    def __init__(self, condition: Condition) -> None:
        self.parameters: dict[str, Any] = {}
        self.where = f"({self._of(condition)})"

    def _of(self, condition: Condition) -> str:
        match condition:
            # Brackets where they are needed alone: SQLite's parser has a stack of a hundred places.
            case Both():
                parts = _chain(condition, Both)
                return " AND ".join(
                    f"({self._of(part)})" if isinstance(part, Either) else self._of(part)
                    for part in parts
                )
            case Either():
                return " OR ".join(map(self._of, _chain(condition, Either)))
            case Not(inner):
                return f"NOT ({self._of(inner)})"
            case Has(field) if field.kind == "metric":
                # A metric that was never a number was logged all the same.
                return self._having(field, lambda column: "count > 0")
            case Has(field):
                # An empty text is a value of a setting, and no tag, reason or note.
                filled = "" if field.kind in ("config", "result") else " AND {0} != ''"
                test = "{0} IS NOT NULL" + filled
                return self._having(field, test.format)
            case FieldComparison(Field("run", "created"), operator, date() as day):
                return f"local_day({RUN_FIELDS['created']}) {operator} {self._bind(str(day))}"
            case FieldComparison(field, operator, value):
                return self._having(field, lambda column: self._compare(column, operator, value))
            case OneOf(field, values):
                return self._having(field, lambda column: self._is_among(column, values))
            case Mentions(words):
                tests = (
                    " AND ".join(
                        f"instr(text, {self._bind(word.casefold())}) > 0" for word in words
                    )
                    or "1"
                )
                return f"runs.folder IN (SELECT folder FROM texts WHERE {tests})"
            case _:
                assert_never(condition)

    def _having(self, field: Field, test: _Test) -> str:
        """SQL that is true or false, never NULL: it may stand under NOT."""
        match field.kind:
            case "run":
                return f"COALESCE({test(RUN_FIELDS[field.name])}, 0)"
            case "metric":
                assert field.statistic in STATISTICS
                at = f"name = {self._bind(field.name)} AND {test(field.statistic)}"
                return f"runs.folder IN (SELECT folder FROM metrics WHERE {at})"
            case "label":
                return (
                    "runs.folder IN (SELECT folder FROM items WHERE kind = 'label' AND "
                    f"{test('name')})"
                )
            case kind:
                at = f"{kinds_of(kind)} AND name = {self._bind(field.name)} AND {test('value')}"
                return f"runs.folder IN (SELECT folder FROM items WHERE {at})"

    def _compare(self, column: str, operator: Operator, value: Value) -> str:
        if operator in ("~", "!~"):
            found = f"instr(folded({column}), {self._bind(str(value).casefold())})"
            return f"({column} IS NOT NULL AND {found} {'>' if operator == '~' else '='} 0)"
        bound = self._bind(value)
        is_so = f"{column} {operator} {bound}"
        exact = f"compare_cells({column}, '{operator}', {bound})"
        if isinstance(to_cell(value), bytes):
            return f"({column} IS NOT NULL AND {exact})"
        # SQLite orders texts behind numbers, and knows no other types.
        kinds = ("text",) if isinstance(value, str) else ("integer", "real")
        plain = " ".join(f"WHEN '{kind}' THEN {is_so}" for kind in kinds)
        others = f"{column} IS NOT NULL" if operator == "!=" else "0"
        return f"CASE typeof({column}) {plain} WHEN 'blob' THEN {exact} ELSE {others} END"

    def _is_among(self, column: str, values: Sequence[Value]) -> str:
        same = f"{column} IN ({', '.join(map(self._bind, values))})"
        if column == RUN_FIELDS["created"]:
            days = (self._bind(str(each)) for each in values if isinstance(each, date))
            return f"({same} OR local_day({column}) IN ({', '.join(days)}))"
        listed = self._bind(list_cells(values))
        return f"({same} OR typeof({column}) = 'blob' AND is_among({column}, {listed}))"

    def _bind(self, value: Value) -> str:
        name = f"p{len(self.parameters)}"
        (self.parameters[name],) = storable((to_cell(value),))
        return f":{name}"


def kinds_of(kind: FieldKind) -> str:
    """Return SQL for the items of a field: keys of a config are those with their defaults."""
    return "kind IN ('config', 'default')" if kind == "config" else f"kind = '{kind}'"


def _chain(condition: Condition, kind: type[Both | Either]) -> Iterator[Condition]:
    """Yield the parts of `a and b and c`, which nest no deeper than they were written."""
    if isinstance(condition, kind):
        yield from _chain(condition.left, kind)
        yield from _chain(condition.right, kind)
    else:
        yield condition


def fields_in(condition: Condition) -> Iterator[Field]:
    """Every field that a condition looks at."""
    match condition:
        case Both(left, right) | Either(left, right):
            yield from fields_in(left)
            yield from fields_in(right)
        case Not(inner):
            yield from fields_in(inner)
        case Has(field) | FieldComparison(field) | OneOf(field):
            yield field
        case Mentions():
            return
