"""Each older system with each feature that it shares with assay, whole and interrupted.

A cell is a small project: it trains once to its end, and once until a planted kill or signal; the
second is resumed and must have the bits and the curves of the first, and `replay` must prove a
run that has a config. Or the training is refused by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from assay.query.run import RunView
from assay.store.layout import open_project, run_folders
from assay.store.series import read_series
from examples import SRC
from warm_python import Run

pytestmark = pytest.mark.thorough

DOCS = Path(__file__).parents[2] / "docs"
TIMINGS = ("memory", "speed", "time")
PLANTED = """
import os, signal
from pathlib import Path


def stop(count):
    name, at = (Path("stop").read_text().split() if Path("stop").exists() else ("", 0))
    if name and count == int(at):
        os.kill(os.getpid(), getattr(signal, name))
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Files of a project, its command, how it is stopped and resumed; or the refusal."""

    name: str
    files: dict[str, str]
    command: Sequence[str]
    resume: Sequence[str]
    stop: str
    refused: str = ""
    home: str = "."


# --- alchemy --------------------------------------------------------------------------------------

POINTS = """
import torch
from planted import stop


class Points:
    def __init__(self, seed, size=20):
        self.points = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))
        self.asked = 0

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        self.asked += len(self) == 20
        stop(self.asked)
        return self.points[i], int(self.points[i].sum() > 0)
"""
ALCHEMY = """
tag = "t"
plugins = [{{ type = "alchemy.plugins.FileLogger", log_dir = "records/train" }}]
[model]
type = "own.Model"
criterion_cfg = {{ type = "torch.nn.CrossEntropyLoss" }}
{model}
[optim]
type = "torch.optim.SGD"
lr = 0.1
[train]
epochs = 4
[task]
{task}
[task.datasets.train]
source = {{ type = "points.Points", seed = 0 }}
batch_size = 4
{data}
[task.datasets.dev]
source = {{ type = "points.Points", seed = 1, size = 12 }}
batch_size = 4
[checkpoint]
every = "1 step"
{more}
"""
OWN = """
import torch
from torch import nn
from alchemy import *


class Model(AlchemyModel):
    def __init__(self, criterion_cfg=None, backward_cfg=None, **others):
        super().__init__(criterion_cfg=criterion_cfg, backward_cfg=backward_cfg, **others)
        self._model = nn.Linear(4, 2)
        self.set_up()

    def set_up(self): ...
    def after(self, x): ...

    def forward(self, batch, needs_loss=False, requires_grad=False):
        x, y = batch
        scores = self._model(x)
        output = {"pred": scores.argmax(1), "target": y}
        if needs_loss or requires_grad:
            output["loss"] = self.criterion(scores, y)
        if requires_grad:
            self.backward(output["loss"])
            self.after(x)
        return output


class Counting(EvalPipeline):
    def __init__(self):
        self.times = 0

    def __call__(self, split, **others):
        self.times += 1
        return {"metrics": {"times": self.times}}


class Tally(OutputPipeline):
    def __init__(self):
        self.seen = 0

    def __call__(self, pred, target, **others):
        self.seen += len(pred)
        return {"pred": pred, "target": target, **others}


class EvalEpoch(EndEpochPipeline):
    def __call__(self, **others):
        evaluate("dev")
        return others


class Twice:
    def __call__(self, rows):
        return torch.stack([x for x, _ in rows]) * 2, torch.tensor([y for _, y in rows])
"""
SECOND = """
class Model(Model):
    def set_up(self):
        self.critic = nn.Linear(4, 1)
        self.optim_d = torch.optim.Adam(self.critic.parameters(), lr=0.05)
        self.sched = torch.optim.lr_scheduler.StepLR(self.optim_d, 3, 0.5)

    def after(self, x):
        self.optim_d.zero_grad()
        (self.critic(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        self.optim_d.step()
        self.sched.step()
        self._model.weight.data.add_(self.critic.weight.data * 1e-3)
"""


def alchemy(
    name: str,
    own: str = "",
    *options: str,
    refused: str = "",
    stop: str = "SIGKILL 33",
    **parts: str,
) -> Cell:
    places = {"model": "", "task": "", "data": "", "more": "", **parts}
    files = {
        "cfg.toml": ALCHEMY.format(**places),
        "src/own.py": OWN + own,
        "src/points.py": POINTS,
        "src/planted.py": PLANTED,
    }
    command = ("assay", "run", "cfg.toml", "--device", "cpu", *options)
    return Cell(
        name=f"alchemy: {name}",
        files=files,
        command=command,
        resume=("assay", "resume", "last"),
        stop=stop,
        refused=refused,
    )


COUNTS = 'evalpipes = [{ type = "own.Counting" }]'
OF_ALCHEMY = [
    alchemy("as it is"),
    alchemy("a second network, its optimizer and its scheduler", SECOND),
    alchemy("a pipe of an evaluation that counts", task=COUNTS),
    alchemy(
        "a pipe of outputs that counts", task=f'outputpipes = [{{ type = "own.Tally" }}]\n{COUNTS}'
    ),
    alchemy(
        "an evaluation by a pipeline, whose pipe counts",
        task=COUNTS,
        more='[sched]\nend_epoch = [{ type = "own.EvalEpoch" }]',
    ),
    alchemy(
        "accumulation",
        model='backward_cfg = { type = "alchemy.DefaultBackwardHandler", period = 2 }',
    ),
    alchemy("a collate function", data='collate_fn = { type = "own.Twice" }'),
    alchemy("overrides", "", "optim.lr=0.2", "task.datasets.train.batch_size=5"),
    alchemy("a full trace", "", "+trace.level=full"),
    alchemy("two ranks", "", "--nproc", "2", refused="AlchemyProcess makes its own updates"),
]

# --- thexp ----------------------------------------------------------------------------------------

THEXP = """
import torch, torch.nn as nn
from planted import stop
from thexp import EvalCallback, Meter, Params, Trainer
from torch.utils.data import DataLoader, TensorDataset

points = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
labels = (points.sum(1) > 0).long()


class Training(Trainer):
    def initial_callback(self):
        EvalCallback(1, 100).hook(self)

    def initial_trainer(self, params):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=params.lr, momentum=0.9)
        self.calls = 0
        self.set_up()
        self.regist_databundler(
            train=DataLoader(TensorDataset(points, labels), batch_size=4, shuffle=True),
            eval=DataLoader(TensorDataset(points, labels), batch_size=10),
        )

    def set_up(self): ...
    def after(self, x): ...

    def update(self, loss, global_step):
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()

    def train_batch(self, eidx, idx, global_step, batch, params, device):
        self.calls += 1
        stop(self.calls)
        meter, (x, y) = Meter(), batch
        meter.loss = nn.functional.cross_entropy(self.model(x), y)
        self.update(meter.loss, global_step)
        self.after(x)
        return meter

    def eval_batch(self, eidx, idx, global_step, batch, params, device):
        meter, (x, y) = Meter(), batch
        meter.acc = (self.model(x).argmax(1) == y).float().mean()
        return meter
"""
THEXP_MAIN = """
params = Params()
params.epoch, params.lr = 4, 0.1
training = Training(params)
training.initial_exp("./experiment")
training.train()
"""
CRITIC = """
class Training(Training):
    def set_up(self):
        self.critic, self.ema = nn.Linear(4, 1), nn.Linear(4, 2)
        self.optim_d = torch.optim.Adam(self.critic.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler("cpu")

    def after(self, x):
        self.optim_d.zero_grad()
        (self.critic(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        self.optim_d.step()
        with torch.no_grad():
            for kept, new in zip(self.ema.parameters(), self.model.parameters()):
                kept.mul_(0.9).add_(new * 0.1)
            self.model.weight.add_((self.critic.weight + self.ema.weight) * 1e-3)
"""


def script(system: str, name: str, text: str, *, refused: str = "", home: str = ".") -> Cell:
    return Cell(
        name=f"{system}: {name}",
        files={"script.py": text, "planted.py": PLANTED},
        command=("assay.compat", "script.py"),
        resume=("assay.compat", "--resume", "auto", "script.py"),
        stop="SIGTERM 9",
        refused=refused,
        home=home,
    )


def thexp(name: str, own: str = "", *, refused: str = "") -> Cell:
    return script("thexp", name, THEXP + own + THEXP_MAIN, refused=refused, home="experiment")


OF_THEXP = [
    thexp("as it is"),
    thexp(
        "a scheduler that it steps itself",
        """
class Training(Training):
    def set_up(self):
        self.sched = torch.optim.lr_scheduler.StepLR(self.optim, 3, 0.5)

    def after(self, x):
        self.sched.step()
""",
    ),
    thexp("a second network, an average and a scaler", CRITIC),
    thexp(
        "accumulation by hand",
        """
class Training(Training):
    def update(self, loss, global_step):
        loss.backward()
        if global_step % 2:
            self.optim.step()
            self.optim.zero_grad()
""",
        refused="called loss.backward(), and made no step with it",
    ),
]

# --- flame ----------------------------------------------------------------------------------------

FLAME = """
import torch, torch.nn as nn
from flame import Engine
from planted import stop

draw = torch.Generator().manual_seed(0)
points = torch.randn(20, 4, generator=draw)
labels = (points.sum(1) > 0).long()
loader = [(points[i : i + 4], labels[i : i + 4]) for i in range(0, 20, 4)]


class Learning:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.calls = 0
        self.set_up()

    def set_up(self): ...
    def after(self): ...

    def forward_step(self, batch):
        x, y = batch
        scores = self.model(x)
        return scores, {"loss": nn.functional.cross_entropy(scores, y)}

    def training_step(self, batch):
        self.calls += 1
        stop(self.calls)
        _, losses = self.forward_step(batch)
        losses["loss"].backward()
        return {"loss": losses["loss"].item()}

    def update(self, *given):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.after()

    def validation_step(self, batch):
        return self.forward_step(batch)[1]

    def train(self, mode=True):
        self.model.train(mode)
"""


def flame(name: str, own: str = "") -> Cell:
    return script("flame", name, f"{FLAME}{own}\nEngine(Learning(), loader, epochs=4).run()\n")


OF_FLAME = [
    flame("as it is"),
    flame(
        "a scheduler that it steps itself",
        """
class Learning(Learning):
    def set_up(self):
        self.sched = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)

    def after(self):
        self.sched.step()
""",
    ),
]

# --- LiBai ----------------------------------------------------------------------------------------

OF_POINTS = """
import oneflow as flow
import oneflow.nn as nn
from libai.data.structures import DistTensorData, Instance
from oneflow.utils.data import Dataset
from planted import stop


class Points(Dataset):
    def __init__(self, is_train):
        draw = flow.Generator().manual_seed(int(is_train))
        self.points = flow.randn(40 if is_train else 12, 4, generator=draw)
        self.asked = 0

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        self.asked += len(self) == 40
        stop(self.asked)
        label = flow.tensor(int(self.points[i].sum() > 0), dtype=flow.int)
        return Instance(
            inputs=DistTensorData(self.points[i]), labels=DistTensorData(label, placement_idx=-1)
        )


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.loss_func = nn.CrossEntropyLoss()

    def forward(self, inputs, labels):
        scores = self.linear(inputs)
        if labels is not None and self.training:
            return {"losses": self.loss_func(scores, labels)}
        return {"prediction_scores": scores}


class Share:
    def __init__(self):
        self.times = 0
        self.reset()

    def reset(self):
        self.hit = self.all = 0

    def process(self, inputs, outputs):
        hit = outputs["prediction_scores"].argmax(1) == inputs["labels"]
        self.hit, self.all = self.hit + int(hit.sum()), self.all + len(hit)

    def evaluate(self):
        self.times += 1
        return {"share": self.hit / self.all, "times": self.times}

    def state_dict(self):
        return {"times": self.times}

    def load_state_dict(self, state):
        self.times = state["times"]
"""
LIBAI = """
from libai.config import LazyCall
from libai.data.build import build_image_test_loader, build_image_train_loader
from omegaconf import OmegaConf
from points import Network, Points, Share
{head}
model = LazyCall(Network)()
dataloader = OmegaConf.create()
dataloader.train = LazyCall(build_image_train_loader)(
    dataset=[LazyCall(Points)(is_train=True)], num_workers=0
)
dataloader.test = [
    LazyCall(build_image_test_loader)(dataset=LazyCall(Points)(is_train=False), num_workers=0)
]
train = dict(
    output_dir="output/", train_micro_batch_size=5, test_micro_batch_size=4, train_epoch=3,
    train_iter=0, eval_period=4, log_period=5, warmup_ratio=0.1, seed=3,
    checkpointer=dict(period=1, max_to_keep=100),
)
{tail}
"""
OPTIM = """
import oneflow as flow
from libai.config import LazyCall

optim = LazyCall(flow.optim.SGD)(lr=0.3, momentum=0.9)
"""


def libai(name: str, *options: str, head: str = "", tail: str = "") -> Cell:
    return Cell(
        name=f"libai: {name}",
        files={
            "configs/config.py": LIBAI.format(head=head, tail=tail),
            "configs/optim.py": OPTIM,
            "points.py": OF_POINTS,
            "planted.py": PLANTED,
        },
        command=(
            "assay",
            "run",
            "configs/config.py",
            "--user-dir",
            ".",
            "--device",
            "cpu",
            *options,
        ),
        resume=("assay", "resume", "last"),
        stop="SIGKILL 63" if "--nproc" not in options else "SIGKILL 33",
    )


OF_LIBAI = [
    libai("as it is"),
    libai("an optimizer of another config", head="from configs.optim import optim"),
    libai(
        "an evaluator that counts",
        tail="train['evaluation'] = dict(enabled=True, evaluator=LazyCall(Share)(),"
        " eval_metric='share', eval_mode='max')",
    ),
    libai("accumulation", tail="train['num_accumulation_steps'] = 2"),
    libai("overrides", "train.train_micro_batch_size=4", "optim.lr=0.05"),
    libai("a full trace", "+trace.level=full"),
    libai("two ranks", "train.train_micro_batch_size=4", "--nproc", "2"),
]

CELLS = [*OF_ALCHEMY, *OF_THEXP, *OF_FLAME, *OF_LIBAI]


@pytest.mark.row("A94", "C59", "D18")
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_training_of_an_older_system_is_resumed_to_its_own_bits_or_refused_by_name(
    cell: Cell, warm: Run, tmp_path: Path
) -> None:
    for name, text in cell.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}

    def run(command: Sequence[str]) -> tuple[int, str]:
        done = warm(["-m", *command], folder=tmp_path, variables={**os.environ, **own})
        return done.returncode, done.stdout + done.stderr

    code, said = run(cell.command)
    if cell.refused:
        assert code == 2 and cell.refused in said and "fix:" in said and "Traceback" not in said
        return
    assert code == 0, said
    (tmp_path / "stop").write_text(cell.stop, encoding="utf-8")
    assert run(cell.command)[0] != 0
    (tmp_path / "stop").unlink()
    code, said = run(cell.resume)
    assert code == 0, said

    views = [RunView(each) for each in run_folders(open_project(tmp_path / cell.home))]
    whole, resumed = sorted(views, key=lambda view: view.file.created_ns)
    assert resumed.file.newest.from_step > 0
    assert last_weights(whole) == last_weights(resumed)
    assert curves(whole) == curves(resumed)
    if cell.command[:2] == ("assay", "run"):
        code, said = run(("assay", "replay", whole.id))
        assert code == 0, said


def test_the_page_lists_every_cell_with_what_comes_of_it() -> None:
    page = (DOCS / "reference" / "older-texts.md").read_text(encoding="utf-8")
    rows = []
    for cell in CELLS:
        system, _, feature = cell.name.partition(": ")
        result = f"refused: {cell.refused}" if cell.refused else "equal bits"
        rows.append(f"| {system} | {feature} | {result} |")

    assert page.endswith("|---|---|---|\n" + "\n".join(rows) + "\n")


def last_weights(view: RunView) -> tuple[str, bytes]:
    newest = max(view.folder.checkpoints.glob("step-*"))
    return newest.name, (newest / "model.safetensors").read_bytes()


def curves(view: RunView) -> str:
    """Return all that was measured, but times and memory, as text: nan equals nan."""
    series = read_series(view.folder.metrics)
    told = {
        name: [curve.steps.tolist(), curve.values.tolist()]
        for name, curve in series.items()
        if name.partition("/")[0] not in TIMINGS
    }
    return json.dumps(told, sort_keys=True)
