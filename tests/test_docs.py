"""The Python examples in the documentation and the README are run, each page in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.example import Example
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(page for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if page.exists())
SYBIL = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()])


def examples() -> list[Any]:
    """One parameter for each page that holds Python; the examples of a page share their names, as a reader would."""
    pages = [page for page in PAGES if "_build" not in page.parts and "```python" in page.read_text(encoding="utf-8")]
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages]


@pytest.mark.parametrize("page", examples())
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(page) > 0


def test_the_mistake_in_the_readme_is_answered_as_shown_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ assay (run \S+ trian\S+)\n(error: .*?)```", readme, re.MULTILINE | re.DOTALL)
    command, answer = shown

    said = subprocess.run(
        [sys.executable, "-m", "assay", *command.split()],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (said.returncode, said.stderr.rstrip()) == (2, answer.rstrip())


def test_a_broken_example_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("Try:\n\n```python\nx = 1\n```\n\nThen:\n\n```python\nassert x == 2\n```\n", encoding="utf-8")

    with pytest.raises(AssertionError):
        run(page)


def test_every_decision_is_numbered_once_and_says_what_was_turned_down() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))

    numbers = [page.name[:4] for page in pages]
    assert numbers == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {page.name[:4]}: "), page.name
        for part in ("**Context.**", "**Choice.**", "**Turned down.**", "**Look at it again when**"):
            assert part in text, f"{page.name} lacks {part}"


def run(page: Path) -> int:
    """Run the examples of one page in order; how many there were."""
    document = SYBIL.parse(page)
    document.namespace["__name__"] = "__main__"
    found: list[Example] = list(document.examples())
    for example in found:
        example.evaluate()
    return len(found)
