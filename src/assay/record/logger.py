"""Logger of dated lines on the console and in files, with one line rewritten in place.

It stands on the standard library's `logging` and leaves the root logger alone. While runs are open,
lines go to their `log.txt` as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from assay.core.errors import InputError, did_you_mean
from assay.core.terminal import cell_count, fit_columns
from assay.record.logfile import SHOWN_KEY, RunLogs, formatter

FORMAT = "%(asctime)s %(levelname)s %(message)s"
DATE_FORMAT = "%y-%m-%d %H:%M:%S"
THROTTLE_S = 1.0
"""Where no line can be rewritten, `inline` writes one so often."""

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
Listener = Callable[[str, str], object]


class Logger:
    """Thread-safe logger that writes to the console (stderr), to files, and to listeners.

    `fmt` and `datefmt` are those of `logging.Formatter`; `level` is the least that the console and
    files take.
    """

    def __init__(
        self,
        name: str = "log",
        *,
        level: str = "info",
        fmt: str = FORMAT,
        datefmt: str = DATE_FORMAT,
        stream: TextIO | None = None,
        console: bool = True,
    ) -> None:
        self.name = name
        self.level = _level(level)
        self._formatter = formatter(name, fmt, datefmt)
        # Not from the registry of `logging`: two loggers of one name have nothing to do with each
        # other.
        self._logger = logging.Logger(name, level=1)
        self._logger.addHandler(RunLogs())
        self._console = _Console(stream) if console else None
        self._inline = _Throttle()
        if self._console is not None:
            self._add(self._console)

    def debug(self, *values: object, prefix: object = "") -> None:
        self._say(logging.DEBUG, values, prefix)

    def info(self, *values: object, prefix: object = "") -> None:
        """Log one line: the prefix and `str` of the values, separated by blanks, never cut."""
        self._say(logging.INFO, values, prefix)

    def warning(self, *values: object, prefix: object = "") -> None:
        self._say(logging.WARNING, values, prefix)

    warn = warning  # the name in thexp

    def error(self, *values: object, prefix: object = "", exc_info: Any = False) -> None:
        """With `exc_info=True`, inside of an `except`, the traceback follows."""
        self._say(logging.ERROR, values, prefix, exc_info=exc_info)

    def fatal(self, *values: object, prefix: object = "", exc_info: Any = False) -> None:
        self._say(logging.CRITICAL, values, prefix, exc_info=exc_info)

    def inline(self, *values: object, prefix: object = "") -> None:
        """A line that is written over by the next one, cut to the width of the terminal.

        Where there is no terminal, and in files, it becomes a line of its own about once a second.
        """
        if self.level > logging.INFO:
            return
        text = " ".join(_text(values, prefix).splitlines())
        on_terminal = self._console is not None and self._console.is_terminal
        if on_terminal and self._console is not None:
            self._console.inline(self._format(text))
        if self._inline.is_due():
            extra = {SHOWN_KEY: self._console is not None, _DRAWN: on_terminal}
            self._logger.info("%s", text, extra=extra, stacklevel=2)

    def add_log_file(self, path: str | os.PathLike[str], *, level: str = "debug") -> Path:
        """Write lines to a file, too, at its end. The same file a second time is no second one."""
        file = Path(os.path.abspath(path))
        held = [each for each in self._logger.handlers if isinstance(each, logging.FileHandler)]
        if str(file) not in [each.baseFilename for each in held]:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.FileHandler(
                file, encoding="utf-8", errors="backslashreplace", delay=True
            )
            self._add(handler, max(_level(level), self.level))
        return file

    def add_log_dir(self, folder: str | os.PathLike[str]) -> Path:
        """Write lines to `<name>.log` in a folder, too."""
        return self.add_log_file(Path(folder) / f"{self.name}.log")

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(level, text)` for each line of any level; what is returned ends that."""
        handler = _Listening(listener)
        self._logger.addHandler(handler)
        return lambda: self._logger.removeHandler(handler)

    def close(self) -> None:
        """Close the files. A line that is being rewritten stays as it is."""
        if self._console is not None:
            self._console.end_line()
        for handler in list(self._logger.handlers):
            self._logger.removeHandler(handler)
            handler.close()

    def _say(
        self, level: int, values: tuple[object, ...], prefix: object, *, exc_info: Any = False
    ) -> None:
        # Whose line it is stands three calls up: this one, `info` and its like, the program.
        extra = {SHOWN_KEY: self._console is not None}
        self._logger.log(
            level, "%s", _text(values, prefix), exc_info=exc_info, stacklevel=3, extra=extra
        )

    def _add(self, handler: logging.Handler, level: int | None = None) -> None:
        handler.setFormatter(self._formatter)
        handler.setLevel(self.level if level is None else level)
        self._logger.addHandler(handler)

    def _format(self, text: str) -> str:
        record = self._logger.makeRecord(self.name, logging.INFO, "", 0, "%s", (text,), None)
        return self._formatter.format(record)


_DRAWN = "assay_drawn"


class _Console(logging.StreamHandler[TextIO]):
    """Lines on a stream, with at most one at the end that is still being rewritten."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or sys.stderr)
        self._is_open = False
        self.is_terminal = self.stream.isatty() and os.environ.get("TERM") not in (
            "dumb",
            "unknown",
        )

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, _DRAWN, False):
            return
        if self._is_open:
            self.stream.write("\r\x1b[K")
            self._is_open = False
        super().emit(record)

    def inline(self, text: str) -> None:
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            # One column stays free: a terminal goes to the next line as soon as the last one is
            # full.
            self.stream.write("\r" + cut(text, self._width() - 1) + "\x1b[K")
            self.stream.flush()
            self._is_open = True

    def end_line(self) -> None:
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            if self._is_open:
                self.stream.write("\n")
                self.stream.flush()
            self._is_open = False

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80


class _Listening(logging.Handler):
    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = "fatal" if record.levelno == logging.CRITICAL else record.levelname.lower()
            self._listener(level, record.getMessage())
        except Exception:
            # A listener's mistake is shown as those of handlers are, and stops no line.
            self.handleError(record)


class _Throttle:
    """True at most once in `THROTTLE_S`, at first at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0

    def is_due(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if 0 < self._next - now <= THROTTLE_S:
                return False
            self._next = now + THROTTLE_S
            return True


def cut(text: str, columns: int) -> str:
    """Return the part of `text` that fits into `columns` of a terminal, ended by "…" where cut.

    >>> cut("loss 0.5", 20), cut("loss 0.5", 6), cut("損失 0.5", 6)
    ('loss 0.5', 'loss …', '損失 …')
    """
    text = "".join(char for char in text if char.isprintable())
    if cell_count(text) <= columns:
        return text
    return fit_columns(text, columns - 1) + "…" if columns > 0 else ""


def _text(values: tuple[object, ...], prefix: object) -> str:
    return " ".join(str(value) for value in (*([prefix] if prefix != "" else []), *values))


def _level(name: str) -> int:
    try:
        return LEVELS[name.lower()]
    except (KeyError, AttributeError):
        fix = did_you_mean(str(name), LEVELS) or f"One of {', '.join(LEVELS)}."
        raise InputError(f"There is no log level {name!r}.", fix=fix) from None
