"""Source of functions, classes and modules, kept by content with the run that used them."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from assay.core.errors import InputError
from assay.core.secrets.replacement import Secrets
from assay.record.recordable import name_value


def source_of(thing: Any, secrets: Secrets) -> tuple[str, bytes]:
    """Its name and its source, without secrets. InputError when Python cannot find the source."""
    target = inspect.unwrap(thing) if callable(thing) else thing
    if isinstance(target, ModuleType):
        name = target.__name__
    else:
        name = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}".strip(
            "."
        )
    try:
        text = inspect.getsource(target)
    except (OSError, TypeError) as error:
        raise InputError(
            f"The code of {name or name_value(thing)} cannot be read.",
            fix="Give a function, a class or a module that is written in a file.",
        ) from error
    return name, secrets.clean(text, "code").encode("utf-8", "surrogateescape")
