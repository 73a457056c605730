"""Private names of torch stand in one module, and the engine trains without them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "src"
HOME = SOURCE / "assay" / "engine" / "numerics" / "private_torch.py"
PRIVATE = re.compile(
    r"\btorch(\.\w+)*\._[a-z]\w*\(|from torch[\w.]*\._|from torch[\w.]* import _|import torch[\w.]*\._"
    r"|\._(compiled_call_impl|call_impl|overloadpacket|schema|is_view|version|local_tensor)\b"
    r"|\b(module|model)\._(buffers|parameters|modules)\b"
)

TRAINING = """
import sys
import torch
from torch.optim import optimizer as optimizer_module
from torch.utils.data import _utils as data_utils

NAMES = {
    torch: [name for name in vars(torch) if name.startswith(("_foreach_", "_amp_foreach"))],
    torch._C: ["_current_graph_task_id"],
    torch.autograd: ["_profiler_enabled"],
    torch.autograd.graph: ["_engine_run_backward"],
    optimizer_module: ["_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"],
    data_utils.worker: ["WorkerInfo"],
    torch.nn.modules.batchnorm: ["_NormBase"],
}
hidden = []
if sys.argv[1] == "without":
    hidden = [(home, name, getattr(home, name)) for home, names in NAMES.items() for name in names]
assert sys.argv[1] == "with" or len(hidden) > 20
for home, name, _ in hidden:
    delattr(home, name)
from assay.engine.numerics import private_torch
for home, name, value in hidden:  # torch itself needs them
    setattr(home, name, value)

from assay.engine.callbacks.ema import EMA
from assay.engine.optim.optimizer_step import OptimizerStep
from engine.toys import engine, hard_net, supervised

torch.set_num_threads(1)
model = hard_net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step = OptimizerStep(optimizer, clip_norm=0.5, non_finite="skip")
process = supervised(model, backward=step)
run = engine(process, handlers=EMA(0.9).handlers(), epochs=4)
run.run()
numbers = [value for weight in model.parameters() for value in weight.flatten().tolist()]
print(run.state.step, step.grad_norm is not None, [round(value, 4) for value in numbers])
"""


def test_no_other_module_of_the_engine_names_what_torch_keeps_private() -> None:
    found = []
    for path in sorted((SOURCE / "assay" / "engine").rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if path != HOME and PRIVATE.search(line.split("#")[0]):
                found.append(f"{path.name}:{number}: {line.strip()}")

    assert found == []


@pytest.mark.thorough
@pytest.mark.slow
def test_without_the_private_names_a_run_ends_with_the_same_numbers() -> None:
    with_names, without = (
        subprocess.run(
            [sys.executable, "-c", TRAINING, which],
            env={"PYTHONPATH": f"{SOURCE}:{Path(__file__).resolve().parents[2]}"},
            capture_output=True,
            text=True,
        )
        for which in ("with", "without")
    )

    assert with_names.returncode == 0, with_names.stderr
    assert without.returncode == 0, without.stderr
    assert without.stdout == with_names.stdout
    assert with_names.stdout.startswith("12 True [")
