"""`README.md` of a run: the user's page, with one block in it that is ours."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from assay.core.directory import open_directory
from assay.core.errors import ConflictError
from assay.core.formatting import duration
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import write_atomic
from assay.formats.run_file import RunFile

MAX_BYTES = 16 << 20
_PATIENCE_S = 1.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)  # of some network disks

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
    with alone(path.parent, or_not=True):
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


def readme_revision(desc: str) -> str:
    """Return a short digest of a description: whoever changes it says which one they have seen."""
    return hashlib.sha256(desc.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_description(path: Path, title: str, text: str, *, revision: str = "") -> None:
    """Replace the text between title and generated block; make a missing page, or OSError.

    A page without our markers is all the user's: all of it but its title is replaced.
    ConflictError when the description is not at `revision` any more, if that is given.
    """
    from assay.store.read_record import (
        read_description,
    )  # here: a run that begins does not pay for it

    with alone(path.parent):
        try:
            page = read_bytes(path, MAX_BYTES)
        except FileNotFoundError:
            page = b""
        before = read_description(page.decode("utf-8", "replace"))
        if revision and revision != readme_revision(before):
            raise ConflictError(
                "The description was changed meanwhile.",
                fix="take over what is new, then save again",
            )
        write_atomic(path, _with_description(page, title, text), durable=False)


def _with_description(page: bytes, title: str, text: str) -> bytes:
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
    return b"\n\n".join(parts) + b"\n"


@contextlib.contextmanager
def alone(folder: Path, *, or_not: bool = False) -> Iterator[None]:
    """Hold the folder of a run, so that of two who change it at once none loses what they wrote.

    With `or_not` a run goes on though somebody holds it for long: it waits for no reader.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(held.enter_context(open_directory(folder)).alone(_PATIENCE_S))
        except BlockingIOError as error:
            if not or_not:
                what = "Somebody else is changing the page of the run."
                raise ConflictError(what, where=str(folder), fix="try again") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield


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
