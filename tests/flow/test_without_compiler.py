"""A run that compiles nothing loads no compiler, and has the bits of one that has loaded it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import SRC

TRAIN = """\
import hashlib
import sys
import torch
torch.set_num_threads(1)
if "first" in sys.argv:
    import torch._dynamo
import assay

if __name__ == "__main__":
    run = assay.run("toy.toml", device="cpu")
    print(*(f"{name} {value.hex()}" for name, value in run.value.items()))
    print(hashlib.sha256(b"".join(sorted(
        file.read_bytes() for file in run.record_dir.glob("checkpoints/*/*.safetensors")
    ))).hexdigest())
    print(*(name in sys.modules for name in ("torch._dynamo", "torch.distributed.tensor")))
"""

MIXED = """\
import sys
import torch
from assay.engine.optim.torch_step import take_step

model = torch.nn.Linear(3, 3)
optimizer = torch.optim.{name}(model.parameters(), lr=0.1)
assert "torch._dynamo" not in sys.modules

def step(x):
    optimizer.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return loss

model(torch.ones(2, 3)).sum().backward()
take_step(optimizer)
assert "torch._dynamo" not in sys.modules
print(torch.compile(step, backend="eager")(torch.ones(2, 3)).item() > 0)
from torch._dynamo.utils import counters
assert counters["stats"]["unique_graphs"], counters
left = [n for n in ("load_state_dict", "state_dict", "zero_grad")
        if vars(getattr(torch.optim.Optimizer, n).__wrapped__)["__dynamo_disable"].__module__ != "torch._dynamo.eval_frame"]
print(left)
"""


def printed(script: str, folder: Path, *arguments: str) -> list[str]:
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_run_loads_no_compiler_and_no_divided_tensors_and_has_the_bits_of_one_that_did(
    toy: Path,
) -> None:
    *without, is_loaded = printed(TRAIN, toy)
    *with_it, was_loaded = printed(TRAIN, toy, "first")

    assert is_loaded == "False False" and was_loaded.startswith("True")
    assert without == with_it and "valid/acc" in without[-2]


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_who_compiles_after_a_step_gets_what_torch_does(name: str, tmp_path: Path) -> None:
    assert printed(MIXED.format(name=name), tmp_path) == ["True", "[]"]
