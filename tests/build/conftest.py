"""User code in real files, and configs that name it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.config.sources.toml import read_toml
from assay.config.tree import Table


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Put `name=source` into `name.py` of a folder; `a__b` is the module `b` of the package `a`."""

    def put(folder: str = "project", **files: str) -> Path:
        place = tmp_path / folder
        for name, source in files.items():
            file = place.joinpath(*name.split("__")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.parent != place:
                (file.parent / "__init__.py").touch()
            file.write_text(textwrap.dedent(source))
        return place

    return put


@pytest.fixture
def tree() -> Callable[[str], Table]:
    """A config as it is written."""
    return lambda text: read_toml(textwrap.dedent(text).lstrip("\n"), "digits.toml")
