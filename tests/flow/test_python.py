"""Configs in Python, from file to record: calls with one mapping, and runs without the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import assay
from assay.build import instantiate, user_code
from assay.cli.main import main
from assay.config import config_hash, load, plain
from assay.config.tree import same
from assay.formats import run_file

pytestmark = pytest.mark.slow

PARTS = """
import enum

from torch import nn

from assay.build import configurable

class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"

class Level(enum.IntEnum):
    HIGH = 3

def twice(x):
    return 2 * x

class Net(nn.Module):
    @configurable
    def __init__(self, width=4, act=nn.Tanh, change=None, mode: Mode = Mode.SLOW, level: Level | None = None):
        super().__init__()
        self.mode, self.level, self.change = mode, level, change
        self.layers = nn.Sequential(nn.Linear(4, width), act(), nn.Linear(width, 2))

    def forward(self, x):
        return self.layers(self.change(x) if self.change else x)
"""

REST = """
from assay.config import L
from points import Points
from parts import Level, Mode, Net, twice
from torch import nn

seed = 3
data = dict(train=dict(source=L(Points)(split=0), batch_size=8))
process = L("assay.engine.Supervised")(criterion=L(nn.CrossEntropyLoss)())
optimizer = L("torch.optim.SGD")(lr=0.1)
train = dict(steps=2)
"""


@pytest.fixture
def folder(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy project with a network that is given a class, a function and enums."""
    (toy / "parts.py").write_text(PARTS)
    monkeypatch.chdir(toy)
    return toy


@pytest.mark.thorough
@pytest.mark.row("E08")
def test_a_dictionary_and_arguments_by_name_make_the_same_run(folder: Path) -> None:
    (folder / "mapping.py").write_text(
        REST + "\ncfg = dict(width=6, act=nn.ReLU)\nmodel = L(Net)(cfg)\n"
    )
    (folder / "names.py").write_text(REST + "\nmodel = L(Net)(width=6, act=nn.ReLU)\n")
    assert main(["check", "mapping.py"]) == 0

    first, second = assay.run(["mapping.py", "names.py"])

    assert first.exception is None and second.exception is None
    one, other = (assay.load_model(f"{result.id}@latest") for result in (first, second))
    assert repr(one) == repr(other) and "ReLU" in repr(one)
    assert all(
        torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items()
    )
    with user_code([folder]):
        from parts import Net  # type: ignore[import-not-found]

        made = [
            Net({"width": 6}),
            Net(width=6),
            instantiate(load("mapping.py").root.items["model"]),
        ]
        assert len({repr(each.layers[0]) for each in made}) == 1


@pytest.mark.thorough
@pytest.mark.row("E14", "F04")
def test_what_a_python_config_named_is_kept_without_the_code_it_came_from(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = "model = L(Net)(width=6, act=nn.ReLU, change=twice, mode=Mode.FAST, level=Level.HIGH)\n"
    (folder / "config.py").write_text(REST + model)
    result = assay.run("config.py")
    assert result.exception is None and result.config is not None and result.record_dir is not None
    elsewhere = tmp_path / "another machine"
    shutil.copytree(result.record_dir, elsewhere / "record")
    code = folder.rename(tmp_path / "gone")
    monkeypatch.chdir(elsewhere)

    again = load("record/config.toml")

    assert same(again.root, result.config.root)
    assert config_hash(again.root) == config_hash(result.config.root)
    kept = plain(again.root)["model"]
    assert kept["act"] == {"type": "torch.nn.ReLU", "_partial_": True}
    assert kept["change"] == {"type": "parts.twice", "_partial_": True}
    assert (kept["mode"], kept["level"]) == ("fast", 3)
    for name in ("parts.py", "points.py"):
        shutil.copy(code / name, elsewhere)
    rerun = assay.run("record/config.toml", user_dir=".")
    assert rerun.exception is None and rerun.record_dir is not None
    old, new = run_file.read(elsewhere / "record").newest, run_file.read(rerun.record_dir).newest
    assert new.config_hash == old.config_hash
    net = assay.load_model(f"{rerun.id}@latest")
    assert (net.mode.name, net.level.name, net.change(2)) == ("FAST", "HIGH", 4)


@pytest.mark.row("E14", "F04")
def test_a_lambda_is_refused_before_anything_is_built_with_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.py").write_text(REST + "model = L(Net)(width=6, change=lambda x: 2 * x)\n")

    assert main(["run", "config.py"]) == 2

    told = capsys.readouterr().err
    assert "a lambda has no name that a config could keep" in told and "config.py:12" in told
    assert "define a function in a module of its own and name that" in told
    assert not (folder / "runs").exists()
