"""Lines for people: on a terminal, in a pipe, in files, and for whoever listens."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

import assay
from assay.core.errors import InputError
from assay.record.logger import THROTTLE_S, Logger, cut
from assay.record.meter import Meter

SRC = Path(__file__).resolve().parents[2] / "src"
DATED = r"\d\d-\d\d-\d\d \d\d:\d\d:\d\d"


def python(text: str, **pipes: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(SRC), "TERM": "xterm"},
        text=True,
        **pipes,  # type: ignore[call-overload]
    )


def on_terminal(text: str, columns: int) -> bytes:
    """What a program writes to a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
    with python(text, stdin=slave, stdout=slave, stderr=slave) as script:
        os.close(slave)
        seen = b""
        try:
            while data := os.read(master, 1 << 16):
                seen += data
        except OSError:
            pass
        assert script.wait(60) == 0
    os.close(master)
    return seen


@pytest.mark.row("C23")
def test_one_dated_line_for_many_values_with_a_prefix() -> None:
    stream = io.StringIO()
    logger = Logger(stream=stream)

    logger.info(1, 2, 3, {4: 4}, prefix="x")

    assert re.fullmatch(rf"{DATED} INFO x 1 2 3 {{4: 4}}\n", stream.getvalue())


@pytest.mark.row("C23")
def test_five_levels_of_which_the_lower_ones_are_left_out() -> None:
    for level, shown in [("debug", 5), ("info", 4), ("warning", 3), ("error", 2), ("fatal", 1)]:
        stream = io.StringIO()
        logger = Logger(level=level, stream=stream)
        logger.debug("d")
        logger.info("i")
        logger.warning("w")
        logger.error("e")
        logger.fatal("f")

        names = [line.split()[2] for line in stream.getvalue().splitlines()]
        assert names == ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"][5 - shown :]


def test_a_level_that_does_not_exist_is_told_with_its_neighbour() -> None:
    with pytest.raises(InputError, match="did you mean `warning`"):
        Logger(level="warnign")


INLINE = """
from assay import Logger, Meter
logger = Logger()
meter = Meter()
meter.a = 3.13524635465
meter.b = "long text;" * 10
for i in range(50):
    logger.inline(meter, prefix="examples")
    if i == 25:
        logger.info("w" * 100)
logger.close()
"""


@pytest.mark.row("C24", "C25")
def test_on_a_narrow_terminal_an_inline_line_never_wraps_and_others_are_whole() -> None:
    seen = on_terminal(INLINE, 40).decode()

    before, _, after = seen.partition("w" * 100)
    drawn = re.findall(r"\r([^\r\n]*)\x1b\[K", before) + re.findall(r"\r([^\r\n]*)\x1b\[K", after)
    inline = [line for line in drawn if line]
    assert len(inline) == 50
    assert {len(line) for line in inline} == {39}
    assert all(line.endswith("…") and " examples @a=" in line for line in inline)
    assert seen.count("\n") == 2  # the whole line, and the end of the last inline one
    assert f"INFO {'w' * 100}\r\n" in seen


@pytest.mark.row("C24")
def test_in_a_pipe_inline_lines_are_plain_and_few() -> None:
    with python(INLINE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as script:
        _, errors = script.communicate(timeout=60)

    lines = errors.splitlines()
    assert "\r" not in errors and "\x1b" not in errors
    assert 2 <= len(lines) <= 3
    assert lines[0].endswith("long text;" * 10)


def test_inline_is_throttled_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("assay.record.logger.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    logger = Logger(stream=stream)

    for i in range(30):
        logger.inline(i)
        now[0] += THROTTLE_S / 8

    assert [line.split()[-1] for line in stream.getvalue().splitlines()] == ["0", "8", "16", "24"]


@pytest.mark.row("C25")
def test_a_long_meter_is_printed_whole() -> None:
    stream = io.StringIO()
    meter = Meter()
    meter.text = "x" * 500

    Logger(stream=stream).info(meter)

    assert f"@text={'x' * 500}\n" in stream.getvalue()


def test_what_is_cut_has_room_for_wide_characters() -> None:
    assert [cut("損失 0.5 it", columns) for columns in (0, 1, 2, 3, 4, 11, 12)] == [
        "",
        "…",
        "…",
        "損…",
        "損…",
        "損失 0.5 it",
        "損失 0.5 it",
    ]
    assert cut("a\x1b[2Jb\nc", 20) == "a[2Jbc"


@pytest.mark.row("C26")
def test_a_folder_that_is_added_twice_has_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logger = Logger("train", console=False)

    path = logger.add_log_dir(tmp_path / "logs")
    logger.add_log_dir("logs")
    for i in range(3):
        logger.info(i)
    logger.close()

    assert path == tmp_path / "logs" / "train.log"
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["0", "1", "2"]


@pytest.mark.row("C27")
def test_lines_of_eight_threads_are_not_torn(tmp_path: Path) -> None:
    stream = io.StringIO()
    logger = Logger(fmt="%(message)s", stream=stream)
    path = logger.add_log_file(tmp_path / "log.txt")

    def work(name: str) -> None:
        for i in range(1000):
            logger.info(name, i, name * 20)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.close()

    for lines in (stream.getvalue().splitlines(), path.read_text().splitlines()):
        assert sorted(lines) == sorted(
            f"{name} {i} {name * 20}" for name in "abcdefgh" for i in range(1000)
        )
        for name in "abcdefgh":
            own = [int(line.split()[1]) for line in lines if line[0] == name]
            assert own == list(range(1000))


@pytest.mark.row("C28")
def test_a_listener_gets_level_and_text_until_it_has_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard: list[tuple[str, str]] = []
    logger = Logger(level="error", stream=io.StringIO())
    enough = logger.listen(lambda level, text: heard.append((level, text)))

    logger.debug("quiet", 1)
    logger.fatal("loud", prefix="p")
    enough()
    logger.info("unheard")

    assert heard == [("debug", "quiet 1"), ("fatal", "p loud")]


def test_a_listener_that_fails_stops_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    logger = Logger(stream=stream)
    logger.listen(lambda level, text: 1 / 0)

    logger.info("goes on")

    assert "goes on" in stream.getvalue()
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.row("B12")
def test_one_call_sets_level_and_format() -> None:
    stream = io.StringIO()
    logger = Logger(
        "mnist",
        level="info",
        fmt="%(asctime)s - %(name)s - %(levelname)s - %(message)s",
        stream=stream,
    )

    logger.debug("no")
    logger.info("yes")

    assert re.fullmatch(rf"{DATED} - mnist - INFO - yes\n", stream.getvalue())


@pytest.mark.row("B13")
def test_importing_and_using_it_leaves_the_root_logger_alone() -> None:
    text = """
import logging
import assay, assay.record.recorder, assay.record.logger, assay.script
logger = assay.Logger()
logger.add_log_file("own.log")
logger.info("x")
root = logging.getLogger()
print(root.handlers, root.level, logging.lastResort is not None)
"""
    with python(
        text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=os.environ["HOME"]
    ) as script:
        out, _ = script.communicate(timeout=60)

    assert out == "[] 30 True\n"


@pytest.mark.row("B14")
def test_a_format_of_dates_can_be_chosen() -> None:
    stream = io.StringIO()

    Logger(stream=stream, datefmt="%Y/%m/%d %H:%M:%S").warning("late")

    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d WARNING late\n", stream.getvalue())


def test_a_format_that_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="log format"):
        Logger(fmt="%(message")


@pytest.mark.row("B15")
def test_a_traceback_goes_to_screen_and_file_and_the_program_goes_on(tmp_path: Path) -> None:
    stream = io.StringIO()
    logger = Logger(
        "tutorial", fmt="%(asctime)s - %(name)s - %(levelname)s - %(message)s", stream=stream
    )
    path = logger.add_log_file(tmp_path / "result.log")

    logger.info("Start")
    logger.warning("Something maybe fail.")
    try:
        10 / 0  # noqa: B018
    except Exception:
        logger.error("Faild to get result", exc_info=True)
    logger.info("Finished")
    logger.close()

    text = path.read_text()
    assert text == stream.getvalue()
    first, second, third, *trace, last = text.splitlines()
    assert first.endswith("- tutorial - INFO - Start")
    assert second.endswith("- WARNING - Something maybe fail.")
    assert third.endswith("- ERROR - Faild to get result")
    assert (trace[0], trace[-1]) == (
        "Traceback (most recent call last):",
        "ZeroDivisionError: division by zero",
    )
    assert last.endswith("- INFO - Finished")


def test_lines_of_a_logger_are_in_the_log_of_the_open_run_with_their_place_and_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    logger = Logger(stream=stream)
    with assay.start(tag="my run", project=tmp_path) as run:
        logger.warning("careful")
        logger.debug("not asked for")
    logger.info("too late")

    assert run.folder is not None
    (line,) = run.folder.log.read_text().splitlines()
    assert re.search(r"WARNING \[my run\] test_logger\.py:\d+  careful$", line)
    assert "careful" not in capsys.readouterr().err
    assert stream.getvalue().count("careful") == 1
