from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.sources.yaml import read_all
from assay.config.tree import Leaf, key_origin_at, plain, walk
from assay.core.errors import MissingExtraError


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("", None),
        ("~", None),
        ("Null", None),
        ("True", True),
        ("yes", "yes"),
        ("off", "off"),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("+12", 12),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("-.INF", float("-inf")),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2024-01-31", "2024-01-31"),
        ('"1"', "1"),
        ("'@none'", None),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        ("[1, {a: b}, [c]]", [1, {"a": "b"}, ["c"]]),
        ("١", "١"),
    ],
)
def test_plain_words_mean_what_the_core_schema_says(written: str, value: Any) -> None:
    root, problems = read_all(f"a: {written}\n", "a.yaml")

    assert problems == []
    assert plain(root) == {"a": value}
    assert type(plain(root)["a"]) is type(value)


def test_places_are_those_of_the_text() -> None:
    text = "größe: 語  # c\nlist:\n  - {b: 'x'}\n  - 2\n"

    root, problems = read_all(text, "a.yaml")

    assert problems == []
    assert {str(path): str(node.origin) for path, node in walk(root) if isinstance(node, Leaf)} == {
        "('größe',)": "a.yaml:1:8",
        "('list', 0, 'b')": "a.yaml:3:9",
        "('list', 1)": "a.yaml:4:5",
    }
    assert str(key_origin_at(root, ("list", 0, "b"))) == "a.yaml:3:6"


def test_an_alias_stands_for_its_value_and_a_merge_gives_what_is_not_there() -> None:
    text = 'base: &b\n  x: 1\n  y: 2\nc:\n  <<: *b\n  y: 3\nd: {<<: [*b, {y: 4, z: 5}], "<<": 6}\ne: *b\n'

    root, problems = read_all(text, "a.yaml")

    assert problems == []
    assert plain(root)["c"] == {"x": 1, "y": 3}
    assert plain(root)["d"] == {"<<": 6, "x": 1, "y": 2, "z": 5}
    assert plain(root)["e"] == {"x": 1, "y": 2}


MISTAKES = """b: 3
g: !!python/object/apply:os.system [x]
h: 1
h: 2
o: !!int x
{a: 1}: 2
~: 1
p: &p [*p]
q: -1e400
r: {<<: 1}
"""


def test_every_mistake_but_those_of_syntax_is_told_at_its_place() -> None:
    root, problems = read_all(MISTAKES, "a.yaml", excerpt=True)

    assert [
        (problem.origin.line, problem.origin.column, problem.message) for problem in problems
    ] == [
        (2, 4, "the tag `!!python/object/apply:os.system` is not allowed"),
        (4, 1, "`h` is given twice"),
        (5, 4, "`x` is no int"),
        (6, 1, "a key is text, not a table or list"),
        (7, 1, "`~` is null, and a key is text"),
        (8, 4, "this stands inside of itself"),
        (9, 4, "`-1e400` is no float"),
        (10, 9, "`<<` merges tables, not values"),
    ]
    assert plain(root)["b"] == 3


CLOSE = "add the closing `{}`".format
QUOTE = "put text that begins so in quotes"


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize(
    ("text", "line", "column", "fix"),
    [
        ("a: [1, 2\nb: 3\n", 2, 2, CLOSE("]")),
        ("a: {b: 1\n", 1, 4, CLOSE("}")),
        ("p: 'x\n", 1, 4, CLOSE("'")),
        ("c: x: y\n", 1, 5, "put text that holds `: ` in quotes"),
        ("d:\n\te: 1\n", 2, 1, "indent with spaces"),
        ("größe: @model\n", 1, 8, QUOTE),
        ("a: %x\n", 1, 4, QUOTE),
        ("a: - 1\n", 1, 4, "a list starts on a line of its own"),
        ("q:\n   r: 1\n  s: 2\n", 3, 3, ""),
        ("i: *j\n", 1, 4, QUOTE),
        ("a: 1\n---\nb: 1\n", 2, 1, "a list starts on a line of its own"),
        ("a: \x07\n", 1, 4, ""),
    ],
)
def test_a_syntax_error_has_the_words_of_the_library_its_place_and_a_hint(
    monkeypatch: pytest.MonkeyPatch, loader: str, text: str, line: int, column: int, fix: str
) -> None:
    import yaml

    if loader == "SafeLoader":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.compose(text, Loader=getattr(yaml, loader))

    root, problems = read_all(text, "a.yaml")

    (problem,) = problems
    words = getattr(caught.value, "problem", None) or getattr(caught.value, "reason", "")
    assert problem.message == words
    assert (problem.origin.line, problem.origin.column, problem.fix) == (line, column, fix)
    assert plain(root) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "a config is a table"),
        ("x\n", "a config is a table"),
        ("a: !mine 1\n", "the tag `!mine` is not allowed"),
        ("a: 12e4567\n", "`12e4567` is no float"),
        ("a: !!float 1" + "0" * 400, "`1" + "0" * 400 + "` is no float"),
        ("a: " + "9" * 1001, "a name or number of more than 1000 characters"),
        ("? \n: 1\n", "a key is missing"),
        ("null: 1\n", "`null` is null, and a key is text"),
        ("a: {Null: 1}\n", "`Null` is null, and a key is text"),
    ],
)
def test_a_mistake_alone_is_told_alone(text: str, message: str) -> None:
    assert [problem.message for problem in read_all(text, "a.yaml")[1]] == [message]


@pytest.mark.parametrize(
    "text", ['"": 1\n', "'~': 1\n", '"null": 1\n', "!!str null: 1\n", "nullable: 1\n"]
)
def test_text_that_reads_like_null_is_a_key_in_quotes(text: str) -> None:
    root, problems = read_all(text, "a.yaml")

    assert problems == []
    assert list(plain(root).values()) == [1]


def test_an_empty_file_is_an_empty_config() -> None:
    assert [
        (plain(root), problems)
        for root, problems in map(lambda t: read_all(t, "a.yaml"), ["", "# c\n", "---\n"])
    ] == [({}, [])] * 3


def test_a_missing_extra_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(
        MissingExtraError, match="A config in YAML needs the extra `yaml`"
    ) as caught:
        read_all("a: 1", "a.yaml")

    assert caught.value.fix == "pip install 'assay[yaml]'"


def test_without_libyaml_the_same_is_read_but_less_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)

    slow, problems = read_all(MISTAKES, "a.yaml")

    monkeypatch.undo()
    assert [str(problem.origin) for problem in problems] == [
        str(p.origin) for p in read_all(MISTAKES, "a.yaml")[1]
    ]
    assert plain(slow) == plain(read_all(MISTAKES, "a.yaml")[0])
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert [problem.kind for problem in read_all("#" * 2**20, "a.yaml")[1]] == ["too-large"]


@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@`#, \n\t<~1.?", max_size=60))
def test_no_text_at_all_makes_the_reader_fall(text: str) -> None:
    root, _ = read_all(text, "a.yaml")

    assert isinstance(plain(root), dict)
