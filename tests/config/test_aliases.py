from __future__ import annotations

from pathlib import Path

import pytest

from assay.config import check_shape, load, loads, plain

TUTORIAL = """
from assay.config import L

process = L("assay.engine.Supervised")(criterion=L("torch.nn.CrossEntropyLoss")())
train = dict(epochs=1)
train.update(
    dict(
        eval_period=100,
        topk=(1, 5),
        recompute_grad=dict(enabled=True),
        planted=1,
    )
)
"""


@pytest.mark.row("E15")
def test_keys_of_the_tutorial_are_taken_with_a_note_and_a_stray_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(TUTORIAL)

    config = load(tmp_path / "config.py")
    problems = check_shape(config)

    root = plain(config.root)
    assert root["evaluate"] == {"every": "100 steps"}
    assert root["process"]["metrics"] == {
        "acc": {"type": "assay.engine.Accuracy", "top": 1},
        "acc5": {"type": "assay.engine.Accuracy", "top": 5},
    }
    assert root["train"]["activation_checkpoint"] == {"enabled": True}
    notes = [(problem.key, problem.origin.line) for problem in problems if problem.severity == "note"]
    assert notes == [("train.eval_period", 8), ("train.topk", 9), ("train.recompute_grad", 10)]
    assert [problem.key for problem in problems if problem.severity == "error"] == [
        "train.activation_checkpoint",
        "train.planted",
    ]


def test_numbers_change_their_unit_and_nothing_stays_nothing() -> None:
    config = loads(
        "[train]\ntrain_epoch = 20\ntrain_iter = 0\nlog_period = 10\nwarmup_ratio = 0.01\namp = {enabled = true}\n"
        "[schedule]\ntype = 'assay.engine.WarmupCosine'\n"
    )

    assert plain(config.root) == {
        "train": {"epochs": 20, "precision": "bf16"},
        "schedule": {"type": "assay.engine.WarmupCosine", "warmup_ratio": 0.01},
        "display": {"every": "10 steps"},
    }
    assert all(note.severity == "note" for note in config.notes)


def test_what_has_its_own_name_already_counts() -> None:
    config = loads("[train]\nepochs = 1\ntrain_epoch = 2\n")

    assert plain(config.root) == {"train": {"epochs": 1}}
    assert config.notes[0].message == "`train.train_epoch` is `train.epochs` here, which is given too and counts"
    assert loads("evaluate = 1\n[train]\neval_period = 3").root.items["train"].origin.line == 2
