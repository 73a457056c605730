"""What the terminal can show: colours, and how wide it is."""

from __future__ import annotations

import os
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}

STATUS_STYLES = {
    "running": "blue",
    "finished": "green",
    "failed": "red",
    "stopped": "yellow",
    "killed": "red",
    "unknown": "yellow",
    "damaged": "red",
    "lost": "dim",
}


def use_color(stream: TextIO) -> bool:
    """Whether colours make sense there: a terminal, and nobody who asked for none (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # closed, or none at all
        return False


def width(stream: TextIO) -> int | None:
    """Columns of the terminal; None for a file or a pipe, where nothing needs to be cut."""
    try:
        if not stream.isatty():
            return None
    except (AttributeError, ValueError):
        return None
    import shutil  # here: a pipe has no width

    return shutil.get_terminal_size((80, 24)).columns


def folded(line: str, columns: int | None) -> list[str]:
    """A line as lines of at most `columns`, broken where two blanks are if the parts between are not wider themselves.

    >>> folded("epoch 1  loss 0.25  valid/acc 0.5", 22)
    ['epoch 1  loss 0.25', '    valid/acc 0.5']
    """
    lines: list[str] = []
    for part in line.split("  "):
        if not lines:
            lines.append(part)
        elif columns is None or len(lines[-1]) + 2 + len(part) <= columns:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"    {part}")
    return lines


def paint(text: str, style: str, *, on: bool) -> str:
    """`text` in a style such as "red bold"; as it is when `on` is false.

    >>> paint("no", "red bold", on=True), paint("no", "red", on=False)
    ('\\x1b[31;1mno\\x1b[0m', 'no')
    """
    if not on or not style:
        return text
    return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}\x1b[0m"
