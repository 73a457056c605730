from __future__ import annotations

import inspect
import random
import re
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.config.sources.positions import MAX_BYTES
from assay.config.sources.toml import read_all, read_toml, value_in
from assay.config.tree import Leaf, List, Node, Table, from_plain, get_at, plain, same, walk
from assay.core.diagnostics import Origin
from assay.core.errors import ConfigError

if sys.version_info >= (3, 15):
    import tomllib as reference
else:
    # the same parser: in the standard library it reads TOML 1.1 from Python 3.15 on
    import tomli as reference

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        "@none",
        "'",
        '"',
        '"""',
        "'''",
        "a # b",
        "] }",
        "= [",
        "\\",
        "x\ny",
        "\t",
        "\x00",
        "\x85",
        "größe 語",
    ]
)
KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True) | TEXT
ZONES = st.none() | st.builds(
    timezone, st.integers(-14 * 60, 14 * 60).map(lambda m: timedelta(minutes=m))
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    TEXT,
    st.dates(),
    st.times(),
    st.datetimes(timezones=ZONES),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=5)


class Writer:
    """Writes a document in one of the many ways TOML allows, chosen by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []

    def document(self, given: dict[str, Any]) -> str:
        self.table((), given)
        ending = self.random.choice(["\n", "\r\n"])
        text = "\n".join(self.lines)
        text = text.replace("\r\n", "\n").replace("\n", ending)
        return (
            ("\ufeff" if self.random.random() < 0.2 else "")
            + text
            + self.random.choice(["", ending])
        )

    def space(self) -> str:
        return self.random.choice(["", "", " ", "\t", "  "])

    def blank(self) -> str:
        return self.random.choice(["", "", " ", "\n", " # ] } ' \" é\n  "])

    def comment(self) -> str:
        return self.random.choice(["", "", " # x = [1", '  #\'""" 語'])

    def table(self, path: tuple[str, ...], given: dict[str, Any]) -> None:
        later: list[tuple[str, Any]] = []
        for key, value in given.items():
            if value and self.is_block(value) and self.random.random() < 0.6:
                later.append((key, value))
            else:
                self.pair((key,), value)
        for key, value in later:
            rows = value if isinstance(value, list) else [value]
            brackets = ("[[", "]]") if isinstance(value, list) else ("[", "]")
            for row in rows:
                name = self.space() + self.dotted((*path, key)) + self.space()
                self.lines += (
                    [self.random.choice(["", "# [no.header]"])]
                    if self.random.random() < 0.5
                    else []
                )
                self.lines.append(self.space() + brackets[0] + name + brackets[1] + self.comment())
                self.table((*path, key), row)

    def is_block(self, value: Any) -> bool:
        return isinstance(value, dict) or (
            isinstance(value, list) and all(isinstance(row, dict) for row in value)
        )

    def pair(self, path: tuple[str, ...], value: Any) -> None:
        if isinstance(value, dict) and value and self.random.random() < 0.5:
            for key, inner in value.items():
                self.pair((*path, key), inner)
            return
        line = (
            self.space() + self.dotted(path) + self.space() + "=" + self.space() + self.value(value)
        )
        self.lines.append(line + self.comment())

    def dotted(self, path: tuple[str, ...]) -> str:
        return (self.space() + "." + self.space()).join(self.key(part) for part in path)

    def key(self, name: str) -> str:
        ways = [self.basic(name)]
        if re.fullmatch(r"[A-Za-z0-9_-]+", name):
            ways += [name, name]
        if self.is_literal(name):
            ways.append(f"'{name}'")
        return self.random.choice(ways)

    def value(self, value: Any) -> str:
        match value:
            case dict():
                items = [
                    f"{self.key(key)}{self.space()}={self.space()}{self.value(v)}"
                    for key, v in value.items()
                ]
                return (
                    "{"
                    + self.space()
                    + (self.space() + "," + self.space()).join(items)
                    + self.space()
                    + "}"
                )
            case list():
                items = [self.value(item) + self.blank() for item in value]
                comma = self.random.choice(["", ","]) if items else ""
                return (
                    "["
                    + self.blank()
                    + ("," + self.blank()).join(items)
                    + comma
                    + self.blank()
                    + "]"
                )
            case bool():
                return "true" if value else "false"
            case int():
                return self.random.choice(
                    [str(value), f"{value:_}", hex(value) if value >= 0 else str(value)]
                )
            case float():
                return repr(value) if value == value else self.random.choice(["nan", "+nan"])
            case str():
                return self.string(value)
            case datetime():
                return value.isoformat(sep=self.random.choice(["T", " "]))
            case _:
                return str(value.isoformat())

    def basic(self, text: str) -> str:
        return tomli_w.dumps({"k": text}).partition("= ")[2].rstrip("\n")

    def is_literal(self, text: str) -> bool:
        return "'" not in text and not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", text)

    def string(self, text: str) -> str:
        ways = [self.basic(text)]
        if self.is_literal(text):
            ways.append(f"'{text}'")
        if "'''" not in text and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text):
            ways.append(f"'''\n{text}'''")
        if (
            '"""' not in text
            and "\\" not in text
            and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
        ):
            ways.append(f'"""\n{text}"""')
            ways.append(f'"""\\\n   {text}"""' if text.strip() == text else f'"""\n{text}"""')
        return self.random.choice(ways)


def sliced(text: str, origin: Origin) -> str:
    lines = text.split("\n")
    starts = [
        sum(len(line) + 1 for line in lines[:i]) for i in (origin.line - 1, origin.end_line - 1)
    ]
    return text[starts[0] + origin.column - 1 : starts[1] + origin.end_column - 1]


def check_every_place(text: str) -> None:
    root = read_toml(text, "<test>", excerpt=True)
    bare = text.removeprefix("\ufeff")
    assert same(root, from_plain(reference.loads(bare), Origin(source="<test>")))
    for path, node in walk(root):
        if isinstance(node, Leaf) or (
            isinstance(node, List | Table) and sliced(bare, node.origin)[:1] in ("[", "{")
        ):
            written = sliced(bare, node.origin)
            again = from_plain(reference.loads(f"x = {written}")["x"], node.origin)
            assert same(again, node), (path, written)
        if isinstance(node, Table):
            for key, origin in node.key_origins.items():
                assert list(reference.loads(f"{sliced(bare, origin)} = 1")) == [key]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(DOCUMENTS)
def test_what_a_recorded_place_holds_reads_as_the_value_in_documents_of_tomli_w(
    given: dict[str, Any],
) -> None:
    check_every_place(tomli_w.dumps(given))


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(DOCUMENTS, st.integers(0, 2**32))
@example({"a": {"b": {"c": 1}}, "d": [{"x": 1}, {"x": 2}]}, 3)
def test_what_a_recorded_place_holds_reads_as_the_value_however_it_is_written(
    given: dict[str, Any], seed: int
) -> None:
    text = Writer(seed).document(given)
    try:
        reference.loads(text.removeprefix("\ufeff"))
    except (
        reference.TOMLDecodeError
    ):  # a dotted key after a header of the same name: the writer does not know every rule
        assert read_all(text, "<test>")[1]
        return
    check_every_place(text)


def test_a_writer_that_knows_few_rules_still_mostly_writes_valid_documents() -> None:
    given = {
        "a": {"b": 1, "c": {"d": "x"}},
        "rows": [{"x": [1, {"y": 2.5}]}, {"x": []}],
        "s": "é\n'\"",
    }
    valid = 0
    for seed in range(200):
        text = Writer(seed).document(given).removeprefix("\ufeff")
        try:
            assert reference.loads(text) == given
            valid += 1
        except reference.TOMLDecodeError:
            pass

    assert valid > 150


def place(node: Node | None) -> tuple[int, int, int, int]:
    assert node is not None
    origin = node.origin
    return origin.line, origin.column, origin.end_line, origin.end_column


def test_positions_count_lines_and_code_points_from_one() -> None:
    text = '\ufeff# größe\r\n"语" = "é"\r\n[a.b]\r\nlist = [\r\n  1, 2.5, # no\r\n  { x = \'y\' } ]\r\n'
    root = read_toml(text, "<test>", excerpt=True)

    assert place(get_at(root, ("语",))) == (2, 7, 2, 10)
    assert place(get_at(root, ("a",))) == (3, 2, 3, 3)
    assert place(get_at(root, ("a", "b"))) == (3, 2, 3, 5)
    assert place(get_at(root, ("a", "b", "list"))) == (4, 8, 6, 16)
    assert place(get_at(root, ("a", "b", "list", 1))) == (5, 6, 5, 9)
    assert place(get_at(root, ("a", "b", "list", 2, "x"))) == (6, 9, 6, 12)


def test_arrays_of_tables_inside_arrays_of_tables_keep_their_rows() -> None:
    text = "[[a]]\nx = 1\n[[a.b]]\ny = 2\n[[a.b]]\ny = 3\n[[a]]\n[[a.b]]\ny = 4\n[a.c]\nz = 5\n"
    root = read_toml(text, "<test>", excerpt=True)

    assert plain(root) == {
        "a": [{"x": 1, "b": [{"y": 2}, {"y": 3}]}, {"b": [{"y": 4}], "c": {"z": 5}}]
    }
    assert place(get_at(root, ("a", 1, "b", 0, "y")))[:2] == (9, 5)
    assert place(get_at(root, ("a", 0, "b", 1)))[:2] == (5, 3)


def test_the_word_for_none_is_none() -> None:
    assert plain(read_toml('a = "@none"\nb = "@@none"\n', "<test>")) == {"a": None, "b": "@@none"}


def test_toml_1_1_is_read_on_every_python() -> None:
    root = read_toml(
        'a = {\n  x = 1, # one\n  y.z = [2],\n}\nb = 07:32\nc = 2020-01-02 07:32Z\nd = "\\e[1m\\x41"\n',
        "<test>",
    )

    assert plain(root) == {
        "a": {"x": 1, "y": {"z": [2]}},
        "b": time(7, 32),
        "c": datetime(2020, 1, 2, 7, 32, tzinfo=UTC),
        "d": "\x1b[1mA",
    }
    assert place(get_at(root, ("a", "y", "z"))) == (3, 9, 3, 12)


def mistakes(text: str) -> list[tuple[str, int, int]]:
    _, problems = read_all(text, "<test>", excerpt=True)
    return [(problem.kind, problem.origin.line, problem.origin.column) for problem in problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = True", [("syntax", 1, 5)]),
        ("a = 12e4567", [("syntax", 1, 5)]),
        ("a = [0e5, 1e-400]", [("syntax", 1, 11)]),
        ("a = ", [("syntax", 1, 5)]),
        ("a", [("syntax", 1, 2)]),
        ("= 1", [("syntax", 1, 1)]),
        ('a = "x\nb = 1', [("syntax", 1, 5)]),
        ('a = """x\nb = 1', [("syntax", 1, 5)]),
        ("a = [1, 2\nb = 1", [("syntax", 1, 5)]),
        ("a = [1, [2, 3]\n[b]\nc = 1\nd = x", [("syntax", 1, 5), ("syntax", 4, 5)]),
        ("a = { b = 1\nc = 2", [("syntax", 1, 5)]),
        ("a = 1\na = 2\na = 3", [("duplicate-key", 2, 1), ("duplicate-key", 3, 1)]),
        ("[t]\nb.c = 1\n[u]\n[t]\nx = y", [("duplicate-key", 4, 2), ("syntax", 5, 5)]),
        ("t = { a = 1, a = 2 }", [("duplicate-key", 1, 14)]),
        ("a = 1\n[a.b]\nc = 1", [("duplicate-key", 2, 2)]),
        ("a.b = 1\na.b.c = 2", [("duplicate-key", 2, 1)]),
        ("[a\nb = x\n[c]\nd = x", [("syntax", 1, 3), ("syntax", 2, 5), ("syntax", 4, 5)]),
        ('a = "\\d"', [("syntax", 1, 6)]),
        ("a = 2020-13-01", [("syntax", 1, 5)]),
        ("a = [1, 2020-02-30]", [("syntax", 1, 9)]),
        ("a = 1e", [("syntax", 1, 5)]),
        ('"\\ug" = 1\n[b]\nx = y', [("syntax", 1, 2), ("syntax", 3, 5)]),
        ('["\\ug"]\nx = y', [("syntax", 1, 3), ("syntax", 2, 5)]),
        ("a = 1 b = 2", [("syntax", 1, 7)]),
        ("a = 1\x00", [("syntax", 1, 5)]),
        ("# bell \x07\na = 1", [("syntax", 1, 8)]),
        ("a = [1\n2]", [("syntax", 1, 7)]),
        ("a = [\n  0.9\n  0.99\n]\nb = x", [("syntax", 2, 6), ("syntax", 5, 5)]),
        ("a = [[1]\n[2]\n]", [("syntax", 1, 9)]),
        ("a = [[1]\n[b]\nc = 1", [("syntax", 1, 5)]),
        ("a = [1,\n[b]\nc = 1", [("syntax", 1, 5)]),
        ("a = [1, 2}\nb = x", [("syntax", 1, 10), ("syntax", 2, 5)]),
        ("a = { b = [1, 2 }\nc = x", [("syntax", 1, 11), ("syntax", 2, 5)]),
        ("a = { b = 1\n c = 2 }", [("syntax", 1, 12)]),
        ("a = { b = 1\nc = 2\n[d]\ne = x", [("syntax", 1, 5), ("syntax", 4, 5)]),
        ('a = ["b, "c"]\nd = x', [("syntax", 1, 11), ("syntax", 2, 5)]),
        ("a = [1,, 2]", [("syntax", 1, 8)]),
        ("größe = 1", [("syntax", 1, 3)]),
        ("}\na = x", [("syntax", 1, 1), ("syntax", 2, 5)]),
    ],
)
def test_syntax_errors_and_duplicates_stand_where_they_are(
    text: str, expected: list[tuple[str, int, int]]
) -> None:
    assert mistakes(text) == expected


def test_all_that_could_be_read_is_there_beside_the_mistakes() -> None:
    root, problems = read_all("a = 1\nb = None\n[c]\nd = 2\nd = 3\ne = 4\n", "<test>")

    assert plain(root) == {"a": 1, "c": {"d": 2, "e": 4}}
    assert len(problems) == 2


def test_read_raises_with_every_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        read_toml("a = x\nb = y\n", "<test>", excerpt=True)

    assert [problem.origin.line for problem in caught.value.problems] == [1, 2]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.integers(0, 2**32), st.data())
def test_a_broken_document_gives_problems_inside_it_and_never_an_error(
    given: dict[str, Any], seed: int, data: st.DataObject
) -> None:
    text = Writer(seed).document(given).removeprefix("\ufeff")
    at = data.draw(st.integers(0, len(text)))
    text = (
        text[:at]
        + data.draw(st.sampled_from(["", "[", "]", '"', "'", '"""', "=", "\n", "{", "#"]))
        + text[at + 1 :]
    )

    root, problems = read_all(text, "<test>", excerpt=True)

    lines = text.split("\n")
    assert all(1 <= p.origin.line <= len(lines) for p in problems)
    assert all(1 <= p.origin.column <= len(lines[p.origin.line - 1]) + 1 for p in problems)
    try:
        wanted = from_plain(reference.loads(text), Origin(source="<test>"))
    except reference.TOMLDecodeError:
        assert problems
    else:
        assert problems == []
        assert same(root, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 201 + "]" * 201,
        "a = " + "[" * 100_000,
        "a = " + "{x = " * 300,
        "a" + ".a" * 300 + " = 1",
        "[a" + ".a" * 300 + "]",
        "a" + ".a" * 150 + " = " + "[" * 100 + "]" * 100,
        ".".join(["'a'"] * 500) + " = 1",
    ],
)
def test_absurd_nesting_is_refused_with_its_place(text: str) -> None:
    root, problems = read_all(text, "<test>")

    assert [problem.kind for problem in problems] == ["too-deep"]
    assert problems[0].origin.line == 1
    assert problems[0].origin.column > 1
    assert plain(root) == {}


def test_two_hundred_levels_are_fine() -> None:
    root = read_toml("a = " + "[" * 199 + "]" * 199, "<test>")

    assert max(len(path) for path, _ in walk(root)) == 199


def test_a_deep_stack_of_the_caller_is_no_crash() -> None:
    def down(levels: int) -> list[str]:
        if levels:
            return down(levels - 1)
        return [problem.kind for problem in read_all("a = " + "[" * 199 + "]" * 199, "<test>")[1]]

    # Too few frames are left for the parser, which takes two a level.
    assert down(sys.getrecursionlimit() - len(inspect.stack()) - 200) == ["too-deep"]


def test_a_text_beyond_the_limit_is_refused() -> None:
    _, problems = read_all("#" * (MAX_BYTES + 1), "<test>")
    assert [problem.kind for problem in problems] == ["too-large"]

    _, problems = read_all("é" * (MAX_BYTES // 2 + 1), "<test>")
    assert [problem.kind for problem in problems] == ["too-large"]


def test_a_number_without_end_is_refused_with_its_place() -> None:
    assert mistakes("a = 1\nb = " + "9" * 5000) == [("syntax", 2, 5)]


@pytest.mark.parametrize(
    "piece",
    [
        '"""\\',
        "'''",
        '"\\"',
        "[",
        "a.",
        "a = [\n",
        "a = {",
        '"',
        "\\",
        "=",
        "[[",
        "x\n",
        "a" * 900 + "\n",
    ],
)
def test_hostile_repetition_ends(piece: str) -> None:
    _, problems = read_all(piece * 3000, "<test>")

    assert problems


def test_times_and_dates_keep_their_kind() -> None:
    root = read_toml(
        "a = 2020-01-02\nb = 03:04:05\nc = 2020-01-02 03:04:05Z # x\nd = 2020-01-02 # y\n", "<test>"
    )

    assert plain(root)["a"] == date(2020, 1, 2)
    assert plain(root)["b"] == time(3, 4, 5)
    assert place(get_at(root, ("c",))) == (3, 5, 3, 25)
    assert place(get_at(root, ("d",))) == (4, 5, 4, 15)


def test_a_value_that_is_typed_once_is_read_once_for_all_variants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "[0.125, 0.25, 0.375]"
    first = value_in(text)
    monkeypatch.setattr("assay.config.sources.toml._TomlParser", None)

    assert first is not None and value_in(text) is first
