"""Mistakes of a day of use, and what is said of each: `day.txt`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

import assay
from assay.cli.main import main
from flow.conftest import CONFIG, NET, POINTS
from mistakes.snapshots import Snapshots
from notebooks import executed

pytestmark = pytest.mark.thorough


class Mistake(NamedTuple):
    """A command line, Python code or cells, after the files of the toy project were changed."""

    command: str = ""
    code: str = ""
    cells: tuple[str, ...] = ()  # of a notebook, executed by a real kernel
    changes: tuple[tuple[str, str, str], ...] = ()  # file, old text, new text
    needs_run: bool = False  # a recorded run of 6 steps
    fix: tuple[str, str, str] | str = ""  # what the message advises: a change, or a command


def mended(
    command: str, fix: tuple[str, str, str] | str, *changes: tuple[str, str, str], run: bool = False
) -> Mistake:
    return Mistake(command, changes=changes, fix=fix, needs_run=run)


def config(old: str, new: str, command: str = "run toy.toml --device cpu") -> Mistake:
    return Mistake(command, changes=(("toy.toml", old, new),))


def source(file: str, old: str, new: str) -> Mistake:
    return Mistake("run toy.toml --device cpu --no-file", changes=((file, old, new),))


def later(command: str = "", code: str = "") -> Mistake:
    return Mistake(command, code, needs_run=True)


def cells(*cells: str) -> Mistake:
    return Mistake(cells=("import assay", *cells))


RUN = "run toy.toml --device cpu --no-file"
END = "        return self.layers(x)\n"
WEIGHT = "process.criterion.weight"
LOSS = """
class Loss(nn.Module):
    def __init__(self, weight=None):
        super().__init__()
        {}

    def forward(self, pred, target):
        return nn.functional.cross_entropy(pred, target, weight=self.weight)
"""
PROCESS = """
import assay.engine

class Step(assay.engine.Process):
    def __init__(self, model, backward):
        self.model, self.backward = model, backward

    def forward_step(self, batch):
        pred = self.model(batch[0])
        loss = nn.functional.cross_entropy(pred, batch[1])
        return loss, {"pred": pred, "target": batch[1], "loss": loss}
"""
ANNOTATED = ("net.py", "weight=None", "weight: 'torch.Tensor | None' = None")
MISTAKES = {
    # config
    "a section is mistyped": config("[train]", "[trian]"),
    # command line
    "a config that is not there": Mistake("run toi.toml"),
    "a part of configs is run": mended(
        RUN + " --max-steps 1",
        ("toy.toml", "partial = true\n", ""),
        ("toy.toml", "tag =", "partial = true\ntag ="),
    ),
    "a device that is not there": Mistake("run toy.toml --device cuda:9"),
    "a run that is not there": later("show lastt"),
    "a metric that is mistyped": later("metrics last -m valid/ac"),
    "a run in place of a config": later("run toy"),
    "an expression with a mistyped key": later("ls 'optimzer.lr > 0'"),
    "a split that is not there": later("test last --split tset"),
    # Python
    "assay.run of a file that is not there": Mistake(code="assay.run('nope.toml')"),
    "assay.run with a mistyped override": Mistake(
        code="assay.run('toy.toml', overrides={'optimizer.lrr': 1})"
    ),
    "a config that is no mapping": Mistake(code="assay.start(config=[1, 2])"),
    "a name that assay does not have": Mistake(code="assay.strat()"),
    "a model of a run that is not there": Mistake(code="assay.load_model('lst')"),
    "a metric of a run that is not there": later(code="assay.runs()[0].metric('train/los')"),
    "a column that no run has": later(code="assay.runs(columns=['tag', 'optimzer.lr'])"),
    "grouping by nothing": later(code="assay.runs().group_by()"),
    # data and model
    "the model has the wrong width": source("net.py", "nn.Linear(4, width)", "nn.Linear(5, width)"),
    "the model raises": source("net.py", "return self.layers(x)", "return self.layer(x)"),
    "labels beyond the classes": source("net.py", "nn.Linear(width, 2)", "nn.Linear(width, 1)"),
    "the data set is empty": config("noisy = true", "noisy = true, size = 0"),
    "the learning rate is far too large": Mistake(f"{RUN} optimizer.lr=1e30 train.clip_norm=1e30"),
    "a syntax error in the model": source(
        "net.py", "def forward(self, x):", "def forward(self, x)"
    ),
    # resume
    "resuming a config": Mistake("resume toy.toml"),
    "testing a config that has no weights": Mistake("test toy.toml"),
    "a checkpoint that is not there": later("resume last@77"),
    "resuming with another seed": later("resume last seed=9 train.epochs=9"),
    "resuming an epoch in another order": mended(
        "resume last data.train.shuffle=false --force",
        "resume last data.train.shuffle=true --force",
        run=True,
    ),
    "resuming with a wider model": later("resume last model.width=16 train.epochs=9"),
    "a test of a run that has no checkpoints": mended(
        "test last",
        "rerun last checkpoint.enabled=true --device cpu",
        ("toy.toml", 'every = "3 steps"', "enabled = false"),
        ("toy.toml", 'best = { metric = "valid/acc", mode = "max" }', ""),
        run=True,
    ),
    "weights that are not there": mended(
        f"{RUN} load_weights=net.safetensor.safetensors", f"{RUN} --max-steps 1"
    ),
    "weights to begin with that are not there": mended(
        f"{RUN} --from nope.safetensors", f"{RUN} --from toy@latest --max-steps 1", run=True
    ),
    # functions, tensors and types
    "a function that is called too early": mended(
        f"{RUN} --max-steps 1",
        ("toy.toml", '"net.collate"', '"net.collate", _partial_ = true'),
        (
            "net.py",
            "class Net",
            "from torch.utils.data import default_collate\n\n"
            "def collate(samples):\n    return default_collate(samples)\n\nclass Net",
        ),
        ("toy.toml", "batch_size = 8", 'batch_size = 8\ncollate = { type = "net.collate" }'),
    ),
    "an argument that only its annotation fills": mended(
        f"{RUN} --max-steps 1 process.type=net.Step process.criterion=@delete "
        "process.metrics=@delete checkpoint.best=@delete evaluate.every=never",
        ("net.py", "model, backward):", "model, backward: assay.engine.OptimizerStep):"),
        ("net.py", END, END + PROCESS),
    ),
    "a metric that assay lacks": mended(
        f"{RUN} process.metrics.acc.type=assay.engine.F2 checkpoint.best=@delete",
        f"{RUN} process.metrics.acc.type=assay.engine.F1 checkpoint.best=@delete --max-steps 1",
    ),
    "two numbers a sample for a target of one": mended(
        f"{RUN} process.criterion.type=torch.nn.MSELoss",
        f"{RUN} process.criterion.type=torch.nn.CrossEntropyLoss --max-steps 1",
    ),
    "a model that returns nothing": mended(
        f"{RUN} --max-steps 1",
        ("net.py", "        self.layers(x)", "        return self.layers(x)"),
        ("net.py", "return self.layers(x)", "self.layers(x)"),
    ),
    "a list for an argument without annotation": mended(
        f"{RUN} --max-steps 1 process.criterion.type=net.Loss {WEIGHT}=[0.1,0.9]",
        ANNOTATED,
        ("net.py", "from torch import nn", "import torch\nfrom torch import nn"),
        ("net.py", END, END + LOSS.format("self.weight = weight")),
    ),
    "a list for a buffer": mended(
        f"{RUN} --max-steps 1 process.criterion.type=net.Loss {WEIGHT}=[0.1,0.9]",
        ANNOTATED,
        ("net.py", "from torch import nn", "import torch\nfrom torch import nn"),
        ("net.py", END, END + LOSS.format("self.register_buffer('weight', weight)")),
    ),
    "weights of classes without a point": mended(
        f"{RUN} {WEIGHT}=[1,19]", f"{RUN} {WEIGHT}=[1.0,19.0] --max-steps 1"
    ),
    "a weight too many": mended(
        f"{RUN} {WEIGHT}=[1.0,19,3]", f"{RUN} {WEIGHT}=[1.0,19] --max-steps 1"
    ),
    "a text for a tensor": mended(f"{RUN} {WEIGHT}=high", f"{RUN} {WEIGHT}=[1.0,19] --max-steps 1"),
    "a list in quotes for a tensor": mended(
        "check toy.toml",
        ("toy.toml", '"[1.0, 19.0]"', "[1.0, 19.0]"),
        ("toy.toml", 'CrossEntropyLoss"', 'CrossEntropyLoss", weight = "[1.0, 19.0]"'),
    ),
    "rows of two lengths for a tensor": mended(
        f"{RUN} {WEIGHT}=[[1],[1,2]]", f"{RUN} {WEIGHT}=[1.0,2.0] --max-steps 1"
    ),
    "a negative learning rate": mended(
        f"{RUN} optimizer.lr=-0.1", f"{RUN} optimizer.lr=0.1 --max-steps 1"
    ),
    "a number that the optimizer refuses": mended(
        f"{RUN} optimizer.betas=[0.9,1.5]", f"{RUN} --max-steps 1"
    ),
    "the list of files of Hydra": mended(
        "check toy.toml",
        ("toy.toml", "[defaults]\nmodel = 'net'\n", ""),
        ("toy.toml", "[model]", "[defaults]\nmodel = 'net'\n[model]"),
    ),
    "a column that is mistyped": mended(
        "ls --columns optimzer.lr", "ls --columns '`optimizer.lr`'", run=True
    ),
    "a metric without a step": Mistake(code="with assay.start() as run: run.log({'loss': 1.0})"),
    # notebook
    "a cell fails in the middle of a run": cells(
        "run = assay.start(tag='first')\nfor step in range(9):\n    run.log({'loss': 1 / (3 - step)}, step)"
    ),
    "a second run in the cell below": cells(
        "run = assay.start(tag='first')\nrun.log({'loss': 1.0}, 1)",
        "run = assay.start(tag='second')",
    ),
    "logging in the cell after the run": cells(
        "with assay.start(tag='first') as run:\n    run.log({'loss': 1.0}, 1)",
        "run.log({'loss': 0.5}, 2)",
    ),
    "a config that is not there, from a cell": cells("assay.run('nope.toml')"),
    "a script that fails, by a magic": cells(
        "%%writefile train.py\nimport assay\nrun = assay.start(tag='first')\nrun.log({'los': 1.0}, 'one')",
        "%run train.py",
    ),
    "a plot of a metric that is not there": cells(
        "with assay.start(tag='first') as run:\n    run.log({'train/loss': 1.0}, 1)\nrun.plot('train/los')"
    ),
}


SNAPSHOTS = Snapshots("day", MISTAKES)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("toy.toml", CONFIG), ("net.py", NET), ("points.py", POINTS)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / ".assay").mkdir()
    return tmp_path


def said_of(mistake: Mistake, folder: Path) -> str:
    """Make a mistake and return what is printed or raised, without what differs each time."""
    for file, old, new in mistake.changes:
        change(folder, file, old, new)
    with redirect_stdout(StringIO()) as out, redirect_stderr(out):
        if mistake.needs_run:
            assert main(["run", "toy.toml", "--device", "cpu", "--quiet", "--max-steps", "6"]) == 0
            out.seek(0)
            out.truncate()
        if mistake.command:
            code = main(shlex.split(mistake.command))
            assert code in (1, 2), (code, out.getvalue())
            return neutral(f"$ assay {mistake.command}\n{out.getvalue()}", folder)
        if mistake.cells:
            return neutral(said_in_notebook(mistake.cells, folder), folder)
        with pytest.raises((Exception, SystemExit)) as caught:
            exec(mistake.code, {"assay": assay})
    kind = type(caught.value).__name__
    return neutral(f">>> {mistake.code}\n{kind}: {caught.value}\n", folder)


def change(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text, old
    (folder / file).write_text(text.replace(old, new))


def said_in_notebook(cells: Sequence[str], folder: Path) -> str:
    """Return the cells with their printed lines and errors, as a kernel gives them."""
    said = []
    for number, cell in enumerate(executed(cells, folder)[1:], 2):
        said.append(f"[{number}] " + cell.source.replace("\n", "\n    "))
        for output in cell.outputs:
            if output.output_type == "stream":
                said.append(output.text.rstrip())
            elif output.output_type == "error":
                said.append(f"{output.ename}: {output.evalue}")
    return "\n".join(said)


def neutral(text: str, folder: Path) -> str:
    text = re.sub(r"[a-z2-7]{8}(?=[ @:;,.\n\"-]|$)", lambda found: ids(found[0], folder), text)
    text = text.replace(str(folder), "HERE")
    text = re.sub(r"\d{6}-\d{4}-", "DATE-", text)
    text = re.sub(r"\d+\.\d+ s\b", "# s", text)
    text = re.sub(r", \d+ s ago;", ", now;", text)
    text = re.sub(r"  loss nan|  loss \d\S*", "  loss #", text)
    # Frames of libraries differ with their version.
    text = re.sub(r'  File "[^"]*site-packages.*\n(    .*\n)+', "", text)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def ids(word: str, folder: Path) -> str:
    is_run = any(f"-{word}" in run.name for run in (folder / "runs").glob("*"))
    return "ID" if is_run else word


@pytest.mark.timeout(600)
@pytest.mark.parametrize("title", MISTAKES)
def test_what_is_said_of_a_mistake_is_as_reviewed_and_what_it_advises_works(
    title: str, toy: Path
) -> None:
    mistake = MISTAKES[title]

    said = said_of(mistake, toy)

    assert "This is a fault in assay" not in said
    SNAPSHOTS.compare(title, said)
    if not mistake.fix:
        return
    command = mistake.fix
    if not isinstance(command, str):
        change(toy, *command)
        command = mistake.command
    with redirect_stdout(StringIO()) as out, redirect_stderr(out):
        code = main(shlex.split(command))
    assert code == 0, out.getvalue()


WHAT = re.compile(r"^(?:\w*Error|error|assay): \S", re.MULTILINE)
WHERE = re.compile(r"^ *(?:-->|at:|File) |^>>> |^\[2\] |`[^`]+`|\w\.toml\b|'[^']+'", re.MULTILINE)
HOW = re.compile(r"^ *(?:fix:|=) \S|^note: expected|did you mean", re.MULTILINE)
LACKING = {
    "the data set is empty": "of its arguments the one that leaves nothing is not named",
    "resuming with a wider model": "the override that made it wider is not named",
}
"""Messages with a place or a fix that is less than it could be: they have 2 points at most."""


def score(title: str, said: str) -> int:
    """Return 3 for a message that says what is wrong, where, and how to mend it; a point each.

    Below `>>>` and in cells Python shows the line. That fixes work is tried above.
    """
    made, _, message = said.partition("\n")
    shown = said if made.startswith((">>> ", "[2] ")) else message
    points = sum(pattern.search(shown) is not None for pattern in (WHAT, WHERE, HOW))
    return min(points, 2) if title in LACKING else points


def test_messages_score_at_least_2_9_of_3_and_none_less_than_2() -> None:
    scores = {title: score(title, said) for title, said in SNAPSHOTS.read().items()}

    assert scores.keys() >= LACKING.keys()
    assert {title: points for title, points in scores.items() if points < 2} == {}
    assert sum(scores.values()) / len(scores) >= 2.9
    low = {title for title, points in scores.items() if points < 3}
    assert low == set(LACKING)


def test_every_mistake_has_its_words() -> None:
    assert len(MISTAKES) >= 55
    assert list(SNAPSHOTS.read()) == list(MISTAKES)
