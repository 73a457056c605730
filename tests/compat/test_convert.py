"""`assay convert`: configs of older systems as configs of assay, with their comments."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.config import Config, conversion, open_config
from examples import EXAMPLES
from warm_python import Run

Convert = Callable[..., tuple[int, str, str]]

TEXT = """\
# Tagging, as in the paper.
tag = "tagger"
plugins = [
    # where the numbers go
    { type = "alchemy.plugins.TensorboardLogger" },
    { type = "alchemy.plugins.FileLogger", log_dir = "records" },  # for the server
    { type = "alchemy.plugins.Seeding", seed = 3 },
]

[model]
type = "torch.nn.Linear"
in_features = 2  # x and y
out_features = 1
args = []

# Tuned by hand.
[optim]
type = "torch.optim.SGD"
lr = 0.1  # 0.2 diverges: see #3

[variants.fast]
"optim.lr" = 0.3
"""


@pytest.fixture
def convert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Convert]:
    """Runs `assay convert ARGUMENTS...` in a folder; returns exit code, output and errors.

    Modules of the folder leave this process again: other projects have modules of the same names.
    """
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["convert", *arguments])
        return (code, *capsys.readouterr())

    yield run
    for name in list(sys.modules):
        if name.partition(".")[0] in ("src", "modeling", "dataset"):
            del sys.modules[name]


def copy_project(name: str, folder: Path) -> None:
    shutil.copytree(EXAMPLES / "seeds" / name, folder, dirs_exist_ok=True)


def test_a_config_of_alchemy_becomes_one_of_assay_with_its_comments(
    convert: Convert, tmp_path: Path
) -> None:
    (tmp_path / "cfg.toml").write_text(TEXT)

    code, out, _ = convert("cfg.toml")

    text = (tmp_path / "cfg.assay.toml").read_text()
    assert code == 0 and out.startswith("written: cfg.assay.toml\n\ntranslated, ")
    assert text.startswith('# Tagging, as in the paper.\ntag = "tagger"\nseed = 3\n')
    assert '    # where the numbers go\n    { type = "assay.plugins.TensorBoard" }' in text
    assert "in_features = 2  # x and y\n" in text
    assert "# Tuned by hand.\n[optimizer]\n" in text
    assert "lr = 0.1  # 0.2 diverges: see #3\n" in text
    assert text.endswith("# cfg.toml:6: for the server\n")  # of what nothing is needed for
    made = tomllib.loads(text)
    assert made["plugins"] == [{"type": "assay.plugins.TensorBoard"}]
    assert made["variants"] == {"fast": {"optimizer.lr": 0.3}}
    assert not open_config(tmp_path / "cfg.assay.toml").notes  # nothing older is left


def test_each_translation_and_what_needs_a_hand_is_listed_with_its_line(
    convert: Convert, tmp_path: Path
) -> None:
    text = TEXT.replace("[variants.fast]", "[sweep]").replace("0.3", "[0.1, 0.3]")
    text += '[process]\ntype = "alchemy.util.ddp.accelerate.AccelerateBackwardHandler"\n'
    (tmp_path / "cfg.toml").write_text(text)

    _, out, _ = convert("cfg.toml")

    translated, _, by_hand = out.partition("by hand, ")
    assert "  cfg.toml:17  `optim` is `optimizer` here: in full\n" in translated
    assert "  cfg.toml:6  `alchemy.plugins.FileLogger` is left out: " in translated
    assert "AccelerateBackwardHandler` stays" in " ".join(by_hand.split())
    assert "unknown key `optim`, when the sweep sets optim.lr" in " ".join(by_hand.split())


def test_a_project_is_converted_with_a_list_of_its_code(convert: Convert, tmp_path: Path) -> None:
    copy_project("alchemy", tmp_path)

    code, out, _ = convert(".")

    made = open_config(tmp_path / "cfg.assay.toml")
    assert code == 0 and not made.problems
    assert f"{Path('src', 'tagging.py')}:" in out.partition("by hand, in code, ")[2]
    assert "AlchemyModel: `assay.engine.ModelWrapper`, or a process" in out
    assert convert(".")[0] == 2  # it exists


def test_a_config_of_libai_becomes_toml_with_the_comments_of_its_python(
    convert: Convert, tmp_path: Path
) -> None:
    copy_project("libai", tmp_path)
    file = tmp_path / "configs" / "config.py"
    text = file.read_text().replace("model = Lazy", "# a small one\nmodel = Lazy")
    file.write_text(text.replace("train_epoch=4,", "train_epoch=4,  # 训练 4 轮"))

    code, out, _ = convert(".")

    made = (tmp_path / "configs" / "config.assay.toml").read_text()
    assert code == 0 and "`train.output_dir` is `tag` here" in out
    assert "# a small one\n[model]\n" in made and "epochs = 4  # 训练 4 轮\n" in made
    old, new = (
        open_config(tmp_path / "configs" / name, user_dir=tmp_path)
        for name in ("config.py", "config.assay.toml")
    )
    assert not new.notes and {*new.root.items} == {*old.root.items}


def test_a_program_of_thexp_has_a_list_alone(convert: Convert, tmp_path: Path) -> None:
    copy_project("thexp", tmp_path)

    code, out, _ = convert(".")

    assert code == 0 and out.startswith("by hand, in code, 11\n")
    assert "digits.py:8  Meter: `assay.Meter`\n" in out
    assert [path.name for path in tmp_path.iterdir()] == ["digits.py"]


def test_a_secret_becomes_a_variable(convert: Convert, tmp_path: Path) -> None:
    key = f"sk-{'a1B2c3D4' * 6}"
    (tmp_path / "cfg.toml").write_text(TEXT.replace("args = []", f'api_key = "{key}"'))

    _, out, _ = convert("cfg.toml")

    text = (tmp_path / "cfg.assay.toml").read_text()
    assert 'api_key = "${env:API_KEY}"' in text and key not in text + out
    assert "`model.api_key` is a secret: set it as the variable API_KEY" in " ".join(out.split())


WRONG = {
    "ours": ("a.toml", '[model]\ntype = "torch.nn.Linear"\nargs = [1, 2]\n', "assay already"),
    "unknown": ("a.json", '{"learning_rate": 1}', "names nothing of alchemy, LiBai or Hydra"),
    "syntax": ("a.toml", TEXT + "[broken\n", "syntax"),
    "program": ("a.py", "raise SystemExit(3)\n", "is a program, not a config"),
    "mistake": ("a.toml", TEXT.replace("[optim]", "[optin]"), "nothing uses the section `optin`"),
    "no literal": (
        "a.py",
        "from libai.config import LazyCall\nmodel = dict(f=object())\ndataloader = dict()\n",
        "is a object, which cannot be written down",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_converted_is_one_error_and_writes_nothing(
    convert: Convert, tmp_path: Path, case: str
) -> None:
    name, text, message = WRONG[case]
    (tmp_path / name).write_text(text)

    code, out, err = convert(name)

    assert code == 2 and message in " ".join(err.split()) and "Traceback" not in err
    assert out == "" and [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_that_exists_stays_as_it_is(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "cfg.toml").write_text(TEXT)
    (tmp_path / "cfg.assay.toml").write_text("mine")

    code, _, err = convert("cfg.toml")

    assert code == 2 and "This file exists already." in err
    assert (tmp_path / "cfg.assay.toml").read_text() == "mine"
    assert convert("cfg.toml", "--to", "new.toml")[0] == 0
    assert convert("cfg.toml", "--to", "none/new.toml")[2].startswith("error: It cannot be written")


def test_two_configs_that_would_become_one_file_are_refused(
    convert: Convert, tmp_path: Path
) -> None:
    (tmp_path / "cfg.toml").write_text(TEXT)
    (tmp_path / "cfg").write_text("no config")
    (tmp_path / "cfg.json").write_text('{"model": {"_target_": "torch.nn.ReLU"}}')

    code, _, err = convert(".")

    assert code == 2 and "cfg.json and cfg.toml would become one file." in err
    assert not (tmp_path / "cfg.assay.toml").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_check_trains_both_one_step_and_compares_the_bits(
    convert: Convert, tmp_path: Path, warm: Run
) -> None:
    copy_project("alchemy", tmp_path)
    warm(["make_data.py"], folder=tmp_path, variables=os.environ)
    before = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}

    code, out, err = convert(".", "--check", "--device", "cpu")

    after = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
    assert (code, err) == (0, "") and "\nequal: steps 0 to 1, " in out
    assert after - before == {tmp_path / "cfg.assay.toml"}


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_bits_that_differ_are_told_and_nothing_is_written(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_project("libai", tmp_path)
    (tmp_path / "data").mkdir()
    shutil.copy(EXAMPLES / "01_digits" / "digits.npz", tmp_path / "data")
    right = conversion.convert

    def wrong(config: Config) -> conversion.Conversion:
        made = right(config)
        return replace(made, text=made.text.replace("\nseed = 1234\n", "\nseed = 1235\n"))

    assert convert(".", "--check", "--device", "cpu", "--to", "x")[0] == 2  # of one file
    equal = convert("configs/config.py", "--user-dir", ".", "--check", "--to", "x.toml")
    monkeypatch.setattr(conversion, "convert", wrong)
    code, out, err = convert(".", "--check", "--device", "cpu")

    assert equal[0] == 0 and "\nequal: " in equal[1] and (tmp_path / "x.toml").is_file()
    assert (code, err) == (1, "") and "\ndifferent: first at step 0, " in out
    assert not list(tmp_path.rglob("*.assay.toml"))
