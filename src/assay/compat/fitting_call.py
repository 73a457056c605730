"""Calls of methods of the user, which take of what is offered as much as they like."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any


def call_fitting(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call a function with the arguments that it takes: by name, or by position, or none.

    >>> call_fitting(lambda epoch, logs=None: epoch, "trainer", epoch=3, logs={}, idx=1)
    3
    >>> call_fitting(lambda who: who, "trainer", epoch=3)
    'trainer'
    """
    parameters = signature(function).parameters.values()
    takes = [each for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    by_name = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} & named.keys()
    if by_name:
        return function(**{name: named[name] for name in named if takes_any or name in by_name})
    return function(*positional[: len(takes)], **(named if takes_any else {}))
