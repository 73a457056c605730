"""Printed text as lines in a file: of each line the last text after a carriage return."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

MAX_LINE_CHARS = 1 << 16
"""The begin of a longer line is not changed any more."""
MAX_KEY_LINES = 100
"""A private key of more lines is none."""

_CODES = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Z]"
    r"|\x1b[0-9A-Za-z=>]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_UNFINISHED = re.compile(r"\x1b(?:[()]|\[[0-9;?]*[ -/]*|\][^\x07\x1b]{0,200}\x1b?)?\Z")


class PrintedLines:
    """Writes what is fed to it into the end of a file.

    The line that is being printed is in the file, too, and is written anew with each change: a
    carriage return lets the text that follows replace it, as progress bars do. Colors and other
    codes for a terminal are left out, and blanks at the end of a line. `clean` is applied to whole
    lines before they go to disk, and to a private key as a whole.
    """

    def __init__(self, descriptor: int, *, clean: Callable[[str], str] = str) -> None:
        self._descriptor = descriptor
        self._clean = clean
        self._base = os.fstat(descriptor).st_size  # where the first of `_lines` begins
        # Those that are not on disk for good. One that ends with "\r" is replaced by what follows.
        self._lines = [""]
        self._held = ""  # the begin of a code whose end has not come yet

    def feed(self, text: str) -> None:
        """Take in more output. It is on disk after `flush`."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished[0] if unfinished else ""
        text = _CODES.sub("", text[: unfinished.start()] if unfinished else text)
        first, *others = text.split("\n")
        self._lines[-1] = _last_text(self._lines[-1] + first)
        self._lines += map(_last_text, others)

    def begin_line(self) -> bool:
        """Begin a line, unless one begins here; return whether a line had no end yet."""
        if not self._lines[-1]:
            return False
        self._lines.append("")
        return True

    def flush(self) -> None:
        """Write the lines that are not on disk for good."""
        *ended, last = self._lines
        ended = [line.rstrip("\r ") for line in ended]
        is_key_open = _is_key_open([*ended, last])
        whole = "" if is_key_open else self._clean("".join(line + "\n" for line in ended))
        rest = self._clean("\n".join([*(ended if is_key_open else ()), last.removesuffix("\r")]))
        data, changing = _encode(whole), _encode(rest)
        self._write(data + changing)
        if not is_key_open:
            self._base += len(data)
            self._lines = [last]
            if len(last) > MAX_LINE_CHARS:
                self._base += len(changing)
                self._lines = [""]

    def close(self) -> None:
        """Write the last line."""
        self._held = ""
        self.flush()

    def _write(self, data: bytes) -> None:
        offset = self._base
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data = data[written:]
            offset += written
        os.ftruncate(self._descriptor, offset)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _last_text(line: str) -> str:
    """Return the last text of a line that is not empty; with "\\r" where that is to be replaced.

    >>> _last_text("10%\\r20%"), _last_text("10%\\r"), _last_text("10%\\r20%\\r")
    ('20%', '10%\\r', '20%\\r')
    """
    if "\r" not in line:
        return line
    text = next((part for part in reversed(line.split("\r")) if part), "")
    return text + "\r" if line.endswith("\r") else text


def _is_key_open(lines: list[str]) -> bool:
    """Return whether a private key begins in these lines and does not end."""
    marks = [line for line in lines if "PRIVATE KEY" in line]
    return bool(marks) and "END " not in marks[-1] and len(lines) < MAX_KEY_LINES
