"""Dataclasses and parameters as a config's tree."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import BaseParams
from assay.config import config_hash, dump, from_plain, get_at, load, loads, plain, same
from assay.config.lazy import L
from assay.config.params import tree_of
from assay.config.tree import key_origin_at
from assay.core.errors import ConfigError, InputError
from examples import DIGITS

NAMES = st.from_regex(r"[a-z]{1,6}", fullmatch=True).filter(
    lambda name: not hasattr(BaseParams, name)
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class Kind(enum.Enum):
    BIG = "big"


@dataclass
class Train:
    epochs: int = 5
    clip_norm: float | None = None


@dataclass
class Experiment:
    tag: str
    train: Train = field(default_factory=Train)
    model: dict[str, Any] = field(default_factory=lambda: {"type": "model.Net", "layers": [1, 2]})
    root: Path = Path("/data")
    kind: Kind = Kind.BIG
    betas: tuple[float, float] = (0.9, 0.99)


class Nested(BaseParams):
    train = Train(epochs=7)
    inner = BaseParams(lr=0.1)


def test_a_dataclass_is_a_tree_with_the_lines_of_its_fields() -> None:
    root = tree_of(Experiment(tag="x"))

    assert plain(root) == {
        "tag": "x",
        "train": {"epochs": 5, "clip_norm": None},
        "model": {"type": "model.Net", "layers": [1, 2]},
        "root": str(Path("/data")),
        "kind": "big",
        "betas": [0.9, 0.99],
    }
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    for path, text in {("betas",): "betas: tuple", ("train", "epochs"): "epochs: int = 5"}.items():
        origin = key_origin_at(root, path)
        assert os.path.samefile(origin.source, __file__)
        assert text in lines[origin.line - 1]
    tag = get_at(root, ("tag",))
    assert tag is not None and str(tag.origin) == "<python>"


def test_a_class_without_open_questions_is_a_tree_too() -> None:
    assert plain(tree_of(Train)) == {"epochs": 5, "clip_norm": None}
    with pytest.raises(InputError, match="cannot be made of Experiment alone"):
        tree_of(Experiment)


def test_parameters_and_dataclasses_nest() -> None:
    assert plain(tree_of(Nested)) == {
        "train": {"epochs": 7, "clip_norm": None},
        "inner": {"lr": 0.1},
    }


def test_a_dataclass_without_a_file_is_a_tree_without_lines() -> None:
    root = tree_of(make_dataclass("Made", [("x", int, 3)])())

    assert plain(root) == {"x": 3}
    assert key_origin_at(root, ("x",)).line == 0


@pytest.mark.parametrize("value", [3, {"a": 1}, [1], None])
def test_what_is_no_config_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="is no config"):
        tree_of(value)


def test_what_a_tree_cannot_hold_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match=r"`a\.b` is of type object"):
        tree_of(BaseParams(a={"b": object()}))
    with pytest.raises(InputError, match="is no string"):
        tree_of(BaseParams(a={1: 2}))


class Digits(BaseParams):
    """What `digits.toml` says, as a class."""

    tag = "digits-cnn"
    desc = "Three convolutions, random shifts, cosine schedule."
    seed = 0
    model = {"type": "model.Net", "width": 32}  # noqa: RUF012
    data = {  # noqa: RUF012
        "train": {
            "source": {"type": "data.Digits", "split": "train", "shift": 2},
            "batch_size": 64,
            "shuffle": True,
        },
        "valid": {"source": {"type": "data.Digits", "split": "valid"}, "batch_size": 250},
        "test": {"source": {"type": "data.Digits", "split": "test"}, "batch_size": 250},
    }
    process = {  # noqa: RUF012
        "type": "assay.engine.Supervised",
        "criterion": {"type": "torch.nn.CrossEntropyLoss"},
        "metrics": {"acc": {"type": "assay.engine.Accuracy"}},
    }
    optimizer = {"type": "torch.optim.AdamW", "lr": 3e-3}  # noqa: RUF012
    schedule = {"type": "assay.engine.WarmupCosine", "warmup_ratio": 0.05}  # noqa: RUF012
    train = {"epochs": 12, "precision": "fp32", "accumulate": 1, "clip_norm": 1.0}  # noqa: RUF012
    evaluate = {"every": "1 epoch"}  # noqa: RUF012
    checkpoint = {"every": "1 epoch", "keep": 3, "best": {"metric": "valid/acc", "mode": "max"}}  # noqa: RUF012


@dataclass
class DigitsData:
    tag: str = Digits().tag
    desc: str = Digits().desc
    seed: int = 0
    model: dict[str, Any] = field(default_factory=lambda: Digits().model)
    data: dict[str, Any] = field(default_factory=lambda: Digits().data)
    process: dict[str, Any] = field(default_factory=lambda: Digits().process)
    optimizer: dict[str, Any] = field(default_factory=lambda: Digits().optimizer)
    schedule: dict[str, Any] = field(default_factory=lambda: Digits().schedule)
    train: dict[str, Any] = field(default_factory=lambda: Digits().train)
    evaluate: dict[str, Any] = field(default_factory=lambda: Digits().evaluate)
    checkpoint: dict[str, Any] = field(default_factory=lambda: Digits().checkpoint)


def test_an_experiment_has_one_hash_whether_it_is_a_file_a_class_or_a_dataclass() -> None:
    file = load(DIGITS).root

    for root in (tree_of(Digits), tree_of(DigitsData), loads(dump(tree_of(Digits))).root):
        assert same(root, file)
        assert config_hash(root) == config_hash(file)
    changed = Digits().from_args(["optimizer.lr=0.01"])
    assert (
        config_hash(tree_of(changed))
        == config_hash(load(DIGITS, ["optimizer.lr=0.01"]).root)
        != config_hash(file)
    )


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_plain_values_make_the_tree_that_any_front_end_makes_of_them(
    values: dict[str, Any],
) -> None:
    root = tree_of(BaseParams(**values))

    assert same(root, from_plain(values, root.origin))


def test_calls_written_down_stand_in_parameters_too() -> None:
    class Experiment(BaseParams):
        model = L("model.Net")(width=32)

    p = Experiment().from_args(["--model.width=64"])

    assert plain(p.tree()) == {"model": {"type": "model.Net", "width": 64}}
    assert plain(Experiment().tree()) == {"model": {"type": "model.Net", "width": 32}}
    with pytest.raises(ConfigError, match="must be a whole number"):
        p.from_args(["--model.width=wide"])
