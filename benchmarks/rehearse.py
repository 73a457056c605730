"""How far a rehearsal is from the run: peak memory, and how long it takes to know it.

`memory` is the difference between the peak that a rehearsal tells and the one that training
reaches, in percent; each model with two batch sizes. Both are taken in OS processes of their own.
On a CPU the measured peak is that of the anonymous resident memory over what the process had
before, with `malloc` told to give back what is freed; on a CUDA device it is
`torch.cuda.max_memory_allocated`. `seconds` begin when torch is imported; `rss` is what the process
of a rehearsal takes itself.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from figures import Figure, machine, options, show

HERE = Path(__file__).resolve().parent
STEPS = 3
MIB = 2**20
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""glibc keeps what is freed and uses it again, as CUDA's allocator does; here the two are told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model with its data, and the batch sizes to try."""

    name: str
    model: str
    data: str
    batches: tuple[int, ...]
    more: str = ""

    def config(self, batch: int) -> str:
        return f"""
[model]
{self.model}
[data.train]
source = {{ type = "rehearse_models.Random", {self.data} }}
batch_size = {batch}
[process]
type = "assay.engine.Supervised"
criterion = {{ type = "torch.nn.CrossEntropyLoss" }}
[optimizer]
type = "torch.optim.AdamW"
lr = 1e-4
[train]
steps = {STEPS}
{self.more}
"""


GPT2 = Case(
    name="gpt2",
    model='type = "rehearse_models.GPT"',
    data='kind = "tokens", size = 256, count = 50257',
    batches=(1, 4),
)
CASES = (
    GPT2,
    Case(
        name="resnet",
        model='type = "rehearse_models.ResNet"',
        data='kind = "images", size = 176, count = 1000',
        batches=(8, 24),
    ),
    Case(
        name="llama",
        model='type = "rehearse_models.Llama"\nvocabulary = 8000\nhidden = 512\ninner = 1408\ndepth = 6\nheads = 8\n'
        "shared = 4",
        data='kind = "tokens", size = 256, count = 8000',
        batches=(4, 12),
    ),
    Case(
        name="encoder",
        model='type = "rehearse_models.Encoder"',
        data='kind = "sequences", size = 128',
        batches=(8, 24),
    ),
    Case(
        name="mlp",
        model='type = "rehearse_models.Perceptron"',
        data='kind = "vectors", size = 784, count = 10',
        batches=(256, 2048),
    ),
    Case(
        name="cnn",
        model='type = "rehearse_models.Convolutions"',
        data='kind = "images", size = 96, count = 10',
        batches=(16, 64),
    ),
    Case(
        name="unet",
        model='type = "rehearse_models.UNet"',
        data='kind = "images", size = 96, count = 10',
        batches=(8, 24),
    ),
    Case(
        name="lstm",
        model='type = "rehearse_models.Recurrent"',
        data='kind = "sequences", size = 128',
        batches=(32, 128),
    ),
)
QUICK = (
    Case(
        name="mlp",
        model='type = "rehearse_models.Perceptron"\nwidth = 1024',
        data='kind = "vectors", size = 784, count = 10',
        batches=(256,),
    ),
)
LLAMA_7B = Case(
    name="llama7b",
    model='type = "rehearse_models.Llama"\nvocabulary = 32000\nhidden = 4096\ninner = 11008\ndepth = 32\nheads = 32\n'
    "shared = 32",
    data='kind = "tokens", size = 2048, count = 32000',
    batches=(64,),
    more='precision = "bf16"\n[parallel]\ndata = 8\nshard = 8',
)
TINY = Case(
    name="tiny",
    model='type = "rehearse_models.Perceptron"\nwidth = 8',
    data='kind = "vectors", size = 784, count = 10',
    batches=(4,),
)


def estimate(path: str) -> dict[str, Any]:
    """Rehearse a config; what it tells, how long it took, and the memory of this process."""
    begun = time.perf_counter(), time.process_time()
    from assay.compose.rehearsal import RehearsalRequest, rehearse
    from assay.config import open_config

    device = "cuda" if torch.cuda.is_available() else "cpu"
    report = rehearse(open_config(path, user_dir=HERE), RehearsalRequest(device=device))
    seconds, cpu_seconds = time.perf_counter() - begun[0], time.process_time() - begun[1]
    assert report.memory is not None, report.findings
    return {
        "rung": report.rung,
        "peak": report.memory.most_bytes,
        "where": report.memory.where,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "rss": status("VmHWM"),
    }


def measure(path: str, warm: str) -> dict[str, Any]:
    """Train a config for a few steps; the most memory that it had at once."""
    from assay.compose import Launch, train
    from assay.config import open_config

    launch = Launch(no_file=True, quiet=True)
    opened = [open_config(each, user_dir=HERE) for each in (warm, path)]
    train(opened[0], launch)  # what libraries take for themselves they have now
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = train(opened[1], launch)
        peak = torch.cuda.max_memory_allocated() - before
    else:
        before = status("RssAnon")
        with Watch() as watch:
            result = train(opened[1], launch)
        peak = watch.peak - before
    assert result.status == "finished", result.exception
    return {"peak": peak}


class Watch(threading.Thread):
    """Follows the anonymous resident memory of this process."""

    def __enter__(self) -> Watch:
        self.peak, self.is_over = 0, False
        self.start()
        return self

    def run(self) -> None:
        while not self.is_over:
            self.peak = max(self.peak, status("RssAnon"))
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        self.join()


def status(name: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) * 1024 if found is not None else 0


def child(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, **(GIVING_BACK if arguments[0] == "--measure" else {})}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_figures(cases: Sequence[Case], folder: Path) -> list[Figure]:
    found = []
    warm = written(TINY, 4, folder)
    for case in cases:
        for batch in case.batches:
            path = written(case, batch, folder)
            told, measured = child("--estimate", path), child("--measure", path, warm)
            off = 100 * (told["peak"] / measured["peak"] - 1)
            peaks = f"{told['peak'] / MIB:.0f} MiB told, {measured['peak'] / MIB:.0f} measured"
            note = f"{off:+.1f} %: {peaks}, {told['rung']}, {told['where']}"
            name = f"memory.{case.name}.b{batch}"
            found.append(Figure(name=name, value=abs(off), unit="%", at_most=10.0, note=note))
    return found


def time_figures(folder: Path, *, quick: bool) -> list[Figure]:
    found = []
    for case, most in ((GPT2, 3.0), (LLAMA_7B, 30.0)):
        if quick and case is LLAMA_7B:
            continue
        told = child("--estimate", written(case, case.batches[-1], folder))
        note = (
            f"{told['cpu_seconds']:.1f} s of CPU, {told['rung']}, {told['peak'] / MIB:.0f} MiB told"
        )
        found.append(
            Figure(
                name=f"{case.name}.seconds",
                value=told["seconds"],
                unit="s",
                at_most=most,
                note=note,
            )
        )
        found.append(Figure(name=f"{case.name}.rss", value=told["rss"] / MIB, unit="MiB"))
    return found


def written(case: Case, batch: int, folder: Path) -> str:
    path = folder / f"{case.name}-{batch}.toml"
    path.write_text(case.config(batch), encoding="utf-8")
    return str(path)


def main() -> None:
    asked = options(__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as name:
        folder = Path(name)
        figures = [
            *memory_figures(QUICK if asked.quick else CASES, folder),
            *time_figures(folder, quick=asked.quick),
        ]
    where = machine()
    if torch.cuda.is_available():
        where["device"] = torch.cuda.get_device_name()
    show("rehearse", figures, where, as_json=asked.as_json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--estimate"]:
        print(json.dumps(estimate(sys.argv[2])))
    elif sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3])))
    else:
        main()
