"""Buttons of a notebook that start, watch and stop a training, in a real kernel of Jupyter."""

from __future__ import annotations

from pathlib import Path

import pytest

import assay
from assay.core.errors import MissingExtraError
from assay.report import run_panel
from assay.report.run_panel import RunPanel
from notebooks import executed

MAKE = """
import time
from assay.report.run_panel import RunPanel

def wait(condition):
    while not condition():
        time.sleep(0.1)

panel = RunPanel("toy.toml", "tag=panel", "train.epochs=1000000", "--device", "cpu")
panel
"""
CELLS = [
    MAKE,
    "panel.start_button.click()\nwait(lambda: '<polyline' in panel.page.value)\n"
    "print(panel.start_button.disabled, panel.stop_button.disabled)",
    "panel.start()",
    "panel.stop_button.click()\nwait(lambda: not panel.start_button.disabled)\n"
    "print(panel.process.returncode, panel.run.status, 'stopped' in panel.page.value)",
    "other = RunPanel('nowhere.toml')\nother.start()\nwait(lambda: not other.start_button.disabled)\n"
    "print(other.run, other.page.value)",
]


@pytest.mark.thorough
@pytest.mark.row("C76")
@pytest.mark.timeout(400)
def test_a_training_is_started_watched_and_stopped_by_buttons(toy: Path) -> None:
    pytest.importorskip("ipywidgets")

    shown, started, refused, stopped, failed = [cell.outputs for cell in executed(CELLS, toy)]

    assert "application/vnd.jupyter.widget-view+json" in shown[0]["data"]
    assert started[0]["text"] == "True False\n"
    assert "The training is under way." in refused[0]["evalue"]
    assert stopped[0]["text"] == "143 stopped True\n"
    assert failed[0]["text"].startswith("None <pre>") and "nowhere.toml" in failed[0]["text"]
    assert assay.runs("tag = panel", project=toy)[0].checkpoints


def test_without_ipywidgets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(run_panel, "import_module", missing)
    with pytest.raises(MissingExtraError, match="assay\\[notebook\\]"):
        RunPanel("toy.toml")
