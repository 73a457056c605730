from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from assay.config import Config, check_shape, dump, load, loads, open_config, open_text
from assay.core.diagnostics import Problem, render
from assay.core.errors import ConfigError

CONTRACT = """\
tag  = "mnist-cnn"
seed = 0

[model]
type = "model.Net"
width = 32

[data.train]
source = { type = "data.Digits", split = "train" }
batch_size = 64
shuffle = true
[data.valid]
source = { type = "data.Digits", split = "valid" }
batch_size = 256
[data.test]
source = { type = "data.Digits", split = "test" }
batch_size = 256

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
metrics = { acc = { type = "assay.engine.Accuracy" } }

[optimizer]
type = "torch.optim.AdamW"
lr = 1e-3

[schedule]
type = "assay.engine.WarmupCosine"
warmup_ratio = 0.05

[train]
epochs = 5
precision = "fp32"
accumulate = 1
clip_norm = 1.0

[evaluate]
every = "1 epoch"

[checkpoint]
every = "1 epoch"
keep = 3
best = { metric = "valid/acc", mode = "max" }
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "model.py").write_text(
        "import torch\n\nclass Net(torch.nn.Module): ...\n\nclass Block: ...\n"
    )
    (tmp_path / "src" / "data.py").write_text(
        "from torch.utils.data import Dataset\n\nclass Digits(Dataset): ...\n"
    )
    (tmp_path / "digits.toml").write_text(CONTRACT)
    return tmp_path


def opened(text: str, *overrides: str) -> Config:
    Path("digits.toml").write_text(text)
    return open_config("digits.toml", overrides)


def told(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    return [(problem.kind, problem.message) for problem in problems]


def test_the_config_of_the_contract_is_fine(project: Path) -> None:
    config = load("digits.toml")

    assert check_shape(config) == []


def test_a_saved_config_is_fine_too(project: Path) -> None:
    text = (
        CONTRACT.replace("width = 32", 'width = "${sizes.w}"\nroot = "${env:DATA}"')
        + "\n[sizes]\nw = 3\n"
    )
    config = opened(text)

    saved = opened(dump(config.root))

    assert check_shape(config, environ={"DATA": "/data"}) == []
    assert check_shape(saved, environ={"DATA": "/data"}) == []


def test_a_mistyped_section_on_the_command_line_is_named(project: Path) -> None:
    problems = check_shape(open_config("digits.toml", ["trian.epochs=1"]))

    assert [(p.message, p.fix) for p in problems] == [
        ("unknown key `trian`", "did you mean `train`?")
    ]


def test_every_mistake_of_a_file_is_told_at_once_at_its_place(project: Path) -> None:
    text = """\
tag = 3
seed = True
device = "cpu"
[model]
type = "model.Nett"
width = "@optimiser"
[data.train]
source = { typ = "data.Digits" }
batch_size = "64"
[optimzer]
lr = 1
[process]
type = "os.system"
extra = "${model.widht}"
[train]
epochs = 0
epochs = 5
presicion = "fp32"
clip_norm = false
[evaluate]
every = "1 hour"
"""
    problems = check_shape(opened(text))

    assert [(p.kind, p.origin.line, p.origin.column) for p in problems] == [
        ("wrong-type", 1, 7),
        ("syntax", 2, 8),
        ("launch-setting", 3, 1),
        ("unknown-target", 5, 8),
        ("wrong-type", 9, 14),
        ("unknown-key", 10, 2),
        ("target-not-allowed", 13, 8),
        ("wrong-value", 16, 10),
        ("duplicate-key", 17, 1),
        ("unknown-key", 18, 1),
        ("wrong-type", 19, 13),
        ("wrong-unit", 21, 9),
    ]

    # What may have been in the lines that could not be read is told once they can be.
    problems = check_shape(opened(text.replace("True", "1").replace("epochs = 5\n", "")))

    assert [(p.kind, p.origin.line, p.origin.column) for p in problems] == [
        ("wrong-type", 1, 7),
        ("launch-setting", 3, 1),
        ("unknown-target", 5, 8),
        ("unknown-reference", 6, 9),
        ("missing-key", 8, 1),
        ("wrong-type", 9, 14),
        ("unknown-key", 10, 2),
        ("target-not-allowed", 13, 8),
        ("unknown-reference", 14, 9),
        ("wrong-value", 16, 10),
        ("unknown-key", 17, 1),
        ("wrong-type", 18, 13),
        ("wrong-unit", 20, 9),
    ]


def test_problems_of_arguments_come_after_those_of_the_file_in_their_order(project: Path) -> None:
    config = opened(CONTRACT.replace('"1 epoch"', '"x"'), "train.epochs=x", "seed=-1", "optm.lr=1")

    assert [str(problem.origin) for problem in check_shape(config)] == [
        "digits.toml:39:9",
        "digits.toml:42:9",
        "<cli>:1:14",
        "<cli>:1:6",
        "<cli>:1:1",
    ]


TRAIN = "[train]\nsteps = 1\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "threads = 'auto'",
        "threads = 4",
        "tag = '@@x'",
        "[train]\ntime = '90 s'\nclip_norm = 1",
        "[train]\nsteps = 1\nclip_norm = '@none'",
        "[train]\nsamples = 1\nnon_finite = 'skip'",
        "[evaluate]\nevery = 'never'\nsplits = ['valid']",
        "[display]\nevery = '100 steps'\nquiet = true",
        "schedule = '@none'",
        "model = '@net'\n[net]\ntype = 'torch.nn.Linear'\nargs = [1, 2]",
        "[data.train]\nsource = '@all'\nbatch_size = 1\n[all]\ntype = 'torch.utils.data.TensorDataset'",
        "lr = 1\n[model]\ntype = 'torch.nn:Linear'\nlr = '${lr}'",
        "[model]\ntype = '${kind}'\n[kinds]\na = 1\n[optimizer]\ntype = 'torch.optim.SGD'\nx = '@kinds'\nkind = 1",
    ],
)
def test_what_is_allowed_is_fine(project: Path, text: str) -> None:
    problems = check_shape(open_text(text))

    assert [p for p in problems if p.kind != "unknown-reference"] == []


@pytest.mark.parametrize(
    ("text", "kind", "message", "fix"),
    [
        ("seed = -1", "wrong-value", "`seed` must be at least 0, not -1", ""),
        ("seed = true", "wrong-type", "`seed` must be a whole number, not true", ""),
        ("seed = 1.0", "wrong-type", "`seed` must be a whole number, not 1.0", ""),
        (
            "seed = '3'",
            "wrong-type",
            '`seed` must be a whole number, not "3"',
            "write it without quotes: 3",
        ),
        (
            "seed = '1_000'",
            "wrong-type",
            '`seed` must be a whole number, not "1_000"',
            "write it without quotes: 1000",
        ),
        ("seed = [1]", "wrong-type", "`seed` must be a whole number, not a list", ""),
        ("threads = 0", "wrong-value", "`threads` must be at least 1, not 0", ""),
        (
            "threads = 'all'",
            "wrong-type",
            '`threads` must be a whole number or "auto", not "all"',
            "",
        ),
        ("tag = 2020-01-01", "wrong-type", "`tag` must be a string, not the date 2020-01-01", ""),
        ("tag = 10:00:00", "wrong-type", "`tag` must be a string, not the time 10:00:00", ""),
        ("tag = {}", "wrong-type", "`tag` must be a string, not a table", ""),
        (
            f"seed = '{'x' * 50}'",
            "wrong-type",
            f'`seed` must be a whole number, not "{"x" * 37}..."',
            "",
        ),
        (
            f"seed = -{'9' * 50}",
            "wrong-value",
            f"`seed` must be at least 0, not -{'9' * 36}...",
            "",
        ),
        (
            f"{TRAIN}clip_norm = 0",
            "wrong-value",
            "`train.clip_norm` must be more than 0, not 0",
            "",
        ),
        (
            f"{TRAIN}clip_norm = nan",
            "wrong-value",
            "`train.clip_norm` must be more than 0, not nan",
            "",
        ),
        (
            f"{TRAIN}precision = 'fp31'",
            "wrong-value",
            '`train.precision` cannot be "fp31"',
            "did you mean `fp32`?",
        ),
        (
            f"{TRAIN}precision = 'x'",
            "wrong-value",
            '`train.precision` cannot be "x"',
            'it takes "fp32", "tf32", "bf16" or "fp16"',
        ),
        (
            f"{TRAIN}precision = 32",
            "wrong-type",
            '`train.precision` must be "fp32", "tf32", "bf16" or "fp16", not 32',
            "",
        ),
        (
            "[train]\ntime = 90",
            "wrong-unit",
            "`train.time` is no duration: 90",
            'write one such as "90 s", "5 min", "2 h" or "1.5 d"',
        ),
        (
            "[evaluate]\nevery = 1",
            "wrong-unit",
            "`evaluate.every` is no period: 1",
            'write one such as "1 epoch", "0.25 epoch", "100 steps" or "never"',
        ),
        (
            "[evaluate]\nevery = []",
            "wrong-type",
            '`evaluate.every` must be a period such as "1 epoch", "0.25 epoch", "100 steps" or "never", not a list',
            "",
        ),
        (
            "[train]\ntime = true",
            "wrong-type",
            '`train.time` must be a duration such as "90 s", "5 min", "2 h" or "1.5 d", not true',
            "",
        ),
        (
            "[evaluate]\nsplits = 'valid'",
            "wrong-type",
            '`evaluate.splits` must be a list of names, as in ["valid"], not "valid"',
            "",
        ),
        (
            "[data.train]\nsource = { type = 'torch.utils.data.TensorDataset' }\nbatch_size = 1\n[evaluate]\nsplits = ['train']",
            "unknown-split",
            "`train/loss` is the loss of the steps, so train cannot be evaluated by that name",
            'name it twice, as in [data.train_again] with source = "@data.train.source"',
        ),
        (
            "[evaluate]\nsplits = [1]",
            "wrong-type",
            "`evaluate.splits.0` must be a string, not 1",
            "",
        ),
        (
            "display = 3",
            "wrong-type",
            "`display` must be a table with keys such as `every`, not 3",
            "",
        ),
        (
            "[display]\nquiet = 'true'",
            "wrong-type",
            '`display.quiet` must be true or false, not "true"',
            "write it without quotes: true",
        ),
        (
            "data = 3",
            "wrong-type",
            "`data` must be a table of tables, as in [data.train], not 3",
            "",
        ),
        ("model = 3", "wrong-type", 'a table with a `type`, or "@path" of one', ""),
        ("[model]\nwidth = 1", "missing-key", "`model` has no `type`", 'add type = "module.Name"'),
        (
            "[model]\ntyp = 'a.B'",
            "missing-key",
            "`model` has no `type`",
            "did you mean `type` by `typ`?",
        ),
        (
            "[data.x]\nbatch_size = 1",
            "missing-key",
            "`data.x` has no `source`",
            'add source = { type = "module.Name" }',
        ),
        (
            "[checkpoint.best]\nmetric = 'x'",
            "missing-key",
            "`checkpoint.best` has no `mode`",
            'add mode = "min" or "max"',
        ),
        (
            "[checkpoint.best]\nmode = 'min'",
            "missing-key",
            "`checkpoint.best` has no `metric`",
            "add metric = ...",
        ),
        (
            "[train]\nsteps = '@none'",
            "missing-key",
            "`train` has no end",
            "give one of epochs, steps, samples or time",
        ),
        (f"{TRAIN}zzz = 1", "unknown-key", "unknown key `train.zzz`", "it takes: epochs, steps"),
        (f"{TRAIN}type = 'a.B'", "unknown-key", "unknown key `train.type`", "it takes: epochs"),
        ("[trian]\nsteps = 1", "unknown-key", "unknown key `trian`", "did you mean `train`?"),
        ("zzz = 1", "unknown-key", "unknown key `zzz`", "top-level keys are tag, desc"),
        (
            "[zzz]\nx = 1",
            "unused-section",
            "nothing uses the section `zzz`",
            'refer to it as "@zzz", or remove it',
        ),
        ("[trace]\nx = 1", "unknown-key", "unknown key `trace.x`", "it takes: every, level"),
        (
            "debug = true",
            "launch-setting",
            "`debug` is a setting of one launch, not of the config",
            "--debug",
        ),
        (
            "[model]\ntype = 3",
            "wrong-type",
            "`model.type` must be a target, not 3",
            'write "package.module.Name"',
        ),
        ("[model]\ntype = 'a..B'", "unknown-target", "`a..B` is no target", "write"),
        (
            "[model]\ntype = 'Net'",
            "unknown-target",
            "nothing is registered as `Net`, and it names no module",
            "did you mean `model.Net`?",
        ),
        ("[model]\ntype = 'Foo'", "unknown-target", "nothing is registered as `Foo`", "write"),
        (
            "[model]\ntype = 'model.Nett'",
            "unknown-target",
            "model.py has no `Nett`",
            "did you mean `Net`?",
        ),
        (
            "[model]\ntype = 'model.Zzz'",
            "unknown-target",
            "model.py has no `Zzz`",
            "it has: Block, Net, torch",
        ),
        (
            "[model]\ntype = 'modle.Net'",
            "unknown-target",
            "there is no module `modle` in . and src",
            "did you mean `model`?",
        ),
        (
            "[model]\ntype = 'trch.nn.Linear'",
            "unknown-target",
            "there is no module `trch` in . and src",
            "did you mean `torch`?",
        ),
        (
            "[model]\ntype = 'pack.model'",
            "unknown-target",
            "`pack.model` is a module, not a class or function",
            "did you mean `pack.model.Model`?",
        ),
        (
            "[model]\ntype = 'pack.modle.Model'",
            "unknown-target",
            "pack/__init__.py has no `modle`",
            "did you mean `model`?",
        ),
        ("[model]\ntype = 'bare.x.Model'", "unknown-target", "bare has no `x`", "it has: inner"),
        (
            "[model]\ntype = 'timm.create_model'",
            "target-not-allowed",
            "`timm` is neither a module in . and src nor a trusted package",
            "assay config trust timm",
        ),
        (
            "[model]\ntype = 'torch.os.system'",
            "target-not-allowed",
            "`torch.os.system` is a part of torch that a config may not call",
            "of torch, a config names what computes in",
        ),
        (
            "[model]\ntype = 'torch.hub:load'",
            "target-not-allowed",
            "`torch.hub:load` is a part of torch that a config may not call",
            "of torch, a config names what computes in",
        ),
        (
            "[model]\ntype = 'torch.nn.L1Loss'\nargs = 3",
            "wrong-type",
            "`model.args` must be a list of positional arguments, not 3",
            "",
        ),
        (
            "tag = '@model'\n[model]\ntype = 'torch.nn.L1Loss'",
            "wrong-type",
            '`tag` must be a string, not "@model"',
            "",
        ),
        (
            "tag = '@modle'\n[model]\ntype = 'torch.nn.L1Loss'",
            "unknown-reference",
            "`@modle` refers to nothing: there is no `modle`",
            "did you mean `model`?",
        ),
        (
            "model = '@a b.'",
            "unknown-reference",
            "`@a b.` is no reference to an object",
            "write @path",
        ),
        (
            "seed = '${env:SEED}'",
            "unknown-reference",
            "the environment variable `SEED` is not set",
            "export SEED=...",
        ),
        (
            "[data]\ntrain = 3",
            "wrong-type",
            "`data.train` must be a table with keys such as `source`, not 3",
            "",
        ),
    ],
)
def test_one_mistake_is_told_once(
    project: Path, text: str, kind: str, message: str, fix: str
) -> None:
    (project / "pack").mkdir()
    (project / "pack" / "__init__.py").write_text("")
    (project / "pack" / "model.py").write_text("class Model: ...")
    (project / "bare").mkdir()
    (project / "bare" / "inner.py").write_text("")

    problems = check_shape(open_text(text), environ={})

    assert [problem.kind for problem in problems] == [kind]
    assert message in problems[0].message
    assert fix in problems[0].fix
    assert bool(fix) == bool(problems[0].fix)


def test_both_missing_keys_of_a_table_are_told(project: Path) -> None:
    assert told(check_shape(open_text("[checkpoint.best]\n"))) == [
        ("missing-key", "`checkpoint.best` has no `metric`"),
        ("missing-key", "`checkpoint.best` has no `mode`"),
    ]


def test_a_trusted_package_may_be_named(project: Path) -> None:
    config = open_text("[model]\ntype = 'timm.create_model'")

    assert check_shape(config, trusted={"timm"}) == []


@pytest.mark.row("A10")
def test_a_key_that_is_there_to_be_copied_and_never_is_gets_a_warning(project: Path) -> None:
    text = """\
[sizes]
width = 3
hieght = 4
deep = { a = 1, b = 2 }
[model]
type = "model.Net"
width = "${sizes.width}"
depth = "${sizes.deep.a}"
"""
    problems = check_shape(open_text(text, ["sizes.widht=5"]))

    assert [(p.kind, p.severity, p.message, p.fix) for p in problems] == [
        ("unused-key", "warning", "nothing uses `sizes.hieght`", "refer to it, or remove it"),
        ("unused-key", "warning", "nothing uses `sizes.deep.b`", "refer to it, or remove it"),
        ("unused-key", "warning", "nothing uses `sizes.widht`", "did you mean `width`?"),
    ]


@pytest.mark.row("E09")
def test_a_reference_with_a_typo_is_told_once_and_its_section_is_not_unused(project: Path) -> None:
    text = '[model]\ntype = "torch.nn.Linear"\nwidth = "${hypr.width}"\n[hyper]\nwidth = 3\n'

    problems = [each for each in check_shape(opened(text)) if each.kind != "missing-key"]

    assert [(each.kind, each.fix) for each in problems if "hyp" in each.message] == [
        ("unknown-reference", "did you mean `hyper`?")
    ]


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("log_perod", "did you mean `log_period`, which is `display.every` here?"),
        ("train_itr", "did you mean `train_iter`, which is `train.steps` here?"),
        ("epoch", "did you mean `epochs`?"),
        ("clip_nrm", "did you mean `clip_norm`?"),
    ],
)
def test_a_typo_in_a_name_of_another_system_is_told_with_the_name_here(
    project: Path, key: str, fix: str
) -> None:
    in_file = check_shape(opened(f"[train]\nepochs = 1\n{key} = 5\n"))
    typed = check_shape(opened("[train]\nepochs = 1\n", f"train.{key}=5"))

    assert [each.fix for each in in_file if each.kind == "unknown-key"] == [fix]
    assert [each.fix for each in typed if each.kind == "unknown-key"] == [fix]


def test_a_model_under_another_name_is_told_which_name_a_run_looks_for(project: Path) -> None:
    (problem,) = check_shape(open_text('[bert_model]\ntype = "model.Net"\n'))

    assert problem.message == "nothing uses the section `bert_model`"
    assert problem.fix == 'a run looks for `model`: call it that, or write model = "@bert_model"'
    assert check_shape(open_text('model = "@bert_model"\n[bert_model]\ntype = "model.Net"\n')) == []


def test_a_section_that_is_copied_as_a_whole_has_no_unused_key(project: Path) -> None:
    text = '[base]\nwidth = 3\nheight = 4\ntype = "model.Net"\n[model]\ntype = "model.Net"\na = "${base}"\n'

    assert check_shape(open_text(text)) == []


def test_without_a_user_folder_the_message_names_none(tmp_path: Path) -> None:
    config = Config(
        root=open_text("[model]\ntype = 'modle.Net'\n[optimizer]\ntype = 'assai.X'").root,
        written=open_text("").root,
        given=open_text("").root,
        path=None,
        files={},
        user_dirs=(tmp_path / "nowhere",),
    )

    assert [problem.message for problem in check_shape(config)] == [
        "`modle` is neither a module in the user folder nor a trusted package",
        "there is no module `assai`",
    ]


def test_user_code_that_cannot_be_parsed_is_shown(project: Path) -> None:
    (project / "model.py").write_text("class Net(:\n    pass\n")

    problem = check_shape(open_config("digits.toml"))[0]

    assert problem.kind == "import-failed"
    assert problem.message == "model.py cannot be parsed, so `model.Net` cannot be found"
    assert [(note.message, str(note.origin)) for note in problem.related] == [
        ("invalid syntax", "model.py:1:11")
    ]


def test_user_code_that_cannot_be_known_is_not_judged(project: Path) -> None:
    (project / "model.py").write_text("from elsewhere import *\n")

    assert check_shape(open_config("digits.toml")) == []


def test_a_value_from_the_environment_is_checked_like_any_other(project: Path) -> None:
    config = opened(CONTRACT.replace("batch_size = 64", 'batch_size = "${env:BATCH}"'))

    assert check_shape(config, environ={"BATCH": "64"}) == []
    assert told(check_shape(config, environ={"BATCH": "many"})) == [
        ("wrong-type", '`data.train.batch_size` must be a whole number, not "many"')
    ]


def test_nothing_in_a_config_can_paint_the_terminal(project: Path) -> None:
    config = opened(
        '"\\u001b[31m" = 1\nseed = "\x1b[2J"\n[model]\ntype = "\\u001b]0;x\\u0007.Net"\n'
    )

    shown = render(check_shape(config), color=False)

    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_what_a_notebook_defines_is_refused_with_where_to_put_it() -> None:
    problems = check_shape(loads('[model]\ntype = "__main__.Net"\n'))

    (found,) = [each for each in problems if each.kind == "target-not-allowed"]
    assert "`__main__.Net` is only where this script or notebook runs" in found.message
    assert "a file beside the config, as model.py" in found.fix


PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"


@pytest.mark.parametrize(
    ("changes", "fixes"),
    [
        (["checkpoint.best.metric=valid/ac"], ["did you mean `valid/acc`?"]),
        (["checkpoint.best.metric=valid/f1"], ["measured are valid/loss, valid/acc"]),
        (["checkpoint.best.metric=vlaid/acc"], ["did you mean `valid/acc`?"]),
        (["checkpoint.best.metric=valid/loss"], []),
        (["checkpoint.best.metric=valid/acc/1"], []),  # a metric may give several numbers
        (
            ["checkpoint.best.metric=valid/f1", "process.type=model.Own"],
            [],
        ),  # a process may log what it likes
        (["checkpoint.best.metric=valid/f1", "+task.type=model.Task"], []),
        (["checkpoint.best.metric=valid/f1", 'plugins=[{ type = "model.Board" }]'], []),
        (["checkpoint.best.metric=valid/f1", "evaluate.enabled=false"], []),
        (
            ['plugins=[{ type = "assay.engine.EarlyStop", metric = "valid/lss", mode = "min" }]'],
            ["did you mean `valid/loss`?"],
        ),
        ([f'schedule={{ type = "{PLATEAU}" }}'], []),
        (
            [f'schedule={{ type = "{PLATEAU}" }}', "data.valid=@delete"],
            ["give [data.valid], or another split"] * 2,
        ),
        (
            [f'schedule={{ type = "{PLATEAU}" }}', "evaluate.every=never"],
            ["give [data.valid], or another split"] * 2,
        ),
        (
            [
                "schedule={ type = 'assay.engine.TorchSchedule', metric = 'valid/ac',"
                f" scheduler = {{ type = '{PLATEAU}' }} }}"
            ],
            ["did you mean `valid/acc`?"],
        ),
    ],
)
def test_a_metric_that_decides_is_one_that_the_config_measures(
    changes: list[str], fixes: list[str], project: Path
) -> None:
    found = check_shape(load("digits.toml", changes))

    assert [problem.fix for problem in found if problem.kind == "never-measured"] == fixes


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("lr=0.1", "did you mean `optimizer.lr`?"),
        ("epochs=3", "did you mean `train.epochs`?"),
        (
            "batch_size=8",
            "did you mean `data.train.batch_size`, `data.valid.batch_size` or `data.test.batch_size`?",
        ),
        ("train.keep=8", "did you mean `checkpoint.keep`?"),
        ("warmup_ratio=0.1", "did you mean `schedule.warmup_ratio`?"),
        ("every=1 epoch", "did you mean `evaluate.every`, `checkpoint.every` or `log.every`?"),
    ],
)
def test_a_key_that_belongs_to_another_section_is_told_with_its_place(
    key: str, fix: str, project: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load("digits.toml", [key])

    assert [problem.fix for problem in caught.value.problems] == [fix]


@pytest.mark.parametrize("change", ["tag=a\udcffb", "model.width=\ud800"])
def test_half_a_character_on_the_command_line_is_named_with_its_key(
    change: str, project: Path
) -> None:
    found = check_shape(open_config("digits.toml", [change]))

    halves = [problem for problem in found if "half of a surrogate pair" in problem.message]
    assert [problem.key for problem in halves] == [change.partition("=")[0]]


def test_half_a_character_of_a_python_config_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.py").write_text('tag = "x\\ud800y"\nseed = 1\n')

    (problem,) = check_shape(open_config("c.py"))

    assert (problem.key, problem.severity) == ("tag", "error")
    assert problem.message == r"a value has half of a surrogate pair, which is no text: 'x\ud800y'"
