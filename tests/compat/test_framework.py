"""Texts of 2021 on logging and on curves, run as they stand there but for the repairs named."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from assay.query.run import RunView
from assay.store.layout import open_project, run_folders
from assay.store.series import read_series
from event_reader import read
from examples import SRC
from snippets import executed
from warm_python import Run

DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
AROUND = """
import numpy as np
import torch
from torch import nn


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(4 * 26 * 26, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, x):
        return self.fc(self.conv(x))


class vutils:
    @staticmethod
    def make_grid(x, nrow):
        return x[:nrow].permute(1, 2, 0, 3).reshape(1, x.shape[2], -1)


def accuracy_score(targets, found):
    return np.float64((targets == found).float().mean().item())


torch.manual_seed(0)
MyConvNet = ConvNet()
test_data_x, test_data_y = torch.rand(20, 1, 28, 28), torch.randint(10, (20,))
batch = (torch.rand(4, 1, 28, 28), torch.randint(10, (4,)))
train_loader = [batch] * 50
"""


@pytest.fixture
def snippet(warm: Run, tmp_path: Path) -> Run:
    """Runs the text of a row in a process of its own, in a new folder, to a good end."""

    def run(name: str, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
        text = before + executed(name) + after
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = warm(
            ["-m", "assay.compat", f"{name}.py"],
            folder=tmp_path,
            variables={**os.environ, **own},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.mark.row("S-B1", "B15")
def test_logging_is_set_up_in_the_four_ways_of_the_text(snippet: Run, tmp_path: Path) -> None:
    first = snippet("S-B1.1", after='logger.info("told")').stderr
    snippet("S-B1.2", after='logger.info("told")')
    third = snippet("S-B1.3", after='logger.warning("told")').stderr
    fourth = snippet("S-B1.4").stderr
    result = (tmp_path / "result.log").read_text(encoding="utf-8")
    alibaba = (tmp_path / "Alibaba.log").read_text(encoding="utf-8")

    assert re.fullmatch(rf"{DATE} - __main__ - INFO - told\n", first)
    assert re.fullmatch(rf"{DATE} - __main__ - INFO - told\n", alibaba)
    assert re.fullmatch(r"\d{4}/\d\d/\d\d [\d:]{8} - __main__ - WARNING - told\n", third)
    assert fourth == result
    said = [line for line in result.splitlines() if re.match(DATE, line)]
    assert [line.split(" - ")[2:] for line in said] == [
        ["INFO", "Start"],
        ["WARNING", "Something maybe fail."],
        ["ERROR", "Faild to get result"],
        ["INFO", "Finished"],
    ]
    assert "ZeroDivisionError: division by zero" in result


@pytest.mark.row("S-B6", "B33")
def test_a_loop_with_a_summary_writer_is_in_event_files_and_in_a_record(
    snippet: Run, tmp_path: Path
) -> None:
    printed = snippet("S-B6.board", AROUND).stdout

    assert re.findall(r"^global_step:(\d+), loss:", printed, re.MULTILINE) == ["100", "200"]
    (folder,) = run_folders(open_project(tmp_path))
    events, curves = read(folder.path / "board"), read_series(folder.metrics)
    for name in ("train loss", "test accuary"):
        steps, values = zip(*events.scalars[name], strict=True)
        assert steps == (100, 200) and np.allclose(values, curves[name].values)
    assert [step for step, *_ in events.images["train image sample"]] == [100, 200]
    assert set(events.histograms) == {
        f"{layer}.{kind}" for layer in ("conv.0", "fc.0", "fc.2") for kind in ("weight", "bias")
    }
    assert (tmp_path / "data" / "log" / folder.path.name).resolve() == folder.path / "board"


@pytest.mark.row("S-B6", "B34")
def test_a_loop_with_a_history_and_a_canvas_is_a_run_with_curves_and_images(
    snippet: Run, tmp_path: Path
) -> None:
    snippet("S-B6.live", AROUND)

    (folder,) = run_folders(open_project(tmp_path))
    view = RunView(folder)
    assert list(view.history("train_loss", "test_acc")) == [(1, 1), (3, 2)]  # epoch, step
    assert any("hidden_weight" in each.name for each in view.artifacts)
