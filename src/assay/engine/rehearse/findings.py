"""Meaning of an error of a step: its kind, the module, and the line of the user's code."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from traceback import walk_tb

import torch

from assay.core.errors import AssayError
from assay.engine.optim.criterion import CriterionError
from assay.engine.optim.denominators import UnknownDenominatorError
from assay.engine.rehearse.fake import is_data_dependent, is_device_mismatch
from assay.engine.rehearse.module_stack import ModuleCall
from assay.formats.rehearsal import Finding, Kind

_TORCH = str(Path(torch.__file__).parent) + os.sep
_ASSAY = str(Path(__file__).parents[2]) + os.sep
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_VALUE = re.compile(r"out of (range|bounds)|between 0 and 1")
_DTYPE = re.compile(r"dtype|scalar type|data type|Input type|[Tt]ype promoting")
_SHAPE = re.compile(
    r"shape|size|dim|elements|mat1|mat2|broadcast|channel|must match|reduction|stride|view|numel"
    r"|length",
    re.IGNORECASE,
)


def finding_of(error: BaseException, open_calls: Sequence[ModuleCall], behind: str = "") -> Finding:
    """Return the finding for an error that a step raised.

    `open_calls` are the modules at work, the innermost last; `behind` is the module whose gradient
    was computed last, for an error of the backward pass.
    """
    call = open_calls[-1] if open_calls else None
    source, line = user_line(error)
    return Finding(
        kind=error_kind(error),
        message=_message_of(error),
        module=call.name if call is not None else behind,
        given=call.given if call is not None else "",
        source=source,
        line=line,
        code=linecache.getline(source, line).strip() if line else "",
        fix=error.fix if isinstance(error, AssayError) else "",
    )


def unchecked_finding(
    message: str, error: BaseException | None = None, module: str = ""
) -> Finding:
    """Return a finding for something that could not be tried, with the line where it stopped."""
    if error is None:
        return Finding(kind="unchecked", message=message)
    source, line = user_line(error)
    code = linecache.getline(source, line).strip() if line else ""
    return Finding(
        kind="unchecked", message=message, module=module, source=source, line=line, code=code
    )


def why_not(error: BaseException) -> str:
    """Return in a few words why something could not be tried."""
    if is_data_dependent(error):
        operation = str(error).removeprefix("aten.").partition(".")[0]
        return f"it depends on values, which fake tensors do not have ({operation.lstrip('_')})"
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def error_kind(error: BaseException) -> Kind:
    """Return the kind of an error, by its class and its words."""
    if isinstance(error, CriterionError) and error.__cause__ is not None:
        error = error.__cause__
    said = str(error)
    if isinstance(error, UnknownDenominatorError):
        return "loss"
    if isinstance(error, AssayError):
        return "error"
    if is_device_mismatch(error):
        return "device"
    if not isinstance(error, RuntimeError | ValueError | IndexError | TypeError):
        return "error"
    kinds: tuple[tuple[Kind, re.Pattern[str]], ...] = (
        ("dtype", _DTYPE),
        ("value", _VALUE),
        ("shape", _SHAPE),
    )
    return next((kind for kind, words in kinds if words.search(said)), "error")


def user_line(error: BaseException) -> tuple[str, int]:
    """Return file and line of the innermost frame in the user's code.

    Where there is none: that of a library between the user and torch; ("", 0) for torch alone.
    """
    library = ("", 0)
    own = ("", 0)
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith((_TORCH, _ASSAY, "<")):
            continue
        if os.path.realpath(file).startswith(_LIBRARIES):
            library = (file, line)
        else:
            own = (file, line)
    return own if own[0] else library


def is_from_torch(error: BaseException) -> bool:
    """Return True if torch itself raised `error`, and no code between it and the module."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    names = [frame.f_globals.get("__name__", "") for frame in frames]
    while names and names[-1].startswith("assay.engine.rehearse."):
        names.pop()
    return bool(names) and names[-1].partition(".")[0] == "torch"


def _message_of(error: BaseException) -> str:
    if isinstance(error, AssayError):
        return error.what
    text = why_not(error).strip()
    named = (
        () if isinstance(error, RuntimeError | ValueError | IndexError) else type(error).__name__
    )
    return f"{named}: {text}" if named and text != named else text
