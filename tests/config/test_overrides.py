from __future__ import annotations

import contextlib
import json
from datetime import date
from math import inf, isnan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.merge import merge
from assay.config.overrides import is_override
from assay.config.references import Uses
from assay.config.resolver import Draws
from assay.config.settings import Settings
from assay.config.sources.literals import MalformedError, items_of, quote, value_of
from assay.config.sources.toml import read_toml
from assay.config.tree import Leaf, Table, get_at, key_origin_at, plain
from assay.core.diagnostics import Origin, Problem

TEXT = """\
tag = "base"
[model]
type = "model.Net"
width = 32
layers = [{ size = 1 }, { size = 2 }]
[data.train]
source = { type = "data.Digits" }
batch_size = 64
[train]
epochs = 5
"""


def base() -> Table:
    return read_toml(TEXT, "base.toml", excerpt=True)


def apply(root: Table, arguments: list[str] | tuple[str, ...]) -> tuple[Table, list[Problem]]:
    made = merge(root, arguments, Draws(), Uses(), Settings(Path.cwd()))
    return made.written, list(made.problems)


def applied(*arguments: str) -> dict[str, Any]:
    root, problems = apply(base(), arguments)
    assert problems == []
    made = plain(root)
    assert isinstance(made, dict)
    return made


def refused(argument: str) -> Problem:
    root, problems = apply(base(), [argument])
    assert plain(root) == plain(base())
    assert len(problems) == 1
    return problems[0]


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("optimizer.lr=1e-2", True),
        ("+a.b=1", True),
        ("a-b.c=", True),
        ("_x=1", True),
        ("plugins.0.type=a.B", True),
        ("plugins[0].type=a.B", True),
        ("plugins[x].type=a.B", False),
        ("digits.toml", False),
        ("--lr=1", False),
        ("1a=2", False),
        ("a b=1", False),
        ("é=1", False),
        ("~a", False),
        ("", False),
    ],
)
def test_an_override_is_told_from_a_file_by_its_form(argument: str, expected: bool) -> None:
    assert is_override(argument) is expected


def test_a_file_of_that_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1.toml").write_text("")

    assert not is_override("lr=1.toml")
    assert is_override("lr=2.toml")
    assert is_override("a=" + "x" * 5000)
    assert is_override("a=\x00")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 1e-3),
        ("0x10", 16),
        (".5", 0.5),
        ("-.5e2", -50.0),
        ("5.", 5.0),
        ("00.5", 0.5),
        ("007", "007"),
        ("-007", "-007"),
        ("12e4567", "12e4567"),
        ("1e-400", "1e-400"),
        ("0e5", 0.0),
        ("inf", inf),
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("none", None),
        ("None", None),
        ("null", None),
        ("adam", "adam"),
        ('"3"', "3"),
        ("'a b'", "a b"),
        ("[1, 2]", [1, 2]),
        ("{a = 1, b = [2]}", {"a": 1, "b": [2]}),
        ("0.9,0.99", "0.9,0.99"),
        ("2020-01-02", date(2020, 1, 2)),
        ("", ""),
        (" x ", " x "),
        ("5 #3", "5 #3"),
        ("'#'", "#"),
        ("1\nb = 2", "1\nb = 2"),
        ("[q_proj,v_proj]", ["q_proj", "v_proj"]),
        ("[q_proj]", ["q_proj"]),
        ("['a,b',c]", ["a,b", "c"]),
        ("[ a b , [1, x,], ]", ["a b", [1, "x"]]),
        ("[]", []),
        ('[none,True,.5,it\'s,"a\\"]b"]', [None, True, 0.5, "it's", 'a"]b']),
        ("{act=relu, of=[gelu, 1]}", {"act": "relu", "of": ["gelu", 1]}),
        ("[${env:X,[1]}]", ["${env:X,[1]}"]),
        ("conv(1)", "conv(1)"),
        ("a,[b", "a,[b"),
        ("@model", "@model"),
        ("/data/x=1", "/data/x=1"),
        ("٣", "٣"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_value_is_toml_else_a_word_or_number_else_text(text: str, value: object) -> None:
    read_value = value_of(text)

    assert read_value == value
    assert type(read_value) is type(value)


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        ("(a,b)", "begins like a list, which has square brackets", "write [a,b]"),
        ("(a", "begins like a list, which has square brackets", "write [a]"),
        ("{a,b}", "begins like a table, which has keys", "write {a = 1, b = 2}, or [a, b]"),
        ("{a: 1}", "begins like a table, which has keys", "write {a = 1, b = 2}"),
        ("{a=1,a=2}", "begins like a table, which has keys", "write {a = 1, b = 2}"),
        ("[a", "has no `]` at its end", "write [a]"),
        ("{a=x", "has no `}` at its end", "write {a=x}"),
        ("[a]b", "is more than one value", "write [[a]b]"),
        ("[a],[b]", "is more than one value", "write [[a],[b]]"),
        ("[a,,b]", "has an item that is not closed, or empty", "write [a, b]"),
        ("['a,b]", "has an item that is not closed, or empty", "write [a, b]"),
        ("[a,(b)]", "begins like a list, which has square brackets", "write [b]"),
        ("[f(x)]", "has an item that is not closed, or empty", "write [a, b]"),
        ('"x', "begins with a quote that does not end it", "in quotes"),
        ("'it''s'", "begins with a quote that does not end it", "in quotes"),
        ('"a"b', "begins with a quote that does not end it", "in quotes"),
        ("'a',,b", "begins with a quote that does not end it", "in quotes"),
        ("[" * 500, "is nested too deep", "in quotes for a text"),
        ("[" + "1," * 60_000 + "]", "longer than 100,000 characters", "write it in a file"),
    ],
)
def test_what_begins_with_a_bracket_or_a_quote_is_no_bare_text(
    text: str, said: str, fix: str
) -> None:
    problem = refused(f"model.width={text}")

    assert said in problem.message and fix in problem.fix
    assert (problem.kind, problem.origin.column) == ("syntax", 13)
    if len(text) < 1_000:
        assert applied(f"model.width={json.dumps(text)}")["model"]["width"] == text


@given(st.text(max_size=30))
def test_any_text_is_some_value_or_one_error(text: str) -> None:
    with contextlib.suppress(MalformedError):
        value_of(text)
    assert value_of(quote(text)) == text


def test_a_list_without_brackets_respects_quotes() -> None:
    def items(text: str) -> list[object] | None:
        nodes = items_of(text, Origin(source="<test>"))
        return None if nodes is None else [plain(node) for node in nodes]

    assert items("1,'a,b',c,[d,e]") == [1, "a,b", "c", ["d", "e"]]
    assert items("a,") == ["a"]
    assert items("evaluate") is items("'a,b'") is items("a,,b") is items("a,'b") is None


def test_nan_is_a_number() -> None:
    assert isnan(value_of("nan"))


@pytest.mark.row("E13")
@pytest.mark.parametrize(
    ("argument", "path", "value"),
    [
        ("model.width=64", ("model", "width"), 64),
        ("model.depth=3", ("model", "depth"), 3),
        ("model.layers.1.size=7", ("model", "layers", 1, "size"), 7),
        ("+model.layers={size = 3}", ("model", "layers", 2), {"size": 3}),
        ("+model.layers.2={size = 3}", ("model", "layers", 2, "size"), 3),
        ("+model.head.width=3", ("model", "head"), {"width": 3}),
        ("+data.valid.batch_size=3", ("data", "valid"), {"batch_size": 3}),
        ("data.train.shuffle=True", ("data", "train", "shuffle"), True),
        ("seed=3", ("seed",), 3),
        ("+seed=3", ("seed",), 3),
        ("checkpoint.best.metric=valid/acc", ("checkpoint", "best", "metric"), "valid/acc"),
        ("tag=123", ("tag",), "123"),
        ("evaluate.splits=valid,test", ("evaluate", "splits"), ["valid", "test"]),
        ("evaluate.splits=valid", ("evaluate", "splits"), ["valid"]),
        ("evaluate.splits=[valid, 1]", ("evaluate", "splits"), ["valid", 1]),
        ("evaluate.splits='a,b',1", ("evaluate", "splits"), ["a,b", "1"]),
        ("+ema={type = 'a.B'}", ("ema",), {"type": "a.B"}),
        ("sweep.model.width=[1, 2]", ("sweep", "model.width"), [1, 2]),
        ("tag=1e5", ("tag",), "1e5"),
        ("train.clip_norm=none", ("train", "clip_norm"), None),
        ("optimizer={type = 'torch.optim.SGD', lr = 1}", ("optimizer", "lr"), 1),
    ],
)
def test_any_key_of_the_file_or_parameter_of_a_target_can_be_set(
    argument: str, path: tuple[str | int, ...], value: object
) -> None:
    root, problems = apply(base(), [argument])

    assert problems == []
    node = get_at(root, path)
    assert node is not None
    assert plain(node) == value


def test_keys_items_and_sections_can_be_deleted() -> None:
    assert "width" not in applied("model.width=@delete")["model"]
    assert applied("model.layers.0=@delete")["model"]["layers"] == [{"size": 2}]
    assert "train" not in applied("train=@delete")


def test_overrides_are_done_in_order() -> None:
    assert applied("model.width=1", "model.width=2")["model"]["width"] == 2
    assert applied("+model.layers={size = 3}", "model.layers.2.size=4")["model"]["layers"][2] == {
        "size": 4
    }


def test_the_winner_remembers_what_it_replaced() -> None:
    root, _ = apply(base(), ["model.width=1", "model.width=2"])
    node = get_at(root, ("model", "width"))

    assert node is not None
    assert [
        (link.source, link.line, link.column, link.text and link.text[:15])
        for link in node.origin.chain()
    ] == [
        ("<cli>", 1, 13, "model.width=2"),
        ("<cli>", 1, 13, "model.width=1"),
        ("base.toml", 4, 9, TEXT[:15]),
    ]
    assert key_origin_at(root, ("model", "width")).end_column == 12


def test_the_text_of_a_value_as_typed_is_kept_for_those_who_want_text() -> None:
    root, _ = apply(base(), ["model.name=0123", "model.width=1_000"])

    def typed(key: str) -> str | None:
        node = get_at(root, ("model", key))
        assert node is not None
        assert isinstance(node, Leaf)
        return node.typed

    assert (typed("name"), typed("width"), typed("type")) == ("0123", "1_000", None)


@pytest.mark.parametrize(
    ("argument", "kind", "fix", "column"),
    [
        ("trian.epochs=1", "unknown-key", "did you mean `train`?", 1),
        ("optm.lr=1", "unknown-key", "did you mean `optimizer`?", 1),
        (
            "criterion.type=torch.nn.MSELoss",
            "unknown-key",
            "write +criterion.type=torch.nn.MSELoss to make it",
            1,
        ),
        ("criterion=@delete", "unknown-key", "", 1),
        ("zzz=1", "unknown-key", "", 1),
        ("train.epoch=1", "unknown-key", "did you mean `epochs`?", 7),
        (
            "train.zzz=1",
            "unknown-key",
            "it takes: epochs, steps, samples, time, until, precision, accumulate, clip_norm, non_finite, compile, "
            "activation_checkpoint, channels_last, deterministic",
            7,
        ),
        ("data.train.batch=1", "unknown-key", "did you mean `batch_size`?", 12),
        (
            "data.trian.batch_size=1",
            "unknown-key",
            "did you mean `train`, or +data.trian.batch_size=1 to make it?",
            6,
        ),
        (
            "model.laeyrs.0=1",
            "unknown-key",
            "did you mean `layers`, or +model.laeyrs.0=1 to make it?",
            7,
        ),
        ("model.head.width=1", "unknown-key", "write +model.head.width=1 to make it", 7),
        (
            "model.layers.5.size=1",
            "unknown-key",
            "its items are 0 to 1; +model.layers=... adds one",
            14,
        ),
        (
            "+model.layers.5.size=1",
            "unknown-key",
            "its items are 0 to 1; +model.layers=... adds one",
            15,
        ),
        ("tag.x=1", "unknown-key", "", 5),
        ("+model.width=1", "duplicate-key", "write model.width=1", 2),
        ("+zzz=1", "unknown-key", "", 2),
        ("model.widht=@delete", "unknown-key", "did you mean `width`?", 7),
        ("device=cpu", "launch-setting", "give it on the command line: --device", 1),
        ("--model.width=1", "syntax", "write model.width=1", 1),
        ("~model.width", "syntax", "write model.width=@delete", 1),
        ("model.width", "syntax", "write key=value, as in optimizer.lr=0.01", 1),
        ("model..width=1", "syntax", "write a.b=value", 1),
    ],
)
def test_a_wrong_override_changes_nothing_and_says_what_was_meant(
    argument: str, kind: str, fix: str, column: int
) -> None:
    problem = refused(argument)

    assert (problem.kind, problem.fix, problem.origin.column) == (kind, fix, column)
    assert problem.origin.source == "<cli>"
    assert problem.origin.text == argument


def test_every_wrong_override_is_told() -> None:
    root, problems = apply(base(), ["trian.epochs=1", "model.width=1", "--x.y=2"])

    assert len(problems) == 2
    assert plain(root)["model"]["width"] == 1


def test_an_empty_list_has_no_items() -> None:
    root = read_toml("[model]\ntype = 'a.B'\nlist = []\n", "<test>", excerpt=True)

    _, problems = apply(root, ["model.list.0=1"])

    assert problems[0].fix == "+model.list=... adds one"
