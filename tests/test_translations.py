"""The Chinese pages: tour, guides and migration, each in step with its English page."""

from __future__ import annotations

from pathlib import Path

import pytest

from translations import (
    CHINESE,
    DOCS,
    FENCE,
    code_blocks,
    copy_code,
    is_linked,
    links,
    outline,
    pairs,
)

PAIRS = [pytest.param(*pair, id=pair[1].relative_to(DOCS).as_posix()) for pair in pairs()]


def test_there_is_a_chinese_page_for_every_page_of_tour_guides_and_migration() -> None:
    there = sorted(CHINESE.rglob("*.md"))

    assert sorted(chinese for _, chinese in pairs()) == there


@pytest.mark.row("C81")
@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_a_chinese_page_has_the_code_the_outline_and_the_links_of_the_english_one(
    english: Path, chinese: Path
) -> None:
    ours, theirs = (page.read_text(encoding="utf-8") for page in (chinese, english))

    assert code_blocks(ours) == code_blocks(theirs), "run: python tests/translations.py"
    assert outline(chinese) == outline(english)
    assert links(chinese) == links(english)
    assert is_linked(english, chinese) and is_linked(chinese, english)


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_a_chinese_page_is_in_chinese(english: Path, chinese: Path) -> None:
    text = chinese.read_text(encoding="utf-8")
    characters = sum("\u4e00" <= character <= "\u9fff" for character in text)
    words = len(FENCE.sub("", english.read_text(encoding="utf-8")).split())

    assert characters > 0.7 * words, "a word of English is one to two characters of Chinese"


def test_a_page_that_lost_a_paragraph_or_has_older_code_is_found(tmp_path: Path) -> None:
    english, chinese = tmp_path / "a.md", tmp_path / "b.md"
    english.write_text("# A\n\nOne.\n\nTwo.\n\n```toml\na = 2\n```\n", encoding="utf-8")
    chinese.write_text("# 甲\n\n一。\n\n```toml\na = 1\n```\n", encoding="utf-8")

    assert outline(english) == ["#", "text", "text", "code"] != outline(chinese)
    assert copy_code(english, chinese)
    assert code_blocks(chinese.read_text(encoding="utf-8")) == ["```toml\na = 2\n```"]
