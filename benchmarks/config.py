"""Cost of a config: `assay check` of 500 keys in its own process, loading up to 100,000 keys.

The checked config has 500 keys: a model of many parts in user code, and calls of torch. `shape` is
the shape stage alone, `whole` both stages, each beside `import torch`; CPU time is user and system
time as the kernel counts it. The figures are medians. `check.over_torch_s` is what checking costs
beyond importing torch.

`load.N` is reading a file of N keys into a tree with the place of every one, in this process.
`shape.N` is the shape stage over it, `hash.N` its canonical form and hash; `growth` is time per key
of the largest over that of the smallest: 1 is linear.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from figures import Figure, machine, options, show

from assay.config import check_shape, config_hash, open_config
from assay.config.loading import Config

KEYS_PER_PART = 8

MODEL = """\
class Part:
    def __init__(self, width: int, depth: int = 1, rate: float = 0.1, bias: bool = True, name: str = "",
                 sizes: tuple[int, int] = (1, 1), act: str = "relu"): ...

class Net:
    def __init__(self, parts: list[Part], head=None): ...
"""

PART = """\
[[model.parts]]
type = "model.Part"
width = {i}
depth = 2
rate = 0.25
bias = false
name = "part {i}"
sizes = [3, {i}]
act = "gelu"
"""

REST = """\
[model.head]
type = "torch.nn.Linear"
in_features = 32
out_features = 10

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss", label_smoothing = 0.1 }

[optimizer]
type = "torch.optim.AdamW"
lr = 1e-3
betas = [0.9, 0.99]

[train]
epochs = 5
precision = "fp32"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Python with these arguments, in `folder`, again and again."""

    folder: Path
    arguments: Sequence[str]
    cpu_s: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Once, timed."""
        environ = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        process = subprocess.Popen(
            [sys.executable, *self.arguments],
            cwd=self.folder,
            env=environ,
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"error: {' '.join(self.arguments)} ended with {process.returncode}")
        self.cpu_s.append(used.ru_utime + used.ru_stime)


def config_of(num_keys: int, folder: Path) -> Path:
    """A file with that many keys, and the user code that it names."""
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    parts = (num_keys - REST.count(" = ")) // KEYS_PER_PART
    head = 'partial = true\n[model]\ntype = "model.Net"\n'  # it has no data
    text = [head, *(PART.format(i=i) for i in range(1, parts + 1)), REST]
    file = folder / f"keys_{num_keys}.toml"
    file.write_text("\n".join(text), encoding="utf-8")
    return file


def cold(folder: Path, rounds: int) -> Iterator[Figure]:
    """Commands, round after round beside each other."""
    file = config_of(500, folder)
    processes = {
        "python": Process(folder=folder, arguments=["-c", "pass"]),
        "torch": Process(folder=folder, arguments=["-c", "import torch"]),
        "shape": Process(folder=folder, arguments=["-m", "assay", "check", "--shape", file.name]),
        "whole": Process(folder=folder, arguments=["-m", "assay", "check", file.name]),
    }
    for (
        process
    ) in processes.values():  # nobody compiles assay twice: the bytecode is there from now on
        process.run()
        process.cpu_s.clear()
    for _ in range(rounds):
        for process in processes.values():
            process.run()
    cpu_s = {name: median(process.cpu_s) for name, process in processes.items()}
    yield Figure(name="config.python.cpu_s", value=cpu_s["python"], unit="s")
    yield Figure(name="config.torch.cpu_s", value=cpu_s["torch"], unit="s")
    yield Figure(name="config.check_500.shape.cpu_s", value=cpu_s["shape"], unit="s", at_most=0.5)
    yield Figure(name="config.check_500.whole.cpu_s", value=cpu_s["whole"], unit="s")
    yield Figure(
        name="config.check_500.over_torch_s",
        value=cpu_s["whole"] - cpu_s["torch"],
        unit="s",
        at_most=0.3,
    )


def warm(folder: Path, sizes: Sequence[int], rounds: int) -> Iterator[Figure]:
    """Reading, checking and hashing files of growing size."""
    us_per_key: dict[str, list[float]] = {}
    for size in sizes:
        file = config_of(size, folder)
        config = open_config(file)
        assert not config.problems
        acts: dict[str, Callable[[Config], object]] = {
            "load": lambda config: open_config(config.path or ""),
            "shape": check_shape,
            "hash": lambda config: config_hash(config.root),
        }
        for name, act in acts.items():
            took_s = median(_timed_s(act, config) for _ in range(rounds))
            us_per_key.setdefault(name, []).append(took_s / size * 1e6)
            yield Figure(name=f"config.{name}.{size}.cpu_s", value=took_s, unit="s")
    for name, costs in us_per_key.items():
        yield Figure(name=f"config.{name}.us_per_key", value=costs[-1], unit="us")
        yield Figure(name=f"config.{name}.growth", value=costs[-1] / costs[0], at_most=2.0)


def _timed_s(act: Callable[[Config], object], config: Config) -> float:
    begun = process_time()
    act(config)
    return process_time() - begun


def main() -> None:
    asked = options("What a config costs.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        begun = perf_counter()
        sizes = (1_000, 1_500) if asked.quick else (1_000, 10_000, 100_000)
        figures = [
            *cold(folder, 1 if asked.quick else 11),
            *warm(folder, sizes, 1 if asked.quick else 5),
        ]
        figures.append(Figure(name="config.benchmark_s", value=perf_counter() - begun, unit="s"))
    show("config: reading and checking", figures, machine(), as_json=asked.as_json)


if __name__ == "__main__":
    main()
