"""Examples in docstrings, which are part of the documentation, print what stands below them."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import assay

SOURCE = Path(assay.__file__).parent
MODULES = sorted(
    ".".join(("assay", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if any(
        ">>> " in line and "+SKIP" not in line
        for line in path.read_text(encoding="utf-8").splitlines()
    )
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_print_what_they_say(name: str) -> None:
    module = importlib.import_module(name)

    failed, tried = doctest.testmod(module, report=False)

    assert tried > 0
    assert failed == 0
