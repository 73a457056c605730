"""`README.md` of a run: the user's page, with one block in it that is ours."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path

from assay.core.formatting import duration
from assay.core.json_codec import write_atomic
from assay.core.regular_file import read_bytes
from assay.core.run_file import RunFile

MAX_BYTES = 16 << 20

BEGIN = b"<!-- assay: begin of what is written by assay; everything outside is yours -->"
END = b"<!-- assay: end -->"


def first_text(run: RunFile, desc: str) -> str:
    """The whole page of a run that begins: title, description, block."""
    title = " ".join((run.tag or run.id).split())
    body = f"{desc.strip()}\n\n" if desc.strip() else ""
    return f"# {title}\n\n{body}{_block(run)}\n"


def write_first(path: Path, run: RunFile, desc: str) -> None:
    write_atomic(path, first_text(run, desc).encode("utf-8", "replace"), durable=False)


def refresh(path: Path, run: RunFile) -> None:
    """Replace the generated block and no other byte; a page without its markers is left alone."""
    try:
        text = read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        return
    begin = text.rfind(BEGIN)
    end = text.find(END, begin)
    if begin < 0 or end < 0:
        return
    fresh = text[:begin] + _block(run).encode("utf-8", "replace") + text[end + len(END) :]
    if fresh != text:
        write_atomic(path, fresh, durable=False)


def write_description(path: Path, title: str, text: str) -> None:
    """Replace the text between title and generated block; make a missing page, or OSError.

    A page without our markers is all the user's: all of it but its title is replaced.
    """
    try:
        page = read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        page = b""
    begin = page.rfind(BEGIN)
    block = page[begin:] if begin >= 0 else b""
    first = (page[:begin] if begin >= 0 else page).lstrip().split(b"\n", 1)[0]
    head = (
        first
        if first.startswith(b"# ")
        else f"# {' '.join(title.split())}".encode("utf-8", "replace")
    )
    body = text.strip().encode("utf-8", "replace")
    parts = [part for part in (head, body, block.strip()) if part]
    write_atomic(path, b"\n\n".join(parts) + b"\n", durable=False)


def _block(run: RunFile) -> str:
    newest = run.newest
    rows = [
        ("run", f"`{run.id}`"),
        ("status", run.status + (f": {_cell(newest.reason)}" if newest.reason else "")),
    ]
    rows.append(
        (
            "started",
            f"{datetime.fromtimestamp(run.created_ns / 1e9).astimezone():%Y-%m-%d %H:%M %z}",
        )
    )
    if newest.ended_ns is not None:
        rows.append(("duration", duration(run.seconds)))
    if len(run.attempts) > 1:
        rows.append(("attempts", str(len(run.attempts))))
    if run.best is not None:
        rows.append(
            ("best", f"{_cell(run.best.metric)} = {run.best.value:.6g} at step {run.best.step}")
        )
    if newest.config_hash:
        rows.append(("config", f"`{newest.config_hash[:16]}`"))
    if run.parent:
        rows.append(("parent", f"`{_cell(run.parent)}`"))
    if newest.command:
        rows.append(("command", f"`{_cell(shlex.join(newest.command))}`"))
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join((BEGIN.decode(), *lines, END.decode()))


def _cell(text: str) -> str:
    """Text that stays in one cell of a table, and is none of our markers."""
    return " ".join(text.split()).replace("|", "\\|").replace("<!--", "&lt;!--").replace("`", "'")
