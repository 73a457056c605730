"""From a log call to a pixel: store, query, route, a table of live rows and a growing curve."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from run_folders import make_project, make_run
from web.conftest import Visitor
from web.serving import Server

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, time
import assay

with assay.start(tag="live-one", config={"lr": 0.1}) as run:
    print(run.id, flush=True)
    step = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            step += 1
            run.log({"train/loss": 1 / step}, step=step)
        print(step, flush=True)
"""


@pytest.fixture
def training(tmp_path: Path):
    """A process that trains: it logs as many steps as it is told, and ends with its input."""
    project = make_project(tmp_path / "project")
    make_run(project, tag="done", points={"train/loss": [1.0, 0.5]}, config="lr = 0.3\n")
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=project.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process, project.root
    assert process.returncode == 0


def test_a_run_that_trains_is_on_the_page_and_its_curve_grows(
    training, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    process, root = training
    run_id = process.stdout.readline().strip()

    def log(steps: int) -> None:
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()
        process.stdout.readline()

    log(10)
    page = visit(serve(root)).open()
    row = page.locator(f'[data-run="{run_id}"]')
    row.get_by_text("live", exact=True).wait_for()
    assert row.get_attribute("aria-selected") == "true"
    panel = page.get_by_role("figure", name="train/loss")
    assert panel.get_by_role("img").get_attribute("aria-label") == "train/loss: 1 run"
    page.wait_for_function("() => document.querySelector('[data-last]')?.dataset.last === '10'")
    log(30)
    page.wait_for_function("() => document.querySelector('[data-last]')?.dataset.last === '40'")

    process.stdin.close()
    row.get_by_text("finished").wait_for()
    page.get_by_text("2 runs").wait_for()
