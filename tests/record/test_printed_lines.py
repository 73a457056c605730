"""Printed text as lines in a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.printed_lines import MAX_LINE_CHARS, PrintedLines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.txt"


def shown(path: Path, *pieces: str, flush: bool = True) -> str:
    """Return the file's content after the pieces; with `flush` each is on disk before the next."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        lines = PrintedLines(descriptor)
        for piece in pieces:
            lines.feed(piece)
            if flush:
                lines.flush()
        lines.close()
    finally:
        os.close(descriptor)
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def bar(percent: int, width: int = 20) -> str:
    return f"\r{percent:3}%|{'█' * (percent // 10):<10}| it"


def test_lines_stay_as_they_are(path: Path) -> None:
    assert shown(path, "one\ntwo\n", "thr", "ee\r\n", "\tfour") == "one\ntwo\nthree\n\tfour"


def test_of_a_progress_bar_the_last_state_is_kept(path: Path) -> None:
    drawn = [bar(percent) for percent in range(101)]

    assert shown(path, "begin\n", *drawn, "\n", "end\n") == "begin\n100%|██████████| it\nend\n"
    assert path.stat().st_size < 100


def test_while_a_bar_is_drawn_its_present_state_is_in_the_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    lines = PrintedLines(descriptor)
    seen = []
    for percent in (0, 50, 100):
        lines.feed(bar(percent))
        lines.flush()
        seen.append(path.read_text(encoding="utf-8"))
    os.close(descriptor)

    assert [text[:4] for text in seen] == ["  0%", " 50%", "100%"]


def test_what_follows_a_carriage_return_replaces_the_line(path: Path) -> None:
    assert shown(path, "abcdef\rxy\n", "abcdef\rxy\x1b[K\n", "abcdef\r\r\n") == "xy\nxy\nabcdef\n"


def test_a_bar_that_was_wiped_out_with_blanks_leaves_none(path: Path) -> None:
    assert shown(path, "loading 50%", "\r" + " " * 11 + "\r", "done\n") == "done\n"


def test_colors_and_titles_are_left_out_even_when_cut_in_pieces(path: Path) -> None:
    assert shown(path, "\x1b[1;31mre", "d\x1b[", "0m \x1b]0;title\x07plain\n") == "red plain\n"


def test_text_that_is_no_utf8_comes_out_as_it_went_in(path: Path) -> None:
    raw = b"caf\xe9 \xff\n"

    shown(path, raw.decode("utf-8", "surrogateescape"))

    assert path.read_bytes() == raw


def test_a_line_without_end_does_not_grow_in_memory(path: Path) -> None:
    text = "x" * MAX_LINE_CHARS

    assert shown(path, text, text, text, "y\n", "z\n") == text * 3 + "xy\nz\n"[1:]


def test_what_was_there_before_stays(path: Path) -> None:
    path.write_text("an earlier attempt\n", encoding="utf-8")

    assert shown(path, "again\r", "A\n") == "an earlier attempt\nA\n"


def test_secrets_do_not_reach_the_file_though_they_come_in_pieces(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    lines = PrintedLines(descriptor, clean=lambda text: text.replace("s3cret", "***"))
    for piece in ("key ", "s3c", "ret of", " mine\n", "and\n"):
        lines.feed(piece)
        lines.flush()
    os.close(descriptor)

    assert path.read_text() == "key *** of mine\nand\n"


def test_a_private_key_is_cleaned_as_a_whole_though_it_comes_line_by_line(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    lines = PrintedLines(
        descriptor, clean=lambda text: re.sub("BEGIN.*?END", "***", text, flags=re.S)
    )
    for piece in ("so\n", "BEGIN PRIVATE KEY\n", "aGVs", "bG8=\n", "END PRIVATE KEY\n", "on\n"):
        lines.feed(piece)
        lines.flush()
    os.close(descriptor)

    assert path.read_text() == "so\n*** PRIVATE KEY\non\n"


PIECES = st.lists(st.text(st.sampled_from("ab\n\r \x1b[2KAé\x08"), max_size=12), max_size=20)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("screen")


@given(pieces=PIECES)
def test_how_output_is_cut_and_when_it_is_written_changes_nothing(pieces: list[str]) -> None:
    texts = []
    for cut, flush in (
        (pieces, True),
        (pieces, False),
        (["".join(pieces)], True),
        (list("".join(pieces)), True),
    ):
        path = Path(os.environ["HOME"]) / "lines.txt"
        path.unlink(missing_ok=True)
        texts.append(shown(path, *cut, flush=flush))

    assert len(set(texts)) == 1
