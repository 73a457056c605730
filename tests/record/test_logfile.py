"""The log of a run."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from assay.record.logfile import close_log, logger_of, open_log


def test_a_line_has_date_level_and_message(tmp_path: Path) -> None:
    handler = open_log(tmp_path / "log.txt", "a")
    logging.getLogger("assay").info("hello %s", "world")
    logging.getLogger("assay.engine").error("from a room")
    close_log(handler)

    first, second = (tmp_path / "log.txt").read_text().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    \[a\] test_logfile\.py:\d+  hello world",
        first,
    )
    assert re.search(r"ERROR   \[a\] test_logfile\.py:\d+  from a room$", second)


def test_text_that_is_no_utf8_is_escaped_and_not_lost(tmp_path: Path) -> None:
    handler = open_log(tmp_path / "log.txt", "a")
    logging.getLogger("assay").warning("odd \ud800 end")
    close_log(handler)

    assert "odd \\ud800 end" in (tmp_path / "log.txt").read_text()


def test_other_packages_do_not_write_into_it(tmp_path: Path) -> None:
    handler = open_log(tmp_path / "log.txt", "a")
    logging.getLogger("somebody.else").warning("not for us")
    close_log(handler)

    assert not (tmp_path / "log.txt").exists()


def test_a_level_that_the_user_chose_is_kept(tmp_path: Path) -> None:
    logger = logging.getLogger("assay")
    logger.setLevel(logging.ERROR)
    try:
        handler = open_log(tmp_path / "log.txt", "a")
        logger.warning("too quiet")
        close_log(handler)
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(logging.NOTSET)

    assert not (tmp_path / "log.txt").exists()


def test_the_level_goes_back_when_the_last_of_several_is_closed(tmp_path: Path) -> None:
    first, second = open_log(tmp_path / "1.txt", "a"), open_log(tmp_path / "2.txt", "b")
    close_log(first)
    assert logging.getLogger("assay").level == logging.INFO

    close_log(second)

    assert logging.getLogger("assay").level == logging.NOTSET


def test_warnings_still_reach_a_person_who_set_up_no_logging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    first, second = open_log(tmp_path / "1.txt", "a"), open_log(tmp_path / "2.txt", "b")

    logging.getLogger("assay").warning("to all")
    logger_of("b").warning("to b")
    logger_of("b").info("quietly")
    close_log(first)
    close_log(second)

    assert capsys.readouterr().err == "to all\nto b\n"


def test_a_person_who_set_up_logging_is_not_told_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    root = logging.Handler()
    root.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger(), "handlers", [root])
    handler = open_log(tmp_path / "log.txt", "a")

    logging.getLogger("assay").warning("once")
    close_log(handler)

    assert heard == ["once"]
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="a full disk for tests is there on Linux only"
)
def test_a_full_disk_paints_no_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    handler = open_log(Path("/dev/full"), "a")
    try:
        logging.getLogger("assay").info("lost")
    finally:
        logging.getLogger("assay").removeHandler(handler)
        if handler.stream is not None:
            with pytest.raises(OSError, match="No space"):
                handler.stream.close()
            handler.stream = None
        close_log(handler)

    assert "Traceback" not in capsys.readouterr().err
