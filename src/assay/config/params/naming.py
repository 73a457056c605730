"""Experiment names made of values: safe as file names, short, different for different values."""

from __future__ import annotations

import hashlib
from typing import Any

LONGEST = 40  # characters of one value
_KEPT = 24  # of a longer one, before its hash
_SAFE = frozenset("._+,-@()[]")


def experiment_name(prefix: str, values: dict[str, Any], sep: str) -> str:
    """Join `prefix` and every `name=value` by `sep`.

    >>> experiment_name("mytrainer", {"lr": 0.01, "data": "a/b"}, "_")
    'mytrainer_lr=0.01_data=a%2Fb'
    """
    parts = [
        safe(prefix.strip()),
        *(f"{safe(name)}={short(value)}" for name, value in values.items()),
    ]
    name = sep.join(part for part in parts if part)
    return f"%2E{name[1:]}" if name.startswith(".") else name


def safe(text: str) -> str:
    """Escape the characters that a file name should not hold as %41; letters of any script stay."""
    return "".join(
        c if c.isalnum() or c in _SAFE else "".join(f"%{byte:02X}" for byte in _utf8(c))
        for c in text
    )


def short(value: Any) -> str:
    """Return a value in at most 40 characters; a hash tells what was cut off apart."""
    text = str(value)
    if len(text) <= LONGEST and len(made := safe(text)) <= LONGEST:
        return made
    return f"{safe(text[:_KEPT])[:_KEPT]}~{hashlib.sha256(_utf8(text)).hexdigest()[:8]}"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
