"""One experiment in every config language: one hash, and bit-equal weights."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.formats import manifest, run_file
from languages import WRITERS

pytestmark = pytest.mark.slow

LAZY = """\
from assay.config import L
from assay.config.defaults.train import checkpoint
from points import Points

tag = "toy"
seed = 3
model = L("net.Net")(width=8)
data = {
    name: dict(source=L(Points)(split=split), batch_size=16) for split, name in enumerate(["train", "valid", "test"])
}
data["train"].update(batch_size=8)
data["train"]["source"].noisy = True
process = L("assay.engine.Supervised")(
    criterion=L("torch.nn.CrossEntropyLoss")(), metrics={"acc": L("assay.engine.Accuracy")()}
)
optimizer = L("torch.optim.AdamW")(lr=1e-2)
schedule = L("assay.engine.WarmupCosine")(warmup_ratio=0.1)
train = dict(epochs=4, clip_norm=1.0)
checkpoint.update(every="3 steps", keep=2, best=dict(metric="valid/acc", mode="max"))
"""

PARAMS = """\
import tomllib
from pathlib import Path

from assay import Params

class Toy(Params):
    def __init__(self):
        super().__init__()
        given = tomllib.loads(Path(__file__).with_name("toy.toml").read_text())
        for name, value in given.items():
            setattr(self, name, value)

config = Toy()
"""


@pytest.mark.row("F05")
def test_one_experiment_in_every_language_trains_to_the_same_bits(
    assay: Callable[..., object], toy: Path
) -> None:
    content = tomllib.loads((toy / "toy.toml").read_text())
    files = ["toy.toml"]
    for suffix, write in WRITERS.items():
        if suffix != ".toml":
            files.append(f"plain{suffix}")
            (toy / files[-1]).write_text(write(content), encoding="utf-8")
    (toy / "lazy.py").write_text(LAZY)
    (toy / "params.py").write_text(PARAMS)
    found = {}
    for file in [*files, "lazy.py", "params.py"]:
        before = set((toy / "runs").iterdir()) if (toy / "runs").exists() else set()
        ran = assay("run", file, "train.steps=20")
        assert ran.returncode == 0, (file, ran.stderr)
        (run,) = set((toy / "runs").iterdir()) - before
        steps = [
            each
            for each in (run / "checkpoints").iterdir()
            if manifest.step_of_folder(each.name) == 20
        ]
        found[file] = (run_file.read(run).newest.config_hash, manifest.read(steps[0]).digest)

    assert len(found) == 7
    assert len(set(found.values())) == 1, found
