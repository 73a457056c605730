from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.config.sources.json import read_all
from assay.config.tree import Leaf, key_origin_at, plain, walk
from languages import to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


def meant(value: Any) -> Any:
    """`value` with None where the text "@none" stands for it; a key is only a key."""
    if isinstance(value, dict):
        return {key: meant(item) for key, item in value.items()}
    if isinstance(value, list):
        return [meant(item) for item in value]
    return None if value == "@none" else value


@given(
    st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.sampled_from([None, 0, 2, "\t"])
)
@example({"@none": ["@none"]}, None)
def test_what_standard_json_writes_is_read_as_standard_json_reads_it(
    content: dict[str, Any], indent: Any
) -> None:
    text = json.dumps(content, indent=indent)

    root, problems = read_all(text, "a.json")

    assert problems == []
    assert repr(plain(root)) == repr(meant(json.loads(text)))


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
@example({"é": ["語", {"a": "\n"}]})
def test_a_slice_at_the_recorded_place_reads_as_the_value(content: dict[str, Any]) -> None:
    text = to_json(content)
    lines = text.split("\n")

    root, _ = read_all(text, "a.json")

    for path, node in walk(root):
        if isinstance(node, Leaf):
            origin = node.origin
            assert origin.line == origin.end_line
            piece = lines[origin.line - 1][origin.column - 1 : origin.end_column - 1]
            assert repr(json.loads(piece)) == repr(node.value)
            if isinstance(path[-1], str):
                key = key_origin_at(root, path)
                assert (
                    json.loads(lines[key.line - 1][key.column - 1 : key.end_column - 1]) == path[-1]
                )


def test_comments_trailing_commas_and_bare_dates_are_read() -> None:
    text = '{ // one\n "a": 2024-01-31, /* two\n */ "b": [07:32:00, 2024-01-31T07:32:00Z,],\n}\n'

    root, problems = read_all(text, "a.json")

    assert problems == []
    assert [str(value) for value in plain(root)["b"]] == ["07:32:00", "2024-01-31 07:32:00+00:00"]
    assert str(plain(root)["a"]) == "2024-01-31"


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("[1]", 1, "a config is a table: it starts with `{`"),
        ('{"a": 1} x', 10, "this is too much after the closing `}`"),
        ('{"a": 1}}', 9, "`}` closes nothing"),
        ('{"a": /* x', 7, "this comment is not closed"),
        ('{"a": 1} # no', 10, "`#` starts no comment in JSON"),
        ('{"a": "\\ud800"}', 7, "half of a surrogate pair is no text"),
        ('{"a": "\t"}', 8, "a control character in a string"),
        ('{"a": "h\\qi"}', 9, "`\\` starts an escape, and this is none"),
        ('{"a": "\\u00g0"}', 8, "`\\` starts an escape, and this is none"),
        ('{"a": "unclosed,\n "b": 1}', 7, "this string is not closed"),
        ("{\"a\": 'x'}", 7, "strings need double quotes"),
        ("{,}", 2, "a key is missing before the comma"),
        ("{1: 2}", 2, "a key needs double quotes"),
        ("{{}: 2}", 2, "a key is missing"),
        ('{"a"}', 5, "`:` is missing after the key"),
        ('{"a" 2}', 5, "`:` is missing after the key"),
        ('{"a" = 2}', 6, "`:` is missing after the key"),
        ('{"a": , "b": 1}', 6, "a value is missing"),
        ('{"a": [1,,2]}', 10, "a value is missing before the comma"),
        ('{"a": 1 "b": 2}', 8, "a comma is missing"),
        ('{"a": [1 2]}', 9, "a comma is missing"),
        ('{"a": [1, 2 "b": 2}', 7, "this list is not closed"),
        ('{"a": [1, 2}', 7, "this list is not closed"),
        ('{"a": {"b": 1', 7, "this table is not closed"),
        ('{"a": {"b": 1]}', 7, "this table is not closed"),
        ('{"a": 1', 1, "this table is not closed"),
        ('{"a": @}', 7, "`@` is no JSON value"),
        ('{"a": ' + "9" * 1001 + "}", 7, "a name or number of more than 1000 characters"),
        ('{"a": 2024-13-01}', 7, "`2024-13-01` is no JSON value"),
        ('{"a": 01}', 7, "`01` is no JSON value"),
        ('{"a": None}', 7, "`None` is no JSON value"),
        ('{"a": 1e400}', 7, "`1e400` is no JSON value"),
        ('{"a": -1e-400}', 7, "`-1e-400` is no JSON value"),
    ],
)
def test_the_first_syntax_error_is_told_at_its_place(text: str, column: int, message: str) -> None:
    root, problems = read_all(f"// one\n{text}", "a.json")

    assert [
        (problem.origin.line, problem.origin.column, problem.message) for problem in problems
    ] == [(2, column, message)]
    assert plain(root) == {}


def test_a_text_with_nothing_in_it_is_told() -> None:
    assert [problem.message for problem in read_all("// one\n", "a.json")[1]] == [
        "a config is a table, and here is nothing"
    ]


def test_every_key_that_is_given_twice_is_told() -> None:
    root, problems = read_all('{"a": 1, "b": {"c": 1, "c": 2},\n "a": 2}', "a.json")

    assert [(problem.message, str(problem.related[0].origin)) for problem in problems] == [
        ("`b.c` is given twice", "a.json:1:16"),
        ("`a` is given twice", "a.json:1:2"),
    ]
    assert plain(root) == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize(
    ("raw", "fix"),
    [
        ("None", "null"),
        ("True", "true"),
        ("nan", "NaN"),
        ("-inf", "-Infinity"),
        (".5", "0.5"),
        ("1.", "1.0"),
        ("+3", "3"),
    ],
)
def test_a_value_of_another_language_is_answered_with_what_json_writes(raw: str, fix: str) -> None:
    assert read_all(f'{{"a": {raw}}}', "a.json")[1][0].fix == f"write {fix}"


@given(st.text(alphabet="{}[]:,\"\\/*-019.eEtruefalsn \n'#", max_size=60))
def test_no_text_at_all_makes_the_reader_fall(text: str) -> None:
    root, problems = read_all(text, "a.json")

    try:
        fine = json.loads(text)
    except ValueError:
        return
    assert not isinstance(fine, dict) or problems or plain(root).keys() == fine.keys()
