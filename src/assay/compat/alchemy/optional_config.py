"""Optional arguments of a call, out of a config."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from assay.build.parameters import signature_of
from assay.core.errors import InputError

_LOGGER = logging.getLogger("assay")


def filter_optional_cfg(
    first: Mapping[str, Any] | Callable[..., Any] | Iterable[str],
    second: Mapping[str, Any] | Callable[..., Any] | Iterable[str],
) -> dict[str, Any]:
    """Return the optional arguments of a function that a config has; warn of each it has not.

    The config is the mapping of the two; the other is the function, or the names of arguments.

    >>> filter_optional_cfg({"lr": 0.1, "dim": 3}, ["lr"])
    {'lr': 0.1}
    """
    config, names = (first, second) if isinstance(first, Mapping) else (second, first)
    if not isinstance(config, Mapping):
        raise InputError("filter_optional_cfg takes a config and a function, or names.")
    defaults = _defaults_of(names)
    found = {}
    for name, default in defaults.items():
        if name in config:
            found[name] = config[name]
        else:
            _LOGGER.warning("`%s` is not in the config%s", name, default)
    return found


def _defaults_of(names: Any) -> dict[str, str]:
    """Return the optional arguments, each with what is said of its default."""
    if not callable(names):
        return dict.fromkeys(names, ": the default counts")
    signature = signature_of(names)
    optional = [each for each in signature.named if not each.required] if signature else []
    return {each.name: f": the default {each.default!r} counts" for each in optional}
