"""The full text a person sees for the mistakes people make most."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.config import check_shape, open_config
from assay.core.diagnostics import render

BASE = """\
[model]
type = "model.Net"
width = 32
[train]
epochs = 5
"""

MISTAKES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "a mistyped section": (
        BASE + "[trian]\nx = 1\n",
        (),
        """\
error: unknown key `trian`                                         [unknown-key]
 --> a.toml:6:2
  |
6 | [trian]
  |  ^^^^^
  = did you mean `train`?
""",
    ),
    "a mistyped key": (
        BASE + "presicion = 'fp32'\n",
        (),
        """\
error: unknown key `train.presicion`                               [unknown-key]
 --> a.toml:6:1
  |
6 | presicion = 'fp32'
  | ^^^^^^^^^
  = did you mean `precision`?
""",
    ),
    "a mistyped section on the command line": (
        BASE,
        ("trian.epochs=1",),
        """\
error: unknown key `trian`                                         [unknown-key]
 --> <cli>:1:1
  |
1 | trian.epochs=1
  | ^^^^^
  = did you mean `train`?
""",
    ),
    "a text for a number": (
        BASE.replace("5", '"5"'),
        (),
        """\
error: `train.epochs` must be a whole number, not "5"               [wrong-type]
 --> a.toml:5:10
  |
5 | epochs = "5"
  |          ^^^
  = write it without quotes: 5
""",
    ),
    "a word without quotes": (
        BASE + "precision = bf16\n",
        (),
        """\
error: `bf16` is no TOML value                                          [syntax]
 --> a.toml:6:13
  |
6 | precision = bf16
  |             ^^^^
  = strings need quotes: "bf16"
""",
    ),
    "true as in Python": (
        BASE + "[display]\nquiet = True\n",
        (),
        """\
error: `True` is no TOML value                                          [syntax]
 --> a.toml:7:9
  |
7 | quiet = True
  |         ^^^^
  = write true
""",
    ),
    "a tuple as in Python": (
        BASE + "[optimizer]\ntype = 'torch.optim.Adam'\nbetas = (0.9, 0.99)\n",
        (),
        """\
error: `(0.9, 0.99)` is no TOML value                                   [syntax]
 --> a.toml:8:9
  |
8 | betas = (0.9, 0.99)
  |         ^^^^^^^^^^^
  = write a list: [0.9, 0.99]
""",
    ),
    "a list that is not closed": (
        BASE + "[optimizer]\nbetas = [0.9, 0.99\nlr = 1\n",
        (),
        """\
error: this list is not closed                                          [syntax]
 --> a.toml:7:9
  |
7 | betas = [0.9, 0.99
  |         ^
  = add the closing `]`
note: noticed here                                                      [syntax]
 --> a.toml:8:1
  |
8 | lr = 1
  | ^
""",
    ),
    "a key given twice": (
        BASE + "epochs = 6\n",
        (),
        """\
error: `train.epochs` is given twice                             [duplicate-key]
 --> a.toml:6:1
  |
6 | epochs = 6
  | ^^^^^^
  = keep one of the two
note: first here                                                 [duplicate-key]
 --> a.toml:5:1
  |
5 | epochs = 5
  | ^^^^^^
""",
    ),
    "a period without a unit": (
        BASE + "[checkpoint]\nevery = 5\n",
        (),
        """\
error: `checkpoint.every` is no period: 5                           [wrong-unit]
 --> a.toml:7:9
  |
7 | every = 5
  |         ^
  = write one such as "1 epoch", "2 epochs", "100 steps" or "never"
""",
    ),
    "a class that is not there": (
        BASE.replace("Net", "Nets"),
        (),
        """\
error: model.py has no `Nets`                                   [unknown-target]
 --> a.toml:2:8
  |
2 | type = "model.Nets"
  |        ^^^^^^^^^^^^
  = did you mean `Net`?
""",
    ),
    "a package nobody trusts": (
        BASE.replace("model.Net", "os.system"),
        (),
        """\
error: `os` is neither a module in . nor a trusted package  [target-not-allowed]
 --> a.toml:2:8
  |
2 | type = "os.system"
  |        ^^^^^^^^^^^
  = assay config trust os
""",
    ),
    "an object that is not there": (
        BASE + "[optimizer]\ntype = 'torch.optim.SGD'\nx = '@modle'\n",
        (),
        """\
error: `@modle` refers to nothing: there is no `modle`       [unknown-reference]
 --> a.toml:8:5
  |
8 | x = '@modle'
  |     ^^^^^^^^
  = did you mean `model`?
""",
    ),
    "values in a circle": (
        BASE + "steps = '${train.samples}'\nsamples = '${train.steps}'\n",
        (),
        """\
error: a value needs itself: train.steps -> train.samples -> train.steps  [reference-cycle]
 --> a.toml:7:11
  |
7 | samples = '${train.steps}'
  |           ^^^^^^^^^^^^^^^^
""",
    ),
    "a launch setting in the file": (
        "device = 'cuda'\n" + BASE,
        (),
        """\
error: `device` is a setting of one launch, not of the config   [launch-setting]
 --> a.toml:1:1
  |
1 | device = 'cuda'
  | ^^^^^^
  = give it on the command line: --device
""",
    ),
    "a value replaced by a wrong one": (
        BASE,
        ("train.epochs=-1",),
        """\
error: `train.epochs` must be at least 1, not -1                   [wrong-value]
 --> <cli>:1:14
  |
1 | train.epochs=-1
  |              ^^
  = replaces the value from a.toml:5:10
""",
    ),
    "a section nobody uses": (
        BASE + "[extra]\nx = 1\n",
        (),
        """\
error: nothing uses the section `extra`                         [unused-section]
 --> a.toml:6:2
  |
6 | [extra]
  |  ^^^^^
  = refer to it as "@extra", or remove it
""",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_of_a_typical_mistake_reads_well(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, overrides, expected = MISTAKES[name]
    Path("model.py").write_text("class Net: ...\n")
    Path("a.toml").write_text(text)

    problems = check_shape(open_config("a.toml", overrides))

    assert render(problems, color=False) + "\n" == expected
