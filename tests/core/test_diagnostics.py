"""How problems look. The texts are compared whole: they are reviewed like code."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.core.diagnostics import Origin, Problem, render, summary, to_json
from assay.core.errors import (
    AssayError,
    ConfigError,
    InputError,
    MissingExtraError,
    did_you_mean,
    nearest,
)
from assay.core.terminal import for_terminal, visible

SOURCE = 'tag = "digits"\n\n[trian]\nepochs = 5\n'


def problem(
    text: str = SOURCE, *, line: int = 3, column: int = 2, end_column: int = 7, **more: object
) -> Problem:
    origin = Origin(
        source="digits.toml",
        line=line,
        column=column,
        end_line=line,
        end_column=end_column,
        text=text,
    )
    fields: dict[str, object] = {
        "kind": "unknown-key",
        "message": "unknown key `trian`",
        "key": "trian",
        "fix": "did you mean `train`?",
        "origin": origin,
        **more,
    }
    return Problem(**fields)  # type: ignore[arg-type]


def shown(text: str, *, column: int, end_column: int, width: int = 80) -> tuple[str, str]:
    """The line of the excerpt and the line of its carets, without the gutter."""
    lines = render(
        [problem(text, line=1, column=column, end_column=end_column)], color=False, width=width
    ).split("\n")
    return lines[3].removeprefix("1 | "), lines[4].removeprefix("  | ")


def cells(text: str) -> int:
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
        if not unicodedata.combining(c)
    )


def test_a_problem_looks_like_that_of_a_good_compiler() -> None:
    assert render([problem()], color=False) == "\n".join(
        [
            "error: unknown key `trian`                                         [unknown-key]",
            " --> digits.toml:3:2",
            "  |",
            "3 | [trian]",
            "  |  ^^^^^",
            "  = did you mean `train`?",
        ]
    )


def test_the_first_line_fills_the_width_and_no_more() -> None:
    assert [
        len(render([problem()], color=False, width=width).split("\n")[0]) for width in (60, 80, 120)
    ] == [
        60,
        80,
        120,
    ]


def test_two_problems_stand_apart_and_lines_of_two_digits_keep_their_gutter() -> None:
    second = problem(
        "\n" * 11 + "x = 1", line=12, column=1, end_column=2, message="no", kind="other", fix=""
    )

    assert render([problem(), second], color=False).split("\n\n")[1] == "\n".join(
        [
            "error: no                                                                [other]",
            "  --> digits.toml:12:1",
            "   |",
            "12 | x = 1",
            "   | ^",
        ]
    )


def test_what_was_overridden_and_what_belongs_together_is_said_below() -> None:
    first = Origin(source="base.toml", line=4, column=1)
    origin = Origin(
        source="<cli>",
        line=1,
        column=4,
        end_column=5,
        text="lr=x",
        note="variant big",
        replaced=first,
    )
    other = Problem(
        kind="here",
        message="the other one",
        origin=Origin(source="b.toml", line=9),
        severity="note",
    )

    assert render([problem(origin=origin, related=(other,))], color=False) == "\n".join(
        [
            "error: unknown key `trian`                                         [unknown-key]",
            " --> <cli>:1:4 (variant big)",
            "  |",
            "1 | lr=x",
            "  |    ^",
            "  = replaces the value from base.toml:4:1",
            "  = did you mean `train`?",
            "note: the other one                                                       [here]",
            " --> b.toml:9",
        ]
    )


def test_the_excerpt_comes_from_the_file_when_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes("\ufeffa = 1\r\n# form\x0cfeed and \u2028 separator\r\nb = 2\r\n".encode())

    text = render(
        [problem(origin=Origin(source=str(path), line=3, column=5, end_column=6))], color=False
    )

    assert text.split("\n")[3:5] == ["3 | b = 2", "  |     ^"]


@pytest.mark.parametrize("source", ["missing.toml", ".", "<python>", "a\0b"])
def test_without_a_source_to_read_there_is_no_excerpt(source: str) -> None:
    text = render([problem(origin=Origin(source=source, line=3, column=1), fix="")], color=False)

    assert len(text.split("\n")) == 2


def test_a_source_that_is_no_text_has_no_excerpt(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe\x00")

    assert " | " not in render(
        [problem(origin=Origin(source=str(path), line=1, column=1))], color=False
    )


def test_a_line_beyond_the_end_has_no_excerpt() -> None:
    assert " | " not in render([problem(line=99)], color=False)


def test_a_mark_over_several_lines_reaches_to_the_end_of_the_first() -> None:
    origin = Origin(source="a", line=1, column=5, end_line=2, end_column=3, text="a = [1,\n 2]")

    assert render([problem(origin=origin)], color=False).split("\n")[4] == "  |     ^^^"


def test_a_mark_behind_the_last_character_is_one_caret() -> None:
    assert shown("a =", column=4, end_column=0) == ("a =", "   ^")


@pytest.mark.parametrize("at", [0, 10, 150, 295])
def test_a_long_line_shows_what_surrounds_the_mark(at: int) -> None:
    line = "." * at + "HERE" + "." * (296 - at)

    text, carets = shown(line, column=at + 1, end_column=at + 5)

    assert len(text) == 80 - 4
    assert text[carets.index("^") :][: carets.count("^")] == "HERE"


def test_wide_characters_take_two_columns_above_and_below() -> None:
    assert shown('name = "模型" # 好', column=8, end_column=12) == (
        'name = "模型" # 好',
        "       ^^^^^^",
    )


def test_a_long_line_of_wide_characters_keeps_to_the_width() -> None:
    text, carets = shown("型" * 60 + "X" + "型" * 60, column=61, end_column=62)

    assert cells(text) <= 76
    assert cells(text[: text.index("X")]) == carets.index("^")


def test_a_mark_of_no_width_behind_a_full_line_stays_inside() -> None:
    line = "x" * 76 + "\u0301"

    assert shown(line, column=77, end_column=77) == (line, " " * 75 + "^")


def test_control_characters_are_spelled_out_and_the_caret_knows() -> None:
    assert shown('a = "\x1b[31m\x07" x', column=12, end_column=14) == (
        'a = "\\x1b[31m\\x07" x',
        " " * 17 + "^^",
    )


def test_a_tab_is_one_column() -> None:
    assert shown("a\t=\tb", column=5, end_column=6) == ("a = b", "    ^")


LINES = st.text(
    st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), min_size=1, max_size=200
)


@st.composite
def marked_lines(draw: st.DrawFn) -> tuple[str, int, int]:
    """A line, and the first column and the end of what is wrong in it."""
    line = draw(LINES)
    column = draw(st.integers(1, len(line)))
    return line, column, draw(st.integers(column, len(line) + 1))


@given(marked_lines())
@example(("\xa00", 1, 1))  # a blank that str.isprintable does not know
def test_no_excerpt_is_wider_than_the_terminal_and_its_caret_is_inside(
    marked: tuple[str, int, int],
) -> None:
    line, column, end = marked

    text = render([problem(line, line=1, column=column, end_column=end)], color=False)

    excerpt, carets = text.split("\n")[3:5]
    assert cells(excerpt) <= 80
    assert carets.endswith("^")
    assert len(carets) <= 80
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in excerpt)


def test_colour_adds_codes_and_changes_no_letter() -> None:
    problems = [problem(), problem(severity="warning"), problem(severity="note")]

    colored = for_terminal(render(problems, color=True), color=True)

    assert (
        "\x1b[1;31merror" in colored
        and "\x1b[1;33mwarning" in colored
        and "\x1b[1;36mnote" in colored
    )
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == render(problems, color=False)
    assert "\x1b" not in render(problems, color=False)


def test_a_message_cannot_paint_the_terminal() -> None:
    hostile = problem(
        message="\x1b[2J\r",
        fix="\x1b]0;x\x07",
        origin=Origin(source="\x1b[31m.toml", line=1, column=1),
    )

    assert all(line.isprintable() for line in render([hostile], color=False).split("\n"))
    assert visible("a\tb\x00ü") == "a\tb\\x00ü"


def test_a_listing_ends_in_numbers() -> None:
    assert summary([problem(), problem(), problem(severity="warning")]) == "2 errors, 1 warning"
    assert summary([]) == ""


def test_programs_get_the_same_as_data() -> None:
    (data,) = to_json([problem(related=(problem(kind="other"),))])

    assert json.loads(json.dumps(data)) == data
    assert (data["kind"], data["line"], data["column"], data["end_column"]) == (
        "unknown-key",
        3,
        2,
        7,
    )
    assert data["related"][0]["kind"] == "other"  # type: ignore[index]


def test_an_origin_is_written_as_far_as_it_is_known() -> None:
    origins = [
        Origin(source="a"),
        Origin(source="a", line=2),
        Origin(source="a", line=2, column=3, note="variant b"),
    ]

    assert [str(origin) for origin in origins] == ["a", "a:2", "a:2:3 (variant b)"]
    assert [
        o.source
        for o in Origin(source="a", replaced=Origin(source="b", replaced=origins[0])).chain()
    ] == [
        "a",
        "b",
        "a",
    ]


def test_an_error_says_what_where_and_what_to_do() -> None:
    assert str(AssayError("It is broken.", where="there", fix="mend it")) == (
        "It is broken.\n  at:  there\n  fix: mend it"
    )
    assert str(AssayError("It is broken.")) == "It is broken."
    assert (AssayError("").exit_code, InputError("").exit_code) == (1, 2)


def test_a_config_error_carries_every_problem() -> None:
    error = ConfigError([problem(), problem()])

    assert len(error.problems) == 2
    assert str(error) == render(error.problems, color=False)
    assert error.exit_code == 2


def test_a_missing_extra_says_how_to_get_it() -> None:
    assert "pip install 'assay[ui]'" in str(MissingExtraError("The web page", extra="ui"))


def test_the_nearest_word_is_found_whatever_its_case() -> None:
    assert nearest("ADAMw", ["Adam", "AdamW", "SGD"], n=2) == ["AdamW", "Adam"]
    assert did_you_mean("trian", ["train"]) == "did you mean `train`?"
    assert did_you_mean("zzz", ["train"]) == ""
