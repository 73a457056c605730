"""Rows of `rows.toml` proven by each test: marks, the output of `./dev rows`, the pytest hook.

The marks are read from the syntax tree, so that a count imports no test: write them as decorators
of the test (or of its class, or as the module's `pytestmark`) with literal ids. A test that is
skipped or expected to fail proves nothing. A row counts once every test with its mark passed in the
last full run.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from row_results import RESULTS, RowResults, read_results

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).resolve().parent
TABLE = TESTS / "rows.toml"
MARKS = ("core", "important", "nice")
MAX_ROWS = 3
SKIPPING = {"skip", "skipif", "xfail"}
SKIPPING_CALLS = {"skip", "importorskip", "xfail"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing to do.

    `user`: what a person can do with it; `partial`: what no test proves yet; `instead`: the command
    that stands for one in `check`.
    """

    id: str
    title: str
    mark: str
    check: str
    user: str = ""
    partial: str = ""
    instead: str = ""
    repairs: Sequence[Mapping[str, str]] = ()
    """Changed lines of a snippet: `line`, what it `becomes`, and `why`; no line: one put on top."""

    @property
    def group(self) -> str:
        """The letter of the text it comes from: A to F."""
        return self.id.removeprefix("S-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """Test and the rows it proves; `idle`: why it proves none here; `wrong`: its mark's error."""

    path: Path
    name: str
    line: int
    rows: tuple[str, ...]
    idle: str = ""
    wrong: str = ""


def read_table(path: Path = TABLE) -> dict[str, Row]:
    """All rows by id, in the order of the file."""
    with path.open("rb") as file:
        return {id: Row(id=id, **fields) for id, fields in tomllib.load(file).items()}


def read_marks(folder: Path = TESTS) -> list[Marked]:
    """Every marked test under `folder`."""
    return [marked for path in sorted(folder.rglob("test_*.py")) for marked in marks_in(path)]


def marks_in(path: Path) -> list[Marked]:
    """Every marked test of one file."""
    source = path.read_text(encoding="utf-8")
    if "mark.row" not in source:
        return []
    tree = ast.parse(source, filename=str(path))
    return list(_tests(tree.body, path, prefix="", outer=_pytestmark(tree.body)))


def complaint(ids: Sequence[object], table: Mapping[str, Row]) -> str:
    """What is wrong with the ids of one test, or nothing."""
    unknown = [str(id) for id in ids if id not in table]
    if unknown:
        return f"no row {', '.join(unknown)} in {TABLE.name}"
    if not ids:
        return "a row mark without an id"
    if len(ids) > MAX_ROWS:
        return f"{len(ids)} rows in one test: {MAX_ROWS} is the most that one test can prove"
    return ""


def proofs(marks: Iterable[Marked]) -> dict[str, list[Marked]]:
    """The tests that are to prove each row and run here."""
    found: dict[str, list[Marked]] = {}
    for marked in marks:
        if not (marked.idle or marked.wrong):
            for id in marked.rows:
                found.setdefault(id, []).append(marked)
    return found


def outcome_of(marked: Marked, results: RowResults, root: Path) -> str:
    """The outcome of a test in the last full run; "not run" when that run had no such test."""
    path = marked.path.relative_to(root) if marked.path.is_relative_to(root) else marked.path
    return results.outcomes.get(f"{path.as_posix()}::{marked.name}", "not run")


def passed_proofs(
    marks: Iterable[Marked], results: RowResults, root: Path
) -> dict[str, list[Marked]]:
    """The tests of each row that all passed in the last full run; other rows are left out."""
    return {
        id: tests
        for id, tests in proofs(marks).items()
        if all(outcome_of(marked, results, root) == "passed" for marked in tests)
    }


def _tests(
    body: Iterable[ast.stmt], path: Path, *, prefix: str, outer: Sequence[ast.expr]
) -> Iterator[Marked]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            inner = [*outer, *node.decorator_list, *_pytestmark(node.body)]
            yield from _tests(node.body, path, prefix=f"{prefix}{node.name}::", outer=inner)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test"
        ):
            marks = [mark for mark in map(_mark, [*outer, *node.decorator_list]) if mark]
            rows = [
                argument for name, arguments in marks if name == "row" for argument in arguments
            ]
            if not any(name == "row" for name, _ in marks):
                continue
            literal = [
                row.value
                for row in rows
                if isinstance(row, ast.Constant) and isinstance(row.value, str)
            ]
            yield Marked(
                path=path,
                name=prefix + node.name,
                line=node.lineno,
                rows=tuple(dict.fromkeys(literal)),
                idle=_idle([name for name, _ in marks], node),
                wrong=""
                if len(literal) == len(rows)
                else "the ids of a row mark must be literal text",
            )


def _pytestmark(body: Iterable[ast.stmt]) -> list[ast.expr]:
    for node in body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets
        ):
            return (
                list(node.value.elts)
                if isinstance(node.value, ast.List | ast.Tuple)
                else [node.value]
            )
    return []


def _mark(node: ast.expr) -> tuple[str, list[ast.expr]] | None:
    """The name and arguments of `pytest.mark.NAME(...)`."""
    arguments: list[ast.expr] = []
    if isinstance(node, ast.Call):
        arguments, node = node.args, node.func
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "mark"
    ):
        return node.attr, arguments
    return None


def _idle(names: Sequence[str], node: ast.AST) -> str:
    """Why a test proves nothing on a machine without a GPU, or nothing."""
    for name in names:
        if name in SKIPPING:
            return f"marked {name}"
        if name == "gpu":
            return "runs on a GPU only"
    for call in ast.walk(node):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in SKIPPING_CALLS
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id == "pytest"
        ):
            return f"may call pytest.{call.func.attr}"
    return ""


# ------------------------------------------------------------------------------------------------------ the pytest hook


@cache
def _table() -> dict[str, Row]:
    return read_table()


@cache
def _names_in(path: Path) -> frozenset[str]:
    return frozenset(marked.name for marked in marks_in(path))


def check_item(item: pytest.Item) -> str:
    """What is wrong with the row marks of a collected test, or nothing."""
    marks = list(item.iter_markers("row"))
    if not marks:
        return ""
    ids = list(dict.fromkeys(id for mark in marks for id in mark.args))
    wrong = complaint(ids, _table())
    if wrong:
        return wrong
    name = "::".join([part.partition("[")[0] for part in item.nodeid.split("::")[1:]])
    if name not in _names_in(item.path):
        return (
            "the row mark cannot be read from the source: write it as a decorator with literal ids"
        )
    return ""


def fail_on_a_wrong_mark(item: pytest.Item) -> None:
    """The hook `pytest_runtest_call`: a test whose row mark is wrong fails, whatever it does."""
    import pytest

    wrong = check_item(item)
    if wrong:
        pytest.fail(wrong, pytrace=False)


# -------------------------------------------------------------------------------------------------------- `./dev rows`


def main(
    argv: Sequence[str] | None = None,
    *,
    table_path: Path = TABLE,
    folder: Path = TESTS,
    results_path: Path = RESULTS,
) -> int:
    """Print what is proven; 1 when a mark is wrong."""
    parser = argparse.ArgumentParser(
        prog="./dev rows", description="Which rows of tests/rows.toml the tests prove."
    )
    parser.add_argument(
        "ids", nargs="*", metavar="ID", help="only these rows, or all whose id starts so: A04 C D0"
    )
    parser.add_argument(
        "--list", action="store_true", help="each proven row: its check beside its tests"
    )
    parser.add_argument(
        "--missing", action="store_true", help="the rows that no test proves yet, or only in part"
    )
    parser.add_argument(
        "--snippets", action="store_true", help="each snippet with the lines that are changed in it"
    )
    options = parser.parse_args(argv)
    table = read_table(table_path)
    marks = read_marks(folder)
    unknown = [id for id in options.ids if not any(row.startswith(id.upper()) for row in table)]
    if unknown:
        print(f"error: no row {', '.join(unknown)} in {table_path.name}", file=sys.stderr)
        return 2
    chosen = {
        id: row
        for id, row in table.items()
        if not options.ids or any(id.startswith(i.upper()) for i in options.ids)
    }
    results = read_results(results_path)
    proven = passed_proofs(marks, results, folder.parent)
    if options.snippets:
        print(_repairs(chosen, proven))
    elif options.list:
        print(_listing(chosen, proven, folder.parent))
    elif options.missing or options.ids:
        unproven = {
            marked.name: outcome_of(marked, results, folder.parent)
            for marked in marks
            if outcome_of(marked, results, folder.parent) != "passed"
        }
        print(_missing(chosen, proven, marks, unproven, only_open=options.missing))
    else:
        print(_count(table, proven, marks))
    print(_when(results))
    wrong = [(m, m.wrong or complaint(m.rows, table)) for m in marks]
    for marked, what in wrong:
        if what:
            print(f"error: {_place(marked, folder.parent)} {marked.name}: {what}", file=sys.stderr)
    return 1 if any(what for _, what in wrong) else 0


def _count(table: Mapping[str, Row], proven: Mapping[str, object], marks: Sequence[Marked]) -> str:
    columns: list[tuple[str, Any]] = [
        (mark, lambda row, mark=mark: row.mark == mark) for mark in MARKS
    ]
    columns.append(("snippets", lambda row: row.mark == "snippet"))
    lines = [f"{'':6}" + "".join(f"{name:>14}" for name, _ in columns) + f"{'partial':>12}"]
    groups = sorted({row.group for row in table.values()})
    for label, members in [(g, [r for r in table.values() if r.group == g]) for g in groups] + [
        ("all", list(table.values()))
    ]:
        line = f"{label:6}"
        for _, belongs in columns:
            column = [row for row in members if belongs(row)]
            done = sum(row.id in proven and not row.partial for row in column)
            line += f"{f'{done} of {len(column)}' if column else '-':>14}"
        line += f"{sum(row.id in proven and bool(row.partial) for row in members) or '-':>12}"
        lines.append(line)
    idle = sum(bool(marked.idle) for marked in marks)
    lines += [
        "",
        f"{len(marks) - idle} marked tests"
        + (f", {idle} more that may not run here and do not count" * (idle > 0)),
    ]
    lines.append(
        "partial: proven but for what the row names. More: ./dev rows --list, ./dev rows --missing C, ./dev rows A04"
    )
    return "\n".join(lines)


def _when(results: RowResults) -> str:
    if not results.began:
        return "No full run of the tests yet, so nothing counts: ./dev test, or ./dev check"
    passed = sum(outcome == "passed" for outcome in results.outcomes.values())
    return f"{passed} of {len(results.outcomes)} tests passed in the last full run, {results.began}"


def _listing(rows: Mapping[str, Row], proven: Mapping[str, Sequence[Marked]], root: Path) -> str:
    lines: list[str] = []
    for id, row in rows.items():
        if id not in proven:
            continue
        lines += [f"{id}  {row.title}  [{row.mark}]", *_wrapped("check", row.check)]
        if row.instead:
            lines += _wrapped("instead", row.instead)
        if row.partial:
            lines += _wrapped("partial", row.partial)
        for marked in proven[id]:
            lines += [f"  test:    {marked.name}", f"           {_place(marked, root)}"]
        lines.append("")
    return "\n".join(lines).rstrip() or "no row is proven yet"


def _repairs(rows: Mapping[str, Row], proven: Mapping[str, object]) -> str:
    """Each snippet with its changed lines, and the count of those that run without any."""
    snippets = [row for row in rows.values() if row.mark == "snippet"]
    lines: list[str] = []
    for row in snippets:
        state = "" if row.id in proven else ", open"
        lines.append(f"{row.id}  {row.title}  [{_changes(row)}{state}]")
        for each in row.repairs:
            lines.append(f"  - {each['line']}" if each.get("line") else "  - (nothing)")
            lines += [f"  + {line}" for line in each["becomes"].splitlines()]
            lines += _wrapped("why", each["why"])
    whole = sum(not row.repairs for row in snippets)
    return "\n".join([*lines, "", f"{whole} of {len(snippets)} snippets have no changed line"])


def _changes(row: Row) -> str:
    """What is changed of the text of a snippet."""
    return f"{len(row.repairs) or 'no'} changed lines"


def _missing(
    rows: Mapping[str, Row],
    proven: Mapping[str, Sequence[Marked]],
    marks: Sequence[Marked],
    unproven: Mapping[str, str],
    *,
    only_open: bool,
) -> str:
    lines: list[str] = []
    for id, row in rows.items():
        done = id in proven and not row.partial
        if done and only_open:
            continue
        state = "proven" if done else "partial" if id in proven else "open"
        lines += [f"{id}  {row.title}  [{row.mark}, {state}]", *_wrapped("check", row.check)]
        if row.instead:
            lines += _wrapped("instead", row.instead)
        if row.partial and id in proven:
            lines += _wrapped("partial", row.partial)
        lines += [
            f"  idle:    {marked.name} ({marked.idle or unproven[marked.name]})"
            for marked in marks
            if id in marked.rows and (marked.idle or marked.name in unproven)
        ]
    return "\n".join(lines) or "nothing is missing"


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, 108, initial_indent=f"  {name + ':':9}", subsequent_indent=" " * 11)


def _place(marked: Marked, root: Path) -> str:
    path = marked.path.relative_to(root) if marked.path.is_relative_to(root) else marked.path
    return f"{path.as_posix()}:{marked.line}"


if __name__ == "__main__":
    sys.exit(main())
