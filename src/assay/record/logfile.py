"""`log.txt` of a run: what the program logs through the logger "assay" while the run is open."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from assay.core.directory import open_directory
from assay.core.errors import InputError
from assay.core.terminal import for_terminal

LOGGER = "assay"
RUN_KEY = "assay_run"
"""An attribute of a log record: the id of the one run that it is about. Without it, it is about all
that are open."""

SHOWN_KEY = "assay_shown"
"""An attribute of a log record: whether a person has seen it already."""

FORMAT = "%(asctime)s %(levelname)-7s [%(tag)s] %(filename)s:%(lineno)d  %(message)s"
"""`tag` is the run's, or its id where it has none."""


class RunLog(logging.FileHandler):
    """Writes the log of one run. Attached to our own logger only, never to the root."""

    def __init__(
        self,
        path: Path,
        run_id: str,
        formatter: logging.Formatter,
        clean: Callable[[str], str] = str,
    ) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self.run_id = run_id
        self.made_level = False
        self._clean = clean
        self._pid = os.getpid()
        self.setFormatter(formatter)

    def _open(self) -> TextIOWrapper:
        """As open as the run's folder; a link in its place is not followed."""
        with open_directory(Path(self.baseFilename).parent, follow=True) as folder:
            descriptor = folder.open(
                Path(self.baseFilename).name, os.O_WRONLY | os.O_CREAT | os.O_APPEND
            )
        return TextIOWrapper(
            os.fdopen(descriptor, "ab"), encoding=self.encoding, errors=self.errors
        )

    def filter(self, record: logging.LogRecord) -> bool:
        if os.getpid() != self._pid:
            return False  # forked from the process that writes this run: its lines are not ours
        return getattr(record, RUN_KEY, self.run_id) == self.run_id and bool(super().filter(record))

    def format(self, record: logging.LogRecord) -> str:
        return self._clean(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened: its folder is gone
            self.handleError(record)
        # With a handler of ours in place the standard library shows warnings to nobody: do what it
        # would have done.
        if (
            record.levelno >= logging.WARNING
            and self._speaks_for(record)
            and logging.lastResort is not None
        ):
            shown = logging.makeLogRecord(
                vars(record) | {"args": None, "msg": _spell_for_terminal(record.getMessage())}
            )
            logging.lastResort.handle(shown)

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk must not paint a traceback for each line; anything else is shown as usual."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def _speaks_for(self, record: logging.LogRecord) -> bool:
        """Return whether no handler but ours shows this record, and among ours this one does."""
        if getattr(record, SHOWN_KEY, False):
            return False
        handlers = [
            each for each in logging.getLogger(LOGGER).handlers if not isinstance(each, Debugging)
        ]
        ours = _open_logs()
        if len(handlers) > len(ours) or logging.getLogger().handlers:
            return False
        return hasattr(record, RUN_KEY) or ours[:1] == [self]


def reopen(log: RunLog) -> None:
    """Let the next line open the file anew: the one before was deleted."""
    with log.lock or contextlib.nullcontext():
        stream, log.stream = log.stream, None
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.close()


class RunLogs(logging.Handler):
    """Handler that passes records of a separate logger on to the logs of the open runs."""

    def emit(self, record: logging.LogRecord) -> None:
        least = logging.getLogger(LOGGER).getEffectiveLevel()
        for log in _open_logs():
            if record.levelno >= least:
                log.handle(record)


class Debugging(logging.StreamHandler[TextIO]):
    """Shows a person what `--debug` adds to the log; warnings are shown anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.INFO and bool(super().filter(record))


@contextlib.contextmanager
def debugging(stream: TextIO | None = None) -> Iterator[None]:
    """Let everything down to DEBUG go to the logs of runs, and show it on `stream` (stderr)."""
    logger = logging.getLogger(LOGGER)
    level = logger.level
    handler = Debugging(stream)
    handler.setFormatter(formatter("assay"))
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def formatter(tag: str, fmt: str = "", datefmt: str = "") -> logging.Formatter:
    """Return the formatter of `log.txt`, or of `fmt` and `datefmt`; InputError for a bad format."""
    defaults = {"tag": " ".join(tag.split())}
    try:
        form = logging.Formatter(fmt or FORMAT, datefmt or None, defaults=defaults)
        form.format(logging.makeLogRecord({"msg": "a line"}))  # a name that no line has
        return form
    except (KeyError, TypeError, ValueError) as error:
        fix = 'fmt="%(asctime)s %(levelname)s %(message)s"'
        raise InputError(f"The log format {fmt!r} cannot be used: {error}.", fix=fix) from error


def open_log(
    path: Path,
    run_id: str,
    form: logging.Formatter | None = None,
    *,
    clean: Callable[[str], str] = str,
) -> RunLog:
    """Let the logger "assay" write to `path` too, from INFO on; `clean` is applied to each line."""
    handler = RunLog(path, run_id, form or formatter(run_id), clean)
    logger = logging.getLogger(LOGGER)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
        handler.made_level = True
    logger.addHandler(handler)
    return handler


def close_log(handler: RunLog) -> None:
    """Undo `open_log`; the level goes back to what it was when the last one is closed."""
    logger = logging.getLogger(LOGGER)
    logger.removeHandler(handler)
    handler.close()
    if handler.made_level and logger.level == logging.INFO:
        heirs = _open_logs()
        if heirs:
            heirs[0].made_level = True
        else:
            logger.setLevel(logging.NOTSET)


def logger_of(run_id: str) -> logging.LoggerAdapter[logging.Logger]:
    """A logger whose lines go to the log of this run and to no other run's."""
    return logging.LoggerAdapter(logging.getLogger(LOGGER), {RUN_KEY: run_id})


def file_logger_of(run_id: str) -> logging.LoggerAdapter[logging.Logger]:
    """A logger whose lines go to the log of this run, and to no handler of anybody else.

    A program that calls `logging.basicConfig` shows what is for people, and not a hundred defaults.
    """
    logger = logging.getLogger(f"{LOGGER}.log")
    if logger.propagate:
        logger.propagate = False
        logger.addHandler(RunLogs())
    return logging.LoggerAdapter(logger, {RUN_KEY: run_id})


def _spell_for_terminal(text: str) -> str:
    return for_terminal(text, color=False)


def _open_logs() -> list[RunLog]:
    return [
        handler for handler in logging.getLogger(LOGGER).handlers if isinstance(handler, RunLog)
    ]
