"""Scripts of cases run by real processes that find each other, and their answers compared with
those of one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def script(name: str, path: Path) -> ModuleType:
    """The module of a script, which processes run by itself."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def answers(
    path: Path, folder: Path, ranks: int, cases: Sequence[str] = (), *, seconds: float = 100
) -> list[Any]:
    """What `python PATH FOLDER RANK RANKS CASES` left in FOLDER/RANK.json, for each rank."""
    running = [
        subprocess.Popen(
            [sys.executable, str(path), str(folder), str(rank), str(ranks), *cases],
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for rank in range(ranks)
    ]
    try:
        told = [each.communicate(timeout=seconds)[1] for each in running]
    finally:
        for each in running:
            each.kill()
    assert not any(each.returncode for each in running), "\n".join(told)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def close(found: Any, expected: Any) -> None:
    """Equal, numbers within rounding in double precision."""
    match expected:
        case float():
            assert found == pytest.approx(expected, rel=1e-10, abs=1e-10)
        case dict():
            assert found.keys() == expected.keys()
            for key in expected:
                close(found[key], expected[key])
        case list():
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                close(one, other)
        case _:
            assert found == expected
