"""The table of rows and the marks that point into it."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

import rows
import snippets as texts

pytest_plugins = ["pytester"]
OPEN = {"B37"}  # TensorRT: nothing of it is there yet
MARK = re.compile(r"pytest\.mark\.row\(([^)]*)\)")


def test_the_table_holds_every_row_and_snippet_once_and_in_full() -> None:
    table = rows.read_table()
    snippets = {id for id in table if id.startswith("S-")}

    assert Counter(id[0] for id in table.keys() - snippets) == {
        **{"A": 97, "B": 38, "C": 83},
        **{"D": 28, "E": 61, "F": 14},
    }
    assert len(snippets) == 27
    for id, row in table.items():
        known = ("snippet",) if id in snippets else ("core", "important", "nice")
        assert row["mark"] in known and row["title"] and row["check"], row
        assert id in snippets or row["user"], row


def test_every_row_has_a_test_and_every_mark_names_rows() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for path in rows.TESTS.rglob("test_*.py")
        if path != Path(__file__)
    ]
    marked = [re.findall(r'"([^"]*)"', ids) for text in sources for ids in MARK.findall(text)]

    assert [ids for ids in marked if rows.complaint(ids)] == []
    assert {*rows.read_table()} - {id for ids in marked for id in ids} == OPEN


def test_the_page_of_the_texts_says_what_is_changed_in_each() -> None:
    page = Path(__file__).parents[1] / "docs" / "reference" / "older-texts.md"

    text, _, _ = page.read_text(encoding="utf-8").partition("## Proven together")
    shown = [line for line in text.splitlines() if line[:1] == "|"]

    assert shown == texts.table_lines()


def test_every_snippet_is_run_from_its_text() -> None:
    code = "".join(path.read_text() for path in (rows.TESTS / "compat").glob("test_*.py"))
    snippets = {id for id in rows.read_table() if id.startswith("S-")}

    assert {id for id in snippets if f'"{id}"' not in code and f'"{id}.' not in code} == set()


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        ("'Z99'", "no row Z99"),
        ("", "0 rows in one test"),
        ("'A01', 'A02', 'A03', 'A04'", "4 rows in one test"),
    ],
)
def test_a_test_with_a_wrong_mark_fails(pytester: pytest.Pytester, mark: str, what: str) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    row(*ids): rows")
    pytester.makepyfile(f"import pytest\n@pytest.mark.row({mark})\ndef test_a(): ...")

    result = pytester.runpytest_inprocess("-p", "rows")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{what}*"])


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_row_is_proven_once_every_test_of_it_has_passed_in_full_runs(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    pytester.makeini(
        "[pytest]\ntestpaths = .\nmarkers =\n    row(*ids): rows\n    thorough: slow\n"
        f"pythonpath = {shlex.quote(str(rows.TESTS))}"
    )
    pytester.makeconftest("pytest_plugins = ['rows']")
    pytester.makepyfile(
        "import pytest\nrow = pytest.mark.row\n"
        "@row('A01', 'A02')\n@pytest.mark.parametrize('x', [1, 2])\ndef test_both(x): ...\n"
        "@row('A02')\n@pytest.mark.parametrize('x', [0, 1])\ndef test_once(x): assert x\n"
        "@row('A03')\ndef test_here(): pytest.skip()\n"
        "@row('A04')\n@pytest.mark.thorough\ndef test_later(): ...\n"
        "@pytest.fixture\ndef broken():\n    yield\n    raise ValueError\n"
        "@row('A06')\ndef test_c(broken): ...\n"
    )
    cached = pytester.path / ".pytest_cache" / "v" / rows.KEY

    def proven(*arguments: str) -> set[str]:
        pytester.runpytest_subprocess(workers, *arguments)
        outcomes = json.loads(cached.read_text())
        return {id for id in rows.read_table() if rows.is_proven(id, outcomes)}

    assert proven("-m", "not thorough") == {"A01"}
    assert proven("-m", "thorough") == {"A01", "A04"}
    assert proven("-m", "row") == {"A01", "A04"}
    assert proven("-k", "later") == {"A01", "A04"}  # not a full run
    capsys.readouterr()
    assert rows.main(["A02"], cached) == 0
    shown = capsys.readouterr().out
    assert "check: `assay run" in shown
    assert re.search("passed: .*::test_both", shown) and re.search("failed: .*::test_once", shown)


def test_the_count_names_the_rows_that_are_not_or_partly_proven(tmp_path: Path) -> None:
    table = {
        "A01": {"title": "one", "mark": "core"},
        "A02": {"title": "two", "mark": "core"},
        "A03": {"title": "three", "mark": "nice", "partial": "two processes"},
    }
    outcomes = {"A01": {"a::test": "passed"}, "A03": {"a::test": "passed"}}

    core, _, nice, _, *missing = rows.count(table, outcomes)

    assert core.split() == ["core", "1", "of", "2"] and nice.split() == ["nice", "0", "of", "1"]
    assert missing == ["A02   two: not proven", "A03   three: two processes"]


def test_a_row_that_does_not_exist_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rows.main(["Q01"], tmp_path / "none") == 2
    assert "no row Q01" in capsys.readouterr().err
    assert rows.main([], tmp_path / "none") == 0
    assert "No full run" in capsys.readouterr().out
