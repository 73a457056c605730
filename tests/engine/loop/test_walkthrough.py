"""The page `How a step happens` against the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "reference" / "how-a-step-happens.md"
ENGINE = ROOT / "src" / "assay" / "engine"


def defined_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Return the names of functions and classes, those within classes as `Class.method`."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            names |= defined_in(node.body, f"{prefix}{node.name}.")
    return names


def test_every_function_that_the_walk_names_exists_in_its_file() -> None:
    places = re.findall(r"`([\w/]+\.py)::([\w.]+)`", PAGE.read_text(encoding="utf-8"))

    missing = [
        f"{file}::{name}"
        for file, name in places
        if name not in defined_in(ast.parse((ENGINE / file).read_text(encoding="utf-8")).body)
    ]

    assert len(places) > 20
    assert missing == []


def test_one_batch_passes_through_few_files_from_the_loader_to_the_update() -> None:
    page = PAGE.read_text(encoding="utf-8")
    path = page.partition("## The path")[2].partition("## After the update")[0]
    files = set(re.findall(r"`([\w/]+\.py)::", path))

    assert len(files) == 5, sorted(files)
