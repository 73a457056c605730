"""`assay check`: everything that is wrong, at once, at its place."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from .conftest import Assay

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
from typing import Literal

class Net:
    def __init__(self, width: int, depth: int = 2, rate: float = 0.1, bias: bool = True,
                 act: Literal["relu", "gelu"] = "relu", sizes: tuple[int, int] = (1, 1)): ...

class Open:
    def __init__(self, width: int = 1, **options):
        self.options = dict(options)

class Pair:
    def __init__(self, first=None, second=None): ...

def make(ghost: "Nobody" = None, name: str = "", scales: tuple[float, ...] = ()): ...
"""

SHAPE = """\
tag = 3
seed = -1
device = "cpu"

[model]
type = "model.Nett"
width = "@modle"

[optimzer]
lr = 1

[data.train]
source = "@model"
batch_size = "64"

[process]
type = "os.system"
extra = "${model.widht}"

[train]
steps = "${train.samples}"
samples = "${train.steps}"
presicion = "fp32"

[evaluate]
every = "1 hour"
"""
SHAPE_PLACES = [
    ("wrong-type", 1, 7),
    ("wrong-value", 2, 8),
    ("launch-setting", 3, 1),
    ("unknown-target", 6, 8),
    ("unknown-reference", 7, 9),
    ("unknown-key", 9, 2),
    ("wrong-type", 14, 14),
    ("target-not-allowed", 17, 8),
    ("unknown-reference", 18, 9),
    ("reference-cycle", 22, 11),
    ("unknown-key", 23, 1),
    ("wrong-unit", 26, 9),
]

UNREADABLE = """\
[model]
type = "model.Net"
width = 3
width = 4
depth = True

[train]
epochs = 0
precision = bf16
presicion = "fp32"

[checkpoint]
keep = [3]
"""
UNREADABLE_PLACES = [
    ("duplicate-key", 4, 1),
    ("syntax", 5, 9),
    ("wrong-value", 8, 10),
    ("syntax", 9, 13),
    ("unknown-key", 10, 1),
    ("wrong-type", 13, 8),
]

SIGNATURES = """\
[model]
type = "model.Net"
widht = 3
depth = "2"
rate = true
bias = 1
act = "rleu"
sizes = [1, 2, 3]

[process]
type = "model.Pair"
args = [{ type = "model.Net" }, { type = "torch.nn.ReLU6" }, 3]

[optimizer]
type = "torch.optim.AdamW"

[schedule]
type = "torch.optim.lr_scheduler.StepLR"
step_size = 1.5
gama = 0.1

[train]
epochs = 5
"""
SIGNATURE_PLACES = [
    ("unknown-argument", 3, 1),
    ("wrong-type", 4, 9),
    ("wrong-type", 5, 8),
    ("wrong-type", 6, 8),
    ("wrong-type", 7, 7),
    ("wrong-type", 8, 9),
    ("unknown-argument", 12, 62),
    ("missing-argument", 12, 18),
    ("wrong-type", 19, 13),
    ("unknown-argument", 20, 1),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def told(assay: Assay, text: str, *arguments: str, code: int = 2) -> list[dict[str, object]]:
    Path("a.toml").write_text(textwrap.dedent(text))
    said = assay("check", "a.toml", "--json", *arguments)
    assert (said.code, said.err) == (code, "")
    problems = json.loads(said.out)
    assert isinstance(problems, list)
    return problems


def kinds(problems: Sequence[dict[str, object]]) -> list[object]:
    return [each["kind"] for each in problems]


def places(problems: Sequence[dict[str, object]]) -> list[tuple[object, object, object]]:
    return [(each["kind"], each["line"], each["column"]) for each in problems]


def process(*arguments: str, before: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `assay ARGUMENTS...` in an OS process that reports at its end whether torch is loaded."""
    script = (
        f"import sys; {before}\nfrom assay.cli.main import main\ncode = main({list(arguments)!r})\n"
        "print('torch' in sys.modules, file=sys.stderr)\nsys.exit(code)"
    )
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("ASSAY", "NO_COLOR"))
    }
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**env, "PYTHONPATH": str(ROOT / "src"), **environ},
        text=True,
        capture_output=True,
        check=False,
    )


def test_twelve_shape_mistakes_are_told_each_at_its_place_without_torch(place: Path) -> None:
    assert len(SHAPE_PLACES) == 12
    Path("a.toml").write_text(SHAPE)

    for arguments in (["check", "a.toml", "--json"], ["check", "a.toml", "--shape", "--json"]):
        ended = process(*arguments)
        assert places(json.loads(ended.stdout)) == SHAPE_PLACES
        assert ended.returncode == 2
        assert ended.stderr == "False\n"


@pytest.mark.row("A10")
def test_a_run_stops_at_a_wrong_shape_before_torch_and_before_data(place: Path) -> None:
    Path("a.toml").write_text(
        '[model]\ntype = "model.Net"\n[data.train]\nsource = { type = "model.Loud" }\n'
    )
    (place / "model.py").write_text(MODEL + "print('user code')\n")

    ended = process("run", "a.toml", "optm.lr=1")

    assert ended.returncode == 2
    assert "unknown key `optm`" in ended.stderr
    assert "did you mean `optimizer`?" in ended.stderr
    assert ended.stderr.endswith("False\n")
    assert ended.stdout == ""
    assert not (place / "runs").exists()


def test_a_file_that_cannot_be_read_in_places_is_told_all_the_same(assay: Assay) -> None:
    assert places(told(assay, UNREADABLE)) == UNREADABLE_PLACES


@pytest.mark.row("A18")
def test_ten_signature_mistakes_are_told_each_at_its_place(assay: Assay) -> None:
    assert len(SIGNATURE_PLACES) == 10
    assert (ROOT / "src" / "assay" / "py.typed").exists()
    assert places(told(assay, SIGNATURES)) == SIGNATURE_PLACES


def test_calls_are_compared_once_the_text_is_right_and_torch_is_not_imported_before(
    place: Path,
) -> None:
    Path("a.toml").write_text(f"tag = 3\n[optimzer]\nlr = 1\n{SIGNATURES}presicion = 3\n")

    ended = process("check", "a.toml", "--json")

    assert kinds(json.loads(ended.stdout)) == ["wrong-type", "unknown-key", "unknown-key"]
    assert ended.stderr == "False\n"


def test_everything_that_was_told_is_counted_in_the_last_line(assay: Assay) -> None:
    Path("a.toml").write_text(SIGNATURES)

    said = assay("check", "a.toml")

    assert said.lines[-1] == "10 errors"
    assert said.code == 2


def test_what_is_wrong_is_in_colour_on_a_terminal_and_fits_it(place: Path) -> None:
    Path("a.toml").write_text(SHAPE)

    def shown(columns: int = 80, **environ: str) -> str:
        main, other = pty.openpty()
        subprocess.run(
            [sys.executable, "-m", "assay", "check", "a.toml", "--shape"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "TERM": "xterm",
                "COLUMNS": str(columns),
                **environ,
            },
            stdout=other,
            check=False,
        )
        os.close(other)
        text = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
        os.close(main)
        return text.decode().replace("\r\n", "\n")

    colored, plain, narrow = shown(), shown(NO_COLOR="1"), shown(60)

    assert "\x1b[1;31merror" in colored
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == plain
    assert max(map(len, plain.splitlines())) <= 80
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in narrow.splitlines()) <= 60


def test_where_there_is_no_terminal_there_is_no_colour_and_80_columns(assay: Assay) -> None:
    Path("a.toml").write_text(SHAPE + SIGNATURES.partition("[train]")[0].replace("[", "[x."))

    said = assay("check", "a.toml")

    assert "\x1b" not in said.out
    assert max(map(len, said.lines)) <= 80


# --- what nothing can check ------------------------------------------------------------------------------------------


def test_a_key_that_vanishes_in_kwargs_is_a_note_and_strictly_an_error(assay: Assay) -> None:
    text = 'partial = true\n[model]\ntype = "model.Open"\nwidht = 3\n'

    (note,) = told(assay, text, code=0)
    (error,) = told(assay, text, "--strict")

    assert (note["kind"], note["severity"], note["fix"]) == (
        "unchecked",
        "note",
        "did you mean `width`?",
    )
    assert (error["kind"], error["severity"], error["line"]) == ("unchecked", "error", 4)


def test_a_type_that_cannot_be_resolved_is_told_strictly_and_refuses_nothing(assay: Assay) -> None:
    text = 'partial = true\n[model]\ntype = "model.make"\nghost = 3\n'

    assert told(assay, text, code=0) == []
    (note,) = told(assay, text, "--strict", code=0)
    assert (
        note["message"]
        == "`ghost` of `model.make` is unchecked: its type `Nobody` cannot be resolved"
    )


# --- what a run needs -----------------------------------------------------------------------------------------------


TRAINABLE = {
    "model": 'type = "torch.nn.Linear"\nargs = [1, 1]\n',
    "process": 'type = "assay.engine.Supervised"\ncriterion = { type = "torch.nn.MSELoss" }\n',
    "optimizer": 'type = "torch.optim.AdamW"\n',
    "data.train": 'source = { type = "torch.utils.data.TensorDataset" }\nbatch_size = 1\n',
    "train": "epochs = 1\n",
}


def trainable(*left_out: str, above: str = "") -> str:
    sections = [f"[{name}]\n{text}" for name, text in TRAINABLE.items() if name not in left_out]
    return above + "".join(sections)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (trainable("optimizer"), "[optimizer]"),
        (trainable("model", "data.train"), "[model], [data]"),
        (trainable("process"), "[process]"),
        (trainable("train"), "[train]"),
        (trainable(), ""),
        (trainable("optimizer") + '[backward]\ntype = "assay.engine.OptimizerStep"\n', ""),
        (trainable("optimizer", above='runner = "test"\nload_weights = "a.safetensors"\n'), ""),
        (trainable("process", "optimizer", "train"), "[process], [optimizer], [train]"),
        (trainable("process", "optimizer", "train", above="partial = true\n"), ""),
    ],
)
def test_a_config_that_lacks_a_section_is_refused_unless_it_is_a_part(
    assay: Assay, text: str, names: str
) -> None:
    Path("a.toml").write_text(text)

    said = assay("check", "a.toml", "--json", "--shape")

    s = "s" if "," in names else ""
    message = f"the config has no section{s} {names}, which a run needs"
    found = [(each["severity"], each["message"]) for each in json.loads(said.out)]
    assert found == ([("error", message)] if names else [])
    assert said.code == (2 if names else 0)


@pytest.mark.parametrize("name", ["model", "process", "optimizer", "data"])
def test_a_section_that_is_none_is_one_that_is_not_there(assay: Assay, name: str) -> None:
    Path("a.toml").write_text(trainable())

    checked = assay("check", "a.toml", f"{name}=null", "--shape")
    trained = assay("run", "a.toml", f"{name}=null")

    assert f"the config has no section [{name}], which a run needs" in checked.out
    assert f"the config has no section [{name}], which a run needs" in trained.err


def test_a_split_that_is_none_has_no_source(assay: Assay) -> None:
    (problem,) = told(assay, trainable(), "+data.valid=null", "--shape")

    assert problem["message"] == "`data.valid` has no `source`"


# --- what is not given -----------------------------------------------------------------------------------------------


CONFIG = """\
partial = true
[model]
type = "torch.nn.Linear"
args = [1, 1]
[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.MSELoss" }
[optimizer]
type = "torch.optim.AdamW"
lr = 1e-3
[train]
epochs = 1
"""


@pytest.mark.row("A09")
def test_every_default_and_everything_injected_is_listed(assay: Assay) -> None:
    Path("a.toml").write_text(CONFIG)

    said = assay("check", "a.toml", "--defaults")
    taken = json.loads(assay("check", "a.toml", "--defaults", "--json").out)

    defaults = {
        each["key"]: (each["value"], each["of"], each["line"]) for each in taken["defaults"]
    }
    assert defaults["optimizer.eps"] == ("1e-08", "torch.optim.AdamW", 9)
    assert defaults["process.criterion.reduction"] == ('"mean"', "torch.nn.MSELoss", 7)
    assert defaults["model.bias"] == ("true", "torch.nn.Linear", 3)
    assert defaults["optimizer.betas"] == ("[0.9, 0.999]", "torch.optim.AdamW", 9)
    assert defaults["process.criterion.reduce"] == ("none", "torch.nn.MSELoss", 7)
    assert defaults["train.accumulate"] == ("1", "[train]", 11)
    assert "runner" not in defaults
    assert defaults["checkpoint.every"] == ('"1 epoch"', "[checkpoint]", 0)
    assert not {"optimizer.lr", "model.in_features", "optimizer.params", "train.epochs"} & set(
        defaults
    )
    assert {each["key"]: each["by"] for each in taken["injected"]} == {
        "optimizer.params": "the role `params`",
        "process.model": "the role `model`",
        "process.backward": "the type `OptimizerStepBase`",
    }
    assert taken["problems"] == []
    for key in [*defaults, "optimizer.params"]:
        assert f"  {key} " in said.out
    assert "torch.optim.AdamW  a.toml:9" in said.out


def test_a_check_of_all_variants_looks_at_each_of_them(assay: Assay) -> None:
    wrong = '\n[variants.small]\n"train.epochs" = 2\n\n[variants.big]\n"train.epochs" = 0\n'
    Path("a.toml").write_text(CONFIG + wrong)

    found = assay("check", "a.toml", "--shape", "--variant", "all")

    assert found.code == 2
    assert "(variant big)" in found.out


def test_the_list_of_a_variant_is_what_a_run_of_it_trains(assay: Assay) -> None:
    more = '[variants.big]\n"train.epochs" = 9\n[variants.small]\n"train.epochs" = 2\n'
    Path("a.toml").write_text(f"{CONFIG}\n{more}[sweep]\nseed = [1, 2]\n")

    one = assay("check", "a.toml", "--list", "--variant", "big").out.splitlines()
    every = assay("check", "a.toml", "--list", "--variant", "all").out.splitlines()
    whole = assay("check", "a.toml", "--list").out.splitlines()
    data = json.loads(assay("check", "a.toml", "--list", "--variant", "big", "--json").out)

    assert [line.split("  ")[0].strip() for line in one[:3]] == [
        "big",
        "big point 1/2",
        "big point 2/2",
    ]
    assert "train.epochs = 9" in one[0]
    assert one[-2:] == [
        "1 variant: assay run a.toml --variant big --no-sweep",
        "2 points: assay run a.toml --variant big",
    ]
    assert every[-2:] == [
        "2 variants: assay run a.toml --variant all --no-sweep",
        "4 points: assay run a.toml --variant all",
    ]
    assert whole[-1] == "2 points: assay run a.toml"
    hashes = [row["hash"] for row in data["configs"]]
    assert len(set(hashes)) == 3 and hashes[1][:16] not in "".join(whole)


def test_a_check_of_one_variant_says_nothing_of_the_others(assay: Assay) -> None:
    wrong = '\n[variants.big]\n"train.epochs" = 0\n\n[variants.small]\n"train.epochs" = 2\n'
    Path("a.toml").write_text(CONFIG + wrong)

    assert assay("check", "a.toml", "--shape").code == 2
    assert assay("check", "a.toml", "--shape", "--variant", "big").code == 2
    assert assay("check", "a.toml", "--shape", "--variant=small").code == 0
    assert "did you mean `small`?" in assay("check", "a.toml", "--variant", "smal").err


def test_defaults_need_the_signatures(assay: Assay) -> None:
    Path("a.toml").write_text(CONFIG)

    said = assay("check", "a.toml", "--defaults", "--shape")

    assert said.code == 2
    assert "leave out one of the two" in said.err


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_type_of_a_parameter_decides_what_was_typed(assay: Assay) -> None:
    text = 'partial = true\n[model]\ntype = "model.make"\n'

    assert told(assay, text, "model.name=123", "model.scales=0.5,1", code=0) == []
    assert [each["kind"] for each in told(assay, text, "model.name=[1]", "model.scales=0.5,x")] == [
        "wrong-type",
        "wrong-type",
    ]
    assert [each["line"] for each in told(assay, text + "name = 123\n")] == [4]


def test_any_parameter_of_a_target_may_be_overridden_and_no_other(assay: Assay) -> None:
    changes = "optimizer.weight_decay=0.1", "process.criterion.reduction=sum"
    assert kinds(told(assay, CONFIG, *changes, code=0)) == []
    (problem,) = told(assay, CONFIG, "optimizer.weight_deacy=0.1")
    assert (problem["source"], problem["column"], problem["fix"]) == (
        "<cli>",
        1,
        "did you mean `weight_decay`?",
    )


def test_one_content_has_one_hash_however_targets_and_numbers_are_written(assay: Assay) -> None:
    def hashed(text: str, *arguments: str) -> str:
        Path("a.toml").write_text(text)
        said = assay("check", "a.toml", *arguments)
        assert said.code == 0, said.out
        return said.out.split()[-1]

    other = CONFIG.replace("torch.nn.Linear", "torch.nn.modules.linear:Linear").replace(
        "torch.optim.AdamW", "torch.optim.adamw.AdamW"
    )
    assert hashed(CONFIG) == hashed(other) == hashed(CONFIG.replace("1e-3", "0.001"))
    assert hashed(CONFIG) != hashed(CONFIG, "optimizer.lr=0.01")
    assert hashed(CONFIG, "optimizer.betas=0.8,0.9") == hashed(CONFIG, "optimizer.betas=[0.8, 0.9]")


SECRET = "sk-a1b2c3d4e5f6g7h8i9j0k1l2m3n4"


@pytest.mark.parametrize("variable", ["API_KEY", "ANYTHING"])
@pytest.mark.parametrize(
    "key",
    ["train.clip_norm", "train.precision", "model.width", "model.act", "model.sizes", "model.type"],
)
@pytest.mark.parametrize("format", [(), ("--json",)])
def test_a_secret_that_does_not_fit_is_not_shown(
    assay: Assay, monkeypatch: pytest.MonkeyPatch, key: str, variable: str, format: Sequence[str]
) -> None:
    """Shorter than 40 characters and longer: what is cut off would be no secret that is known."""
    Path("model.py").write_text(MODEL)
    Path("a.toml").write_text('[model]\ntype = "model.Net"\nwidth = 4\n')

    for secret in (SECRET, 2 * SECRET):
        monkeypatch.setenv(variable, secret)
        said = assay("check", "a.toml", f"{key}=${{env:{variable}}}", *format)

        assert said.code == 2
        assert secret[:20] not in said.out + said.err
        assert "<redacted>" in said.out + said.err
