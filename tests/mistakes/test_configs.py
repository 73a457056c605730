"""Mistakes in configs and command lines, and what `assay` says of each: `configs.txt`."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from assay.cli.main import main
from mistakes.snapshots import Snapshots

PROJECT = {
    "model.py": """
        import abc, enum, subprocess
        from os import system
        from typing import Literal

        class Act(enum.Enum):
            relu = "relu"
            gelu = "gelu"

        class Net:
            def __init__(self, width: int, depth: int = 2, *, rate: float = 0.1, act: Act = Act.relu,
                         sizes: tuple[int, int] = (1, 1), norm: Literal["batch", "layer"] = "batch",
                         bias: bool = True, name: str = "", names: list[str] = []): ...

        class Small(Net):
            def __init__(self, *, scale: float = 1.0, **kwargs):
                super().__init__(width=int(8 * scale), **kwargs)

        class Pair:
            def __init__(self, other=None): ...

        class Open:
            def __init__(self, width: int = 1, **options):
                self.options = dict(options)

        class Base(abc.ABC):
            @abc.abstractmethod
            def forward(self): ...

        WIDTHS = [1, 2, 3]
        """,
    "raises.py": "width = 1 / 0\nclass Net: ...\n",
    "relative.py": "from .model import Net\n",
    "missing.py": "import nump\nclass Net: ...\n",
    "unclosed.py": "class Net(:\n    pass\n",
    "nets/__init__.py": "",
    "nets/small.py": """
        from assay.build import register

        @register("tiny")
        class Tiny: ...

        @register("mini")
        class Mini: ...
        """,
    "nets/other.py": """
        from assay.build import register

        @register("mini")
        def mini(): ...
        """,
}


@dataclass(frozen=True)
class Mistake:
    """A config with one mistake, or a command line."""

    config: str = ""
    arguments: tuple[str, ...] = ("check", "a.toml")
    files: dict[str, bytes] = field(default_factory=dict)


def also(*arguments: str) -> tuple[str, ...]:
    return ("check", "a.toml", *arguments)


NET = '[model]\ntype = "model.Net"\nwidth = 32\n'
ADAM = '[optimizer]\ntype = "torch.optim.AdamW"\nlr = 1e-3\n'

LIBAI = """\
[dataloader.train]
_target_ = "libai.data.build_nlp_train_loader"
dataset = { _target_ = "model.Pair" }

[optim]
_target_ = "torch.optim.AdamW"
params = "all"

[train]
train_iter = 10
num_accumulation_steps = "two"
checkpointer = { period = "5 steps" }
dist = { data_parallel_size = "two" }
"""

BEST = """\
[data.valid]
source = { type = "model.Pair" }

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.MSELoss" }
metrics = { acc = { type = "assay.engine.Accuracy" } }

[checkpoint]
best = { metric = "valid/ac", mode = "max" }
"""

MISTAKES = {
    # names
    "a section is mistyped": Mistake("[trian]\nepochs = 5\n"),
    "a key of a standard section is mistyped": Mistake('[train]\nepochs = 5\npresicion = "bf16"\n'),
    "a key that no section has": Mistake("[train]\nepochs = 5\nfoo = 1\n"),
    "a key at the top that nobody knows": Mistake("learning_rate = 0.1\n"),
    "a key of another section at the top": Mistake("epochs = 5\n"),
    "a key of another section": Mistake("[train]\nepochs = 5\nkeep = 2\n"),
    "a parameter of the optimizer in another section": Mistake("[train]\nepochs = 5\nlr = 0.1\n"),
    "an override without its section": Mistake(NET, also("width=64")),
    "a best metric that nothing measures": Mistake(BEST, also("--shape")),
    "a module is mistyped": Mistake('[model]\ntype = "modle.Net"\nwidth = 32\n'),
    "a class is mistyped": Mistake('[model]\ntype = "model.Nett"\nwidth = 32\n'),
    "a class of torch is mistyped": Mistake('[optimizer]\ntype = "torch.optim.AdmaW"\n'),
    "a class has no module": Mistake('[model]\ntype = "Net"\n'),
    "a module in place of a class": Mistake('[model]\ntype = "nets.small"\n'),
    "a constant in place of a class": Mistake('[model]\ntype = "model.WIDTHS"\n'),
    "an argument is mistyped": Mistake(NET + "widht = 64\n"),
    "an argument of torch is mistyped": Mistake(ADAM + "weight_deacy = 0.1\n"),
    "an argument is missing": Mistake('[model]\ntype = "model.Net"\ndepth = 3\n'),
    "the type is missing": Mistake("[model]\nwidth = 32\n"),
    "the type is mistyped": Mistake('[model]\ntyp = "model.Net"\n'),
    "a registered name is mistyped": Mistake('[model]\ntype = "tiyn"\n'),
    "a name is registered twice": Mistake('[model]\ntype = "mini"\n'),
    "an abstract class": Mistake('[model]\ntype = "model.Base"\n'),
    # values
    "a number in quotes": Mistake('[train]\nepochs = "5"\n'),
    "a number in quotes, for an argument": Mistake('[model]\ntype = "model.Net"\nwidth = "32"\n'),
    "1 for true": Mistake(NET + "bias = 1\n"),
    "true for a number": Mistake("[train]\nepochs = true\n"),
    "a fraction for a whole number": Mistake('[model]\ntype = "model.Net"\nwidth = 32.0\n'),
    "a number for a text": Mistake(NET + "name = 7\n"),
    "one value for a list": Mistake(NET + 'names = "first"\n'),
    "a tuple that is too short": Mistake(ADAM + "betas = [0.9]\n"),
    "a tuple that is too long": Mistake(NET + "sizes = [1, 2, 3]\n"),
    "one item of a list has the wrong type": Mistake(NET + "sizes = [1, '2']\n"),
    "a value that an enum does not have": Mistake(NET + 'act = "rleu"\n'),
    "a value that is none of the choices": Mistake(NET + 'norm = "bacth"\n'),
    "a precision that nobody knows": Mistake('[train]\nepochs = 5\nprecision = "fp16x"\n'),
    "a number below the least": Mistake("[train]\nepochs = 0\n"),
    "a list where a table belongs": Mistake("model = [1, 2]\n"),
    "a value where a table belongs": Mistake("train = 5\n"),
    "a table where a value belongs": Mistake("[seed]\nvalue = 1\n"),
    "words for numbers in a config of LiBai": Mistake(LIBAI),
    "a value for a loader in a config of LiBai": Mistake(
        LIBAI.replace("[dataloader.train]", "[dataloader]\ntest = 1\n[dataloader.train]").partition(
            "[optim]"
        )[0]
    ),
    "no list of parts and of metrics in a config of LiBai": Mistake(
        """
        [dataloader.train]
        type = "libai.data.build_nlp_train_val_test_loader"
        dataset = { type = "model.Pair" }
        splits = 3

        [train]
        train_iter = 10
        train_micro_batch_size = nan
        topk = 3
        """
    ),
    "a period without a unit": Mistake("[checkpoint]\nevery = 5\n"),
    "a period with a unit that nobody knows": Mistake('[evaluate]\nevery = "2 epoches"\n'),
    "a duration without a unit": Mistake("[train]\ntime = 90\n"),
    "no end": Mistake('[train]\nprecision = "bf16"\n'),
    "arguments by position that are no list": Mistake('[model]\ntype = "model.Net"\nargs = 32\n'),
    "too many arguments by position": Mistake('[model]\ntype = "model.Net"\nargs = [1, 2, 3]\n'),
    "an argument by position and by name": Mistake(NET + "args = [64]\n"),
    # what is read by nobody
    "a section that nothing uses": Mistake(NET + "[extra]\nx = 1\n"),
    "a section under a name of its own": Mistake(NET.replace("model]", "bert_model]") + ADAM),
    "a key that nothing uses": Mistake(
        "partial = true\n[sizes]\nwidth = 3\nheight = 4\n" + NET.replace("32", '"${sizes.width}"')
    ),
    "a setting of one launch": Mistake('device = "cuda"\n'),
    "a key that vanishes in **kwargs": Mistake(
        'partial = true\n[model]\ntype = "model.Open"\nwidht = 1\n'
    ),
    "the same, strictly": Mistake('[model]\ntype = "model.Open"\nwidht = 1\n', also("--strict")),
    "a key that goes through **kwargs to a parent": Mistake(
        '[model]\ntype = "model.Small"\ndetph = 3\n'
    ),
    # references
    "an object that is not there": Mistake(
        NET + '[optimizer]\ntype = "torch.optim.SGD"\nparams = "@modle"\n'
    ),
    "a value that is not there": Mistake(NET.replace("32", '"${sizes.width}"')),
    "a reference that is not closed": Mistake(NET.replace("32", '"${model.depth"')),
    "values in a circle": Mistake(
        '[train]\nepochs = "${train.steps}"\nsteps = "${train.epochs}"\n'
    ),
    "objects in a circle": Mistake(
        '[model]\ntype = "model.Pair"\nother = "@process"\n[process]\ntype = "model.Pair"\nother = "@model"\n'
    ),
    "an argument that refers to itself": Mistake(NET.replace("32", '"@model.width"')),
    "sections that are each other": Mistake('model = "@process"\nprocess = "@model"\n'),
    "a variable that is not set": Mistake('seed = "${env:ASSAY_NO_SUCH}"\n'),
    # TOML
    "a key given twice": Mistake("[train]\nepochs = 5\nepochs = 6\n"),
    "a section given twice": Mistake("[train]\nepochs = 5\n[train]\nsteps = 6\n"),
    "a text without quotes": Mistake("[train]\nepochs = 5\nprecision = bf16\n"),
    "a text that is not closed": Mistake('tag = "digits\nseed = 1\n'),
    "true as in Python": Mistake("[display]\nquiet = True\n"),
    "none as in Python": Mistake(NET + "depth = None\n"),
    "a tuple as in Python": Mistake(ADAM + "betas = (0.9, 0.99)\n"),
    "a list that is not closed": Mistake(ADAM + "betas = [0.9, 0.99\n"),
    "a comma is missing in a list": Mistake(ADAM + "betas = [\n  0.9\n  0.99\n]\n"),
    "a table inline that is not closed": Mistake(
        "[optimizer]\nparams = { lr = 0.1\n[train]\nepochs = 5\n"
    ),
    "a text with a quote too few in a list": Mistake(ADAM + 'names = ["a, "b"]\n'),
    "a section that is not closed": Mistake("[train\nepochs = 5\n"),
    "a colon for an equals sign": Mistake("[train]\nepochs: 5\n"),
    "a file that is not UTF-8": Mistake(files={"a.toml": b'tag = "caf\xe9"\n'}),
    # user code
    "a module that raises": Mistake('[model]\ntype = "raises.Net"\n'),
    "a module that imports relatively": Mistake('[model]\ntype = "relative.Net"\n'),
    "a module that imports what is not there": Mistake('[model]\ntype = "missing.Net"\n'),
    "a module with a syntax error": Mistake('[model]\ntype = "unclosed.Net"\n'),
    # what a config may not call
    "a function of Python": Mistake('[model]\ntype = "os.system"\nargs = ["true"]\n'),
    "a package that nobody trusts": Mistake('[model]\ntype = "timm.create_model"\n'),
    "a part of torch that loads code": Mistake('[model]\ntype = "torch.hub.load"\n'),
    "a function that a module merely imports": Mistake('[model]\ntype = "model.system"\n'),
    "something reached through torch": Mistake(
        '[model]\ntype = "torch.nn.modules.module.functools.partial"\n'
    ),
    "a dunder": Mistake('[model]\ntype = "model.Net.__init__.__globals__"\n'),
    # the command line
    "an override of a section that is not there": Mistake(NET, also("optm.lr=1")),
    "an override of a key that is not there": Mistake(
        "[train]\nepochs = 5\n", also("train.epoch=3")
    ),
    "an override of an argument that is not there": Mistake(NET, also("model.widht=3")),
    "an override of a part of a value": Mistake(NET, also("model.width.x=3")),
    "an override of the wrong type": Mistake(NET, also("model.width=wide")),
    "an override that replaces a good value": Mistake(
        "[train]\nepochs = 5\n", also("train.epochs=-1")
    ),
    "an override with spaces around the sign": Mistake(ADAM, also("optimizer.lr", "=", "3e-4")),
    "a list that the shell has cut": Mistake(ADAM, also("optimizer.betas=[0.9,", "0.99]")),
    "an override written as an option": Mistake(ADAM, also("--optimizer.lr=3e-4")),
    "an option is mistyped": Mistake(NET, also("--stirct")),
    "an option of another command is mistyped": Mistake(NET, ("run", "a.toml", "--devcie", "cpu")),
    "a variant is mistyped": Mistake(
        NET + '[variants.small]\n"model.width" = 8\n', ("run", "a.toml", "--variant", "smal")
    ),
    "a variant of a key that is not there": Mistake(NET + '[variants.small]\n"modle.width" = 8\n'),
    "a sweep of a key that is not there": Mistake(NET + '[sweep]\n"modle.width" = [8, 16]\n'),
    "a command is mistyped": Mistake(NET, ("chekc", "a.toml")),
    "a file is mistyped": Mistake(NET, ("check", "b.toml")),
    # several at once
    "mistakes of both kinds": Mistake(
        '[model]\ntype = "model.Net"\nwidht = 32\n[train]\nepochs = "5"\n[optimzer]\n'
        + 'type = "torch.optim.AdmaW"\n'
    ),
}


SNAPSHOTS = Snapshots("configs", MISTAKES)


@pytest.mark.parametrize("title", MISTAKES)
def test_the_message_reads_as_it_was_reviewed(
    title: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    mistake = MISTAKES[title]
    for path, text in {**PROJECT, "a.toml": mistake.config}.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(textwrap.dedent(text).lstrip("\n"))
    for path, raw in mistake.files.items():
        Path(path).write_bytes(raw)

    code = main(list(mistake.arguments))

    said = "".join(capsys.readouterr()).rstrip()
    SNAPSHOTS.compare(title, f"$ assay {' '.join(mistake.arguments)}\n{said}\n(exit {code})")
    assert "Traceback" not in said
    assert "pydantic" not in said
    assert "\x1b" not in said


def test_there_is_a_message_for_every_typical_mistake() -> None:
    assert len(MISTAKES) >= 40
    assert list(SNAPSHOTS.read()) == list(MISTAKES)
