"""Checks of the criterion: that there is one, and `[process] criterion_args` against its call."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from assay.build.graph import expected_type
from assay.build.parameters import Signature, signature_of
from assay.config.tree import KeyPath, Leaf, Table, dotted, get_at, walk
from assay.core.diagnostics import Problem
from assay.core.errors import choose

_PATH: KeyPath = ("process", "criterion_args")


def check_criteria(root: Table) -> list[Problem]:
    """Return a problem if [process] has a criterion of its own beside [criterion]."""
    own = get_at(root, ("process", "criterion"))
    is_referred_to = any(
        isinstance(node, Leaf) and str(node.value).startswith("@criterion")
        for _, node in walk(root)
    )
    if "criterion" not in root.items or not isinstance(own, Table) or is_referred_to:
        return []
    return [
        Problem(
            kind="clash",
            message="[process] has a `criterion` of its own, so that [criterion] is never used",
            origin=root.key_origin("criterion"),
            key="criterion",
            fix='leave one of them out, or write criterion = "@criterion" under [process]',
        )
    ]


def check_criterion_args(
    root: Table, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()
) -> list[Problem]:
    """Return a problem for each argument that the criterion does not have.

    Call it inside `user_code(user_dirs)`.
    """

    def kind(*path: str) -> Any:
        return expected_type(root, path, user_dirs=user_dirs, trusted=trusted)

    given = get_at(root, _PATH)
    if not isinstance(given, Table) or not _is_supervised(kind("process")):
        return []
    criterion = kind("process", "criterion") or kind("criterion")
    signature = _signature_of_call(criterion)
    if signature is None or signature.var_kwargs is not None:
        return []
    known = list(signature.by_keyword())[1:]  # without self
    return [
        Problem(
            kind="unknown-argument",
            message=f"`{criterion.__name__}` is not called with an argument `{name}`",
            origin=given.key_origin(name),
            key=dotted((*_PATH, name)),
            fix=choose(name, known, "it takes"),
        )
        for name in given.items
        if name not in known
    ]


def _is_supervised(process: Any) -> bool:
    supervised = getattr(sys.modules.get("assay.engine.loop.process"), "Supervised", None)
    return supervised is not None and isinstance(process, type) and issubclass(process, supervised)


def _signature_of_call(criterion: Any) -> Signature | None:
    """Return the signature of what a call of a criterion runs, `self` included."""
    if not isinstance(criterion, type):
        return None
    calls = (getattr(criterion, name, None) for name in ("forward", "__call__"))
    call = next(filter(callable, calls), None)
    return None if call is None else signature_of(call)
