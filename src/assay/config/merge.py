"""From what a file says to one config: a variant and a point of a sweep, then the command line, then its references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from assay.config import references
from assay.config.overrides import RefusedError, Setting, apply, put
from assay.config.tree import Table
from assay.core import schema
from assay.core.diagnostics import Problem

Change = Callable[[Table], tuple[Sequence[Setting], Sequence[Problem]]]
"""What to set in a tree, and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """`written` is everything put together, `root` the same with value references replaced and nothing left over."""

    root: Table
    written: Table
    problems: tuple[Problem, ...]


def merged(
    given: Table,
    overrides: Sequence[str],
    draws: references.Draws,
    changes: Iterable[Change] = (),
    *,
    is_whole: bool = True,
) -> Merged:
    """`given` with `changes` done one after another, then `overrides`.

    When the file could not be read as a whole, nothing is said about names that lead nowhere.
    """
    written = given
    problems: list[Problem] = []
    for change in changes:
        settings, wrong = change(written)
        problems += wrong
        for setting in settings:
            try:
                written = put(written, setting)
            except RefusedError as refused:
                problems.append(refused.problem)
    written, wrong = apply(written, overrides)
    problems += wrong
    body, wrong = references.drawn(_without(written, schema.MAKERS), draws)
    problems += wrong
    root, wrong = references.resolved(body)
    problems += wrong
    if not is_whole:
        problems = [problem for problem in problems if problem.kind not in ("unknown-reference", "unknown-key")]
    return Merged(root=_without(root, _templates(written, root)), written=written, problems=tuple(problems))


def _templates(written: Table, resolved: Table) -> frozenset[str]:
    """Sections of the user's own that only value references mention: their values are in place."""
    standard = {key.name for key in schema.SECTIONS}
    objects = {str(target[0]) for _, target, _ in references.objects_used(resolved) if target}
    return references.names_used(written) - standard - objects


def _without(root: Table, names: Iterable[str]) -> Table:
    gone = root.items.keys() & set(names)
    if not gone:
        return root
    return Table(
        {key: node for key, node in root.items.items() if key not in gone},
        root.origin,
        {key: origin for key, origin in root.key_origins.items() if key not in gone},
    )
