"""Runs in a real kernel of Jupyter: one live output, drawings, ends of cells."""

from __future__ import annotations

from pathlib import Path

import pytest

import assay
from notebooks import executed

pytestmark = pytest.mark.thorough

BACKGROUND = """
import subprocess, sys, time
training = subprocess.Popen(
    [sys.executable, "-m", "assay", "run", "toy.toml", "tag=long", "train.epochs=1000000",
     "--device", "cpu", "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
while not any(run.last_step for run in assay.runs("tag = long")):
    time.sleep(0.1)
assay.runs("tag = long")[0].stop()
training.wait()
"""  # the function of a stop button: the last line is what the cell shows
CELLS = [
    "import assay\nresult = assay.run('toy.toml', device='cpu')\nresult",
    "result.run.plot('train/loss', 'valid/loss')",
    "run = assay.start(tag='first')\nrun.log({'loss': 1.0}, 1)\nrun.log({'loss': 0.5}, 2)",
    "other = assay.start(tag='second')\nother.log({'loss': 1.0}, 1)\nrun",
    "1 / 0",
    "print(other.view.status_text)",
    BACKGROUND,
    "runs = assay.runs(columns=['tag', 'status'])\nruns",
]


@pytest.mark.row("C76")
@pytest.mark.timeout(400)
def test_a_notebook_shows_one_live_output_and_ends_its_runs(toy: Path) -> None:
    trained, drawn, logged, second, failed, after, stopped, listed = [
        cell.outputs for cell in executed(CELLS, toy)
    ]

    page, result = (each for each in trained if each["output_type"] != "stream")
    table = page["data"]["text/html"]
    assert page["output_type"] == "display_data" and table.count("<tr>") == 5
    assert "<th>valid/acc</th>" in table and "<progress" not in table
    html = result["data"]["text/html"]
    assert "<polyline" in html and "log.txt</a>" in html
    assert result["data"]["text/plain"].startswith("<RunResult ")
    svg = drawn[0]["data"]["image/svg+xml"]
    assert svg.count("<polyline") == 2 and "valid/loss" in svg
    assert logged == []
    first, shown = second
    assert "is finished, a new one starts\n  fix: " in first["text"] and first["name"] == "stdout"
    assert "<b>first</b>" in shown["data"]["text/html"]
    assert any("ended with its cell: ZeroDivisionError" in each.get("text", "") for each in failed)
    assert after[0]["text"] == "failed: ZeroDivisionError: division by zero\n"
    assert stopped[0]["data"]["text/plain"] == "143"
    table = listed[0]["data"]["text/html"]
    assert table.startswith("<table><thead><tr><th>tag</th><th>status</th></tr>")
    ends = {run.tag: run.status for run in assay.runs(project=toy)}
    expected = {"toy": "finished", "first": "finished", "second": "failed", "long": "stopped"}
    assert ends == expected and all(f">{tag}</td>" in table for tag in expected)
    assert assay.runs("tag = long", project=toy)[0].checkpoints
    assert not any(each.get("name") == "stderr" for each in [*trained, *logged, *second, *after])
