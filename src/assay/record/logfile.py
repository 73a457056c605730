"""`log.txt` of a run: what the program logs through the logger "assay" while the run is open."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

LOGGER = "assay"
RUN_KEY = "assay_run"
"""An attribute of a log record: the id of the one run that it is about. Without it, it is about all that are open."""

_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


class RunLog(logging.FileHandler):
    """Writes the log of one run. Attached to our own logger only, never to the root."""

    def __init__(self, path: Path, run_id: str) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self.run_id = run_id
        self.made_level = False
        self._pid = os.getpid()
        self.setFormatter(logging.Formatter(_FORMAT))

    def filter(self, record: logging.LogRecord) -> bool:
        if os.getpid() != self._pid:
            return False  # forked from the process that writes this run: its lines are not ours
        return getattr(record, RUN_KEY, self.run_id) == self.run_id and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        # With a handler of ours in place the standard library shows warnings to nobody: do what it would have done.
        if record.levelno >= logging.WARNING and self._speaks_for(record) and logging.lastResort is not None:
            logging.lastResort.handle(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk must not paint a traceback for each line; anything else is shown as usual."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def _speaks_for(self, record: logging.LogRecord) -> bool:
        """Whether nobody else shows this record: no handler but ours, and among ours this one."""
        handlers = logging.getLogger(LOGGER).handlers
        ours = _open_logs()
        if len(handlers) > len(ours) or logging.getLogger().handlers:
            return False
        return hasattr(record, RUN_KEY) or ours[:1] == [self]


def open_log(path: Path, run_id: str) -> RunLog:
    """Let the logger "assay" write to `path` too, from INFO on."""
    handler = RunLog(path, run_id)
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


def _open_logs() -> list[RunLog]:
    return [handler for handler in logging.getLogger(LOGGER).handlers if isinstance(handler, RunLog)]
