"""Parameters in files and dictionaries: equal after a round trip, never silently different."""

from __future__ import annotations

import json
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import BaseParams, Params
from assay.config.params.files import decode, encode, text_of
from assay.config.sources import json as json_source
from assay.config.sources import toml as toml_source
from assay.config.sources import yaml as yaml_source
from assay.config.tree import plain
from assay.core.errors import ConfigError, InputError

SOURCES = {".json": json_source, ".toml": toml_source, ".yaml": yaml_source}
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]))
    | st.sampled_from(
        ["@none", "@model", "@@x", "${a.b}", "null", "no", "1e-3", "0x10", "@tuple", "2024-01-02"]
    )
    | st.dates()
    | st.datetimes()
    | st.times()
    | NAMES.filter(lambda text: "\0" not in text).map(Path)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(NAMES | st.sampled_from(["@tuple", "@date", "@items"]), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


class Tutorial(Params):
    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 50
        self.topk = (1, 2, 3, 4)
        self.optim_option(lr=0.009, moment=0.9)


@pytest.mark.row("C13")
@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".toml"])
def test_saved_parameters_are_equal_when_loaded(suffix: str, tmp_path: Path) -> None:
    p = Tutorial()
    p.topk, p.optim.lr, p.epoch = (5,), 0.5, 3
    file = tmp_path / f"params{suffix}"

    p.save(file)

    assert Tutorial().load(file) == p
    assert Params().load(file).to_dict() == p.to_dict()
    assert Tutorial().from_dict(p.to_dict()) == p
    assert Tutorial().load(file)["optim.lr"] == 0.5
    assert str(Tutorial().load(file).origin("epoch")).startswith(str(file))


@pytest.mark.row("C13")
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_every_value_survives_every_language(values: dict[str, Any]) -> None:
    for suffix, source in SOURCES.items():
        root, problems = source.read_all(text_of(values, suffix), "params", excerpt=True)
        assert problems == []
        made = {key: decode(plain(node)) for key, node in root.items.items()}
        assert made == values
        assert same_types(made, values)


def same_types(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return type(a) is type(b) and all(same_types(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and all(map(same_types, a, b))
    return type(a) is type(b)


@given(VALUES)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    assert decode(encode(value)) == value


def test_dates_and_none_survive(tmp_path: Path) -> None:
    p = BaseParams(
        a=None,
        d=date(2024, 1, 2),
        t=time(3, 4, 5),
        w=datetime(2024, 1, 2, 3, 4),
        n={"x": None, 5: "6"},
    )
    for suffix in SOURCES:
        p.save(tmp_path / f"p{suffix}")
        assert BaseParams().load(tmp_path / f"p{suffix}") == p


def test_a_file_keeps_the_types_of_the_class(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text('{"topk": [1, 5], "optim": {"lr": 1}} // by hand', encoding="utf-8")

    p = Tutorial().load(file)

    assert (p.topk, p.optim) == ((1, 5), {"lr": 1.0, "moment": 0.9})
    assert type(p.optim.lr) is float


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ('{"batchsize": 3}', "unknown-key", "unknown parameter `batchsize`"),
        ('{"optim": {"lrr": 3}}', "unknown-key", "unknown parameter `optim.lrr`"),
        ('{"batch_size": "3"}', "wrong-type", "`batch_size` must be a whole number, not '3'"),
        ('{"batch_size": 3.0}', "wrong-type", "`batch_size` must be a whole number, not 3.0"),
        ('{"device": 0}', "wrong-type", "`device` must be a string, not 0"),
    ],
)
def test_a_file_with_a_mistake_changes_nothing(
    text: str, kind: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.json"
    file.write_text(text, encoding="utf-8")
    p = Tutorial()

    with pytest.raises(ConfigError) as caught:
        p.load(file)

    (problem,) = caught.value.problems
    assert (problem.kind, problem.message) == (kind, message)
    assert str(problem.origin).startswith(f"{file}:1")
    assert p == Tutorial()


def test_a_class_takes_other_names_only_when_told() -> None:
    with pytest.warns(UserWarning, match="`other`"):
        assert Tutorial().from_dict({"other": 1}, unknown="warn").other == 1
    assert Tutorial().from_dict({"other": 1}, unknown="allow").other == 1
    with pytest.raises(ConfigError):
        Params().from_dict({"other": 1}, unknown="error")


def test_what_no_file_can_hold_is_named(tmp_path: Path) -> None:
    p = BaseParams(a={"b": [1, object()]})

    with pytest.raises(InputError, match=r"`a\.b\[1\]` is of type object"):
        p.save(tmp_path / "p.json")
    assert not (tmp_path / "p.json").exists()
    with pytest.raises(InputError, match=r"Use \.json, \.yaml or \.toml"):
        BaseParams().save(tmp_path / "p.txt")
    with pytest.raises(InputError, match="cannot be written"):
        BaseParams().save(tmp_path / "no" / "p.json")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        BaseParams().load(tmp_path / "p.json")
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError):
        BaseParams().load(tmp_path / "bad.json")
    (tmp_path / "date.json").write_text(json.dumps({"d": {"@date": "soon"}}), encoding="utf-8")
    with pytest.raises(InputError, match="is no date"):
        BaseParams().load(tmp_path / "date.json")
