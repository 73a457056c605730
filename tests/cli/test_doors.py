"""Each refusal of a run, at each door that leads to one: the same words, the same exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from assay.jobs.backends import ray, submission
from assay.store.job_journal import JobJournal
from assay.store.layout import Project

from .conftest import Assay, Said

CONFIG = """\
[model]
type = "torch.nn.Linear"
in_features = 2
out_features = 1

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.MSELoss" }

[optimizer]
type = "torch.optim.SGD"
lr = 0.1

[data.train]
source = { type = "net.Rows" }
batch_size = 4

[train]
epochs = 1
"""
CODE = """\
import torch

class Rows:
    randomness = "none"
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.ones(2), torch.ones(1)

class Third(torch.nn.Module):
    def forward(self, pred, target):
        return 0.3 * torch.nn.functional.mse_loss(pred, target)

class Pair(torch.nn.Module):
    def forward(self, pred, target):
        return ((pred - target) ** 2).sum(), len(pred)

class Said(Third):
    reduction = "sum"

class Step:
    def __init__(self, optimizer):
        self.optimizer = optimizer
"""
SPACE = "\n[sweep]\nseed = [1, 2]\n"


@dataclass(frozen=True)
class Refusal:
    """Mistake of a config: what is put in the place of what, options, and the words about it."""

    words: str
    changes: Sequence[tuple[str, str]] = ()
    more: str = ""
    device: str = ""
    is_elsewhere_too: bool = True


def without(section: str) -> tuple[str, str]:
    start = CONFIG.index(f"[{section}")
    end = CONFIG.find("\n\n", start)
    return CONFIG[start : end if end >= 0 else None], ""


TWO = ("[optimizer]\n", "[optimizer.weight]\n")
REFUSALS = {
    "model": Refusal("the config has no section [model], which a run needs", [without("model")]),
    "data": Refusal("the config has no section [data], which a run needs", [without("data")]),
    "both": Refusal(
        "the config has no sections [process], [train], which a run needs",
        [without("process"), without("train")],
    ),
    "syntax": Refusal("`=` is missing", [("lr = 0.1", "lr")]),
    "key": Refusal("unknown key `train.epoch`", [("epochs", "epoch")]),
    "type": Refusal("`lr` of `torch.optim.SGD` must be a number", [("lr = 0.1", 'lr = "x"')]),
    "argument": Refusal(
        "`torch.nn.Linear` takes no argument `widht`", [("out_f", "widht = 1\nout_f")]
    ),
    "target": Refusal("has no `Row`", [("net.Rows", "net.Row")]),
    "device kind": Refusal("there is no device 'cdua'", device="cdua"),
    "device": Refusal("there is no device 'cuda:99'", device="cuda:99", is_elsewhere_too=False),
    "schedule": Refusal(
        "[schedule.other] belongs to no optimizer",
        more='[schedule.other]\ntype = "assay.engine.Constant"\n',
    ),
    "every": Refusal(
        "[backward] every is for several optimizers", more="[backward]\nevery = { gen = 2 }\n"
    ),
    "weights of losses": Refusal(
        "[backward.weights] bias is no optimizer", [TWO], "[backward.weights.bias]\nloss = 1.0\n"
    ),
    "one weight": Refusal(
        "[backward.weights] weight is a number", [TWO], "[backward.weights]\nweight = 1.0\n"
    ),
    "batch": Refusal(
        "a batch of 4 cannot be split evenly on 3 ranks", more="[parallel]\ndata = 3\n"
    ),
    "compile": Refusal(
        "[train] compile = true is for a whole model",
        [("epochs = 1", "epochs = 1\ncompile = true")],
        "[parallel]\npipeline = 2\n",
    ),
    "weights": Refusal("there is no file `no.pt`", more="[load_weights]\npath = 'no.pt'\n"),
    "source": Refusal("`data.valid` has no `source`", more="[data.valid]\nbatch_size = 4\n"),
    "test": Refusal("a config has no weights to test", [("[model]", 'runner = "test"\n[model]')]),
    "part": Refusal("this config is a part", [("[model]", "partial = true\n[model]")]),
    "half a part": Refusal(
        "`partial` must be true or false, not 2", [("[model]", "partial = 2\n[model]")]
    ),
}

Door = Callable[[Assay, Sequence[str]], Said]
DOORS: dict[str, Door] = {
    "check": lambda assay, given: assay("check", "a.toml", *given),
    "check --variant all": lambda assay, given: assay("check", "a.toml", "--variant=all", *given),
    "run": lambda assay, given: assay("run", "a.toml", "--no-sweep", *given),
    "run of several": lambda assay, given: assay("run", "a.toml", *given),
    "sweep": lambda assay, given: assay("sweep", "a.toml", "--metric=train/loss", *given),
    "run --queue": lambda assay, given: assay("run", "a.toml", "--queue", "--no-rehearse", *given),
    **{
        f"run --on {name}": lambda assay, given, name=name: assay(  # type: ignore[misc]
            "run", "a.toml", "--on", name, *given
        )
        for name in ("slurm", "ray", "k8s")
    },
}
ELSEWHERE = ("slurm", "ray", "k8s")
# Nobody here knows the devices of another machine.
CELLS = [
    (mistake, name)
    for mistake, refusal in REFUSALS.items()
    for name in DOORS
    if refusal.is_elsewhere_too or not name.endswith(ELSEWHERE)
]


@pytest.mark.parametrize(("mistake", "name"), CELLS)
def test_each_door_refuses_what_a_run_refuses(
    assay: Assay, project: Project, monkeypatch: pytest.MonkeyPatch, mistake: str, name: str
) -> None:
    refusal = REFUSALS[mistake]
    text = CONFIG
    for old, new in refusal.changes:
        assert old in text
        text = text.replace(old, new)
    Path("net.py").write_text(CODE)
    Path("a.toml").write_text(f"{text}\n{refusal.more}{SPACE}\n[variants.big]\nseed = 7\n")
    monkeypatch.setenv("COLUMNS", "400")
    for home, name_there in ((submission, "submit_jobs"), (ray, "run_on_ray")):
        monkeypatch.setattr(home, name_there, lambda *_: pytest.fail("it was let through"))

    said = DOORS[name](assay, ["--device", refusal.device] if refusal.device else [])

    if mistake == "part" and name.startswith("check"):
        assert said.code == 0 and said.out.startswith("fine as a part  a.toml")
        return
    assert said.code == 2, said
    assert refusal.words in said.out + said.err and "error: " in said.out + said.err
    assert not list(project.runs_dir.glob("*/run.json"))
    with JobJournal() as journal:
        assert not journal.counts()


PARTS = {"parts": "[train]\naccumulate = 2\n", "ranks": "[parallel]\ndata = 2\n"}


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ("parts", "check"),
        ("ranks", "check"),
        ("parts", "run of several"),
        ("parts", "run --on ray"),
    ],
)
def test_a_loss_that_nobody_divides_is_refused_before_a_run_begins(
    assay: Assay, project: Project, parts: str, name: str
) -> None:
    write_loss("net.Third", PARTS[parts], SPACE)

    said = DOORS[name](assay, [])

    assert said.code == 2
    assert "and what Third divides its" in said.out + said.err
    assert 'reduction = "mean"' in said.out + said.err
    assert not list(project.runs_dir.glob("*/run.json"))


def test_a_single_run_refuses_such_a_loss_with_its_first_micro_batch(
    assay: Assay, project: Project
) -> None:
    write_loss("net.Third", PARTS["parts"])

    said = assay("run", "a.toml")

    assert said.code == 2 and "what Third divides its loss by is unknown" in said.err


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("torch.nn.MSELoss", " "),
        ("net.Pair", " "),
        ("net.Said", " "),
        ("net.Third", '[process]\nreduction = "mean"\n'),
        ("net.Third", ""),
    ],
)
def test_a_loss_passes_each_door_where_something_says_what_divides_it(
    assay: Assay, project: Project, kind: str, more: str
) -> None:
    write_loss(kind, more, "" if kind == "net.Third" and not more else PARTS["parts"])

    assert assay("check", "a.toml").code == 0
    assert assay("run", "a.toml").code == 0


def write_loss(kind: str, *more: str) -> None:
    """Write the config with that criterion, and with these further keys of its sections."""
    text = CONFIG.replace("torch.nn.MSELoss", kind)
    for part in filter(None, more):
        head, _, keys = part.lstrip().partition("\n")
        text = text.replace(f"{head}\n", f"{head}\n{keys}") if head in text else text + part
    Path("net.py").write_text(CODE)
    Path("a.toml").write_text(text)
