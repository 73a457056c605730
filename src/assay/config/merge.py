"""Merge of a file with a variant, a sweep point and the command line; then references resolve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass

from assay.config.overrides import RefusedError, apply_setting, setting_of
from assay.config.references import Uses
from assay.config.resolver import Draws, resolve_config
from assay.config.settings import Settings
from assay.config.translator import OlderConfig, translator
from assay.config.tree import Setting, Table
from assay.core.diagnostics import Problem

Change = Callable[[Table], tuple[Sequence[Setting], Sequence[Problem]]]
"""What to set in a tree, and what is wrong with it."""

_LEADS_NOWHERE = ("unknown-reference", "unknown-key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Merged config: `written` with its references, `root` with their values and no templates.

    `notes` tell which settings were taken under another name.
    """

    root: Table
    written: Table
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()


def merge(
    given: Table,
    overrides: Sequence[str],
    draws: Draws,
    uses: Uses,
    settings: Settings,
    changes: Iterable[Change] = (),
    *,
    older: OlderConfig | None = None,
    is_whole: bool = True,
) -> Merged:
    """Apply `changes` one after another, then `overrides`, to `given`.

    `older` is the file before its keys were translated, where they are those of an older system.

    When the file could not be read as a whole, nothing is said about names that lead nowhere.
    """
    typed: Change = lambda _: _parse_overrides(overrides)  # noqa: E731  a change like the others
    written, problems, notes = _change(given, (*changes, typed), older)
    written = translator().with_older_arguments(written)
    root, wrong = resolve_config(written, draws, uses, settings)
    problems += wrong
    if not is_whole:
        problems = [problem for problem in problems if problem.kind not in _LEADS_NOWHERE]
    return Merged(root=root, written=written, problems=tuple(problems), notes=tuple(notes))


def _change(
    given: Table, changes: Iterable[Change], older: OlderConfig | None
) -> tuple[Table, list[Problem], list[Problem]]:
    """Apply changes one after another; return the tree, what is wrong, and notes."""
    written = given
    problems: list[Problem] = []
    notes: list[Problem] = []
    older = copy(older)  # what is set in it is for this config alone
    for change in changes:
        settings, wrong = change(written)
        problems += wrong
        for given_setting in settings:
            try:
                if older is not None and older.has(given_setting, written):
                    written, said = older.apply(given_setting, written)
                    notes += said
                    continue
                setting, said = translator().translate_setting(given_setting)
                notes += said
                if setting is not None:
                    written = apply_setting(written, setting)
            except RefusedError as refused:
                problems.append(translator().suggest_alias(refused.problem))
    return written, problems, notes


def _parse_overrides(arguments: Sequence[str]) -> tuple[list[Setting], list[Problem]]:
    """Return the settings of the command line, and problems with arguments that are no override."""
    settings: list[Setting] = []
    problems: list[Problem] = []
    for argument in arguments:
        try:
            settings.append(setting_of(argument))
        except RefusedError as refused:
            problems.append(refused.problem)
    return settings, problems
