"""Output of a run in a notebook: a bar and a table of epochs, redrawn in place."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any

from assay.core.terminal import visible

_SHOWN_LINES = 20


class NotebookPage:
    """One output of a cell, which is updated while the run goes on."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rows: list[dict[str, str]] = []
        self._bar = ""
        self._handle: Any = None

    def say(self, line: str) -> None:
        """Show a line above the table."""
        self._lines.append(line)
        self.draw()

    def add_row(self, parts: Sequence[str]) -> None:
        """Add a row of parts such as "step  10" and "valid/acc 0.5": name and value."""
        row: dict[str, str] = {}
        for part in parts:
            name, _, value = part.partition(" ")
            is_seconds = value == "s"
            row["seconds" if is_seconds else name] = name if is_seconds else value.strip()
        self._rows.append(row)
        self.draw()

    def set_progress(self, title: str, step: int, total: int | None, text: str) -> None:
        """Show the bar of the run at a step; without a total it has no length."""
        length = f' max="{total}" value="{step}"' if total else ""
        of = f"/{total:,}" if total else ""
        self._bar = f"<progress{length}></progress> {escape(title)} · {step:,}{of} · {escape(text)}"
        self.draw()

    def close(self) -> None:
        """Leave the table without the bar."""
        self._bar = ""
        self.draw()

    def draw(self) -> None:
        """Show the page, or update what is shown."""
        # Not a dependency: whoever has a kernel has it.
        shown: Any = import_module("IPython.display")
        page = shown.HTML(self.html())
        if self._handle is None:
            self._handle = shown.display(page, display_id=True)
        else:
            self._handle.update(page)

    def html(self) -> str:
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        head = "".join(f"<th>{escape(visible(name))}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(row.get(name, ''))}</td>" for name in names) + "</tr>"
            for row in self._rows
        )
        lines = "\n".join(escape(visible(line)) for line in self._lines[-_SHOWN_LINES:])
        table = f"<table><tr>{head}</tr>{rows}</table>" if self._rows else ""
        return f"<pre>{lines}</pre>{table}<div>{self._bar}</div>"
