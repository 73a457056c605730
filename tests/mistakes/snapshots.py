"""Snapshots of what is said of mistakes: one file for each module of tests, by title.

After a change of words: WRITE_SNAPSHOTS=1 pytest -n 0 tests/mistakes, and read the diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

HEAD = re.compile(r"^=== (.*)\n", re.MULTILINE)


class Snapshots:
    """Texts of the file `NAME.txt`, in the order of `titles`."""

    def __init__(self, name: str, titles: Iterable[str]) -> None:
        self.path = Path(__file__).with_name(f"{name}.txt")
        self.titles = list(titles)

    def read(self) -> dict[str, str]:
        """Return the text of each title."""
        parts = HEAD.split(self.path.read_text(encoding="utf-8"))[1:]
        return {
            title: said.strip("\n") for title, said in zip(parts[::2], parts[1::2], strict=True)
        }

    def compare(self, title: str, said: str) -> None:
        """Compare with the text of the file, or put it there where that is asked for."""
        said = said.strip("\n")
        if os.environ.get("WRITE_SNAPSHOTS"):
            known = {**self.read(), title: said}
            parts = [f"=== {each}\n{known[each]}\n" for each in self.titles if each in known]
            self.path.write_text("\n".join(parts), encoding="utf-8")
        assert said == self.read()[title]
