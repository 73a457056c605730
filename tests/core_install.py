"""Check run by CI in a core install: assay imports and keeps a record without torch."""

import importlib.util
from pathlib import Path

import assay

for absent in ("torch", "fastapi", "pytest", "matplotlib", "yaml"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is installed: this proves nothing"

with assay.start(tag="core", config={"lr": 1e-3}, desc="no extra is installed") as run:
    for step in range(1, 4):
        run.log({"train/loss": 1.0 / step}, step=step)

(record,) = Path("runs").rglob("run.json")
assert (record.parent / "metrics" / "1.rows").stat().st_size > 0
print(f"recorded: {record.parent.name}")
