"""State of the user's code that no checkpoint keeps is told at the start, recorded and shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.cli.main import main
from assay.core import run_file

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
