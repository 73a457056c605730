"""A traceback as far as it can help whoever wrote the code that failed."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

TRACEBACK_VARIABLE = "ASSAY_TRACEBACK"
"""Set to anything: every frame is shown."""

_HOUSE = str(Path(__file__).resolve().parents[1])
_OTHERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def shortened(error: BaseException) -> str:
    """The traceback of `error` and of what led to it, from the first line of the user's on; whole if there is none."""
    return users_part(error) or "".join(traceback.format_exception(error))


def users_part(error: BaseException) -> str | None:
    """The traceback from the first line of the user's on; None if there is none, or all is to be seen."""
    shown = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = shown
    is_theirs = False
    while link is not None:
        theirs = (i for i, frame in enumerate(link.stack) if not frame.filename.startswith((_HOUSE, *_OTHERS, "<")))
        # A worker of torch's DataLoader raises with the traceback of the process in which it failed.
        first = len(link.stack) if "\nOriginal Traceback" in str(link) else next(theirs, None)
        if first is not None:
            is_theirs = True
            del link.stack[:first]
        link = link.__cause__ or link.__context__
    return "".join(shown.format()) if is_theirs and not os.environ.get(TRACEBACK_VARIABLE) else None
