"""The page of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.formats.run_file import Attempt, RunFile
from assay.record.readme import BEGIN, END, first_text, refresh, write_first


def run(tag: str = "t", *, reason: str = "") -> RunFile:
    attempt = Attempt(number=1, started_ns=1, reason=reason)
    return RunFile(id="abcdefgh", kind="train", tag=tag, created_ns=10**18, attempts=(attempt,))


def test_tag_is_the_title_and_desc_the_body() -> None:
    assert first_text(run("my tag"), " text\n").startswith(
        f"# my tag\n\ntext\n\n{BEGIN.decode()}\n"
    )
    assert first_text(run(""), "").startswith(f"# abcdefgh\n\n{BEGIN.decode()}\n")


def test_a_tag_of_several_lines_is_one_title() -> None:
    assert first_text(run("a\n\nb"), "").startswith("# a b\n")


@pytest.mark.parametrize("reason", ["a | b", "two\nlines", f"{END.decode()} {BEGIN.decode()}", "`"])
def test_no_reason_breaks_out_of_its_cell(tmp_path: Path, reason: str) -> None:
    page = tmp_path / "README.md"
    write_first(page, run(), "mine")

    refresh(page, run(reason=reason))
    refresh(page, run(reason="fine"))

    text = page.read_bytes()
    assert text.count(BEGIN) == text.count(END) == 1
    assert b"| status | running: fine |" in text


def test_a_description_that_holds_the_markers_is_not_taken_for_the_block(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    desc = f"before {BEGIN.decode()} old {END.decode()} after"
    write_first(page, run(), desc)

    refresh(page, run(reason="new"))

    assert page.read_text().startswith(f"# t\n\n{desc}\n\n")


def test_a_page_that_was_deleted_stays_deleted(tmp_path: Path) -> None:
    refresh(tmp_path / "README.md", run())

    assert list(tmp_path.iterdir()) == []
