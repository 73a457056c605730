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


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_]{1,6}", fullmatch=True).filter(lambda name: name != "DEFAULT"),
        st.dictionaries(st.from_regex(r"[A-Za-z_]{1,4}", fullmatch=True), WORDS, max_size=4),
        max_size=3,
    )
)
def test_text_is_read_as_configparser_reads_it(content: dict[str, dict[str, str]]) -> None:
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n  {value[::-1]}\n" for key, value in section.items())
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


MISTAKES = """x
[a
[b]
c = %(d)s %x
d = %(e)s
e = %(d)s
f = [1, 2
g = [1, tru]
f = 2
[b]
q = 1 # c
[b.c] z
u = 1
= 5
a[0 = 2
h = "x
k = [1,
  2,
  oops]
c.d = %(nowhere)s
v = 1
v.w = 2
"""


def test_all_mistakes_are_told_each_at_its_place() -> None:
    root, problems = read_all(MISTAKES, "a.ini", excerpt=True)

    assert [(problem.origin.line, problem.origin.column, problem.message) for problem in problems] == [
        (1, 1, "`=` is missing after the key"),
        (2, 1, "this header is not closed"),
        (4, 11, "`%` starts a `%(name)s`, and this is none"),
        (6, 5, "this value needs itself: d -> e -> d"),
        (7, 5, "this list is not closed"),
        (8, 9, "`tru` is no TOML value"),
        (9, 1, "`b.f` is given twice"),
        (10, 2, "`b` is given twice"),
        (11, 7, "this may be a comment or a part of the value"),
        (12, 7, "this is too much after the header"),
        (14, 1, "this is no key"),
        (15, 1, "`a[0` is no name"),
        (16, 5, "this string is not closed"),
        (19, 3, "`oops` is no TOML value"),
        (20, 7, "`%(nowhere)s` names no value of this section or of [DEFAULT]"),
        (22, 1, "`b.c.v` has a value already, so it cannot hold more"),
    ]
    assert plain(root)["b"]["c"] == {"u": 1, "v": 1}


def test_values_are_interpolated_once_however_often_they_are_used() -> None:
    text = "[s]\na = xxxxxxxxxx\n" + "".join(f"{chr(98 + i)} = " + f"%({chr(97 + i)})s" * 10 + "\n" for i in range(20))

    assert [problem.kind for problem in read_all(text, "a.ini")[1]] == ["too-large"]


@given(st.text(alphabet="ab=:[]%()s#; \n\t\"'\\{}.1,", max_size=60))
def test_no_text_at_all_makes_the_reader_fall(text: str) -> None:
    root, _ = read_all(text, "a.ini")

    assert isinstance(plain(root), dict)
