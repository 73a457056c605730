"""Output of the other ranks: copied, as it comes, from the files into which they print."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from pathlib import Path

from assay.core.directory import make_directory
from assay.core.secrets.replacement import Secrets
from assay.record.printed_lines import PrintedLines
from assay.record.pump import (
    CHUNK_BYTES,
    SharedLines,
    SharingStream,
    end_last_line,
    flush_lines,
    open_output,
)


class RankOutput:
    """Copy of what one rank prints, kept as `output.txt` is: lines without secrets."""

    def __init__(self, kept: Path, secrets: Secrets) -> None:
        make_directory(kept.parent)
        self._descriptor = open_output(str(kept))
        end_last_line(self._descriptor)
        self._printed = PrintedLines(self._descriptor, clean=secrets.clean)
        self._lines = SharedLines(self._printed)
        self._files: dict[Path, _PrintedFile] = {}

    def follow(self, files: Iterable[Path]) -> None:
        """Copy what these files have gained since the last call."""
        for path in files:
            if path not in self._files:
                self._files[path] = _PrintedFile(path)
            file = self._files[path]
            while data := file.read():
                self._lines.feed(file, data)
                flush_lines(self._printed)

    def close(self) -> None:
        """Write what was held back, and close all files."""
        self._printed.close()
        os.close(self._descriptor)
        for file in self._files.values():
            file.close()


class _PrintedFile(SharingStream):
    """Growing file of what a process prints to one of its streams."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def read(self) -> str:
        """Return more of its text, "" at its end for now."""
        text = ""
        while not text and (data := os.read(self._descriptor, CHUNK_BYTES)):
            text = self._decoder.decode(data)
        return text

    def close(self) -> None:
        os.close(self._descriptor)
