from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.sources.ini import read_all
from assay.config.tree import key_origin_at, plain, walk


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
    assert str(key_origin_at(root, ("optim", "lr"))) == "a.ini:6"
    assert {str(node.origin) for path, node in walk(root) if path[:2] == ("optim", "betas")} == {
        "a.ini:10"
    }
    assert str(key_origin_at(root, ("data", "train"))) == "a.ini:15"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[b]\nx\n", 2, "Source contains parsing errors: 'x"),
        ("[b]\n= 5\n", 2, "Source contains parsing errors: '= 5"),
        ("[a\n", 1, "Source contains parsing errors: '[a"),
        ("[b.c] z\n", 1, "Source contains parsing errors: '[b.c] z"),
        ("a[0 = 2\n", 1, "`a[0` is no name"),
        ("[a..b]\n", 1, "`a..b` is no name"),
        ("d = 1\nc = %(d)s %x\n", 2, "'%' must be followed by '%' or '(', found: '%x'"),
        ("e = %(d)s\nd = %(e)s\n", 1, "Recursion limit exceeded in value substitution: option 'e'"),
        ("a = %(nowhere)s\n", 1, "Bad value substitution: option 'a' contains"),
        ("f = [1, 2\n", 1, "`[1, 2` has no `]` at its end"),
        ("l = [1,\n  2\n  3]\n", 1, "`[1,\n2\n3]` has no `]` at its end"),
        ('h = "x\n', 1, '`"x` begins with a quote that does not end it'),
        ("q = 1 # c\n", 1, "this may be a comment or a part of the value"),
        ("[b]\nf = 1\nf = 2\n", 3, "`b.f` is given twice"),
        ("[b]\n[c]\n[b]\n", 3, "`b` is given twice"),
        ("[b]\nv.w = 1\n[b.v]\nw = 2\n", 4, "`b.v.w` is given twice"),
        ("[b]\nv = 1\nv.w = 2\n", 3, "`b.v` has a value already, so it cannot hold more"),
        ("[b]\nv = 1\n[b.v]\n", 3, "`b.v` is given twice"),
    ],
)
def test_the_first_mistake_is_told_at_its_line(text: str, line: int, message: str) -> None:
    root, problems = read_all(text, "a.ini", excerpt=True)

    (problem,) = problems
    assert (problem.origin.line, problem.message[: len(message)]) == (line, message)
    assert problem.fix or "already" in message
    assert plain(root) == {}


def test_values_are_interpolated_once_however_often_they_are_used() -> None:
    text = "[s]\na = xxxxxxxxxx\n" + "".join(
        f"{chr(98 + i)} = " + f"%({chr(97 + i)})s" * 10 + "\n" for i in range(20)
    )

    assert [problem.kind for problem in read_all(text, "a.ini")[1]] == ["too-large"]


@given(st.text(alphabet="ab=:[]%()s#; \n\t\"'\\{}.1,", max_size=60))
def test_no_text_at_all_makes_the_reader_fall(text: str) -> None:
    root, _ = read_all(text, "a.ini")

    assert isinstance(plain(root), dict)
