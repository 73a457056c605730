"""Launcher of case scripts in real ranks, with their answers compared to those of one process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import warm_python

SOURCE = Path(__file__).resolve().parents[3] / "src"


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
    path: Path, folder: Path, ranks: int, cases: Sequence[str] = (), *, warm: warm_python.Run
) -> list[Any]:
    """Return what `python PATH FOLDER RANK RANKS CASES` left in FOLDER/RANK.json, for each rank.

    The ranks are forked with torch at hand, in turn with one of two seeds of hashes.
    """

    variables = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def run(rank: int) -> str:
        arguments = [str(path), str(folder), str(rank), str(ranks), *cases]
        done = warm(arguments, folder=Path.cwd(), variables=variables)
        return "" if done.returncode == 0 else done.stderr or f"ended with {done.returncode}"

    with ThreadPoolExecutor(ranks) as pool:
        told = list(pool.map(run, range(ranks)))
    assert not any(told), "\n".join(told)
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
