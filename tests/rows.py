"""Rows of `rows.toml` and the tests that prove them: `python tests/rows.py [ID ...]`.

A test names its rows by the mark `row`, and fails where the mark is wrong. A run of all tests, or of
all with that mark (`./dev test -m row`), leaves the outcomes in pytest's cache. A row is proven once every test with its mark has passed there; a
test that was skipped proves nothing.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).resolve().parent
TABLE = TESTS / "rows.toml"
KEY = "rows/outcomes"
CACHED = TESTS.parent / ".pytest_cache" / "v" / KEY
MAX_ROWS = 3
ORDER = ("passed", "skipped", "failed")

Outcomes = dict[str, dict[str, str]]
"""The worst outcome of each test (`file::name`, without parameters), by row."""


@cache
def read_table() -> dict[str, dict[str, Any]]:
    """Return all rows by id, in the order of the file."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def complaint(ids: Sequence[object]) -> str:
    """Return what is wrong with the ids of one test, or nothing."""
    unknown = [str(id) for id in ids if id not in read_table()]
    if unknown:
        return f"no row {', '.join(unknown)} in {TABLE.name}"
    if not 0 < len(ids) <= MAX_ROWS:
        return f"{len(ids)} rows in one test: one to {MAX_ROWS} is what a test can prove"
    return ""


# --------------------------------------------------------------------------------- the pytest hooks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hand the rows of a test on to its reports."""
    for item in items:
        if ids := [id for mark in item.iter_markers("row") for id in mark.args]:
            item.user_properties.append((KEY, list(dict.fromkeys(ids))))


def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test whose row mark is wrong, whatever it does."""
    import pytest

    if (marks := list(item.iter_markers("row"))) and (
        wrong := complaint(list(dict.fromkeys(id for mark in marks for id in mark.args)))
    ):
        pytest.fail(wrong, pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the outcomes of a run of all tests, or of all that the run before left out."""
    option, kept = config.option, getattr(config, "cache", None)
    every = config.args_source is config.ArgsSource.TESTPATHS and not option.keyword
    partly = option.collectonly or getattr(option, "lf", False) or hasattr(config, "workerinput")
    if kept and every and not partly and option.markexpr in ("", "not thorough", "thorough", "row"):
        before = kept.get(KEY, {}) if option.markexpr == "thorough" else {}
        config.pluginmanager.register(Keeper(config, before))


class Keeper:
    """Plugin that keeps the worst outcome of each test that proves a row."""

    def __init__(self, config: pytest.Config, outcomes: Outcomes) -> None:
        self.config = config
        self.outcomes = outcomes

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            test = report.nodeid.partition("[")[0]
            for id in dict(report.user_properties).get(KEY, ()):
                tests = self.outcomes.setdefault(id, {})
                tests[test] = max(report.outcome, tests.get(test, "passed"), key=ORDER.index)

    def pytest_sessionfinish(self) -> None:
        assert self.config.cache is not None
        self.config.cache.set(KEY, self.outcomes)


# ------------------------------------------------------------------------------------- what is shown


def is_proven(id: str, outcomes: Outcomes) -> bool:
    """Return True where every test of a row passed in the last full run."""
    return id in outcomes and {*outcomes[id].values()} == {"passed"}


def count(table: Mapping[str, Mapping[str, Any]], outcomes: Outcomes) -> Iterator[str]:
    """Yield how many rows of each mark are proven, then those that are not."""
    for mark in ("core", "important", "nice", "snippet"):
        rows = [id for id, row in table.items() if row["mark"] == mark]
        whole = [id for id in rows if is_proven(id, outcomes) and "partial" not in table[id]]
        yield f"{mark:10} {len(whole):3} of {len(rows)}"
    for id, row in table.items():
        if not is_proven(id, outcomes) or "partial" in row:
            yield f"{id:5} {row['title']}: {row.get('partial') or 'not proven'}"


def describe(id: str, outcomes: Outcomes) -> Iterator[str]:
    """Yield everything that the table says of a row, and its tests with their outcomes."""
    yield id
    yield from (f"  {key}: {value}" for key, value in read_table()[id].items())
    yield from (f"  {outcome}: {test}" for test, outcome in outcomes.get(id, {}).items())


def main(arguments: Sequence[str], cached: Path = CACHED) -> int:
    outcomes: Outcomes = json.loads(cached.read_text()) if cached.exists() else {}
    unknown = [id for id in arguments if id not in read_table()]
    if unknown:
        print(f"error: no row {', '.join(unknown)} in {TABLE.name}", file=sys.stderr)
        return 2
    if not outcomes:
        print("No full run of the tests yet, so nothing counts: ./dev test -m row")
    chosen = [line for id in arguments for line in describe(id, outcomes)]
    print("\n".join(chosen or count(read_table(), outcomes)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
