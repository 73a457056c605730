"""Configs: a tree of plain data and calls, the origin of each value, and every mistake in it.

Names are imported on first use: a recorder that writes a config down does not load the readers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.config.check import check_shape as check_shape
    from assay.config.diff import KeyChange as KeyChange
    from assay.config.diff import changed_keys as changed_keys
    from assay.config.expansion import expand as expand
    from assay.config.freeze import canonical as canonical
    from assay.config.freeze import config_hash as config_hash
    from assay.config.freeze import dump as dump
    from assay.config.freeze import seedless_hash as seedless_hash
    from assay.config.lazy import L as L
    from assay.config.lazy import LazyCall as LazyCall
    from assay.config.loading import Config as Config
    from assay.config.loading import load as load
    from assay.config.loading import loads as loads
    from assay.config.loading import open_config as open_config
    from assay.config.loading import open_text as open_text
    from assay.config.overrides import is_override as is_override
    from assay.config.settings import globs as globs
    from assay.config.sources.python import get_config as get_config
    from assay.config.tree import Leaf as Leaf
    from assay.config.tree import List as List
    from assay.config.tree import Node as Node
    from assay.config.tree import Table as Table
    from assay.config.tree import dotted as dotted
    from assay.config.tree import from_plain as from_plain
    from assay.config.tree import get_at as get_at
    from assay.config.tree import parse_dotted as parse_dotted
    from assay.config.tree import plain as plain
    from assay.config.tree import same as same
    from assay.config.tree import walk as walk

_NAMES_BY_HOME = {
    "check": ("check_shape",),
    "diff": ("KeyChange", "changed_keys"),
    "expansion": ("expand",),
    "freeze": ("canonical", "config_hash", "dump", "seedless_hash"),
    "lazy": ("L", "LazyCall"),
    "loading": ("Config", "load", "loads", "open_config", "open_text"),
    "overrides": ("is_override",),
    "settings": ("globs",),
    "sources.python": ("get_config",),
    "tree": (
        *("Leaf", "List", "Node", "Table", "dotted", "from_plain"),
        *("get_at", "parse_dotted", "plain", "same", "walk"),
    ),
}
"""The module that defines it -> public names."""

_HOMES = {name: home for home, names in _NAMES_BY_HOME.items() for name in names}

__all__ = [
    "Config",
    "KeyChange",
    "L",
    "LazyCall",
    "Leaf",
    "List",
    "Node",
    "Table",
    "canonical",
    "changed_keys",
    "check_shape",
    "config_hash",
    "dotted",
    "dump",
    "expand",
    "from_plain",
    "get_at",
    "get_config",
    "globs",
    "is_override",
    "load",
    "loads",
    "open_config",
    "open_text",
    "parse_dotted",
    "plain",
    "same",
    "seedless_hash",
    "walk",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'assay.config' has no attribute {name!r}")
    value = getattr(import_module(f"assay.config.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
