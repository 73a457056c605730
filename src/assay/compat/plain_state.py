"""State of objects of the user that older systems do not save, for the checkpoints of assay."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from inspect import signature
from typing import Any


class PlainState:
    """Object whose plain attributes are its state: a best value, a count, a history.

    Left out are those whose name begins with `_` or is that of an argument of the constructor.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes that are numbers, texts, or lists and mappings of such."""
        arguments = signature(type(self)).parameters
        return {
            name: deepcopy(value)
            for name, value in vars(self).items()
            if name[:1] != "_" and name not in arguments and _is_plain(value)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the attributes."""
        vars(self).update(deepcopy(dict(state)))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)
