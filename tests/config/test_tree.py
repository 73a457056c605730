from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Table,
    delete_at,
    dotted,
    fit_path,
    from_plain,
    get_at,
    key_origin_at,
    parse_dotted,
    plain,
    same,
    set_at,
    walk,
)
from assay.core.diagnostics import Origin
from assay.core.errors import InputError

HERE = Origin(source="<test>", line=1, column=1)
THERE = Origin(source="<cli>", line=1, column=9)


def tree(value: dict[str, Any]) -> Table:
    node = from_plain(value, HERE)
    assert isinstance(node, Table)
    return node


def test_plain_data_comes_back_as_it_went_in() -> None:
    value = {"a": [1, 2.5, {"b": None, "c": date(2020, 1, 2)}], "d": {"e": True, "f": "x"}}

    assert plain(tree(value)) == value


def test_tuples_become_lists_and_kinds_of_scalars_become_scalars() -> None:
    class Size(enum.IntEnum):
        SMALL = 3

    class Word(str):
        pass

    made = plain(
        tree({"a": (1, 2), "b": Size.SMALL, "c": Word("x"), "d": MappingProxyType({"e": 1})})
    )

    assert made == {"a": [1, 2], "b": 3, "c": "x", "d": {"e": 1}}
    assert [type(made[key]) for key in "bc"] == [int, str]


def test_a_value_that_is_no_data_is_refused_with_its_path() -> None:
    with pytest.raises(InputError, match=r"`model\.layers\.1` is a set"):
        tree({"model": {"layers": [1, {2}]}})
    with pytest.raises(InputError, match="key 3 of `model` is no string"):
        tree({"model": {3: 1}})


def test_data_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop

    with pytest.raises(InputError, match="more than 200 levels"):
        tree(loop)


def test_a_node_cannot_be_changed() -> None:
    root = tree({"a": {"b": 1}})

    with pytest.raises(TypeError):
        root.items["a"] = Leaf(1, HERE)  # type: ignore[index]
    with pytest.raises(AttributeError):
        root.items = {}  # type: ignore[misc]


def test_a_table_with_a_type_is_a_call_with_arguments() -> None:
    call = tree({"type": "torch.nn.Linear", "args": [1, 2]})

    assert call.target == "torch.nn.Linear"
    assert [plain(arg) for arg in call.args] == [1, 2]
    assert tree({"type": 3}).target is None
    assert tree({"width": 3}).args == ()


def test_what_is_not_there_is_none() -> None:
    root = tree({"a": [1]})

    assert get_at(root, ("a", 1)) is None
    assert get_at(root, ("a", "0")) is None
    assert get_at(root, ("a", 0, "b")) is None
    assert get_at(root, ()) is root


def test_setting_makes_a_new_tree_and_shares_the_rest() -> None:
    root = tree({"a": {"b": 1}, "c": {"d": 2}})

    changed = set_at(root, ("a", "x", "y"), Leaf(3, THERE), THERE)

    assert plain(root) == {"a": {"b": 1}, "c": {"d": 2}}
    assert plain(changed) == {"a": {"b": 1, "x": {"y": 3}}, "c": {"d": 2}}
    assert changed.items["c"] is root.items["c"]
    assert key_origin_at(changed, ("a", "x", "y")) == THERE
    assert key_origin_at(changed, ("a",)) == HERE


def test_a_list_takes_an_index_up_to_its_length() -> None:
    root = tree({"a": [1, 2]})

    assert plain(set_at(root, ("a", 1), Leaf(5, HERE))) == {"a": [1, 5]}
    assert plain(set_at(root, ("a", 2), Leaf(5, HERE))) == {"a": [1, 2, 5]}
    paths: list[KeyPath] = [("a", 3), ("a", "x"), ("a", 0, "b"), ()]
    for path in paths:
        with pytest.raises(KeyError):
            set_at(root, path, Leaf(5, HERE))


def test_deleting_takes_out_one_thing() -> None:
    root = tree({"a": [{"b": 1, "c": 2}, 3], "d": 4})

    assert plain(delete_at(root, ("a", 0, "b"))) == {"a": [{"c": 2}, 3], "d": 4}
    assert plain(delete_at(root, ("a", 0))) == {"a": [3], "d": 4}
    assert plain(delete_at(root, ("d",))) == {"a": [{"b": 1, "c": 2}, 3]}
    for path in [("x",), ("a", 7), ()]:
        with pytest.raises(KeyError):
            delete_at(root, path)


def test_walking_visits_outer_before_inner_in_written_order() -> None:
    paths = [dotted(path) for path, _ in walk(tree({"b": {"x": 1, "a": [2, {"y": 3}]}, "a": 4}))]

    assert paths == ["", "b", "b.x", "b.a", "b.a.0", "b.a.1", "b.a.1.y", "a"]


def test_the_place_of_a_key_is_known() -> None:
    root = Table({"a": List((Leaf(1, THERE),), HERE)}, HERE)

    assert key_origin_at(root, ("a",)) == HERE
    assert key_origin_at(root, ("a", 0)) == THERE
    assert key_origin_at(root, ()) == HERE
    with pytest.raises(KeyError):
        key_origin_at(root, ("b",))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (None, None, True),
        ("1", 1, False),
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({}, [], False),
        (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1), False),
        (datetime(2020, 1, 1), date(2020, 1, 1), False),
    ],
)
def test_trees_are_the_same_when_they_say_the_same(a: Any, b: Any, expected: bool) -> None:
    assert same(from_plain(a, HERE), from_plain(b, THERE)) is expected


def test_the_word_for_none_means_none_wherever_it_comes_from() -> None:
    assert plain(tree({"a": "@none"})) == {"a": None}
    assert same(Leaf("@none", HERE), Leaf(None, HERE))


@given(
    st.lists(st.text(min_size=1) | st.just("") | st.integers(0, 99), min_size=1).filter(
        lambda p: isinstance(p[0], str)
    )
)
def test_a_path_reads_back_from_its_line_in_a_tree_that_has_it(path: list[str | int]) -> None:
    node: Any = 1
    for part in reversed(path):
        node = {part: node} if isinstance(part, str) else [*[0] * part, node]

    assert fit_path(tree(node), parse_dotted(dotted(tuple(path)))) == tuple(path)


@pytest.mark.parametrize(
    "text", ["", ".a", "a.", "a..b", "[0]", "a.[0]", "a[x]", 'a."b', "a]", 'a"b"']
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        parse_dotted(text)


def test_digits_are_indices_where_there_is_a_list() -> None:
    root = tree({"a": [{"0": 1}], "b": {"0": [5]}})

    assert fit_path(root, ("a", "0", "0")) == ("a", 0, "0")
    assert fit_path(root, ("b", "0", "0")) == ("b", "0", 0)
    assert fit_path(root, ("x", "0")) == ("x", "0")
