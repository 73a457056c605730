"""Facts to JSON and back; files that are replaced, never half written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import RecordError
from assay.formats.json_codec import (
    dataclass_from,
    dumps,
    number,
    read_json,
    to_plain,
    write_atomic,
    write_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    value: float = 0.0
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    format: int = 1
    name: str
    mode: Literal["min", "max"] = "min"
    on: bool = False
    parts: tuple[Inner, ...] = ()
    words: list[str] = field(default_factory=list)
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    best: Inner | None = None
    must: Any
    count: int | None = None


inners = st.builds(Inner, value=st.floats(allow_nan=False), note=st.none() | st.text())
I64 = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | I64 | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
outers = st.builds(
    Outer,
    name=st.text(),
    mode=st.sampled_from(["min", "max"]),
    on=st.booleans(),
    parts=st.lists(inners, max_size=3).map(tuple),
    words=st.lists(st.text(), max_size=3),
    by_name=st.dictionaries(st.text(), inners, max_size=3),
    best=st.none() | inners,
    must=json_values,
    count=st.none() | I64,
)


@given(outers)
def test_a_fact_comes_back_equal_through_json(fact: Outer) -> None:
    text = dumps(fact)

    assert "\n" not in text
    assert dataclass_from(Outer, json.loads(text)) == fact


def test_numbers_that_json_lacks_are_words_that_any_reader_copes_with() -> None:
    text = dumps({"a": [math.nan, math.inf, -math.inf]})

    assert text == '{"a":["nan","inf","-inf"]}'
    assert [str(number(each)) for each in json.loads(text)["a"]] == ["nan", "inf", "-inf"]


def test_a_numpy_nan_is_written_like_any_other() -> None:
    numpy = pytest.importorskip("numpy")

    assert dumps([numpy.float64("nan"), numpy.float64(0.1)]) == '["nan",0.1]'


def test_names_that_are_no_unicode_survive() -> None:
    name = os.fsdecode(b"gr\xf6\xdfe.toml")

    text = dumps({"argument": name})

    assert json.loads(text.encode("utf-8"))["argument"] == name


def test_fields_that_are_none_by_default_are_left_out_and_others_are_kept() -> None:
    assert to_plain(Outer(name="a", must=None))["must"] is None
    assert "best" not in to_plain(Outer(name="a", must=1))


def test_keys_of_a_newer_version_are_left_alone() -> None:
    fact = dataclass_from(
        Outer, {"name": "a", "must": 1, "colour": "red", "best": {"value": 1, "unit": "s"}}
    )

    assert fact == Outer(name="a", must=1, best=Inner(value=1.0))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"must": 1}, "Outer.name is missing."),
        ({"name": 3, "must": 1}, "Outer.name is 3; expected str."),
        ({"name": "a", "must": 1, "count": True}, "Outer.count is True; expected int."),
        ({"name": "a", "must": 1, "on": 1}, "Outer.on is 1; expected bool."),
        (
            {"name": "a", "must": 1, "mode": "mean"},
            "Outer.mode is 'mean'; expected one of 'min', 'max'.",
        ),
        ({"name": "a", "must": 1, "parts": {}}, "Outer.parts is {}; expected a list."),
        (
            {"name": "a", "must": 1, "parts": [{}, {"value": "x"}]},
            "Outer.parts[1].value is 'x'; expected float.",
        ),
        ({"name": "a", "must": 1, "by_name": []}, "Outer.by_name is []; expected a table."),
        ({"name": "a", "must": 1, "by_name": {"k": 1}}, "Outer.by_name.k is 1; expected a table."),
        ({"name": "a", "must": 1, "best": {"note": 1}}, "Outer.best.note is 1; expected str."),
        ([], "Outer is []; expected a table."),
    ],
)
def test_what_is_wrong_is_named_with_its_path(data: object, message: str) -> None:
    with pytest.raises(RecordError) as caught:
        dataclass_from(Outer, data)

    assert caught.value.what == message


def test_a_file_comes_back_and_says_its_format(tmp_path: Path) -> None:
    path = tmp_path / "fact.json"
    fact = Outer(name="größe", must={"a": [1, None]}, best=Inner(value=math.inf))

    write_json(path, fact)

    assert read_json(path, Outer, version=1, limit=10_000) == fact
    assert path.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 2, "name": "a"}', "fact.json has format 2; this assay knows 1."),
        ('{"name": "a"}', "fact.json does not say its format."),
        ('{"format": "1"}', "fact.json does not say its format."),
        ("[1]", "fact.json is not a JSON object."),
        ('{"format": 1, "must": 1}', "fact.json.name is missing."),
        ('{"format": 1, "na', "fact.json cannot be read"),
        ("", "fact.json cannot be read"),
        ("\xff", "fact.json cannot be read"),
        ("[" * 100_000, "fact.json cannot be read"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_in_one_sentence(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "fact.json"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(RecordError) as caught:
        read_json(path, Outer, version=1, limit=10_000)

    assert caught.value.what.startswith(message)


def test_a_missing_file_is_missing_and_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "fact.json", Outer, version=1, limit=10_000)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    (path / "inside").touch()

    with pytest.raises(OSError):
        write_atomic(path, b"new")

    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


def test_a_write_replaces_the_file_and_leaves_no_neighbour(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")

    write_atomic(path, b"new", durable=False)

    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a", b"new")]
