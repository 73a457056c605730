"""Text of the command line as wrapped lines."""

from __future__ import annotations

import textwrap

from assay.core.terminal import visible

WIDTH = 80


def wrap(text: str, *, indent: str = "  ") -> list[str]:
    """Wrap text to WIDTH columns; keep paragraphs apart, and spell control characters out."""
    lines = [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(visible(part), WIDTH - len(indent)) or [""]
    ]
    return [f"{indent}{line}".rstrip() for line in lines]
