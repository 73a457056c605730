"""Place and fix of an error that a model raised: the module, its input, a name that is near."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from assay.core.errors import did_you_mean

_SHAPES = re.compile("shapes cannot be multiplied|size of tensor|[Ee]xpected input|size mismatch")
"""Words of torch's errors about shapes, which name neither module nor its input."""
_NO_ATTRIBUTE = re.compile(r"'(?P<type>\w+)' object has no attribute '(?P<name>\w+)'")
_REHEARSE = "assay check CONFIG --rehearse shows the shapes in all modules"
_WIDTHS = {"in_features": -1, "in_channels": 1, "num_features": 1}
"""Argument of torch's modules -> the dimension of their input that it is the size of."""


def failure_hint(error: BaseException) -> list[str]:
    """Return the lines `at:` and `fix:` of an error that a model raised; none for another one."""
    if isinstance(error, AttributeError):
        return [f"  fix: {near}" for near in [_nearest_attribute(error)] if near]
    if not _SHAPES.search(str(error)):
        return []
    found = _innermost_module(error)
    if found is None:
        return [f"  fix: {_REHEARSE}"]
    name, module, given = found
    what = f"{name} = {module}" if name else type(module).__name__
    lines = [f"  at:  {what}, given {given}"] if given else [f"  at:  {what}"]
    return [*lines, f"  fix: {_fitting(module, given)}{_REHEARSE}"]


def _nearest_attribute(error: AttributeError) -> str:
    """Return "did you mean ...?" for an attribute that is near the one that was missing."""
    found = _NO_ATTRIBUTE.search(str(error))
    if found is None:
        return ""
    for frame in reversed([*_frames(error)]):
        owner = next(
            (each for each in frame.f_locals.values() if type(each).__name__ == found["type"]), None
        )
        if owner is not None:
            names = [name for name in dir(owner) if not name.startswith("__")]
            return did_you_mean(found["name"], names)
    return ""


def _innermost_module(error: BaseException) -> tuple[str, Any, str] | None:
    """Return name, module and input of the module that was called last, None without one."""
    called = [frame for frame in _frames(error) if _is_module(frame.f_locals.get("self"))]
    if not called:
        return None
    root = called[0].f_locals["self"]
    last = called[-1]
    module = last.f_locals["self"]
    name = next((name for name, each in root.named_modules() if each is module), "")
    code = last.f_code
    arguments = [last.f_locals.get(each) for each in code.co_varnames[1 : code.co_argcount]]
    return name, module, ", ".join(_describe(each) for each in arguments if hasattr(each, "dtype"))


def _is_module(value: Any) -> bool:
    # torch is not imported for this: without it there is no module.
    return any(base.__module__ == "torch.nn.modules.module" for base in type(value).__mro__)


def _describe(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {[*tensor.shape]}"


def _fitting(module: Any, given: str) -> str:
    """Return the argument with which a module of torch takes its input, or nothing."""
    shape = given.partition("[")[2].partition("]")[0]
    sizes = shape.split(", ")
    for argument, dimension in _WIDTHS.items():
        wanted = getattr(module, argument, None)
        if isinstance(wanted, int) and len(sizes) > abs(dimension) - (dimension < 0):
            return f"write {argument}={sizes[dimension]}, or give it {wanted} of them; "
    return ""


def _frames(error: BaseException) -> Iterator[FrameType]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame
