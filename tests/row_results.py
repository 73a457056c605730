"""Outcomes of the tests that prove rows, kept from one full run of the tests for `./dev rows`.

A run is full when it names no files and no keywords. One of `-m thorough` completes the run before
it, which left those tests out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

RESULTS = Path(__file__).resolve().parent.parent / ".row-results.json"
ANEW = ("", "not thorough")
COMPLETING = "thorough"


@dataclass(slots=True, kw_only=True)
class RowResults:
    """Outcomes by test, `file::name` without its parameters, and the time the run began."""

    began: str = ""
    outcomes: dict[str, str] = field(default_factory=dict)

    def add(self, test: str, outcome: str) -> None:
        """Add the outcome of one phase or one case of a test; the worst one stays."""
        order = ("passed", "skipped", "failed")
        self.outcomes[test] = max(outcome, self.outcomes.get(test, "passed"), key=order.index)


def read_results(path: Path = RESULTS) -> RowResults:
    """Return the outcomes of the last full run; none if there was no such run."""
    if not path.is_file():
        return RowResults()
    return RowResults(**json.loads(path.read_text(encoding="utf-8")))


def write_results(results: RowResults, path: Path = RESULTS) -> None:
    """Write the outcomes in place of those before."""
    fresh = path.with_suffix(".tmp")
    written: Mapping[str, object] = {"began": results.began, "outcomes": results.outcomes}
    fresh.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    fresh.replace(path)


def test_of(nodeid: str) -> str:
    """Return a node id without the parameters of the test."""
    return nodeid.partition("[")[0]


def is_full(config: pytest.Config) -> bool:
    """Return True for a run of all tests, or of all that the run before left out."""
    option = config.option
    return (
        config.args_source is config.ArgsSource.TESTPATHS
        and option.markexpr in (*ANEW, COMPLETING)
        and not (option.keyword or option.collectonly)
        and not (getattr(option, "lf", False) or hasattr(config, "workerinput"))
    )


class ResultsPlugin:
    """Plugin of pytest that keeps the outcomes of a full run."""

    def __init__(self, results: RowResults, path: Path = RESULTS) -> None:
        self.results = results
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.results.add(test_of(report.nodeid), report.outcome)

    def pytest_sessionfinish(self) -> None:
        write_results(self.results, self.path)


def pytest_configure(config: pytest.Config) -> None:
    if is_full(config):
        completes = config.option.markexpr == COMPLETING
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        results = read_results() if completes else RowResults(began=began)
        config.pluginmanager.register(ResultsPlugin(results))
