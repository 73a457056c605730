"""Two hundred kills at random moments: each run must end with the bits of an undisturbed one.

The model has dropout and batch norm, the data are augmented by all three random generators, two
micro-batches make one step, the weights are averaged, and every fourth step is saved, most of them
within an epoch. Each trial is one run: it is started again after every kill with the same command
(`assay run --resume auto`) but another number of workers, and after the last kill left to end. A
kill comes at any time from the start of a process on: while the config is read, a checkpoint
loaded, a step made, a checkpoint written, an epoch evaluated, the record closed.

The processes are forked from this one, which has imported all that they need but done nothing with
it.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import Figure, machine, options, show

from assay.cli.main import main as assay
from assay.core.facts import Started
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.proof.differences import ORDER
from assay.proof.verify_resume import compare_finished_runs
from assay.store.layout import RUNS_DIR_VARIABLE, RunFolder, make_project, scan_runs
from assay.store.series import read_series

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 2)
        )

    def forward(self, x):
        return self.layers(x)
"""

POINTS = """
import random

import numpy as np
import torch

class Points:
    def __init__(self, size=200, noise=0.1):
        draw = torch.Generator().manual_seed(0)
        self.points = torch.randn(size, 4, generator=draw)
        self.labels = (self.points.sum(1) > 0).long()
        self.noise = noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        noise = torch.randn(4) + random.random() + float(np.random.rand()) if self.noise else 0.0
        return self.points[i] + self.noise * noise, self.labels[i]
"""

CONFIG = """
tag = "soak"
seed = 3
plugins = [{ type = "assay.engine.EMA", decay = 0.9 }, { type = "assay.engine.BatchDigest" }]

[model]
type = "net.Net"
width = 8

[data.train]
source = { type = "points.Points" }
batch_size = 8
[data.valid]
source = { type = "points.Points", size = 40, noise = 0.0 }
batch_size = 20

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
metrics = { acc = { type = "assay.engine.Accuracy" } }

[optimizer]
type = "torch.optim.AdamW"
lr = 1e-3

[schedule]
type = "assay.engine.WarmupCosine"
warmup_ratio = 0.1

[train]
epochs = 8
accumulate = 2
clip_norm = 1.0

[checkpoint]
every = "4 steps"
keep = 2
best = { metric = "valid/acc", mode = "max" }
"""

USED = (
    *(
        "torch._dynamo",
        "pydantic.type_adapter",
        "assay.compose.training",
        "assay.cli.run",
        "assay.build",
    ),
    *(
        "assay.engine.model.compiling",
        "assay.engine.callbacks.display",
        "assay.engine.parallel.join",
    ),
)
WORKERS = (0, 2, 4)
KILLS_A_TRIAL = 5
START_S = 0.6
EARLY = 0.2
"""Of the kills, those that are timed from the start of a process and not from its first step."""


def main(argv: Sequence[str] | None = None) -> int:
    """Kill, start again, compare; 1 when anything differs."""
    given = options("whether runs that are killed again and again end with the same bits", argv)
    kills = KILLS_A_TRIAL if given.quick else 200
    for name in USED:
        importlib.import_module(name)
    gc.freeze()  # what is shared with the forked processes stays shared
    with tempfile.TemporaryDirectory(prefix="assay-soak-") as folder:
        figures, is_equal = soak(Path(folder), kills, random.Random(1))
    show("soak", figures, machine(), as_json=given.as_json)
    return int(not is_equal)


def soak(folder: Path, kills: int, draw: random.Random) -> tuple[list[Figure], bool]:
    """Run trials until `kills` kills; return the figures, and whether all ended with equal bits."""
    make_project(folder)
    for name, text in {"soak.toml": CONFIG, "net.py": NET, "points.py": POINTS}.items():
        (folder / name).write_text(text)
    begun = time.monotonic()
    whole = Trial(folder, "whole")
    whole.launched()
    whole_s = time.monotonic() - begun
    file = run_file.read(whole.record.path)
    print(f"undisturbed: {file.newest.to_step} steps, {whole_s:.1f} s", file=sys.stderr, flush=True)
    caught: Counter[str] = Counter()
    trials = differing = 0
    while caught.total() < kills:
        trials += 1
        trial = Trial(folder, f"killed-{trials}")
        moments = trial.killed(min(KILLS_A_TRIAL, kills - caught.total()), whole_s, draw)
        caught.update(moments)
        parts = compare_finished_runs(whole.record, trial.record)
        different = [
            f"{each.name} ({', '.join(each.differences)})" for each in parts if each.differences
        ]
        differing += bool(different)
        said = f"differs: {'; '.join(different)}" if different else "equal"
        told = f"trial {trials}, {caught.total()} kills: {', '.join(moments)}: {said}"
        print(told, file=sys.stderr, flush=True)
    figures = [
        Figure(name="soak.steps", value=file.newest.to_step),
        Figure(name="soak.trials", value=trials),
        Figure(name="soak.kills", value=caught.total()),
        *(Figure(name=f"soak.kills.{moment}", value=caught[moment]) for moment in MOMENTS),
        Figure(name="soak.minutes", value=(time.monotonic() - begun) / 60),
        Figure(name="soak.differing", value=differing, at_most=0),
    ]
    return figures, not differing


MOMENTS = ("unrecorded", "starting", "saving", "training", "ending")
"""Before there is a record; before the first step; while a checkpoint is written; otherwise; after the last step."""


@dataclass(frozen=True)
class Kill:
    """When a process is killed: so long after its start, or after its first step."""

    after_s: float
    from_first_step: bool


class Trial:
    """One run of the config, with a folder of runs of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.runs = folder / name
        self.attempts = 0

    @property
    def record(self) -> RunFolder:
        """The record of the run. There is one: whoever goes on goes on with it."""
        (record,) = self.records()
        return record

    def records(self) -> list[RunFolder]:
        """Runs that can be resumed: a run killed before anything was written is left out."""
        found = [Path(entry.path) for entry in scan_runs(self.runs)]
        return [RunFolder(path) for path in found if (path / run_file.FILE_NAME).exists()]

    def launched(self, kill: Kill | None = None) -> bool:
        """Train or resume to the end or the kill; return whether it was killed.

        RuntimeError when it fails by itself.
        """
        workers = WORKERS[self.attempts % len(WORKERS)]
        self.attempts += 1
        before = self.started()
        pid = self.forked(
            [
                "run",
                "soak.toml",
                "--resume",
                "auto",
                "--device",
                "cpu",
                f"data.train.workers={workers}",
            ]
        )
        if kill is not None:
            begun = time.monotonic()
            while (
                os.waitid(os.P_PID, pid, _PEEK) is None and time.monotonic() - begun < kill.after_s
            ):
                time.sleep(0.002)
                if kill.from_first_step and not (self.started() > before and self.has_stepped()):
                    begun = time.monotonic()
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code not in (0, -signal.SIGKILL):
            raise RuntimeError(f"code {code}\n{self.said.read_text(errors='replace')}")
        return code != 0

    def killed(self, kills: int, whole_s: float, draw: random.Random) -> list[str]:
        """Kill the run up to `kills` times, then let it end; return the moments of the kills."""
        moments: list[str] = []
        while len(moments) < kills:
            is_early = draw.random() < EARLY
            after_s = draw.random() * (START_S if is_early else 2 * whole_s / KILLS_A_TRIAL)
            if not self.launched(Kill(after_s, from_first_step=not is_early)):
                return moments
            moments.append(self.moment())
            if self.is_finished():
                return moments
        self.launched()
        return moments

    def moment(self) -> str:
        """What the run was at when it was killed."""
        if not self.started():
            return "unrecorded"
        checkpoints = self.record.checkpoints
        if checkpoints.is_dir() and any(
            path.name.endswith(".tmp") for path in checkpoints.iterdir()
        ):
            return "saving"
        if not self.has_stepped():
            return "starting"
        return "ending" if (checkpoints / "final.json").exists() else "training"

    def started(self) -> int:
        """How many processes have begun to record this run."""
        return len(self.begun_at())

    def begun_at(self) -> list[int]:
        """The step at which each attempt began."""
        if not self.records():
            return []
        return [
            timed.fact.step
            for timed in read_events(self.record.events)
            if isinstance(timed.fact, Started)
        ]

    def has_stepped(self) -> bool:
        """Whether the newest attempt has made a step."""
        curves = read_series(self.record.metrics, names=[ORDER])
        return ORDER in curves and int(curves[ORDER].steps[-1]) > self.begun_at()[-1]

    def is_finished(self) -> bool:
        return bool(self.started()) and run_file.read(self.record.path).status == "finished"

    @property
    def said(self) -> Path:
        return self.folder / f"{self.name}.txt"

    def forked(self, arguments: list[str]) -> int:
        """A process that is like `assay ARGUMENTS` in the folder of the config."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            with open(self.said, "ab") as said, open(os.devnull, "rb") as nothing:
                for stream, number in ((nothing, 0), (said, 1), (said, 2)):
                    os.dup2(stream.fileno(), number)
            os.chdir(self.folder)
            os.environ.update(
                {
                    RUNS_DIR_VARIABLE: str(self.runs),
                    "XDG_DATA_HOME": str(self.folder),
                    "NO_COLOR": "1",
                }
            )
            sys.argv = ["assay", *arguments]
            random.seed()
            code = assay(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
