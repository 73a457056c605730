"""Literals typed without quotes: on the command line, in environment variables, in INI files."""

from __future__ import annotations

import re
from typing import Any

from assay.config.sources.positions import MAX_WORD
from assay.config.sources.toml import value_in
from assay.config.sources.toml_tokens import float_of
from assay.config.tree import plain

MAX_VALUE = 100_000  # characters; longer ones stay text
_NUMBER = re.compile(r"[+-]?(?:\d+\.\d*|\d+(?=[eE])|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""Numbers that TOML spells otherwise; `007` is none: as a float it would lose its zeros."""


def value_of(text: str) -> Any:
    """Parse a TOML value, a word such as None or TRUE, or a number such as `.5`; else keep `text`.

    >>> value_of("1e-3"), value_of("[1, 2]"), value_of("True"), value_of(".5"), value_of("adam")
    (0.001, [1, 2], True, 0.5, 'adam')
    """
    bare = text.strip()
    match bare.lower():
        case "null" | "none":
            return None
        case "true" | "false":
            return bare.lower() == "true"
    if not bare or len(bare) > MAX_VALUE:
        return text
    node = value_in(bare)
    if node is not None:
        return plain(node)
    number = float_of(bare) if len(bare) <= MAX_WORD and _NUMBER.fullmatch(bare) else None
    return text if number is None else number
