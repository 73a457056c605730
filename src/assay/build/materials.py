"""Checks for classes of models and optimizers that the engine cannot train as they are."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from assay.build.graph import expected_type
from assay.config.tree import KeyPath, List, Node, Table, problem_at
from assay.core.diagnostics import Problem
from assay.core.optimizer_closure import needs_closure

LAZY_FIX = "give the sizes: nn.Linear(128, 64) in place of nn.LazyLinear(64)"
CLOSURE_FIX = (
    "write the step yourself, as a function that makes `step(batch)`: it may call"
    " optimizer.step(closure) (docs: reference/process); or take another optimizer"
)


def check_materials(
    root: Table, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()
) -> list[Problem]:
    """Return a problem for each lazy module, and each optimizer whose step needs a closure.

    Call it inside `user_code(user_dirs)`.
    """

    def kind(path: KeyPath) -> Any:
        return expected_type(root, path, user_dirs=user_dirs, trusted=trusted)

    problems = [
        _problem(
            "lazy-module",
            f"`{found.__name__}` has no weights before its first batch, and the optimizer is"
            " made before it",
            path,
            table,
            LAZY_FIX,
        )
        for path, table in _calls(root.items.get("model"), ("model",))
        if isinstance(found := kind(path), type) and issubclass(found, _lazy_modules())
    ]
    if not _is_updated_by_engine(kind(("process",))):
        return problems
    return problems + [
        _problem(
            "needs-closure",
            f"`{found.__name__}` computes the loss again within its step: the step needs a closure",
            path,
            table,
            CLOSURE_FIX,
        )
        for path, table in _calls(root.items.get("optimizer"), ("optimizer",))
        if isinstance(found := kind(path), type) and needs_closure(found)
    ]


def _lazy_modules() -> Any:
    """Return torch's base of lazy modules; () while torch is not imported."""
    return getattr(sys.modules.get("torch.nn.modules.lazy"), "LazyModuleMixin", ())


def _problem(kind: str, message: str, path: KeyPath, table: Table, fix: str) -> Problem:
    origin = table.items["type"].origin
    return problem_at(kind, message, origin, path, fix)


def _is_updated_by_engine(process: Any) -> bool:
    """Return True if a process makes the update of `assay.engine.Process`: `optimizer.step()`."""
    update = getattr(process, "update", None)
    return (
        isinstance(process, type)
        and getattr(update, "__module__", "") == "assay.engine.loop.process"
    )


def _calls(node: Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, Table]]:
    """Yield each table with a `type` in a node, the node itself included, with its path."""
    if isinstance(node, Table):
        if node.target is not None:
            yield path, node
        for name, inner in node.items.items():
            yield from _calls(inner, (*path, name))
    elif isinstance(node, List):
        for number, inner in enumerate(node.items):
            yield from _calls(inner, (*path, number))
