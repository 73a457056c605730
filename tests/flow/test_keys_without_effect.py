"""A key that would do nothing is told by the check, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.compose.checks import check_calls, problems_of_shape
from assay.config import open_config
from assay.core.errors import InputError
from assay.record.logfile import formatter


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            '+criterion={type="torch.nn.CrossEntropyLoss", label_smoothing=0.3}',
            "clash",
            "[process] has a `criterion` of its own, so that [criterion] is never used",
        ),
        (
            "data.valid.micro_batch_size=4",
            "unused-key",
            "`micro_batch_size` divides a batch of [data.train]; no other is divided",
        ),
        ("parallel.stages=2", "unused-key", "`stages` is of a pipeline, and there is none"),
        ("parallel.schedule=gpipe", "unused-key", "`schedule` is of a pipeline, and there is none"),
    ],
)
def test_a_key_that_does_nothing_is_an_error(
    change: str, kind: str, message: str, toy: Path
) -> None:
    config = open_config(toy / "toy.toml", [change])

    problems = [*problems_of_shape(config), *check_calls(config).problems]

    assert [(each.kind, each.message) for each in problems if each.severity == "error"] == [
        (kind, message)
    ]


def test_a_criterion_that_the_process_refers_to_is_used(toy: Path) -> None:
    changes = ['+criterion={type="torch.nn.CrossEntropyLoss"}', 'process.criterion="@criterion"']
    config = open_config(toy / "toy.toml", changes)

    assert not [each for each in check_calls(config).problems if each.severity == "error"]


@pytest.mark.parametrize(
    ("parameter", "is_told"),
    [
        ("", True),
        (", criterion: nn.Module", False),
        (", of: nn.MSELoss", False),
        (", **rest", False),
    ],
)
def test_a_criterion_that_a_process_of_ones_own_does_not_take_is_told(
    parameter: str, is_told: bool, tmp_path: Path
) -> None:
    (tmp_path / "own_criterion.py").write_text(
        "from torch import nn\n"
        "from assay.engine import OptimizerStep, Process\n\n\n"
        "class Own(Process):\n"
        f"    def __init__(self, model: nn.Module, backward: OptimizerStep{parameter}): ...\n"
        "    def forward_step(self, batch): ...\n"
    )
    (tmp_path / "own.toml").write_text(
        '[model]\ntype = "torch.nn.Linear"\nin_features = 1\nout_features = 1\n'
        '[optimizer]\ntype = "torch.optim.SGD"\nlr = 0.1\n'
        '[criterion]\ntype = "torch.nn.MSELoss"\n'
        '[process]\ntype = "own_criterion.Own"\n'
    )
    found = check_calls(open_config(tmp_path / "own.toml")).problems

    assert not [each for each in found if each.severity == "error"]
    told = [each.message for each in found if each.key == "criterion"]
    assert told == ["[criterion] is never used: nothing here takes a `criterion`"] * is_told


@pytest.mark.parametrize("form", ["%(foo)s", "%(message", "%(levelno)q"])
def test_a_log_format_that_no_line_fits_is_refused_at_once(form: str) -> None:
    with pytest.raises(InputError, match="The log format"):
        formatter("tag", form)
