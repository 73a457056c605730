"""Checks of the criterion: that there is one, and `[process] criterion_args` against its call."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from assay.build.graph import expected_type
from assay.build.parameters import Signature, injectable, signature_of
from assay.build.targets import TargetError, find_target
from assay.config.tree import KeyPath, Leaf, Table, dotted, get_at, walk
from assay.core.diagnostics import Problem
from assay.core.errors import choose

_PATH: KeyPath = ("process", "criterion_args")


def check_criteria(
    root: Table, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()
) -> list[Problem]:
    """Return a problem if nothing uses [criterion]: [process] has its own, or no call takes one.

    Call it inside `user_code(user_dirs)`.
    """
    is_referred_to = any(
        isinstance(node, Leaf) and str(node.value).startswith("@criterion")
        for _, node in walk(root)
    )
    if "criterion" not in root.items or is_referred_to:
        return []
    if not isinstance(get_at(root, ("process", "criterion")), Table):
        try:
            targets = {
                path: find_target(node.target, user_dirs=user_dirs, trusted=trusted)
                for path, node in walk(root)
                if isinstance(node, Table) and node.target is not None
            }
        except TargetError:  # told elsewhere
            return []
        criterion = targets.pop(("criterion",), None)
        if ("process",) not in targets or any(_may_take(t, criterion) for t in targets.values()):
            return []
        return [
            Problem(
                kind="unused-key",
                severity="warning",
                message="[criterion] is never used: nothing here takes a `criterion`",
                origin=root.key_origin("criterion"),
                key="criterion",
                fix="let `__init__` of the process take `criterion`, or remove [criterion]",
            )
        ]
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


def _may_take(target: Any, criterion: Any) -> bool:
    """Return whether a call takes the criterion, by its name or its type, or takes anything."""
    signature = signature_of(target)
    if signature is None or signature.var_kwargs is not None:
        return True
    hints = {injectable(each.hint) for each in signature.named}
    return "criterion" in signature.by_keyword() or criterion in hints


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
