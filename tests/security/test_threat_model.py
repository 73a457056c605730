"""`SECURITY.md` is true: it names all classes of attacks; tests exist, corpora have its sizes."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import bypass

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (S\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_class_of_attacks_has_its_row_and_tests_that_are_there() -> None:
    rows = ROW.findall(TEXT)

    assert [row[0] for row in rows] == [f"S{number}" for number in range(1, 26)]
    for name, _, _, shown_by in rows:
        tests = TEST.findall(shown_by)
        assert tests, name
        for file, test in tests:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert test in {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            }, f"{file}::{test}"


def test_the_corpora_are_as_large_as_the_page_says() -> None:
    sys.path.insert(0, str(HERE))
    try:
        from hostile import corpus
    finally:
        sys.path.remove(str(HERE))

    sizes = {
        file: size.replace(",", "")
        for file, size in re.findall(
            r"^\| `(\S+)`: .* \| (?:over )?([\d,]+) \|", TEXT, re.MULTILINE
        )
    }

    assert sizes == {
        "tests/security/hostile.py": str(len(corpus()) // 100 * 100),
        "tests/bypass.py": str(len(bypass.REFUSED)),
        "tests/security/compositions.py": attacks_of("test_compositions.py"),
        "tests/security/records.py": str(int(attacks_of("test_records.py")) // 5),
    }


def attacks_of(file: str) -> str:
    """Return how many attacks a test makes if nothing else is asked for."""
    return re.findall(r'"ASSAY_ATTACKS", (\d+)', (HERE / file).read_text(encoding="utf-8"))[0]


def test_every_link_of_the_page_leads_to_a_file() -> None:
    for link in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / link).is_file(), link


def test_every_command_that_runs_code_is_on_the_page() -> None:
    from assay.cli.main import RUNS_CODE

    table = TEXT.partition("## What runs code")[2].partition("## ")[0]
    named = {
        name.split()[0]
        for cell in re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", cell.split(" (")[0])
    }

    assert {*RUNS_CODE, "load_model"} == named
