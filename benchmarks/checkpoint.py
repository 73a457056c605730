"""Cost of saving: the time that training waits, and its slowdown while a checkpoint is written.

`blocked` is how long the loop stands still, against one copy of the same tensors to host memory
that is there already. What is saved and loaded is synced and verified: `background.durable` beside
`dcp.async_save` until it is done, `at_once` beside writing and syncing the bytes, `load` beside
`torch.load` of a file in the page cache, each in a new process as one that resumes, in turns that
change. `speed` is that of a loop of small steps while checkpoints are written all
the time, against its speed without; the two take turns. `process` writes the same bytes with the
same digests from shared memory in a process of its own. `resume` is one step of the first example
resumed from a checkpoint, with its record, evaluation and save; `fresh` is one from the beginning.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from figures import Figure, machine, options, show
from torch import nn

from assay.compose import Launch, resume, train
from assay.config import open_config
from assay.engine.callbacks.save import Background
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.tensor_file import Staging
from assay.store.known_projects import forget
from assay.store.layout import make_project

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "01_digits"

WRITER = """
import hashlib, mmap, os, sys
with open(sys.argv[1], "rb") as source:
    data = memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ))
print("ready", flush=True)
for path in sys.stdin:
    whole = hashlib.sha256()
    with open(path.strip(), "wb") as file:
        for start in range(0, len(data), 1 << 20):
            chunk = data[start : start + (1 << 20)]
            file.write(chunk)
            whole.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    print("done", flush=True)
"""

LOADER = """
import sys
from pathlib import Path
from time import perf_counter, process_time
import torch
from assay.engine.checkpoint.saver import Saver
torch.set_num_threads(1)
load = {"load": Saver(Path(sys.argv[2]), keep=1).load, "torch_load": lambda: torch.load(sys.argv[3])}
begun, cpu = perf_counter(), process_time()
load[sys.argv[1]]()
print(perf_counter() - begun, process_time() - cpu)
"""


def seconds(call: Callable[[], object]) -> float:
    begun = perf_counter()
    call()
    return perf_counter() - begun


def state_of(megabytes: int) -> dict[str, torch.Tensor]:
    """Tensors of 20 MB, the last one smaller."""
    size = megabytes * 1_000_000 // 4
    return {
        f"w{i}": torch.randn(min(5_000_000, size - at))
        for i, at in enumerate(range(0, size, 5_000_000))
    }


class Loop:
    """A training step of a few hundred microseconds, most of it in Python and small ops."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(32, 64)

    def step(self) -> None:
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Process:
    """The same writing in a process that was started before."""

    def __init__(self, folder: Path, size: int) -> None:
        shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else folder
        self.memory = shared / f"assay-benchmark-{os.getpid()}"
        self.memory.write_bytes(b"\0" * size)
        self.buffer = torch.from_file(str(self.memory), shared=True, size=size, dtype=torch.uint8)
        command = [sys.executable, "-c", WRITER, str(self.memory)]
        self.writer = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.folder = folder
        self.answer()

    def save(self, tensors: dict[str, torch.Tensor]) -> None:
        at = 0
        for tensor in tensors.values():
            flat = tensor.view(torch.uint8)
            self.buffer[at : at + flat.numel()].copy_(flat)
            at += flat.numel()
        assert self.writer.stdin is not None
        print(self.folder / "by_process", file=self.writer.stdin, flush=True)

    def answer(self) -> None:
        assert self.writer.stdout is not None
        self.writer.stdout.readline()

    def close(self) -> None:
        assert self.writer.stdin is not None and self.writer.stdout is not None
        self.writer.stdin.close()
        self.writer.stdout.close()
        self.writer.wait()
        self.memory.unlink()


def steps_in(
    loop: Loop, window_s: float, begin: Callable[[], object], is_busy: Callable[[], bool]
) -> int:
    """Steps done while one save after another is written."""
    steps, end = 0, perf_counter() + window_s
    while perf_counter() < end:
        if not is_busy():
            begin()
        loop.step()
        steps += 1
    return steps


def blocked(megabytes: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each round that saving and loading take here, by torch and by hand."""
    tensors = state_of(megabytes)
    saver, background, staging = Saver(folder / "blocked", keep=1), Background("save"), Staging()
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    found: dict[str, list[float]] = {}

    def prepared(**given: Any) -> Callable[[], object]:
        step = sum(map(len, found.values()))
        return saver.prepare({"model": tensors}, Where(step=step), **given)

    def save() -> None:
        background.submit(prepared(staging=staging))

    def copy() -> None:
        for name, tensor in tensors.items():
            copies[name].copy_(tensor)

    def write() -> None:
        with open(folder / "by_hand", "wb") as file:
            for tensor in tensors.values():
                file.write(tensor.numpy().data)
            file.flush()
            os.fsync(file.fileno())

    def save_by_dcp() -> None:
        done = dcp.async_save(tensors, checkpoint_id=folder / "by_dcp", no_dist=True)
        getattr(done, "upload_completion", done).result()

    def add(name: str, call: Callable[[], object]) -> None:
        cpu = process_time()
        found.setdefault(name, []).append(seconds(call))
        found.setdefault(f"{name}.cpu", []).append(process_time() - cpu)

    other = folder / "by_torch.pt"
    first = seconds(save)
    background.wait()

    def save_behind() -> None:
        add("background.blocked", save)
        add("background.durable", background.wait)
        for name in ("background.durable", "background.durable.cpu"):
            found[name][-1] += found[name.replace("durable", "blocked")][-1]

    turns: list[Callable[[], object]] = [
        lambda: add("copy", copy),
        save_behind,
        lambda: add("dcp.durable", save_by_dcp),
        lambda: add("at_once.blocked", lambda: prepared()()),
        lambda: add("by_hand.blocked", write),
        lambda: add("torch_save.blocked", lambda: torch.save(tensors, other)),
    ]
    for number in range(rounds):
        # In another order each time: who writes first pays for pages that the next one finds free.
        for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
            for tensor in tensors.values():
                tensor.add_(1)  # as a training does: equal files are linked
            turn()
        shutil.rmtree(folder / "by_dcp")
        for name in ("load", "torch_load") if number % 2 else ("torch_load", "load"):
            # Not here: memory that an earlier load gave back costs less than that of a new process.
            command = [sys.executable, "-c", LOADER, name, str(saver.folder), str(other)]
            took = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            for ending, value in zip(("", ".cpu"), took.split(), strict=True):
                found.setdefault(f"{name}{ending}", []).append(float(value))
    return {**found, "background.first": [first]}


def speeds(megabytes: int, rounds: int, window_s: float, folder: Path) -> dict[str, float]:
    """Steps a second while a thread, or a process, writes; against those of a quiet loop."""
    tensors = state_of(megabytes)
    saver, background, staging = Saver(folder / "speeds", keep=1), Background("save"), Staging()
    process = Process(folder, sum(tensor.numel() * 4 for tensor in tensors.values()))
    loop, step, asked = Loop(), 0, Background("answer")

    def by_thread() -> None:
        nonlocal step
        step += 1
        background.submit(saver.prepare({"model": tensors}, Where(step=step), staging=staging))

    def by_process() -> None:
        process.save(tensors)
        asked.submit(process.answer)

    done = {"quiet": 0, "thread": 0, "process": 0}
    for _ in range(rounds):
        for name, begin, work in (
            ("thread", by_thread, background),
            ("process", by_process, asked),
        ):
            done["quiet"] += steps_in(loop, window_s / 2, lambda: None, lambda: True)
            done[name] += steps_in(loop, window_s, begin, lambda work=work: work.is_busy)  # type: ignore[misc]
            work.wait()
    process.close()
    return {name: done[name] / done["quiet"] for name in ("thread", "process")}


def going_on(rounds: int, folder: Path) -> dict[str, float]:
    """Seconds for one step of the first example, imports done: of a new and of a resumed run."""
    project = make_project(Path(shutil.copytree(EXAMPLE, folder / "digits")))
    found: dict[str, list[float]] = {"fresh": [], "resume": []}
    for _ in range(rounds + 1):
        begun = perf_counter()
        result = train(open_config(project.root / "digits.toml", [], user_dir=None), _for_steps(1))
        found["fresh"].append(perf_counter() - begun)
        found["resume"].append(seconds(partial(resume, str(result.record_dir), [], _for_steps(2))))
    forget([project.root])
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def _for_steps(steps: int) -> Launch:
    return Launch(device="cpu", quiet=True, max_steps=steps)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    given = options("what saving costs the training", argv)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="assay-checkpoint-"))
    try:
        found = blocked(*((8, 1) if given.quick else (600, 6)), folder)
        speed = speeds(*((4, 1, 0.2) if given.quick else (100, 10, 1.0)), folder)
        went_on = going_on(1 if given.quick else 5, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = [
        Figure(name=f"checkpoint.{name}_ms", value=1000 * statistics.median(times), unit="ms")
        for name, times in found.items()
    ]
    for name, one, other, most in (
        ("blocked_to_copy", "background.blocked", "copy", 1.2),
        ("durable_to_dcp", "background.durable", "dcp.durable", 1.0),
        ("at_once_to_by_hand", "at_once.blocked", "by_hand.blocked", 1.5),
        ("load_to_torch_load", "load", "torch_load", 1.5),
        ("torch_save_to_blocked", "torch_save.blocked", "background.blocked", None),
    ):
        ratio = statistics.median(a / b for a, b in zip(found[one], found[other], strict=True))
        figures.append(Figure(name=f"checkpoint.{name}", value=ratio, at_most=most))
    figures += [
        Figure(name=f"checkpoint.speed_by_{name}", value=value) for name, value in speed.items()
    ]
    figures.append(Figure(name="checkpoint.fresh_s", value=went_on["fresh"], unit="s"))
    figures.append(Figure(name="checkpoint.resume_s", value=went_on["resume"], unit="s"))
    over = went_on["resume"] - went_on["fresh"]
    figures.append(Figure(name="checkpoint.resume_over_fresh_s", value=over, unit="s", at_most=1.0))
    show("checkpoint", figures, machine(), as_json=given.as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
