"""Texts that each language allows or refuses, in cases of our own: `suites/`, one file a language.

The public suites were read by the same readers (2026-11-22, Python 3.11, PyYAML 6.0.3 with
libyaml), with these counts; YAML of 2026-11-29 takes PyYAML's word. None of them is copied here.

- toml-test d168c2a. TOML 1.1: 220 of 220 valid files read as the suite says, 483 of 483 invalid ones refused at a
  place, 9 more refused as no UTF-8. TOML 1.0: 210 of 210 valid ones, and 481 of 490 invalid ones:
  1.1 allows the 9. 1,108,185 of its files after random edits: the same verdict and the same tree as
  `tomli` 2.4.
- JSONTestSuite 1ef36fa, of which a config can only be a table. Of 12 tables that must be read 10 are, and 2 with a key
  twice are refused; 83 of 83 other values refused. Of 188 texts that must be refused 184 are, 12 of
  them as no UTF-8; the 4 have comments or a comma at the end. Of 35 that may be either one is read.
- yaml-test-suite, data 6ad3d2c. Of 158 valid texts with a table, 98 read as the suite says, 3 differ as PyYAML does, 57
  are refused: 32 that PyYAML cannot read, 12 with keys that are no text, 7 with tags of objects, 6
  that are no table. 132 of 132 other values and 18 of 18 texts of several documents refused; of 94
  errors 87, the rest PyYAML reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.config.loading import READERS
from assay.config.tree import plain

SUITES = Path(__file__).parent / "suites"
RULE = "=" * 8 + " "


def cases() -> list[Any]:
    found = []
    for file in sorted(SUITES.glob("*.txt")):
        parts = ("\n" + file.read_text(encoding="utf-8")).split(f"\n{RULE}")[1:]
        while parts:
            title, _, text = parts.pop(0).partition("\n")
            wanted = (
                json.loads(parts.pop(0).partition("\n")[2]) if title.startswith("taken") else None
            )
            found.append(
                pytest.param(file.stem, text.replace("␍", "\r"), wanted, id=f"{file.stem} {title}")
            )
    return found


@pytest.mark.parametrize(("language", "text", "wanted"), cases())
def test_a_text_is_read_or_refused_as_its_language_says(
    language: str, text: str, wanted: Any
) -> None:
    root, problems = READERS[f".{language}"](text, f"a.{language}", excerpt=True)

    if wanted is not None:
        assert problems == []
        assert plain(root) == wanted
        return
    assert problems
    lines = text.split("\n")
    for problem in problems:
        assert 1 <= problem.origin.line <= len(lines)
        assert 1 <= problem.origin.column <= len(lines[problem.origin.line - 1]) + 1
