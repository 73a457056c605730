"""The table of rows and the marks that point into it."""

from __future__ import annotations

from pathlib import Path

import pytest

import rows
from row_results import ResultsPlugin, RowResults, read_results, write_results

pytest_plugins = ["pytester"]

TABLE = """
[A01]
title = "one"
mark = "core"
check = "it runs"
[A02]
title = "two"
mark = "nice"
check = "it stops"
partial = "two processes"
[B01]
title = "three"
mark = "important"
check = "it shines"
[B02]
title = "four"
mark = "core"
check = "it sings"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "rows.toml").write_text(TABLE, encoding="utf-8")
    return tmp_path / "tests"


def dev_rows(folder: Path, *arguments: str, outcome: str = "passed") -> int:
    """Count the rows of `folder` after a full run in which every test ended so."""
    results = RowResults(began="2026-01-02 03:04 UTC")
    for marked in rows.read_marks(folder):
        path = marked.path.relative_to(folder.parent)
        results.add(f"{path.as_posix()}::{marked.name}", outcome)
    write_results(results, folder.parent / "results.json")
    return count(folder, *arguments)


def count(folder: Path, *arguments: str) -> int:
    places = {"folder": folder, "results_path": folder.parent / "results.json"}
    return rows.main(arguments, table_path=folder / "rows.toml", **places)


def test_the_table_holds_every_row_and_snippet_once_and_in_full() -> None:
    table = rows.read_table()

    counts = {
        group: sum(row.group == group and row.mark != "snippet" for row in table.values())
        for group in "ABCDEF"
    }
    assert counts == {"A": 89, "B": 38, "C": 81, "D": 28, "E": 58, "F": 14}
    assert sum(row.mark == "snippet" for row in table.values()) == 27
    for row in table.values():
        assert row.mark == "snippet" if row.id.startswith("S-") else row.mark in rows.MARKS, row
        assert row.title and row.check, row
        assert row.user or row.mark == "snippet", row


@pytest.mark.thorough
def test_every_mark_in_the_tests_names_a_row_that_exists() -> None:
    table = rows.read_table()

    wrong = [(m.name, m.wrong or rows.complaint(m.rows, table)) for m in rows.read_marks()]

    assert [entry for entry in wrong if entry[1]] == []


def test_every_snippet_is_run_from_its_text() -> None:
    code = "".join(path.read_text() for path in (rows.TESTS / "compat").glob("test_*.py"))
    named = {id for id in rows.read_table() if f'"{id}"' in code or f'"{id}.' in code}
    snippets = {row.id for row in rows.read_table().values() if row.mark == "snippet"}

    assert snippets - named == set()


def test_a_partial_row_has_a_test_that_proves_the_rest() -> None:
    proven = rows.proofs(rows.read_marks())

    assert [
        row.id for row in rows.read_table().values() if row.partial and row.id not in proven
    ] == []


def test_rows_are_counted_by_group_and_mark_and_partial_ones_apart(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "core").mkdir()
    (folder / "core" / "test_a.py").write_text(
        "import pytest\n"
        "@pytest.mark.row('A01', 'A02')\n"
        "def test_it_runs(): ...\n"
        "class TestThings:\n"
        "    @pytest.mark.row('B01')\n"
        "    def test_it_shines(self): ...\n",
        encoding="utf-8",
    )

    assert dev_rows(folder) == 0

    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ["core", "important", "nice", "snippets", "partial"]
    assert table[1] == ["A", "1", "of", "1", "-", "0", "of", "1", "-", "1"]
    assert table[2] == ["B", "0", "of", "1", "1", "of", "1", "-", "-", "-"]
    assert table[3] == ["all", "1", "of", "2", "1", "of", "1", "0", "of", "1", "-", "1"]


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_row_counts_only_if_every_test_of_it_passed_in_the_last_full_run(
    folder: Path, outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    test = "import pytest\n@pytest.mark.row('A01')\ndef test_{}(): ...\n"
    (folder / "test_a.py").write_text(test.format("one"), encoding="utf-8")

    count(folder)
    before = capsys.readouterr().out
    assert "No full run" in before and before.splitlines()[1].split()[:4] == ["A", "0", "of", "1"]
    dev_rows(folder)
    after = capsys.readouterr().out
    assert after.splitlines()[1].split()[:4] == ["A", "1", "of", "1"]
    assert "last full run, 2026-01-02 03:04 UTC" in after
    (folder / "test_b.py").write_text(test.format("other"), encoding="utf-8")
    count(folder, "A01")
    assert "test_other (not run)" in capsys.readouterr().out
    dev_rows(folder, "--missing", "A01", outcome=outcome)
    assert f"test_one ({outcome})" in capsys.readouterr().out


def test_the_worst_outcome_of_a_test_is_kept(tmp_path: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.parametrize('x', [0, 1])\ndef test_a(x): assert x\n"
        "def test_b(): ...\n@pytest.fixture\ndef broken():\n    yield\n    raise ValueError\n"
        "def test_c(broken): ...\ndef test_d(): pytest.skip()\n"
    )
    path = tmp_path / "results.json"

    pytester.runpytest_inprocess(plugins=[ResultsPlugin(RowResults(began="now"), path)])

    found = {name.rpartition("::")[2]: each for name, each in read_results(path).outcomes.items()}
    assert found == {
        "test_a": "failed",
        "test_b": "passed",
        "test_c": "failed",
        "test_d": "skipped",
    }


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.skip\n@pytest.mark.row('A01')\ndef test_a(): ...",
        "@pytest.mark.row('A01')\n@pytest.mark.xfail(reason='later')\ndef test_a(): ...",
        "@pytest.mark.row('A01')\n@pytest.mark.gpu\ndef test_a(): ...",
        "pytestmark = [pytest.mark.skipif(True, reason='no')]\n@pytest.mark.row('A01')\ndef test_a(): ...",
        "@pytest.mark.skip\nclass TestA:\n    @pytest.mark.row('A01')\n    def test_a(self): ...",
        "@pytest.mark.row('A01')\ndef test_a():\n    pytest.importorskip('torch')",
    ],
)
def test_a_test_that_may_not_run_proves_nothing(
    folder: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_a.py").write_text(f"import pytest\n{source}\n", encoding="utf-8")

    assert dev_rows(folder) == 0

    assert "0 of 2" in capsys.readouterr().out.splitlines()[3]


def test_the_list_shows_the_check_the_test_and_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_a.py").write_text(
        "import pytest\n\n@pytest.mark.row('A02')\ndef test_it_stops(): ...\n", encoding="utf-8"
    )

    assert dev_rows(folder, "--list") == 0

    text = capsys.readouterr().out
    assert "check:   it stops" in text
    assert "partial: two processes" in text
    assert "test:    test_it_stops" in text
    assert "tests/test_a.py:4" in text
    assert "A01" not in text


def test_the_missing_rows_are_those_without_a_full_proof(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_a.py").write_text(
        "import pytest\n\n@pytest.mark.row('A01', 'A02')\ndef test_it(): ...\n", encoding="utf-8"
    )

    assert dev_rows(folder, "--missing", "a") == 0

    text = capsys.readouterr().out
    assert "A02" in text and "partial" in text
    assert "A01" not in text and "B01" not in text


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        ("@pytest.mark.row('Z99')", "no row Z99"),
        ("@pytest.mark.row()", "without an id"),
        ("@pytest.mark.row('A01', 'A02', 'B01', 'B02')", "4 rows in one test"),
        ("@pytest.mark.row('A' + '01')", "literal"),
    ],
)
def test_a_wrong_mark_is_an_error_of_the_count(
    folder: Path, mark: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_a.py").write_text(
        f"import pytest\n{mark}\ndef test_a(): ...\n", encoding="utf-8"
    )

    assert dev_rows(folder) == 1

    error = capsys.readouterr().err
    assert what in error and "test_a.py:3" in error


def test_a_row_that_does_not_exist_is_refused_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dev_rows(folder, "Q01") == 2

    assert "no row Q01" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        ("@pytest.mark.row('Z99')", "no row Z99"),
        ("@pytest.mark.row('A01', 'A02', 'A03', 'A04')", "4 rows in one test"),
        (
            "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.row('A01'))])",
            "cannot be read",
        ),
    ],
)
def test_a_test_with_a_wrong_mark_fails(pytester: pytest.Pytester, mark: str, what: str) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    row(*ids): rows")
    pytester.makeconftest("from rows import fail_on_a_wrong_mark as pytest_runtest_call")
    pytester.makepyfile(f"import pytest\n{mark}\ndef test_a({'x' if 'param' in mark else ''}): ...")

    result = pytester.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{what}*"])


def test_a_test_with_a_right_mark_passes(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    row(*ids): rows")
    pytester.makeconftest("from rows import fail_on_a_wrong_mark as pytest_runtest_call")
    pytester.makepyfile(
        "import pytest\n@pytest.mark.row('A01')\n@pytest.mark.parametrize('x', [1, 2])\ndef test_a(x): ..."
    )

    pytester.runpytest_inprocess().assert_outcomes(passed=2)
