"""Logger with the calls of `loguru`, on which alchemy builds; its lines are in the record."""

from __future__ import annotations

import logging
from typing import Any

from assay.compat.names import UnmappedNameError
from assay.record.logfile import LOGGER


class BraceLogger(logging.LoggerAdapter[logging.Logger]):
    """Logger whose arguments go into the `{}` of a message, or into its `%s` where it has none."""

    def log(self, level: Any, msg: Any, *args: Any, **named: Any) -> None:
        """Log a line of a level, a number or its name."""
        kept = {name: named.pop(name) for name in ("exc_info", "stack_info") if name in named}
        text = str(msg)
        if "{" in text and (args or named):
            text, args = text.format(*args, **named), ()
        number = logging.getLevelName(level) if isinstance(level, str) else level
        # The place of the line is the caller's, not this one.
        self.logger.log(number, text, *args, stacklevel=2, **kept)

    success = logging.LoggerAdapter.info
    trace = logging.LoggerAdapter.debug

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnmappedNameError(
            f"`logger.{name}` of loguru has nothing here that stands for it.",
            fix="leave it out: the lines are in the record; BasicSetup or --debug prints them",
        )


logger = BraceLogger(logging.getLogger(LOGGER))
"""Logger of alchemy's projects; `assay.record.logger.Logger` is that of thexp."""
