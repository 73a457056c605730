"""State as it is given to a saver: its parts and names checked, its tensors on the host."""

from __future__ import annotations

import json
import re
import string
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from assay.core.errors import CheckpointError, InputError
from assay.engine.checkpoint.codec import Encoded
from assay.engine.checkpoint.folder import separate
from assay.engine.checkpoint.tensor_file import Staging
from assay.formats import manifest as manifests

WHOLE = "whole"
"""The one part of a state that is no table of parts."""

_SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MOST_PARTS = 64


def state_parts(state: Any) -> dict[str, Any]:
    """Return a state as parts that can be read alone."""
    if _is_table_of_parts(state):
        return {name: _state_of(value) for name, value in state.items()}
    return {WHOLE: _state_of(state)}


def _is_table_of_parts(state: Any) -> bool:
    if type(state) is not dict or WHOLE in state or not 0 < len(state) <= _MOST_PARTS:
        return False
    if any(isinstance(value, torch.Tensor) for value in state.values()):
        return False
    return all(isinstance(key, str) and _is_safe_part(key) for key in state)


def _is_safe_part(name: str) -> bool:
    return _SAFE_PART.fullmatch(name) is not None and name != "manifest"


def _state_of(value: Any) -> Any:
    """Return the state of an object that has one, else the value itself."""
    own = getattr(value, "state_dict", None)
    return own() if callable(own) else value


def name_from(template: str, step: int, info: Mapping[str, Any]) -> str:
    """Return a name from its template; InputError for an unknown field lists the known ones."""
    values = {"time": time.strftime("%Y%m%d-%H%M%S"), "step": step, "epoch": step, **info}
    name = ""
    for text, field, form, _ in string.Formatter().parse(template):
        name += text
        if field is None:
            continue
        if field not in values:
            raise InputError(
                f"The name {template!r} wants {field!r}.", fix=f"There are: {', '.join(values)}."
            )
        try:
            name += format(values[field], form or "")
        except (TypeError, ValueError) as error:
            raise InputError(
                f"The name {template!r} cannot have {field}={values[field]!r}: {error}."
            ) from error
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", name)


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info as JSON keeps it; CheckpointError for what is neither number nor text."""

    def number(value: Any) -> Any:
        if isinstance(value, torch.Tensor | np.generic):
            return value.item()
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    try:
        return dict(json.loads(json.dumps(dict(info), default=number)))
    except (TypeError, ValueError) as error:
        fix = "Give numbers and text; what is large belongs into the state."
        raise CheckpointError(
            f"The info of a checkpoint is plain data: {error}.", fix=fix
        ) from error


def copy_into(parts: Mapping[str, Encoded], staging: Staging) -> dict[str, Encoded]:
    """Return the parts with copies of their tensors, which lie in `staging`."""
    originals: dict[str, torch.Tensor] = {}
    for part, each in parts.items():
        for name, tensor in each.tensors.items():
            originals[f"{part}/{name}"] = tensor
    copies = staging.copy(originals)
    found: dict[str, Encoded] = {}
    for part, each in parts.items():
        tensors = {name: copies[f"{part}/{name}"] for name in each.tensors}
        found[part] = Encoded(each.tree, tensors, each.boxes)
    return found


def on_host(parts: Mapping[str, Encoded]) -> dict[str, Encoded]:
    """Return the parts with contiguous tensors in host memory."""
    found: dict[str, Encoded] = {}
    for part, each in parts.items():
        found[part] = Encoded(each.tree, separate(each.tensors), each.boxes)
    return found


def check_part_names(name: str, parts: Iterable[str]) -> None:
    """Raise CheckpointError for a name of a checkpoint or a part that is unsafe as a file."""
    for part in parts:
        if not _is_safe_part(part):
            raise CheckpointError(
                f"A part cannot be called {part!r}.", fix="Use letters, digits and _."
            )
    if not manifests.is_safe_name(name):
        raise CheckpointError(
            f"A checkpoint cannot be called {name!r}.", fix="Use letters, digits and _."
        )
