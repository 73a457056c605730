"""What was asked for: a tree of plain data and calls, where each value came from, and what is wrong with it."""

from __future__ import annotations

from assay.config.check import check_shape
from assay.config.diff import Change, changed_keys
from assay.config.expand import expand
from assay.config.freeze import canonical, config_hash, dump, seedless_hash
from assay.config.lazy import L, LazyCall
from assay.config.load import Config, load, loads, open_config, open_text
from assay.config.overrides import is_override
from assay.config.settings import globs
from assay.config.sources.python import get_config
from assay.config.tree import Leaf, List, Node, Table, dotted, from_plain, get_at, parse_dotted, plain, same, walk

__all__ = [
    "Change",
    "Config",
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
