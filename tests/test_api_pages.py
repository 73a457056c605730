"""The API reference: every public name has an entry."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import assay

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
ENTRY = re.compile(r"^\.\. auto(?:class|function|data):: (\S+)$", re.MULTILINE)


def entries() -> Counter[str]:
    """Return the names with an entry, and how many each has."""
    return Counter(name for page in PAGES for name in ENTRY.findall(page.read_text("utf-8")))


def test_every_public_name_of_assay_has_one_entry() -> None:
    names = [f"assay.{name}" for name in assay.__all__ if name != "__version__"]

    assert {name: entries()[name] for name in names} == dict.fromkeys(names, 1)


@pytest.mark.slow
def test_every_public_name_of_the_engine_has_one_entry() -> None:
    import assay.engine

    names = [f"assay.engine.{name}" for name in assay.engine.__all__]

    assert {name: entries()[name] for name in names} == dict.fromkeys(names, 1)
