from __future__ import annotations

import configparser
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from assay.config.sources.ini import read_all
from assay.config.tree import Leaf, key_origin_at, plain, walk


@pytest.mark.row("B04")
def test_sections_interpolation_types_and_quotes() -> None:
    text = """; a comment
tag = digits
[DEFAULT]
root = /data
[optim]
lr = 0.1
name = "0.1"
path = %(root)s/%(lr)s.csv
half = 50%%
betas = [0.9,
   0.99]
none = None
on = True
empty =
[data.train]
source.type = data.Digits
"""

    root, problems = read_all(text, "a.ini")

    assert problems == []
    assert plain(root) == {
        "tag": "digits",
        "optim": {
            "lr": 0.1,
            "name": "0.1",
            "path": "/data/0.1.csv",
            "half": "50%",
            "betas": [0.9, 0.99],
            "none": None,
            "on": True,
            "empty": "",
        },
        "data": {"train": {"source": {"type": "data.Digits"}}},
    }
    assert str(key_origin_at(root, ("optim", "lr"))) == "a.ini:6:1"
    assert [str(node.origin) for path, node in walk(root) if path[:2] == ("optim", "betas")] == [
        "a.ini:10:9",
        "a.ini:10:10",
        "a.ini:11:4",
    ]


WORDS = st.text(alphabet="abcXYZ_ :=%;#[]\"'\\.-1", max_size=12)


@pytest.mark.thorough
@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_]{1,6}", fullmatch=True).filter(lambda name: name != "DEFAULT"),
        st.dictionaries(st.from_regex(r"[A-Za-z_]{1,4}", fullmatch=True), WORDS, max_size=4),
        max_size=3,
    )
)
def test_text_is_read_as_configparser_reads_it(content: dict[str, dict[str, str]]) -> None:
    text = "".join(
        f"[{name}]\n"
        + "".join(f"{key} = {value}\n  {value[::-1]}\n" for key, value in section.items())
        for name, section in content.items()
    )
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
        wanted: dict[str, Any] = {name: dict(parser[name]) for name in parser.sections()}
    except configparser.Error:
        assume(False)

    root, problems = read_all(text, "a.ini")

    assume(not problems)  # what may be a comment, and what starts like a list, is stricter here
    for path, node in walk(root):
        if isinstance(node, Leaf) and isinstance(node.value, str):
            raw = wanted[str(path[0])][str(path[1])]
            assert node.value == raw or raw[:1] in "\"'"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("[b]\nx\n", 2, 1, "`=` is missing after the key"),
        ("[b]\n= 5\n", 2, 1, "this is no key"),
        ("a[0 = 2\n", 1, 1, "`a[0` is no name"),
        ("[a\n", 1, 1, "this header is not closed"),
        ("[b.c] z\n", 1, 7, "this is too much after the header"),
        ("[a..b]\n", 1, 2, "`a..b` is no name"),
        ("d = 1\nc = %(d)s %x\n", 2, 11, "`%` starts a `%(name)s`, and this is none"),
        ("d = %(e)s\ne = %(d)s\n", 2, 5, "this value needs itself: d -> e -> d"),
        ("a = %(nowhere)s\n", 1, 5, "`%(nowhere)s` names no value of this section or of [DEFAULT]"),
        ("f = [1, 2\n", 1, 5, "this list is not closed"),
        ("g = [1, tru]\n", 1, 9, "`tru` is no TOML value"),
        ('h = "x\n', 1, 5, "this string is not closed"),
        ("k = [1,\n  2,\n  oops]\n", 3, 3, "`oops` is no TOML value"),
        ("l = [1,\n  2\n  3]\n", 2, 4, "a comma is missing"),
        ("q = 1 # c\n", 1, 7, "this may be a comment or a part of the value"),
    ],
)
def test_the_first_syntax_error_is_told_at_its_place(
    text: str, line: int, column: int, message: str
) -> None:
    root, problems = read_all(text, "a.ini", excerpt=True)

    assert [
        (problem.origin.line, problem.origin.column, problem.message) for problem in problems
    ] == [(line, column, message)]
    assert plain(root) == {}


def test_every_key_and_section_that_is_given_twice_is_told() -> None:
    root, problems = read_all("[b]\nf = 1\nf = 2\nv = 1\n[b]\nv.w = 2\n[b.v]\nx = 1\n", "a.ini")

    assert [
        (problem.origin.line, problem.origin.column, problem.message) for problem in problems
    ] == [
        (3, 1, "`b.f` is given twice"),
        (5, 2, "`b` is given twice"),
        (6, 1, "`b.v` has a value already, so it cannot hold more"),
        (7, 2, "`b.v` has a value already, so it cannot hold more"),
    ]
    assert plain(root) == {"b": {"f": 1, "v": 1}}


def test_values_are_interpolated_once_however_often_they_are_used() -> None:
    text = "[s]\na = xxxxxxxxxx\n" + "".join(
        f"{chr(98 + i)} = " + f"%({chr(97 + i)})s" * 10 + "\n" for i in range(20)
    )

    assert [problem.kind for problem in read_all(text, "a.ini")[1]] == ["too-large"]


@given(st.text(alphabet="ab=:[]%()s#; \n\t\"'\\{}.1,", max_size=60))
def test_no_text_at_all_makes_the_reader_fall(text: str) -> None:
    root, _ = read_all(text, "a.ini")

    assert isinstance(plain(root), dict)
