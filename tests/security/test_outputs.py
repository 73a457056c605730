"""Output names in a config are data: targets of assay write into the record and nowhere else."""

from __future__ import annotations

import importlib
import inspect
import json
import os
from pathlib import Path

import pytest

from assay.config import own_targets
from warm_python import Run

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "path",
    "file",
    "filename",
    "folder",
    "dir",
    "directory",
    "log_dir",
    "root",
    "out",
    "output",
    "dest",
    "url",
)
CONFINED = {
    # a link to the record, in a folder inside the working directory
    "assay.compat.alchemy.plugins.FileLogger": ["log_dir"],
    # what is read
    "assay.compat.libai.datasets.CIFAR100Dataset": ["root"],
    "assay.compat.parts.masked_text.MaskedSentencePairs": ["path"],
    "assay.compat.parts.images.CIFAR100": ["root"],
    "assay.compat.parts.images.MNIST": ["root"],
}
NAMES = (
    "../../../out",
    "/tmp/../../{here}/out",
    "a/../../out",
    "..",
    "\0out",
    "out\n",
    "x" * 5_000,
    "~/out",
    "$HOME/out",
)

ROWS = [[i, i % 3] for i in range(4)]


def config(name: str) -> str:
    """A config that evaluates, and keeps outputs under `name` and a board for TensorBoard."""
    source = {"type": "assay.engine.data.map_style.SequenceWrapper", "datapipe": ROWS}
    collate = {"type": "torch.utils.data.default_collate", "_partial_": True}
    split = {"source": source, "batch_size": 2, "collate": collate}
    return json.dumps(
        {
            "tag": name[:100],
            "model": {"type": "torch.nn.Embedding", "num_embeddings": 4, "embedding_dim": 3},
            "process": {
                "type": "assay.engine.Supervised",
                "criterion": {"type": "torch.nn.CrossEntropyLoss"},
            },
            "optimizer": {"type": "torch.optim.SGD", "lr": 0.01},
            "data": {"train": split, "valid": split},
            "train": {"steps": 2},
            "evaluate": {
                "every": "1 epoch",
                "pipes": [{"type": "assay.engine.SaveOutputs", "name": name}],
            },
            "plugins": [{"type": "assay.plugins.TensorBoard"}, {"type": "assay.engine.Profile"}],
        }
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_what_a_config_calls_its_outputs_leads_nowhere(
    name: str, tmp_path: Path, warm: Run
) -> None:
    here = tmp_path / "a" / "project"
    here.mkdir(parents=True)
    (here / "a.json").write_text(config(name.replace("{here}", str(tmp_path))))
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    before = {*Path("/tmp").iterdir()}

    done = warm(["-m", "assay", "run", "a.json", "--quiet"], folder=here, variables=variables)

    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    (run,) = (here / "runs").iterdir()
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - {here / "a.json"}
    assert {
        path for path in made if run not in path.parents and here / ".assay" not in path.parents
    } == set()
    assert not any(
        path.name in {Path(name).name, "out", "output"} and not path.is_relative_to(tmp_path)
        for path in {*Path("/tmp").iterdir()} - before
    )


def test_no_target_of_assay_is_told_where_to_write() -> None:
    for module, names in own_targets.ALLOWED.items():
        for name in names:
            target = getattr(importlib.import_module(module), name)
            told = [each for each in inspect.signature(target).parameters if each in PLACES]
            assert told == CONFINED.get(f"{module}.{name}", []), f"{module}.{name}"


@pytest.mark.slow
@pytest.mark.parametrize("log_dir", ["../out", "{here}/out", "link/out"])
def test_a_file_logger_that_is_told_to_write_elsewhere_is_refused(
    log_dir: str, tmp_path: Path, warm: Run
) -> None:
    here = tmp_path / "project"
    here.mkdir()
    (here / "link").symlink_to(tmp_path, target_is_directory=True)
    given = json.loads(config("plain"))
    place = log_dir.replace("{here}", str(tmp_path))
    given["plugins"] = [{"type": "alchemy.plugins.FileLogger", "log_dir": place}]
    (here / "a.json").write_text(json.dumps(given))
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}

    done = warm(["-m", "assay", "run", "a.json"], folder=here, variables=variables)

    assert "`log_dir` is no path inside of the working directory" in done.stderr
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
