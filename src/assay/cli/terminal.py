"""The terminal: what is written to it, in which colours, and how wide it is."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from assay.core.terminal import elide, for_terminal, style, visible

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}

STATUS_STYLES = {
    "running": "blue",
    "finished": "green",
    "failed": "red",
    "stopped": "yellow",
    "killed": "red",
    "crashed": "red",
    "unknown": "yellow",
    "damaged": "red",
}


def use_color(stream: TextIO) -> bool:
    """Return True if colours are right: a terminal, and no NO_COLOR (https://no-color.org)."""
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


def paint(text: str, styles: str, *, on: bool) -> str:
    """Return `text` in a style such as "red bold", for `echo`; unchanged if `on` is false."""
    if not on or not styles:
        return text
    return style(text, ";".join(_CODES[word] for word in styles.split()))


def echo(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Write lines to stdout or stderr, without control sequences but our own styles."""
    stream = sys.stderr if err else sys.stdout
    _write(stream, for_terminal(text, color=use_color(stream)) + end)


def echo_json(data: Any, *, indent: int | None = 1) -> None:
    """Write plain data as JSON; what is not printed is escaped in it."""
    from assay.formats.json_codec import dumps

    _write(sys.stdout, dumps(data, indent=indent) + "\n")


def is_live(stream: TextIO) -> bool:
    """Return True for a terminal on which lines can be drawn again."""
    return width(stream) is not None and os.environ.get("TERM") not in ("dumb", "unknown")


def redraw(lines: Sequence[str], before: int, stream: TextIO | None = None) -> int:
    """Write lines over the `before` lines above; return their number. Nothing flickers.

    `stream` left out is stdout.
    """
    stream = stream or sys.stdout
    color = use_color(stream)
    back = f"\x1b[{before}A" if before else ""
    shown = [f"{for_terminal(line, color=color)}\x1b[K\n" for line in lines]
    text = back + "".join(shown) + ("\x1b[J" if before > len(lines) else "")
    if text:
        _write(stream, text)
    return len(lines)


def show_progress(text: str) -> None:
    """Write one line to stderr over the last one, where somebody watches."""
    columns = width(sys.stderr)
    if columns is not None:
        _write(sys.stderr, f"\r\x1b[K{elide(visible(text), columns - 1)}")


def _write(stream: TextIO, text: str) -> None:
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:  # a terminal that knows fewer letters
            stream.write(
                text.encode(stream.encoding or "ascii", "backslashreplace").decode(
                    stream.encoding or "ascii"
                )
            )
        stream.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        # The terminal was closed. What ends meanwhile ends as it would: Python's own flush, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
