from __future__ import annotations

from math import nan
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from assay.config.diff import changed_keys
from assay.config.tree import Node, Table, from_plain, plain, same
from assay.core.diagnostics import Origin


def tree(value: dict[str, Any]) -> Table:
    node = from_plain(value, Origin(source="<test>"))
    assert isinstance(node, Table)
    return node


def shown(node: Node | None) -> Any:
    return "-" if node is None else plain(node)


def changes(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(c.key, shown(c.before), shown(c.after)) for c in changed_keys(tree(a), tree(b))]


def test_keys_that_differ_are_listed_as_deep_as_both_have_them() -> None:
    a = {"lr": 0.1, "model": {"width": 1, "type": "a.B"}, "old": {"x": 1}, "same": [1, nan]}
    b = {"lr": 0.2, "model": {"width": 1, "type": "a.C", "depth": 2}, "new": 3, "same": [1, nan]}

    assert changes(a, b) == [
        ("lr", 0.1, 0.2),
        ("model.type", "a.B", "a.C"),
        ("model.depth", "-", 2),
        ("old", {"x": 1}, "-"),
        ("new", "-", 3),
    ]


def test_plain_lists_are_one_value_and_lists_of_tables_are_compared_item_by_item() -> None:
    a = {"betas": [0.9, 0.99], "hooks": [{"x": 1}, {"y": 2}]}
    b = {"betas": [0.9, 0.9], "hooks": [{"x": 1}, {"y": 3}, {"z": 4}]}

    assert changes(a, b) == [
        ("betas", [0.9, 0.99], [0.9, 0.9]),
        ("hooks.1.y", 2, 3),
        ("hooks.2", "-", {"z": 4}),
    ]


def test_kinds_differ_too() -> None:
    assert changes({"a": 1, "b": {}}, {"a": True, "b": []}) == [("a", 1, True), ("b", {}, [])]


JSON = st.recursive(
    st.integers(0, 2) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=6,
)
TREES = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@given(TREES, TREES)
def test_nothing_changed_exactly_when_both_say_the_same(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    assert (changed_keys(tree(a), tree(b)) == []) is same(tree(a), tree(b))
