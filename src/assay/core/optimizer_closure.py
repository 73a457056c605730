"""Check for optimizers, such as LBFGS, whose step needs a closure that evaluates the loss again."""

from __future__ import annotations

import inspect


def needs_closure(optimizer: type) -> bool:
    """Return whether `step` of an optimizer class cannot be called without arguments."""
    try:
        step = getattr(optimizer, "step")  # noqa: B009 - of any class
        _, *parameters = inspect.signature(step).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return False
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(
        each.default is inspect.Parameter.empty and each.kind not in free for each in parameters
    )
