"""Runs started from a notebook's cells: there is no file, and an event loop is running."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from assay.cli.main import main
from assay.formats import run_file
from flow.conftest import SRC
from flow.test_train import only_run
from warm_python import Run

pytestmark = pytest.mark.slow

KERNEL = """
import asyncio, json, sys

async def cells():
    names = {"__name__": "__main__"}
    for number, cell in enumerate(json.load(open(sys.argv[1])), 1):
        exec(compile(cell, f"<ipython-input-{number}>", "exec"), names)
        await asyncio.sleep(0)

asyncio.run(cells())
"""


@pytest.fixture
def in_cells(toy: Path, warm: Run) -> Run:
    """Runner of cells as in a notebook's kernel: by `exec`, without `__file__`, inside a loop."""

    def run(*cells: str) -> subprocess.CompletedProcess[str]:
        (toy / "cells.json").write_text(json.dumps(cells))
        own = {"PYTHONPATH": str(SRC), "NO_COLOR": "1"}
        done: subprocess.CompletedProcess[str] = warm(
            ["-c", KERNEL, "cells.json"], folder=toy, variables={**os.environ, **own}
        )
        return done

    return run


@pytest.mark.thorough
@pytest.mark.row("A42")
def test_configs_are_run_from_the_cells_of_a_notebook_in_their_order(in_cells, toy: Path) -> None:
    (toy / "other.toml").write_text(
        (toy / "toy.toml").read_text().replace('tag = "toy"', 'tag = "other"')
    )

    ran = in_cells(
        "import assay\nassert '__file__' not in globals()",
        "results = assay.run(['toy.toml', 'nothing.toml', 'other.toml'], device='cpu', desc='by hand', check=False)",
        "print([result.status for result in results], [result.step for result in results])",
        "print([result.config.root.items['tag'].value for result in results if result.config])",
        "print(assay.load_model(str(results[2].record_dir), 'latest').training)",
        "assert assay.run('toy.toml', no_file=True, device='cpu').record_dir is None",
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "['finished', 'failed', 'finished'] [32, 0, 32]",
        "['toy', 'other']",
        "False",
    ]
    assert "\x1b" not in ran.stderr and "epoch  4/4  step    32" in ran.stderr
    runs = {run_file.read(run).tag: run for run in (toy / "runs").iterdir()}  # side by side
    assert sorted(runs) == ["other", "toy"]
    assert "by hand" in (runs["toy"] / "README.md").read_text()


def test_what_only_looks_wrong_is_said_to_whoever_runs_it_from_python(in_cells, toy: Path) -> None:
    text = (toy / "toy.toml").read_text().replace("width = 8", 'width = "${sizes.width}"')
    (toy / "toy.toml").write_text(f"{text}\n[sizes]\nwidth = 8\nspare = 2\n")

    ran = in_cells(
        "import assay", "assert assay.run('toy.toml', device='cpu').status == 'finished'"
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("warning: nothing uses `sizes.spare`") == 1
    assert only_run(toy)


@pytest.mark.row("E52")
@pytest.mark.parametrize(
    ("seed", "threads", "deterministic", "said"),
    [(3, 2, False, True), (3, 1, False, False), (0, 2, False, False), (3, 2, True, False)],
)
def test_a_seed_that_was_asked_for_tells_what_limits_it_only_where_something_does(
    seed: int,
    threads: int,
    deterministic: bool,
    said: bool,
    toy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(toy)
    before = torch.get_num_threads()
    given = [
        f"seed={seed}",
        f"threads={threads}",
        f"train.deterministic={str(deterministic).lower()}",
    ]
    try:
        assert (
            main(["run", "toy.toml", "--device", "cpu", "--max-steps", "1", "--no-file", *given])
            == 0
        )
    finally:
        torch.set_num_threads(before)

    assert ("seed: the same bits with 2 threads only\n" in capsys.readouterr().err) == said
