"""Names that a pasted text uses without importing them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from assay.compat.parts.devices import StayOnCpu
from assay.compat.pasted import missing_names
from examples import SRC
from warm_python import Run


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("am = AvgMeter()", ["AvgMeter"]),
        ("from thexp.frame import AvgMeter\nam = AvgMeter()\nm = Meter()", ["Meter"]),
        ("def f(x: Optional[int]) -> nn.Module: return Path", ["Optional", "Path", "nn"]),
        ("import torch as nn\nprint(nn, len)", []),
        ("def f(nn): return nn\nclass Path: pass\nfor os in []: print(os, Path)", []),
        ("print(nobody_knows_this)", []),
        ("State()", []),  # two targets go by that name
        ("from math import *\nprint(nn)", []),
        ("global nn\nprint('unfinished", []),
    ],
)
def test_names_that_are_read_and_bound_nowhere_are_found(text: str, names: list[str]) -> None:
    assert list(missing_names(text)) == names


def test_a_pasted_script_is_told_what_it_was_supplied_with(warm: Run, tmp_path: Path) -> None:
    (tmp_path / "text.py").write_text("print(nn.Linear(1, 1).cuda(), Nobody)", encoding="utf-8")
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}

    done = warm(["-m", "assay.compat", "text.py"], folder=tmp_path, variables={**os.environ, **own})

    first, *_, last = done.stderr.splitlines()
    assert first == "note: text.py does not import nn (torch.nn): supplied"
    assert last == "NameError: name 'Nobody' is not defined"


def test_cuda_calls_of_every_module_that_a_script_imports_stay_on_a_machine_without_a_gpu(
    warm: Run, tmp_path: Path
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "step.py").write_text(
        "def step(image):\n    return image.cuda(non_blocking=True)\n", encoding="utf-8"
    )
    (tmp_path / "lib.py").write_text("from parts.step import step\n", encoding="utf-8")
    (tmp_path / "main.py").write_text(
        "import torch\nfrom lib import *\nprint(step(torch.ones(2)).device)\n", encoding="utf-8"
    )
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}

    done = warm(["-m", "assay.compat", "main.py"], folder=tmp_path, variables={**os.environ, **own})

    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr


def test_a_script_that_is_not_there_is_one_error(warm: Run, tmp_path: Path) -> None:
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}

    done = warm(["-m", "assay.compat", "none.py"], folder=tmp_path, variables={**os.environ, **own})

    assert done.returncode == 2 and done.stderr.startswith("error: The script cannot be read: No")


def test_tensors_and_modules_stay_where_they_are_without_a_gpu() -> None:
    tensor, model = torch.ones(2), torch.nn.Linear(2, 2)

    with StayOnCpu():
        assert tensor.cuda(non_blocking=True) is tensor
        assert model.cuda().weight.device.type == "cpu"
        assert (tensor + 1).tolist() == [2, 2]
