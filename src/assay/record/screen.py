"""Terminal output as a text file: the final screen, not every redrawing of a progress bar."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

KEPT_ROWS = 64
"""So many of the last lines may still be changed by moving the cursor up; tqdm with nested bars
does."""

MAX_ROW_CHARS = 1 << 16

_PLAIN = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f]*")
_TOKENS = re.compile(
    r"""(?P<text>[^\x00-\x08\x0a-\x1f\x7f]+) | (?P<end>\r*\n) | (?P<home>\r) | (?P<back>\x08)
    | \x1b\[(?P<numbers>[0-9;?]*)[ -/]*(?P<command>[@-~]) | \x1b\][^\x07\x1b]*(?:\x07|\x1b\\) 
    | \x1b[()][0-9A-Z] | \x1b[0-9A-Za-z=>] | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_UNFINISHED = re.compile(r"\x1b(?:[()]|\[[0-9;?]*[ -/]*|\][^\x07\x1b]{0,200})?\Z|\r+\Z")


class Screen:
    """Writes what is fed to it into the end of a file, as a terminal would show it.

    Escape codes are carried out and not kept, nor are blanks at the end of a line.

    The line that is being written is in the file, too, and is written over when the program writes
    over it. `clean` is applied to each stretch of text before it goes to disk.
    """

    def __init__(self, descriptor: int, *, clean: Callable[[str], str] = str) -> None:
        self._descriptor = descriptor
        self._clean = clean
        self._base = os.fstat(
            descriptor
        ).st_size  # where the first row that can still change begins in the file
        self._rows = [""]
        self._sizes: list[int] = []  # in bytes, of the rows that are on disk as they are here
        self._row = self._col = 0
        self._held = ""  # the begin of an escape code whose end has not come yet

    def feed(self, text: str) -> None:
        """Take in more output. It is on disk after `flush`."""
        text = self._held + text
        self._held = ""
        if self._is_at_end() and _PLAIN.fullmatch(text):
            self._append(text)
            return
        unfinished = _UNFINISHED.search(text)
        if unfinished:
            self._held = unfinished[0]
            text = text[: unfinished.start()]
        for token in _TOKENS.finditer(text):
            self._take(token)

    def begin_line(self) -> bool:
        """Go behind all that is there; whether a line had no end yet."""
        if not self._rows[-1]:
            return False
        self._go(len(self._rows), 0)
        return True

    def flush(self) -> None:
        """Bring the rows that have changed to the file."""
        first = len(self._sizes)
        fresh = [row.encode("utf-8", "surrogateescape") for row in self._clean_rows(first)]
        offset = self._base + sum(self._sizes) + first
        data = b"\n".join(fresh)
        _write_at(self._descriptor, data, offset)
        os.ftruncate(self._descriptor, offset + len(data))
        self._sizes += map(len, fresh)
        self._forget()
        # The last row stays open: more may be appended to it.
        del self._sizes[min(self._row, len(self._rows) - 1) :]

    def close(self) -> None:
        """Write the last row with what was held back."""
        held, self._held = self._held, ""
        if held.startswith("\r"):
            self._col = 0
        self.flush()

    def _clean_rows(self, first: int) -> list[str]:
        """Return the rows from `first` on, cleaned."""
        # A private key has many rows: those before these say whether they are part of one.
        begin = 0 if any("PRIVATE KEY" in row for row in self._rows[:first]) else first
        return self._clean("\n".join(self._rows[begin:])).split("\n")[first - begin :]

    def _forget(self) -> None:
        """Drop rows that cannot be reached any more, and the beginning of an endless row."""
        far = min(len(self._rows) - KEPT_ROWS, self._row)
        if far > 0:
            self._base += sum(self._sizes[:far]) + far
            del self._rows[:far], self._sizes[:far]
            self._row -= far
        if len(self._rows[-1]) > MAX_ROW_CHARS and self._is_at_end():
            self._base += sum(self._sizes) + len(self._sizes) - 1
            self._rows = [""]
            self._sizes = []
            self._row = self._col = 0

    def _is_at_end(self) -> bool:
        return self._row == len(self._rows) - 1 and self._col == len(self._rows[-1])

    def _append(self, text: str) -> None:
        rows = (self._rows[-1] + text).split("\n")
        self._change(self._row)
        self._rows[-1:] = [*(row.rstrip(" ") for row in rows[:-1]), rows[-1]]
        self._row, self._col = len(self._rows) - 1, len(self._rows[-1])

    def _take(self, token: re.Match[str]) -> None:
        match token.lastgroup:
            case "text":
                self._write(token[0])
            case "end":
                self._go(self._row + 1, 0)
            case "home":
                self._col = 0
            case "back":
                self._col = max(0, self._col - 1)
            case "command":
                self._obey(token["command"], token["numbers"])

    def _write(self, text: str) -> None:
        row = self._rows[self._row].ljust(self._col)
        end = self._col + len(text)
        self._change(self._row)
        self._rows[self._row] = row[: self._col] + text + row[end:]
        self._col = end

    def _obey(self, command: str, numbers: str) -> None:
        count = int(numbers) if numbers.isdecimal() and len(numbers) < 4 else None
        match command:
            case "A":
                self._go(max(0, self._row - (count or 1)), self._col)
            case "B":
                self._go(self._row + (count or 1), self._col)
            case "C":
                self._col += count or 1
            case "D":
                self._col = max(0, self._col - (count or 1))
            case "G":
                self._col = max(0, (count or 1) - 1)
            case "K":
                self._erase(count or 0)
            case "J" if not count:
                self._erase(0)
                del self._rows[self._row + 1 :]
                del self._sizes[len(self._rows) :]

    def _erase(self, which: int) -> None:
        row = self._rows[self._row]
        self._change(self._row)
        self._rows[self._row] = [
            row[: self._col],
            " " * min(self._col, len(row)) + row[self._col :],
            "",
        ][min(which, 2)]

    def _go(self, row: int, col: int) -> None:
        left = self._rows[self._row]
        if left.endswith(" ") and row != self._row:  # a bar may have been wiped out with blanks
            self._change(self._row)
            self._rows[self._row] = left.rstrip(" ")
        while len(self._rows) <= row:
            self._rows.append("")
        self._row, self._col = row, col

    def _change(self, row: int) -> None:
        del self._sizes[row:]


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data = data[written:]
        offset += written
