from __future__ import annotations

from datetime import date
from math import inf, nan
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from assay.config.edit import with_key, without_key
from assay.config.sources.toml import read_toml
from assay.config.tree import (
    KeyPath,
    Table,
    delete_at,
    from_plain,
    get_at,
    parse_dotted,
    plain,
    same,
    set_at,
    walk,
)
from assay.core.diagnostics import Origin
from assay.core.errors import InputError

HERE = Origin(source="<test>")
TEXT = """\
# what this is for
tag = "base"   # the title

[model]
type = "model.Net"
width = 32  # wide enough?
layers = [
    { size = 1 },  # the first
    { size = 2 },
]

# the data
[data.train]
source = { when = 2020-01-01, type = "data.Digits" }  # ours
batch_size = 64

[[plugins]]
type = "a.B"

[[plugins]]
type = "c.D"  # second
limit = inf
"""


def edited(path: str, value: object) -> str:
    return with_key(TEXT, parse_dotted(path), from_plain(value, HERE), source="a.toml")


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        ("tag", "other", 'tag = "base"   # the title', 'tag = "other"   # the title'),
        ("model.width", 64, "width = 32  # wide enough?", "width = 64  # wide enough?"),
        ("model.layers[1].size", 3, "    { size = 2 },\n", "    { size = 3 },\n"),
        ("data.train.batch_size", 8, "batch_size = 64\n", "batch_size = 8\n"),
        ("data.train.source.when", date(2021, 2, 3), "when = 2020-01-01", "when = 2021-02-03"),
        ("plugins[1].limit", 1.5, "limit = inf", "limit = 1.5"),
        ("model.width", None, "width = 32  # wide", 'width = "@none"  # wide'),
    ],
)
def test_a_value_is_set_and_nothing_else_moves(
    path: str, value: object, old: str, new: str
) -> None:
    assert TEXT.count(old) == 1
    assert edited(path, value) == TEXT.replace(old, new)


def test_a_new_key_goes_to_the_end_of_its_table() -> None:
    assert 'batch_size = 64\nshuffle = true\n\n[[plugins]]\ntype = "a.B"' in edited(
        "data.train.shuffle", True
    )
    assert edited("train.epochs", 5).startswith(TEXT)
    assert edited("train.epochs", 5).endswith("[train]\nepochs = 5\n")


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("# what this is for\n\n[a]\nx = 1\n", "# what this is for\nlr = 1\n\n[a]\nx = 1\n"),
        ("# what this is for\n", "# what this is for\nlr = 1\n"),
        ("[a]\nx = 1\n", "lr = 1\n\n[a]\nx = 1\n"),
        ("# what\r\n\r\n[a]\r\n", "# what\r\nlr = 1\n\r\n[a]\r\n"),
        ("", "lr = 1\n"),
    ],
)
def test_the_first_key_of_a_file_goes_below_the_comment_it_begins_with(text: str, new: str) -> None:
    assert with_key(text, ("lr",), from_plain(1, HERE)).rstrip() == new.rstrip()


def test_a_key_is_removed_with_its_line() -> None:
    assert without_key(TEXT, ("model", "width")) == TEXT.replace("width = 32  # wide enough?\n", "")
    assert "plugins" not in without_key(TEXT, ("plugins",))


def test_line_ends_and_a_byte_order_mark_stay() -> None:
    text = "\ufeff# one\r\n[a]\r\nx = 1 # two\r\n"

    assert (
        with_key(text, ("a", "x"), from_plain(2, HERE)) == "\ufeff# one\r\n[a]\r\nx = 2 # two\r\n"
    )


def test_what_is_not_there_or_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"There is no `model\.widht` to remove"):
        without_key(TEXT, ("model", "widht"))
    with pytest.raises(InputError, match=r"`tag` cannot hold `tag\.x`"):
        edited("tag.x", 1)
    with pytest.raises(InputError, match="a value is missing"):
        with_key("a = \n", ("a",), from_plain(1, HERE))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.sampled_from(
        [nan, inf, "@model", "${a.b}", "@@x", '"""', "a\nb", "#", "é", date(2020, 1, 2), 1e-7]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "args", "a", "b c"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), VALUES, st.sampled_from(["set", "add", "delete"])), max_size=4
    )
)
def test_after_any_edits_the_text_says_the_edited_tree_and_keeps_the_comments(
    edits: list[tuple[int, Any, str]],
) -> None:
    text, root = TEXT, read_toml(TEXT, "<test>", excerpt=True)
    for choice, value, how in edits:
        places = [path for path, _ in walk(root)][1:]
        tables = [path for path, node in walk(root) if isinstance(node, Table)]
        if how == "delete" and places:
            path = places[choice % len(places)]
            wanted, after = delete_at(root, path), lambda text, path=path: without_key(text, path)
        elif how == "add" or not places:
            path, node = (*tables[choice % len(tables)], "fresh"), from_plain(value, HERE)
            wanted, after = (
                set_at(root, path, node),
                lambda text, p=path, n=node: with_key(text, p, n),
            )
        else:
            path, node = places[choice % len(places)], from_plain(value, HERE)
            wanted, after = (
                set_at(root, path, node),
                lambda text, p=path, n=node: with_key(text, p, n),
            )
        try:
            text = after(text)
        except InputError as error:
            assert "Change it in an editor" in str(error)
            event("refused")
            continue
        root = read_toml(text, "<test>", excerpt=True)
        assert same(root, wanted) or same(root, without_empty_parents(wanted, path))
        assert "# what this is for\n" in text


def without_empty_parents(root: Table, path: KeyPath) -> Table:
    """`[data.train]` made `data` too: when the one goes, so may the other."""
    for length in range(len(path) - 1, 0, -1):
        node = get_at(root, path[:length])
        if isinstance(node, Table) and not node.items:
            root = delete_at(root, path[:length])
    return root


@pytest.mark.slow
def test_an_edit_of_every_place_succeeds() -> None:
    root = read_toml(TEXT, "<test>", excerpt=True)
    for path, _ in list(walk(root))[1:]:
        if path[:1] == ("plugins",) and len(path) == 2:
            continue  # under a header of its own there is nothing but a table
        assert (
            get_at(read_toml(without_key(TEXT, path), "<test>"), path[:-1]) is not None
            or len(path) < 3
        )
        for value in (1, "x", [1, {"a": 2}], {"type": "a.B", "b": [{}]}, {}, [], None):
            new = read_toml(with_key(TEXT, path, from_plain(value, HERE)), "<test>")
            node = get_at(new, path)
            assert node is not None and plain(node) == value
