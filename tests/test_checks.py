"""What a tool of its own judges: format, types, the page. The documentation: `test_search.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("check", "folder"),
    [
        pytest.param(("-m", "ruff", "format", "--check", "."), ".", id="format"),
        pytest.param(("-m", "ruff", "check", "."), ".", id="lint"),
        pytest.param(("-m", "deptry", "src"), ".", id="dead dependencies"),
        pytest.param(("-m", "mypy"), ".", marks=pytest.mark.thorough, id="types"),
        pytest.param(
            (ROOT / "dev", "npm", "run", "--silent", "check"),
            "frontend",
            marks=pytest.mark.thorough,
            id="page",
        ),
    ],
)
@pytest.mark.timeout(3000)
def test_a_tool_finds_nothing_to_say(check: tuple[str, ...], folder: str) -> None:
    done = subprocess.run(
        [sys.executable, *check],
        cwd=ROOT / folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
