from __future__ import annotations

from pathlib import Path

import pytest

from assay.config import check_shape, dump, expand, load, loads, plain
from assay.core.errors import ConfigError

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
def test_keys_of_the_tutorial_are_taken_with_a_note_and_a_stray_one_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.py").write_text(TUTORIAL)

    config = load(tmp_path / "config.py")
    problems = check_shape(config)

    root = plain(config.root)
    assert root["evaluate"] == {"every": "100 steps"}
    assert root["process"]["metrics"] == {
        "acc": {"type": "assay.engine.Accuracy", "top": 1},
        "acc5": {"type": "assay.engine.Accuracy", "top": 5},
    }
    assert root["train"]["activation_checkpoint"] is True
    notes = [
        (problem.key, problem.origin.line) for problem in problems if problem.severity == "note"
    ]
    assert notes == [("train.eval_period", 5), ("train.topk", 5), ("train.recompute_grad", 5)]
    assert [problem.key for problem in problems if problem.severity == "error"] == ["train.planted"]


@pytest.mark.row("E12")
def test_switches_of_other_systems_are_switches_here() -> None:
    switches = "[train]\namp.enabled = true\nrecompute_grad.enabled = true\n"

    config = loads(f"{switches}[backward]\nperiod = 4\nclip_norm = 1\n")

    train = {"precision": "bf16", "activation_checkpoint": True, "accumulate": 4, "clip_norm": 1}
    assert plain(config.root) == {"train": train, "backward": {}}


@pytest.mark.row("E36")
@pytest.mark.parametrize("size", [0, 16])
def test_how_gradients_are_fused_is_the_size_of_what_is_sent_at_once(size: int) -> None:
    config = loads(f"[train]\nnccl_fusion_threshold_mb = {size}\nnccl_fusion_max_ops = 24\n")

    assert plain(config.root) == {"train": {}, "parallel": {"bucket_mb": size}}
    assert [note.key for note in config.notes] == [
        "train.nccl_fusion_threshold_mb",
        "train.nccl_fusion_max_ops",
    ]
    assert not [each for each in check_shape(config) if each.key.startswith("parallel")]


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


@pytest.mark.row("E30")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("train_iter = 10\ntrain_epoch = 2", {"steps": 10, "epochs": 2, "until": "last"}),
        ("train_iter = 0\ntrain_epoch = 2", {"epochs": 2}),
        ("train_iter = 10\ntrain_epoch = 0", {"steps": 10}),
        ("train_iter = 10\nepochs = 2", {"steps": 10, "epochs": 2}),
        (
            "train_iter = 10\ntrain_epoch = 2\nuntil = 'first'",
            {"steps": 10, "epochs": 2, "until": "first"},
        ),
    ],
)
def test_both_bounds_by_their_older_names_mean_the_larger(
    given: str, expected: dict[str, object]
) -> None:
    config = loads(f"[train]\n{given}\n")

    assert plain(config.root) == {"train": expected}
    assert plain(loads(dump(config.root)).root) == {"train": expected}


def test_what_has_its_own_name_already_counts() -> None:
    config = loads("[train]\nepochs = 1\ntrain_epoch = 2\n")

    assert plain(config.root) == {"train": {"epochs": 1}}
    assert (
        config.notes[0].message
        == "`train.train_epoch` is `train.epochs` here, which is given too and counts"
    )
    assert loads("evaluate = 1\n[train]\neval_period = 3").root.items["train"].origin.line == 2


def test_what_a_config_says_itself_wins_over_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text(
        "train = dict(epochs=7, activation_checkpoint=dict(enabled=False))\n"
    )
    first = """
from assay.config.defaults.train import train
train.update(dict(train_epoch=20))
"""
    second = """
from common import train
train.update(dict(recompute_grad=dict(enabled=True)))
"""
    third = """
from common import train
train.train_epoch = 20
train.epochs = 3
"""
    found = []
    for text in (first, second, third):
        (tmp_path / "config.py").write_text(text)
        config = load(tmp_path / "config.py")
        found.append((plain(config.root)["train"], config.notes[0].message))

    assert found[0][0]["epochs"] == 20
    assert "which is given too" not in found[0][1]
    assert found[1][0] == {"epochs": 7, "activation_checkpoint": True}
    assert found[2][0]["epochs"] == 3
    assert "which is given too and counts" in found[2][1]


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("train.amp.enabled=true", {"train": {"epochs": 1, "precision": "bf16"}}),
        ("train.amp=false", {"train": {"epochs": 1, "precision": "fp32"}}),
        ("train.train_epoch=5", {"train": {"epochs": 5}}),
        ("train.train_iter=0", {"train": {"epochs": 1}}),
        ("train.eval_period=100", {"train": {"epochs": 1}, "evaluate": {"every": "100 steps"}}),
        ("train.train_epoch=@delete", {"train": {}}),
    ],
)
def test_an_alias_is_taken_as_an_override_too(argument: str, expected: dict[str, object]) -> None:
    config = loads("[train]\nepochs = 1\n", [argument])

    assert plain(config.root) == expected
    (note,) = config.notes
    assert argument.startswith(note.key) and note.origin.source == "<cli>"
    assert f"`{note.key}` is `" in note.message


def test_an_alias_is_taken_in_a_variant_and_several_values_are_typed_without_brackets() -> None:
    text = """
[process]
type = "assay.engine.Supervised"
[variants.half]
"train.amp.enabled" = true
"""
    base = loads(text, ["train.topk=1,5"])
    (half,) = expand(base, ["half"])

    tops = {"acc": 1, "acc5": 5}
    metrics = {name: {"type": "assay.engine.Accuracy", "top": top} for name, top in tops.items()}
    assert plain(base.root) == {"process": {"type": "assay.engine.Supervised", "metrics": metrics}}
    assert plain(half.root) == {**plain(base.root), "train": {"precision": "bf16"}}
    assert [note.key for note in half.notes] == ["train.amp", "train.topk"]


def test_an_alias_whose_name_here_cannot_be_set_is_refused_by_that_name() -> None:
    with pytest.raises(ConfigError) as caught:
        loads("[train]\nepochs = 1\n", ["train.warmup_ratio=0.1"])

    (problem,) = caught.value.problems
    assert problem.message == "there is no `schedule` in the config"


HYDRA = {
    "a.yaml": "model:\n  _target_: model.Net\n  _args_: [{_target_: model.Tok}]\n  width: ${.n}\n  n: 3\n",
    "a.json": '{"model": {"_target_": "model.Net", "_args_": [{"_target_": "model.Tok"}], "width": "${.n}", "n": 3}}',
    "a.toml": '[model]\n_target_ = "model.Net"\n_args_ = [{ _target_ = "model.Tok" }]\nwidth = "${.n}"\nn = 3\n',
}


@pytest.mark.parametrize("source", HYDRA)
def test_calls_of_hydra_are_calls_with_one_note(source: str) -> None:
    config = loads(HYDRA[source], ["model._target_=model.Other"], source=source)
    wanted = {"type": "model.Other", "args": [{"type": "model.Tok"}], "width": 3, "n": 3}

    assert plain(config.root) == {"model": wanted}
    assert list(plain(config.root)["model"]) == list(wanted)
    assert [(note.severity, note.message) for note in config.notes] == [
        ("note", "`_target_` is `type` here, 2 times in this config")
    ]
    assert "_target_" not in dump(config.root)


def test_a_call_that_names_its_target_twice_is_refused() -> None:
    config = loads('[model]\ntype = "torch.nn.ReLU"\n_target_ = "torch.nn.GELU"\n')

    assert plain(config.root)["model"] == {"type": "torch.nn.ReLU", "_target_": "torch.nn.GELU"}
    assert config.notes == ()


def test_a_config_of_assay_alone_loads_no_table_of_an_older_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(system: str) -> None:
        raise AssertionError(f"the table of {system} was loaded")

    monkeypatch.setattr("assay.compat.names.table_of", refuse)

    config = loads("seed = 1\n[train]\nepochs = 2\n[data.train]\nnum_workers = 1\n")

    assert plain(config.root)["data"] == {"train": {"workers": 1}}
    with pytest.raises(AssertionError, match="alchemy"):
        loads('plugins = [{ type = "alchemy.plugins.Backup" }]\n')


@pytest.mark.parametrize("suffix", [".toml", ".yaml", "an override"])
def test_a_variable_as_hydra_names_it_is_one_here_with_a_note(
    suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AN_UNSET_ONE", raising=False)
    reference = "net-${oc.env:AN_UNSET_ONE,64}"
    texts = {".toml": f'tag = "{reference}"\nseed = 1', ".yaml": f"tag: {reference}\nseed: 1"}
    overrides = ["seed=${oc.env:AN_UNSET_ONE,64}"] if suffix not in texts else []

    config = loads(texts.get(suffix, "seed = 1"), overrides, source=f"a{suffix}")

    if overrides:
        assert plain(config.root) == {"seed": 64}
        return
    assert plain(config.root) == {"tag": "net-64", "seed": 1}
    assert [note.message for note in config.notes] == ["`${oc.env:X}` is `${env:X}` here"]
    assert plain(loads('tag = "$${oc.env:X}"').root) == {"tag": "$${oc.env:X}"}
