"""Whose a file is: the user's project and what its configs name, or a library's."""

from __future__ import annotations

import pathlib
from pathlib import Path

import click
import pytest
import torch

from assay.core import code_places
from assay.core.code_places import HOUSE, add_user_code, is_of_user

PLACES = {
    "project/net.py": True,
    "project/src/parts/net.py": True,
    "project/.venv/lib/python3.11/site-packages/click/core.py": False,
    "home/.local/lib/python3.11/site-packages/click/core.py": False,
    "usr/lib/python3/dist-packages/click/core.py": False,
    "libraries/click/core.py": False,  # on PYTHONPATH
    "named/package/net.py": True,
    "named/other/net.py": False,
    "named/single.py": True,
    "tmp/ipykernel_12/3456.py": True,
}


@pytest.mark.parametrize("place", PLACES)
def test_the_project_and_what_its_configs_name_are_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for folder in ("project", "libraries"):
        (tmp_path / folder).mkdir()
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    monkeypatch.setattr(code_places, "_places", {})
    monkeypatch.chdir(tmp_path / "project")
    add_user_code([str(tmp_path / "named" / "package"), str(tmp_path / "named" / "single.py")])

    assert is_of_user(str(tmp_path / place)) is PLACES[place]


def test_assay_python_and_code_without_a_file_are_not_the_users() -> None:
    libraries = [str(module.__file__) for module in (pathlib, torch, click)]
    for file in (f"{HOUSE}/cli/main.py", *libraries, "<string>", ""):
        assert not is_of_user(file)
