from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.config.freeze import canonical, config_hash, dump, origins_noted, seedless_hash
from assay.config.loading import loads, open_text
from assay.config.resolver import resolve_references
from assay.config.sources.toml import read_toml
from assay.config.tree import (
    Leaf,
    List,
    Node,
    Table,
    delete_at,
    from_plain,
    get_at,
    same,
    set_at,
    walk,
)
from assay.core.diagnostics import Origin
from assay.core.errors import AssayError

HERE = Origin(source="<test>")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10) | st.sampled_from(
    [
        "@none",
        "@@none",
        "@model",
        "${a.b}",
        "$${a}",
        "${env:X}",
        '"""',
        "'''",
        "\r\n",
        "\x7f",
        "\u2028",
        "1",
        "true",
        "",
    ]
)
KEYS = st.sampled_from(["type", "args", "a", "b", "a.b", "", "größe", '"', "\n", "0"]) | TEXT
ZONES = st.none() | st.builds(
    timezone, st.integers(-14 * 60, 14 * 60).map(lambda m: timedelta(minutes=m))
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from([inf, -inf, nan, -0.0, 1e300, 5e-324]),
    TEXT,
    st.dates(),
    st.times(),
    st.datetimes(timezones=ZONES),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)
TREES = st.dictionaries(KEYS, VALUES, max_size=5)
CONFIG = """\
tag = "x"
[model]
type = "model.Net"
layers = [{ type = "torch.nn.Linear", args = [1, 2] }, { type = "torch.nn.ReLU" }]
drop = "@none"
[data.train]
source = { type = "data.Digits", when = 2020-01-01, limit = inf }
[optimizer]
type = "torch.optim.AdamW"
betas = [0.9, 0.99]
"""


def tree(value: dict[str, Any]) -> Table:
    node = from_plain(value, HERE)
    assert isinstance(node, Table)
    return node


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.row("A07")
@settings(max_examples=400, deadline=None)
@given(TREES)
def test_a_tree_written_down_reads_back_equal(value: dict[str, Any]) -> None:
    root = tree(value)

    assert same(read_toml(dump(root), "<dump>"), root)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.row("A08", "F07")
@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), KEYS, VALUES, st.sampled_from(["set", "add", "delete"])),
        max_size=6,
    )
)
def test_a_config_can_be_written_and_read_after_any_edits(
    edits: list[tuple[int, str, Any, str]],
) -> None:
    root = loads(CONFIG).root
    for choice, key, value, how in edits:
        places = list(walk(root))[1:]
        if not places or how == "add":
            tables = [path for path, node in walk(root) if isinstance(node, Table)]
            root = set_at(root, (*tables[choice % len(tables)], key), from_plain(value, HERE))
        elif how == "set":
            root = set_at(root, places[choice % len(places)][0], from_plain(value, HERE))
        else:
            root = delete_at(root, places[choice % len(places)][0])

    assert same(read_toml(dump(root), "<dump>"), root)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.row("A08")
@settings(max_examples=500, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.lists(st.tuples(KEYS, VALUES), max_size=3))
def test_a_saved_config_is_loaded_as_what_it_was_saved_from(
    value: dict[str, Any], more: list[tuple[str, Any]]
) -> None:
    first = open_text(
        dump(tree({**value, **dict(more), "calls": [[{"type": "a.B", "args": [value]}]]}))
    )
    if first.problems:
        return  # no run is made of such a config

    again = loads(dump(first.root))

    assert same(again.root, first.root)
    assert config_hash(again.root) == config_hash(first.root)


@pytest.mark.parametrize(
    "value",
    [
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": time(1, tzinfo=timezone(timedelta(hours=1)))},
        {"a": datetime(2020, 1, 1, tzinfo=timezone(timedelta(seconds=1)))},
        {"a": 10**5000},
    ],
)
def test_what_toml_cannot_hold_is_refused_instead_of_written(value: dict[str, Any]) -> None:
    with pytest.raises(AssayError, match="cannot be written as TOML"):
        dump(tree(value))


def test_a_tree_that_would_read_back_as_another_is_refused() -> None:
    class Odd(str):
        def __repr__(self) -> str:
            return "odd"

    with pytest.raises(AssayError, match="another one"):
        dump(Table({"a": Leaf(Odd("x"), HERE)}, HERE))


def test_a_tree_too_deep_to_read_is_refused() -> None:
    node: Node = Leaf(1, HERE)
    for _ in range(250):
        node = List((node,), HERE)

    with pytest.raises(AssayError, match="cannot be written as TOML"):
        dump(Table({"a": node}, HERE))


def test_the_saved_text_can_be_read_by_people() -> None:
    config = loads(
        'tag = "x"\n[model]\ntype = "model.Net"\ndrop = "@none"\n[data.train]\nsource = { type = "d.D" }\n'
    )

    assert dump(config.root) == (
        'tag = "x"\n\n[model]\ntype = "model.Net"\ndrop = "@none"\n\n[data.train.source]\ntype = "d.D"\n'
    )


BASE = {
    "seed": 1,
    "model": {"type": "a.B", "width": 32},
    "data": {"train": {"source": {"type": "d.D"}, "batch_size": 4}},
}


@pytest.mark.parametrize(
    "more",
    [
        {"tag": "x"},
        {"desc": "x"},
        {"threads": 4},
        {"checkpoint": {"every": "1 epoch"}},
        {"display": {"quiet": True}},
        {"evaluate": {"every": "1 epoch"}},
        {"parallel": {"data": 2}},
        {"data": {**BASE["data"], "valid": {"source": {"type": "d.D"}}}},  # type: ignore[dict-item]
        {"model": {"width": 32.0, "type": "a:B"}},
        {"data": {**BASE["data"], "valid": {"source": "@shared"}}, "shared": {"type": "d.D"}},  # type: ignore[dict-item]
        {"unused": {"x": 1}},
    ],
)
def test_what_does_not_change_the_weights_does_not_change_the_hash(more: dict[str, Any]) -> None:
    assert config_hash(tree({**BASE, **more})) == config_hash(tree(BASE))


@pytest.mark.parametrize(
    "more",
    [
        {"seed": 2},
        {"seed": True},
        {"model": {"type": "a.B", "width": 33}},
        {"model": {"type": "a.C", "width": 32}},
        {"model": {"type": "a.B", "width": "32"}},
        {"model": {"type": "a.B", "width": [32]}},
        {"model": {"type": "a.B", "width": None}},
        {"data": {"train": {"source": {"type": "d.D"}, "batch_size": 8}}},
        {"train": {"epochs": 1}},
    ],
)
def test_what_changes_the_weights_changes_the_hash(more: dict[str, Any]) -> None:
    assert config_hash(tree({**BASE, **more})) != config_hash(tree(BASE))


def test_a_section_that_something_refers_to_counts() -> None:
    def with_shared(size: int, refer_from: dict[str, Any]) -> str:
        return config_hash(
            tree({**BASE, **refer_from, "shared": {"inner": "@deep"}, "deep": {"size": size}})
        )

    used = {"optimizer": {"type": "o.O", "x": "@shared"}}
    assert with_shared(1, used) != with_shared(2, used)
    assert with_shared(1, {}) == with_shared(2, {})


def test_a_split_counts_when_training_is_built_from_it() -> None:
    def with_all(size: int, train: Any) -> str:
        data = {"train": {"source": train}, "all": {"source": {"type": "d.D", "size": size}}}
        return config_hash(tree({"data": data}))

    assert with_all(1, "@data.all.source") != with_all(2, "@data.all.source")
    assert with_all(1, {"type": "d.D"}) == with_all(2, {"type": "d.D"})
    assert with_all(1, "@data.nothing") == with_all(2, "@data.nothing")


PLATEAU = {"type": "torch.optim.lr_scheduler.ReduceLROnPlateau"}
FOLLOWERS = [
    {"schedule": PLATEAU},
    {"schedule": {"type": "assay.engine.TorchSchedule", "scheduler": PLATEAU}},
    {"plugins": {"stop": {"type": "assay.engine.EarlyStop", "metric": "valid/loss"}}},
    {"plugins": {"mine": {"type": "own.Stop", "metric": "valid/loss"}}},
]


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_what_measures_a_metric_counts_where_something_follows_it(follower: dict[str, Any]) -> None:
    def hash_of(size: int, every: str = "1 epoch", workers: int = 0, **more: Any) -> str:
        valid = {"source": {"type": "d.D", "size": size}, "workers": workers}
        data = {**BASE["data"], "valid": valid}  # type: ignore[dict-item]
        return config_hash(tree({**BASE, "data": data, "evaluate": {"every": every}, **more}))

    assert hash_of(10) == hash_of(20) == hash_of(10, "2 epochs")
    assert (
        len({hash_of(10, **follower), hash_of(20, **follower), hash_of(10, "9 steps", **follower)})
        == 3
    )
    assert hash_of(10, **follower) == hash_of(10, workers=2, **follower)


def test_repeats_with_other_seeds_share_the_second_hash() -> None:
    other = tree({**BASE, "seed": 7})

    assert config_hash(other) != config_hash(tree(BASE))
    assert seedless_hash(other) == seedless_hash(tree(BASE)) != config_hash(tree(BASE))


@pytest.mark.parametrize(
    "more",
    [
        {"data": {**BASE["data"], "valid": {"source": {"type": "d.D"}, "batch_size": 4}}},  # type: ignore[dict-item]
        {"data": {"train": {**BASE["data"]["train"], "workers": 2}}},  # type: ignore[index]
        {"evaluate": {"limit": 1}},
        {"evaluate": {"splits": ["test"]}},
        {"evaluate": {"every": "2 steps"}},
    ],
)
def test_runs_whose_numbers_are_of_other_data_are_no_repeats(more: dict[str, Any]) -> None:
    assert seedless_hash(tree({**BASE, **more})) != seedless_hash(tree(BASE))


@pytest.mark.parametrize(
    "more",
    [
        {"tag": "x", "threads": 4, "seed": 5},
        {"checkpoint": {"every": "1 epoch"}},
        {"display": {"quiet": True}, "log": {"every": "1 step"}},
    ],
)
def test_repeats_may_be_saved_and_shown_otherwise(more: dict[str, Any]) -> None:
    assert seedless_hash(tree({**BASE, **more})) == seedless_hash(tree(BASE))


def test_a_section_that_only_an_evaluation_refers_to_tells_repeats_apart() -> None:
    def with_shared(size: int) -> Table:
        data = {**BASE["data"], "valid": {"source": "@shared"}}  # type: ignore[dict-item]
        return tree({**BASE, "data": data, "shared": {"type": "d.D", "size": size}})

    assert seedless_hash(with_shared(1)) != seedless_hash(with_shared(2))
    assert config_hash(with_shared(1)) == config_hash(with_shared(2))


def test_a_value_taken_from_elsewhere_counts_like_one_written_down() -> None:
    copied = loads('[base]\nwidth = 32\n[model]\ntype = "a.B"\nwidth = "${base.width}"\n')
    written = loads('[model]\nwidth = 32\ntype = "a.B"\n')

    assert config_hash(copied.root) == config_hash(written.root)


def test_the_environment_is_not_part_of_the_hash() -> None:
    root, _ = resolve_references(tree({"model": {"type": "a.B", "root": "${env:DATA}"}}))

    assert "${env:DATA}" in canonical(root)


def test_the_canonical_form_is_one_readable_line() -> None:
    values = [
        1,
        2.0,
        0.5,
        -0.0,
        nan,
        -inf,
        True,
        None,
        "é",
        date(2020, 1, 2),
        time(3, 4),
        2**70,
        1e300,
    ]
    model = {"type": "a:B", "z": values}

    assert canonical(tree({"model": model, "seed": 3}), seed=False) == (
        '{"model":{"type":"a.B","z":[1,2,0.5,-0.0,nan,-inf,true,null,"\\u00e9",date:2020-01-02,time:03:04:00,'
        f"{hex(2**70)},{hex(int(1e300))}]}}}}"
    )


def test_a_broken_config_has_a_canonical_form_too() -> None:
    assert (
        canonical(tree({"data": 3, "train": 4, "model": "@data.x"}))
        == '{"data":3,"model":"@data.x","train":4}'
    )


@given(
    st.lists(st.sampled_from(["a", "#", "  # from env:Y", '"', "\\", "é", "]", "'"]), max_size=5)
)
def test_the_origin_of_a_value_stands_behind_it_and_is_read_back(parts: list[str]) -> None:
    place = Origin(source="a.toml")
    outside = replace(place, note="from env:X")
    text = "".join(parts)
    items = {"t": {"v": text, "w": text}, "row": [text, text], "n": 1, "deep": [{"a": text}]}
    root = from_plain(items, place)
    assert isinstance(root, Table)
    marked = [("t", "v"), ("row", 1), ("n",)]
    for path in marked:
        leaf = get_at(root, path)
        assert isinstance(leaf, Leaf)
        root = set_at(root, path, replace(leaf, origin=outside))

    written = dump(root, with_origins=True)

    again = read_toml(written, "<dump>")
    assert same(again, root)
    assert origins_noted(written, again) == dict.fromkeys(marked, "from env:X")
    assert origins_noted(dump(root), read_toml(dump(root), "<dump>")) == {}


def test_a_copy_of_a_key_that_is_not_saved_says_where_it_is_from_and_is_read_back() -> None:
    config = loads(
        '[cv]\nfold = 2\n[model]\ntype = "a.B"\nwidth = 8\n'
        '[data.train.source]\ntype = "a.D"\nfold = "${cv.fold}"\nwidth = "${model.width}"\n'
    )

    written = dump(config.root, with_origins=True)

    again = read_toml(written, "<dump>")
    assert "fold = 2  # from cv.fold\nwidth = 8\n" in written
    assert same(again, config.root)
    assert origins_noted(written, again) == {("data", "train", "source", "fold"): "from cv.fold"}
