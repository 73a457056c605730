"""A traceback as far as it can help whoever wrote the code that failed."""

from __future__ import annotations

import os
import re
import traceback

from assay.core.code_places import HOUSE, is_of_house, is_of_user

TRACEBACK_VARIABLE = "ASSAY_TRACEBACK"
"""Set to anything: every frame is shown."""

BUILDING = "while building "
"""Prefix of the note that says which place of a config an error came from."""

_LIST_FOR_TENSOR = re.compile(r"must be Tensor, not list|cannot assign 'list' object to (buffer|p)")
_ANNOTATE = (
    "fix: a list of the config becomes a tensor where its argument is annotated torch.Tensor, as in"
    " `weight: torch.Tensor | None = None`"
)

_BUILDER = os.path.join(HOUSE, "build", "builder.py")
"""Path of the module that calls targets: a target in C has no frame of its own."""

_IN_WORKER = "in loader worker "


def shorten(error: BaseException) -> str:
    """Return the traceback of `error` and its causes from the user's first line on, else whole."""
    return users_part(error) or "".join(traceback.format_exception(error))


def users_part(error: BaseException) -> str | None:
    """Return the traceback from the user's first line on; None if there is none or all is wanted.

    The user's line may also be a line of the config whose value a library has refused.
    """
    shown = traceback.TracebackException.from_exception(error)
    if isinstance(error, TypeError) and _LIST_FOR_TENSOR.search(str(error)):
        shown.__notes__ = [*(shown.__notes__ or ()), _ANNOTATE]
    link: traceback.TracebackException | None = shown
    is_theirs = False
    while link is not None:
        theirs = (i for i, frame in enumerate(link.stack) if is_of_user(frame.filename))
        # A worker that loads data fails in another process, and its error has the traceback of that
        # one.
        in_worker = "\nOriginal Traceback" in str(link) or any(
            map(_is_of_worker, link.__notes__ or ())
        )
        first = len(link.stack) if in_worker else next(theirs, None)
        if first is not None:
            is_theirs = True
            del link.stack[:first]
            link.__notes__ = [
                _users_frames(note) if _is_of_worker(note) else note
                for note in link.__notes__ or ()
            ]
        link = link.__cause__ or link.__context__
    if os.environ.get(TRACEBACK_VARIABLE):
        return None
    return "".join(shown.format()) if is_theirs else _of_config(error)


def _of_config(error: BaseException) -> str | None:
    """Return the place in the config that a library refused, and its error without frames."""
    place = next(
        (note for note in getattr(error, "__notes__", ()) if note.startswith(BUILDING)), None
    )
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if place is None or (frames and is_of_house(frames[-1]) and frames[-1] != _BUILDER):
        return None  # raised by code of assay, the fault may be there
    lines = "".join(traceback.format_exception_only(type(error), error)).splitlines()
    return "\n".join([f"error {place}:", *(f"  {line}" for line in lines if line != place)]) + "\n"


def _is_of_worker(note: str) -> bool:
    return note.startswith(_IN_WORKER)


def _users_frames(note: str) -> str:
    """The traceback of a worker from the first line of the user's on."""
    head, *frames = re.split(r'(?m)^(?=  File ")', note)
    theirs = (i for i, frame in enumerate(frames) if is_of_user(frame.removeprefix('  File "')))
    return head + "".join(frames[next(theirs, 0) :])
