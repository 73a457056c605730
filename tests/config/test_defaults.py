from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.build import instantiate
from assay.config import check_shape, get_config, load, plain
from assay.config.defaults import HOMES
from assay.config.lazy import Call
from assay.config.sources.python import DEFAULTS

CALLS = [
    (file.stem, name)
    for file in sorted(DEFAULTS.glob("[a-z]*.py"))
    for name, value in get_config(f"defaults/{file.name}").items()
    if isinstance(value, Call)
]


@pytest.mark.row("E05")
@pytest.mark.parametrize(("module", "name"), CALLS)
def test_every_default_builds(module: str, name: str) -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    late: dict[str, dict[str, Any]] = {
        "optim": {"params": list(model.parameters())},
        "schedule": {"optimizer": optimizer} if name == "Step" else {},
        "process": {"model": model, "optimizer": optimizer},
        "model": {},
    }

    built = instantiate(get_config(f"defaults/{module}.py")[name], **late[module])

    assert type(built).__name__ in get_config(f"defaults/{module}.py")[name].type


def test_there_is_a_default_for_every_section_that_is_said_to_have_one(tmp_path: Path) -> None:
    lines = [
        f"from assay.config.defaults.{module} import {section}" for section, module in HOMES.items()
    ]
    lines += ["from assay.config import L", 'data.train.source = L("model.Data")()']
    lines += ["del data.valid", "del data.test", "optimizer.lr = 1e-4", "train.epochs = 3"]
    (tmp_path / "config.py").write_text("\n".join(lines))
    (tmp_path / "model.py").write_text("class Data: ...\n")

    config = load(tmp_path / "config.py")

    assert check_shape(config) == []
    root = plain(config.root)
    assert set(root) == set(HOMES)
    assert (root["optimizer"]["lr"], root["train"]["epochs"]) == (1e-4, 3)
    assert get_config("defaults/optim.py").optimizer.lr == 1e-3
    assert list(config.files) == [str(tmp_path / "config.py")]


@pytest.mark.row("E01")
def test_missing_sections_are_told_at_once_with_defaults_to_start_from(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(
        "from assay.config.defaults.model import model\ntag = 'x'\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "assay", "run", str(tmp_path / "config.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert done.returncode == 2
    assert "no sections [process], [optimizer], [data], [train]" in done.stderr
    assert "from assay.config.defaults.optim import optimizer" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_defaults_import_nothing_heavy() -> None:
    code = "import sys; from assay.config import get_config as g; g('defaults/optim.py'); print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
