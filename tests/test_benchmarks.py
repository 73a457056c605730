"""The benchmarks run, and print every figure named in their results; no time is tested."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

import pytest

from warm_python import Run

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks"
SOURCE = str(ROOT / "src")
RESULTS = FOLDER / "RESULTS.md"


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        "steps",
        "gpt",
        "trace",
        "loader",
        "startup",
        "config",
        "context",
        "checkpoint",
        "records",
        "soak",
        "signals",
        "jobs",
        "serving",
        "ranks",
        "resuming",
    ],
)
def test_a_benchmark_prints_the_figures_that_the_results_name(name: str, warm: Run) -> None:
    named = named_in_results(name)

    # Not below the folder of pytest: the path of a socket there may be longer than the 107 bytes
    # that there are for it.
    with tempfile.TemporaryDirectory() as folder:
        printed = figures_of(name, Path(folder), warm)

    assert named
    assert named <= printed.keys()
    assert all(isinstance(value, int | float) for value in printed.values())


def figures_of(name: str, folder: Path, python: Run) -> dict[str, float]:
    done = python(
        [str(FOLDER / f"{name}.py"), "--quick", "--json"],
        folder=folder,
        variables={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["machine"]["python"]
    assert printed["measured"].keys() >= printed["targets"].keys()
    measured: dict[str, float] = printed["measured"]
    return measured


def named_in_results(name: str) -> set[str]:
    """What a table of the results has in its first column, without what a quick call leaves out."""
    rows = re.findall(r"^\| `([\w.]+)` \|(.*)", results_by_benchmark()[name], re.MULTILINE)
    return {figure for figure, rest in rows if "not with `--quick`" not in rest}


def results_by_benchmark() -> dict[str, str]:
    """The sections of the results whose heading names a benchmark."""
    _, *parts = re.split(
        r"^## (\w+)\.py.*$", RESULTS.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return dict(zip(parts[::2], parts[1::2], strict=True))
