"""Text for a terminal: of others nothing that a terminal obeys, of ours the styles."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.terminal import (
    cell_count,
    elide,
    escaped_json,
    fold,
    for_terminal,
    style,
    visible,
)
from assay.formats.json_codec import dumps

OBEYED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories that no letter is of: control codes, changes of direction, line ends, halves of characters."""


def is_harmless(text: str, *, but: str = "") -> bool:
    return all(c in but or unicodedata.category(c) not in OBEYED for c in text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31m\x9dtitle\x9c", r"\x9b31m\x9dtitle\x9c"),
        ("a\rb\x08\x7f\x00", r"a\rb\x08\x7f\x00"),
        ("photo\u202egpj.exe\u2066\u200f", r"photo\u202egpj.exe\u2066\u200f"),
        ("a\nb\u2028c\u0085d", r"a\nb\u2028c\x85d"),
        ("\ud800\ue000\U000e0041", r"\ud800\ue000\U000e0041"),
        ("日本\u3000語 é ñ \xa0 🙂", "日本\u3000語 é ñ \xa0 🙂"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_marks(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters()), st.booleans())
def test_no_text_gets_through_with_anything_to_obey(text: str, color: bool) -> None:
    assert is_harmless(visible(text), but="\t")
    assert is_harmless(for_terminal(text, color=color), but="\n\t")
    assert for_terminal(text, color=color).count("\n") == text.count("\n")


@given(st.text(st.characters()))
def test_our_styles_get_through_around_any_text_and_only_in_colour(text: str) -> None:
    styled = style(text, "31;1")

    assert for_terminal(styled, color=True) == f"\x1b[31;1m{for_terminal(text, color=True)}\x1b[0m"
    assert for_terminal(styled, color=False) == for_terminal(text, color=False)


def test_a_text_that_looks_like_our_styles_is_none() -> None:
    guess = style("", "0").replace("0m", "8m")[:10]

    assert for_terminal("\x1b[31mred\x1b[0m", color=True) == r"\x1b[31mred\x1b[0m"
    assert "\x1b" not in for_terminal(guess, color=True)


@given(
    st.recursive(
        st.text(st.characters()) | st.none() | st.integers(),
        lambda inner: st.lists(inner, max_size=3),
    )
)
def test_json_says_the_same_with_all_of_it_escaped(value: object) -> None:
    for text in (dumps(value), dumps(value, indent=1)):
        assert is_harmless(text, but="\n")
        assert json.loads(text) == value
    assert json.loads(escaped_json(json.dumps(value, ensure_ascii=False))) == value


@given(st.text(), st.integers(0, 40))
def test_what_is_elided_fits_in_columns(text: str, limit: int) -> None:
    short = elide(text, limit)

    assert cell_count(short) <= max(limit, 0)
    assert short == text or "…" in short or limit == 0


def test_a_line_is_folded_where_two_blanks_are_whatever_its_letters_take() -> None:
    assert max(map(cell_count, fold("実験  学習率 0.5  損失 0.1", 20))) <= 20
    assert fold("one  two", None) == ["one  two"]
