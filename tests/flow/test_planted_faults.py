"""Two runs, one with a planted fault: `assay diverge` names its place and cause unaided."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest

from assay.formats.verdict import Verdict
from assay.proof import diverge, replay
from assay.query.find import find_run
from assay.store.layout import scan_runs
from flow.conftest import SRC, commands
from warm_python import Run, WarmPythons

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("forking")]

CONFIG = """\
tag = "planted"
seed = 1
threads = 1
[model]
type = "planted_net.Net"
[data.train]
source = { type = "planted_data.Points" }
batch_size = 8
[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
[optimizer]
type = "torch.optim.Adam"
lr = 1e-2
[train]
steps = 6
[trace]
every = "1 step"
level = "full"
"""

NET = """\
import os
import time
from functools import reduce
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import gains


class Pool(nn.Module):
    '''Centers each sample by the mean over the samples of all ranks.'''

    def forward(self, x):
        parts = [x.detach()]
        if dist.is_initialized():
            parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, x.detach())
        if "POOL_LAST_FIRST" in os.environ:
            parts.reverse()
        if "STRAY_DRAW" in os.environ and self.training:
            x = x + 1e-6 * torch.rand(1)
        if "NAMES" in os.environ:
            x = x + sum(float(name) for name in {"0.1", "0.2", "0.3", "1e12", "-1e12"})
        return x - reduce(torch.add, torch.cat(parts)) / (len(parts) * len(x))


class Body(nn.Module):
    '''An LSTM; its backward pass is noisy from the fourth step on if `noise` is given.'''

    def __init__(self, noise):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.noise, self.calls = noise, 0

    def forward(self, x):
        out, _ = self.lstm(x)
        self.calls += self.training
        if self.noise and self.calls >= 4:
            out.register_hook(lambda grad: grad * (1 + self.noise))
        return out[:, -1]


class Wide(nn.Module):
    '''A sum over so many numbers that it is shared by the threads.'''

    def forward(self, x):
        return x * x.repeat(1, 40000).sum().tanh()


class Timed(nn.Module):
    def forward(self, x):
        return x * (1 + time.perf_counter_ns() % 1000003 * 1e-7)


class Watched(nn.Module):
    '''Counts its evaluations in a buffer, which the training reads.'''

    def __init__(self):
        super().__init__()
        self.register_buffer("evaluated", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.evaluated += 1
        return x + 1e-3 * self.evaluated


class Net(nn.Module):
    def __init__(
        self,
        act="ReLU",
        noise=0.0,
        ulp=False,
        dropout_seed=0,
        wide=False,
        frozen=False,
        rate=0.0,
        momentum=None,
        hook=0.0,
        is_watched=False,
        tied=False,
        is_scaled=False,
    ):
        super().__init__()
        self.inside = nn.Linear(4, 8)
        self.act = Timed() if act == "Timed" else getattr(nn, act)()
        self.drop = Drop(dropout_seed)
        self.pool = Pool()
        self.wide = Wide() if wide else nn.Identity()
        self.body = Body(noise)
        self.head = nn.Linear(8, 2)
        self.head.bias.requires_grad_(not frozen)
        self.is_scaled = is_scaled
        self.dropout = nn.Dropout(rate)
        self.norm = nn.Identity() if momentum is None else nn.BatchNorm1d(8, momentum=momentum)
        self.watched = Watched() if is_watched else nn.Identity()
        self.again, self.twin = nn.Linear(8, 8), nn.Linear(8, 8)
        if tied:
            self.twin.weight = self.again.weight
        if hook:
            self.head.register_forward_hook(lambda module, inputs, out: out * (1 + hook))
        if ulp:
            with torch.no_grad():
                self.head.weight.view(torch.int32)[0, 0] ^= 1

    def forward(self, x):
        x = gains.gain(self.act(self.inside(x)))
        x = self.watched(self.norm(self.dropout(x)))
        if self.is_scaled:
            x = x * float((Path(gains.__file__).parents[1] / "-".join(["hidden", "scale"])).read_text())
        x = self.wide(self.pool(self.drop(x)))
        return self.head(self.body(x.unsqueeze(1)))


class Drop(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.draw = torch.Generator().manual_seed(seed) if seed is not None else None

    def forward(self, x):
        return x * (torch.rand(x.shape, generator=self.draw) > 0.1)
"""

DATA = """\
import os
import signal
from pathlib import Path

import torch


class Points:
    '''Points with noise of their own; two samples may be swapped, or changed on one rank.'''

    def __init__(
        self,
        swap=False,
        noise_seed: int | str = 0,
        odd_rank=None,
        wrong_label=None,
        file="",
        memory=False,
    ):
        self.points = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
        self.labels = (self.points.sum(1) > 0).long()
        if swap:
            self.points[[3, 11]] = self.points[[11, 3]]
        if wrong_label is not None:
            self.labels[wrong_label] ^= 1
        if file:
            self.points = self.points + Path(file).read_bytes()[0]
        self.noise_seed, self.loaded = noise_seed, 0
        self.memory = {} if memory else None
        self.is_odd = odd_rank is not None and os.environ.get("RANK") == str(odd_rank)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        self.loaded += 1
        if self.loaded == int(os.environ.get("DIE_AT", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.memory is not None:
            noise = self.memory.setdefault(i, torch.randn(4))
        elif self.noise_seed == "pid":
            noise = torch.randn(4, generator=torch.Generator().manual_seed(os.getpid()))
        elif self.noise_seed == "none_":
            noise = torch.tensor(list(os.urandom(4))) / 256
        elif self.noise_seed == "each epoch":
            noise = torch.randn(4)
        else:
            draw = torch.Generator().manual_seed(1000 * self.noise_seed + i)
            noise = torch.randn(4, generator=draw)
        x = self.points[i] + 0.1 * noise
        return x + 1e-3 if self.is_odd else x, self.labels[i]


def brighter(samples):
    x, y = torch.utils.data.default_collate(samples)
    return 1.01 * x, y
"""

GAINS = """\
def gain(x):
    return x * {}
"""

Place = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change of the second run, and the verdict: phase, module and name; the cause; inputs."""

    overrides: tuple[str, ...] = ()
    change: Callable[[Path], object] = lambda folder: None
    variables: dict[str, str] = field(default_factory=dict)
    base: tuple[str, ...] = ()
    base_variables: dict[str, str] = field(default_factory=dict)
    place: Place
    cause: str
    inputs: tuple[str, ...] = ()
    step: int = 1


def replace_line(name: str, old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def install_gains(folder: Path, version: str, factor: str) -> None:
    """Install a version of the library `gains` beside the project."""
    site = folder.parent / "site"
    for old in site.glob("gains-*.dist-info"):
        old.rmdir()
    (site / f"gains-{version}.dist-info").mkdir(parents=True)
    (site / "gains.py").write_text(GAINS.format(factor))


RANKS = ("--nproc", "2")
FAULTS = {
    "one swapped sample": Fault(
        overrides=("+data.train.source.swap=true",),
        place=("data", "", "batch.0"),
        cause="data",
        inputs=("config data.train.source.swap",),
    ),
    "another augmentation seed": Fault(
        overrides=("+data.train.source.noise_seed=1",),
        place=("data", "", "batch.0"),
        cause="data",
        inputs=("config data.train.source.noise_seed",),
    ),
    "another dropout seed": Fault(
        overrides=("+model.dropout_seed=1",),
        place=("forward", "model.drop", "aten.rand"),
        cause="randomness",
        inputs=("config model.dropout_seed",),
    ),
    "one ulp in one weight at init": Fault(
        overrides=("+model.ulp=true",),
        place=("init", "model.head", "weight"),
        cause="init",
        inputs=("config model.ulp",),
        step=0,
    ),
    "one operation replaced": Fault(
        overrides=("+model.act='SiLU'",),
        place=("forward", "model.act", "aten.relu"),
        cause="forward",
        inputs=("config model.act",),
    ),
    "noise behind one LSTM layer": Fault(
        overrides=("+model.noise=1e-6",),
        place=("backward", "model.body.lstm", "aten.mul"),
        cause="backward",
        inputs=("config model.noise",),
        step=4,
    ),
    "another epsilon of the optimizer": Fault(
        overrides=("+optimizer.eps=1e-7",),
        place=("optimizer", "", "aten._fused_adam_"),
        cause="optimizer",
        inputs=("config optimizer.eps",),
    ),
    "two threads instead of one": Fault(
        base=("+model.wide=true",),
        overrides=("+model.wide=true", "threads=2"),
        place=("forward", "model.wide", "aten.sum"),
        cause="environment",
        inputs=("environment torch.threads",),
    ),
    "one changed line of code": Fault(
        change=replace_line("planted_net.py", "> 0.1)", "> 0.2)"),
        place=("forward", "model.drop", "aten.gt"),
        cause="forward",
        inputs=("code planted_net.py",),
    ),
    "another version of a library": Fault(
        change=lambda folder: install_gains(folder, "1.1", "1.0000001"),
        place=("forward", "model", "aten.mul"),
        cause="environment",
        inputs=("environment packages.gains", "environment library gains.py"),
    ),
    "the batch of one of two ranks": Fault(
        base=RANKS,
        overrides=(*RANKS, "+data.train.source.odd_rank=1"),
        place=("data", "", "batch.0"),
        cause="data",
        inputs=("config data.train.source.odd_rank",),
    ),
    "another order of a reduction over two ranks": Fault(
        base=RANKS,
        overrides=RANKS,
        variables={"POOL_LAST_FIRST": "1"},
        place=("forward", "model.pool", "aten.cat"),
        cause="environment",
        inputs=("environment variables.POOL_LAST_FIRST",),
    ),
}

MORE_FAULTS = {
    "one wrong label": Fault(
        overrides=("+data.train.source.wrong_label=20",),
        place=("data", "", "batch.1"),
        cause="data",
        inputs=("config data.train.source.wrong_label",),
    ),
    "another beta of the optimizer": Fault(
        overrides=("+optimizer.betas=[0.9, 0.99]",),
        place=("optimizer", "", "aten._fused_adam_"),
        cause="optimizer",
        inputs=("config optimizer.betas",),
    ),
    "a value rounded to half precision": Fault(
        change=replace_line("planted_net.py", "out[:, -1]", "out[:, -1].half().float()"),
        place=("forward", "model.body", "aten._to_copy"),
        cause="forward",
        inputs=("code planted_net.py",),
    ),
    "a frozen parameter": Fault(
        overrides=("+model.frozen=true",),
        place=("backward", "model", "aten.sum"),
        cause="backward",
        inputs=("config model.frozen",),
    ),
    "a random number that is added": Fault(
        variables={"STRAY_DRAW": "1"},
        place=("forward", "model.pool", "aten.rand"),
        cause="environment",
        inputs=("environment variables.STRAY_DRAW",),
    ),
    "gradients that are clipped": Fault(
        overrides=("+train.clip_norm=0.01",),
        place=("backward", "", "gradient norm"),
        cause="backward",
        inputs=("config train.clip_norm",),
    ),
    "a criterion with label smoothing": Fault(
        overrides=("+process.criterion.label_smoothing=0.01",),
        place=("forward", "process.criterion", "aten.sum"),
        cause="forward",
        inputs=("config process.criterion.label_smoothing",),
    ),
    "a sum over a set of texts": Fault(
        base_variables={"NAMES": "1", "PYTHONHASHSEED": "1"},
        variables={"NAMES": "1", "PYTHONHASHSEED": "2"},
        place=("forward", "model.pool", "aten.add"),
        cause="environment",
        inputs=("environment variables.PYTHONHASHSEED",),
    ),
}


COARSE = ("trace.every=100 steps", "trace.level=default")
EVALUATED = "+data.valid={ source = { type = 'planted_data.Points' }, batch_size = 16 }"
FROM_FILE = "+data.train.source.file=shift.bin"


def change_file(folder: Path) -> None:
    (folder / "shift.bin").write_bytes(b"\x02")


STEALTHY_FAULTS = {
    "a data file changed in place": Fault(
        base=(FROM_FILE,),
        overrides=(FROM_FILE,),
        change=change_file,
        place=("data", "", "batch.0"),
        cause="data",
        inputs=("file shift.bin",),
    ),
    "a data file changed in place, with a coarse trace": Fault(
        base=(*COARSE, FROM_FILE),
        overrides=(*COARSE, FROM_FILE),
        change=change_file,
        place=("data", "", "batch.0"),
        cause="data",
        inputs=("file shift.bin",),
    ),
    "a data file changed in place, without a trace": Fault(
        base=("trace.enabled=false", FROM_FILE),
        overrides=("trace.enabled=false", FROM_FILE),
        change=change_file,
        place=("loss", "", "train/loss"),
        cause="an input outside the record changed",
        inputs=("file shift.bin",),
    ),
    "a library edited in place": Fault(
        change=lambda folder: install_gains(folder, "1.0", "1.0000001"),
        place=("forward", "model", "aten.mul"),
        cause="environment",
        inputs=("environment library gains.py",),
    ),
    "a variable of the environment, with a coarse trace": Fault(
        base=COARSE,
        overrides=COARSE,
        variables={"STRAY_DRAW": "1"},
        place=("backward", "model.inside", "weight.grad"),
        cause="environment",
        inputs=("environment variables.STRAY_DRAW",),
    ),
    "a changed file whose name no code spells": Fault(
        base=("+model.is_scaled=true",),
        overrides=("+model.is_scaled=true",),
        change=lambda folder: (folder.parent / "hidden-scale").write_text("1.5"),
        place=("forward", "model", "aten.mul"),
        cause="an input outside the record changed",
    ),
    "a buffer that the evaluation writes": Fault(
        base=("+model.is_watched=true", EVALUATED, "+evaluate.every=4 steps"),
        overrides=("+model.is_watched=true", EVALUATED, "+evaluate.every=2 steps"),
        place=("evaluation", "model.watched", "evaluated"),
        cause="evaluation",
        inputs=("config evaluate.every",),
        step=2,
    ),
    "weight decay": Fault(
        overrides=("+optimizer.weight_decay=0.1",),
        place=("optimizer", "", "aten._fused_adam_"),
        cause="optimizer",
        inputs=("config optimizer.weight_decay",),
    ),
    "weight decay, with a coarse trace": Fault(
        base=COARSE,
        overrides=(*COARSE, "+optimizer.weight_decay=0.1"),
        place=("optimizer", "", "aten._fused_adam_"),
        cause="optimizer",
        inputs=("config optimizer.weight_decay",),
    ),
    "another decay of the average": Fault(
        base=(EVALUATED, "+plugins=[{ type = 'assay.engine.EMA', decay = 0.9 }]"),
        overrides=(EVALUATED, "+plugins=[{ type = 'assay.engine.EMA', decay = 0.8 }]"),
        place=("average", "EMA.inside", "weight"),
        cause="optimizer",
        inputs=("config plugins.0.decay",),
    ),
    "another rate of dropout": Fault(
        base=("+model.rate=0.1",),
        overrides=("+model.rate=0.2",),
        place=("forward", "model.dropout", "aten.bernoulli_"),
        cause="forward",
        inputs=("config model.rate",),
    ),
    "another rate of dropout, with a coarse trace": Fault(
        base=("+model.rate=0.1", *COARSE),
        overrides=("+model.rate=0.2", *COARSE),
        place=("forward", "model.dropout", "aten.bernoulli_"),
        cause="forward",
        inputs=("config model.rate",),
    ),
    "another momentum of BatchNorm": Fault(
        base=("+model.momentum=0.1",),
        overrides=("+model.momentum=0.2",),
        place=("state", "model.norm", "running_mean"),
        cause="forward",
        inputs=("config model.momentum",),
    ),
    "a hook": Fault(
        overrides=("+model.hook=1e-3",),
        place=("forward", "model.head", "aten.mul"),
        cause="forward",
        inputs=("config model.hook",),
    ),
    "a collate function": Fault(
        overrides=("+data.train.collate={ type = 'planted_data.brighter', _partial_ = true }",),
        place=("data", "", "batch.0"),
        cause="data",
        inputs=("config data.train.collate",),
    ),
    "a schedule one step early": Fault(
        base=("+schedule={ type = 'torch.optim.lr_scheduler.StepLR', step_size = 4 }",),
        overrides=("+schedule={ type = 'torch.optim.lr_scheduler.StepLR', step_size = 3 }",),
        place=("optimizer", "", "aten._fused_adam_"),
        cause="optimizer",
        inputs=("config schedule.step_size",),
        step=4,
    ),
    "an augmentation without a seed": Fault(
        base=("+data.train.source.noise_seed=none_",),
        overrides=("+data.train.source.noise_seed=none_",),
        place=("data", "", "batch.0"),
        cause="data",
    ),
    "an augmentation seeded by the process": Fault(
        base=("+data.train.source.noise_seed=pid",),
        overrides=("+data.train.source.noise_seed=pid",),
        place=("data", "", "batch.0"),
        cause="data",
    ),
    "samples that are remembered": Fault(
        base=("+data.train.source.noise_seed=each epoch", "train.steps=8"),
        overrides=("+data.train.source.memory=true", "train.steps=8"),
        place=("data", "", "batch.0"),
        cause="data",
        inputs=("config data.train.source.memory", "config data.train.source.noise_seed"),
        step=7,
    ),
    "another order": Fault(
        overrides=("+data.train.shuffle=false",),
        place=("data", "", "sample indices"),
        cause="data order",
        inputs=("config data.train.shuffle",),
    ),
    "tied weights": Fault(
        overrides=("+model.tied=true",),
        place=("init", "model.twin", "weight"),
        cause="init",
        inputs=("config model.tied",),
        step=0,
    ),
    "a clock in the forward pass": Fault(
        base=("+model.act='Timed'",),
        overrides=("+model.act='Timed'",),
        place=("forward", "model.act", "aten.mul"),
        cause="forward",
    ),
}


@dataclass
class PlantedProject:
    """A folder with the code above, in which runs are trained."""

    folder: Path
    path: str
    warm: Run
    bases: dict[tuple[str, ...], str] = field(default_factory=dict)

    def write(self) -> None:
        """Write code and config without a fault."""
        (self.folder / "planted.toml").write_text(CONFIG)
        (self.folder / "planted_net.py").write_text(NET)
        (self.folder / "planted_data.py").write_text(DATA)
        (self.folder / "shift.bin").write_bytes(b"\x01")
        (self.folder.parent / "hidden-scale").write_text("1.0")
        install_gains(self.folder, "1.0", "1.0")

    def assay(
        self, *arguments: str, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in an OS process."""
        call = commands(self.warm, self.folder)
        return call(*arguments, cwd=cwd or self.folder, PYTHONPATH=self.path, **variables)

    def train(self, *arguments: str, code: int = 0, **variables: str) -> str:
        """Train in an OS process; return the path of the run."""
        before = {entry.path for entry in scan_runs(self.folder / "runs")}
        done = self.assay("run", "planted.toml", "--quiet", *arguments, **variables)
        assert done.returncode == code, done.stderr
        (new,) = {entry.path for entry in scan_runs(self.folder / "runs")} - before
        return new

    def base(self, *arguments: str, **variables: str) -> str:
        """Return a run without a fault; each set of arguments is trained once."""
        self.write()
        key = (*arguments, *variables)
        if key not in self.bases:
            self.bases[key] = self.train(*arguments, **variables)
        return self.bases[key]

    def verdict(self, fault: Fault) -> Verdict:
        """Train once without the fault and once with it, and compare."""
        base = self.base(*fault.base, **fault.base_variables)
        fault.change(self.folder)
        return diverge(base, self.train(*fault.overrides, **fault.variables)).verdict


@pytest.fixture(scope="module")
def planted(
    warm: WarmPythons, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlantedProject]:
    top = tmp_path_factory.mktemp("planted")
    folder = top / "project"
    folder.mkdir()
    path = os.pathsep.join([str(SRC), str(top / "site")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(top / "data"))
        patch.setenv("PYTHONPATH", path)
        yield PlantedProject(folder, path, warm)


@pytest.fixture(autouse=True)
def one_home(planted: PlantedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the author of the runs, which several tests share."""
    monkeypatch.setenv("XDG_DATA_HOME", str(planted.folder.parent / "data"))


@pytest.mark.row("A83", "F08")
@pytest.mark.parametrize("name", [*FAULTS, *MORE_FAULTS, *STEALTHY_FAULTS])
def test_a_planted_fault_is_found_and_classified(planted: PlantedProject, name: str) -> None:
    fault = (FAULTS | MORE_FAULTS | STEALTHY_FAULTS)[name]

    verdict = planted.verdict(fault)

    first = verdict.difference
    assert first is not None
    assert (first.phase, first.module, first.op or first.name) == fault.place
    assert verdict.cause == fault.cause
    assert sorted(verdict.changed_inputs) == sorted(fault.inputs)
    assert first.step == fault.step or (fault.place[0] == "data" and first.step > 0)


IN_FILES = (
    *("one swapped sample", "another order", "one ulp in one weight at init"),
    *(
        "another epsilon of the optimizer",
        "another rate of dropout",
        "another decay of the average",
    ),
)
"""Faults whose cause a golden file can tell, which has neither code nor environment."""

IN_REPLAYS = ("a data file changed in place", "a library edited in place")
"""Faults that a replay has, too: they are neither in code nor in config."""


@pytest.mark.parametrize("name", [*IN_FILES, *IN_REPLAYS])
def test_each_command_gives_a_fault_the_same_cause(planted: PlantedProject, name: str) -> None:
    fault = (FAULTS | MORE_FAULTS | STEALTHY_FAULTS)[name]
    base = planted.base(*fault.base)
    references = [base]
    if name in IN_FILES:
        references.append("golden.json")
        written = planted.assay(
            "prove", "planted.toml", *fault.base, "--write", "golden.json", "--steps", "3"
        )
        assert written.returncode == 0, written.stderr
    fault.change(planted.folder)

    proved = [
        planted.assay("prove", "planted.toml", *fault.overrides, "--against", each, "--json")
        for each in references
    ]
    causes = [json.loads(each.stdout)["cause"] for each in proved]
    if name in IN_REPLAYS:
        causes.append(replay(base).verdict.cause)

    assert causes == [fault.cause] * len(causes)


def test_runs_of_other_length_and_workers_are_equal_as_far_as_both_went(
    planted: PlantedProject,
) -> None:
    base = planted.base()
    longer = planted.train("train.steps=9")
    loaded = planted.train("+data.train.workers=2")

    verdicts = [diverge(base, each).verdict for each in (longer, loaded)]

    assert [(each.equal, each.last_step) for each in verdicts] == [(True, 6), (True, 6)]


OF_THE_RUN = "+model.dropout_seed=none"
"""Dropout draws from the generator of the run: one of its own is in no checkpoint."""


def test_a_resumed_run_is_compared_across_its_resume(planted: PlantedProject) -> None:
    often = ("+checkpoint.every=2 steps", "train.steps=12", OF_THE_RUN)
    base = planted.base(*often)
    killed = [planted.train(*often, code=-signal.SIGKILL, DIE_AT="90") for _ in range(2)]
    for path, changes in zip(killed, ((), ("+optimizer.eps=1e-7",)), strict=True):
        assert planted.assay("resume", path, "--quiet", *changes).returncode == 0

    exact, changed = (diverge(base, path).verdict for path in killed)

    resumed_at = find_run(killed[1]).file.newest.from_step
    assert exact.equal and exact.last_step == 12
    first = changed.difference
    assert first is not None and changed.cause == "optimizer" and resumed_at > 0
    assert (first.step, first.phase) == (resumed_at + 1, "optimizer")


def test_another_number_of_ranks_is_a_changed_input(planted: PlantedProject) -> None:
    verdict = diverge(planted.base(), planted.base(*RANKS)).verdict

    first = verdict.difference
    assert first is not None and (first.step, first.phase) == (1, "data")
    assert any("WORLD_SIZE" in name or "ranks" in name for name in verdict.changed_inputs)


@pytest.mark.row("F08")
def test_a_run_of_another_machine_is_compared_from_its_pack(
    planted: PlantedProject, tmp_path: Path
) -> None:
    base = planted.base()
    other = planted.train("+optimizer.eps=1e-7")
    pack = tmp_path / "other.tar.gz"
    assert planted.assay("pack", other, "--to", str(pack)).returncode == 0
    here = tmp_path / "here"
    assert commands(planted.warm, planted.folder)("init", str(here)).returncode == 0
    unpacked = planted.assay("unpack", str(pack), cwd=here)
    assert unpacked.returncode == 0, unpacked.stderr
    (path,) = [entry.path for entry in scan_runs(here / "runs")]

    verdict = diverge(base, path).verdict

    assert verdict.cause == "optimizer" and verdict.difference is not None
    assert tuple(verdict.changed_inputs) == ("config optimizer.eps",)


@pytest.mark.row("F08")
def test_twenty_pairs_of_seven_equal_runs_are_never_told_as_different(
    planted: PlantedProject,
) -> None:
    planted.write()
    ways = [(), ("trace.level=default",), ("train.steps=7",), ("+data.train.workers=1",)]
    runs = [planted.train(*ways[i % len(ways)]) for i in range(7)]

    verdicts = [diverge(left, right).verdict for left, right in combinations(runs, 2)]

    assert len(verdicts) == 21
    assert all(each.equal and each.last_step >= 6 for each in verdicts)
