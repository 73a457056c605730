"""Contract of the one translator of what is written for other systems.

The translator is a module of a room above, registered here by its name: nothing outside that room
imports it, and the house works by this contract alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from assay.config.tree import Node, Setting, Table
from assay.core.diagnostics import Problem

TRANSLATOR = "assay.compat.door"
"""Module that is the translator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderName:
    """Name of an older system: its target here, and how the same is said here.

    `keys` are arguments that set a key of the config: `{"seed": "seed"}`. With `is_module` the
    target is a module that stands for a whole one, with all that lies in it. `runner` is the value
    of that key here, where the name is a runner. `own` is the target of a converted config: "" for
    `target` unless that is an adapter, None where a config of ours needs nothing.
    """

    target: str
    instead: str = ""
    is_module: bool = False
    runner: str = ""
    own: str | None = ""
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmappedName:
    """Message and fix for a name of an older system that is not in its table."""

    message: str
    fix: str


class OlderConfig(Protocol):
    """Config of an older system as it was given, for settings that name its keys."""

    def has(self, setting: Setting, written: Table) -> bool:
        """Return whether a setting is of a key there, which `written` has under another name."""

    def apply(self, setting: Setting, written: Table) -> tuple[Table, list[Problem]]:
        """Return `written` with what a setting of a key there changes here, and notes."""


class Translator(Protocol):
    """Translation of configs, settings, targets and imports, each change told in a note."""

    PACKAGES: Mapping[str, str]
    """Package that texts of an older system import -> the system."""

    def translate(self, root: Table, /) -> tuple[Table, list[Problem]]:
        """Return a config that has been read as one of assay, and notes."""

    def translate_forms(self, root: Node, /) -> tuple[Node, list[Problem]]:
        """Return a tree with calls and variables as they are written here, and notes."""

    def translate_setting(self, setting: Setting, /) -> tuple[Setting | None, list[Problem]]:
        """Return a setting of a key here, and notes; None if nothing is to be set."""

    def older_config(self, given: Table, /) -> OlderConfig | None:
        """Return the config for settings; None if it is of no older system."""

    def with_older_arguments(self, root: Table, /) -> Table:
        """Return `root` with the keys that arguments of older targets stand for."""

    def suggest_alias(self, problem: Problem, /) -> Problem:
        """Return a problem with the alias that an unknown key resembles most."""

    def system_of(self, target: str, /) -> str:
        """Return the older system that a target begins with, "" for none."""

    def older_name(self, target: str, /) -> OlderName | None:
        """Return the entry of a target; None for one that no older system has."""

    def explain_unmapped(self, target: str, /) -> UnmappedName:
        """Return the error of a name that its system may have had."""

    def offer_import(self, error: ImportError, /) -> bool:
        """Make the package that was not found importable; return False if it is of no system."""

    def sections_of(self, names: Collection[str], /) -> Collection[str]:
        """Return the sections of the older system whose config has these top-level names."""

    def names_left_out(self, text: str, /) -> dict[str, Any]:
        """Return the objects that a Python text uses without an import, by name."""


@cache
def translator() -> Translator:
    """Return the translator, which is loaded with the first config that is read."""
    return cast(Translator, import_module(TRANSLATOR))
