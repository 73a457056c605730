"""State of the user's code that no checkpoint keeps is told at the start, recorded and shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.formats import run_file
from flow.conftest import SRC

MODEL = """
import net

class Net(net.Net):
    count = 0

    def forward(self, x):
        self.count += 1
        return super().forward(x) + 0.01 * self.count
"""


def test_a_hidden_state_is_told_with_its_fix_recorded_and_shown(
    toy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(toy)
    Path("hidden.py").write_text(MODEL)

    assert main(["run", "toy.toml", "model.type=hidden.Net", "--device", "cpu"]) == 0

    told = caplog.text
    assert "state of your code: model.count (a plain value) changes with each step" in told
    assert "get_extra_state" in told
    (record,) = Path("runs").iterdir()
    assert run_file.read(record).newest.code_state == "not kept: model.count"
    assert main(["show", "last"]) == 0
    assert "your code: not kept: model.count" in capsys.readouterr().out
    assert main(["show", "last", "--determinism"]) == 0
    shown = capsys.readouterr().out
    assert "state of your code" in shown.partition("Traps")[2].partition("\n\n")[0]


SCRIPT = """\
import torch

import assay
from assay.engine import Engine, Loader, Save, Saver, Supervised
from hidden import Net
from points import Points

model = Net(width=8)
process = Supervised(model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.01))
with assay.start(tag="plain") as run:
    save = Save(Saver(run.folder.checkpoints), every="3 steps")
    engine = Engine(process, Loader(Points(0), batch_size=8), steps=6, recorder=run)
    engine.bus.extend(save.handlers())
    engine.run()
"""


@pytest.mark.usefixtures("forking")
def test_a_script_with_an_engine_that_saves_is_told_of_a_hidden_state(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    (toy / ".assay").mkdir()
    Path("hidden.py").write_text(MODEL)
    Path("train.py").write_text(SCRIPT)

    done = subprocess.run(
        [sys.executable, "train.py"],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("state of your code: model.count (a plain value) changes") == 1
    (record,) = Path("runs").iterdir()
    assert run_file.read(record).newest.code_state == "not kept: model.count"
