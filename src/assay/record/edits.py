"""Edits of a run after the fact, by anyone at any time: the only writer of `edits.jsonl`."""

from __future__ import annotations

import errno
import getpass
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.directory import open_directory
from assay.core.errors import AssayError, InputError
from assay.core.secrets.replacement import Secrets
from assay.formats.event_log import Edit, edit_line, labels_of, read_edits
from assay.formats.json_codec import to_plain
from assay.record import readme
from assay.store.layout import RunFolder, refusal

if TYPE_CHECKING:
    from assay.formats.verdict import Verdict


def note(folder: RunFolder, text: str) -> Edit:
    """Add a note. Notes are never replaced: each is one more."""
    if not text.strip():
        raise InputError("The note is empty.", where=str(folder.path))
    return append(folder, Edit(what="note", new=text))


def add_labels(folder: RunFolder, labels: list[str]) -> list[Edit]:
    """Put labels on a run; one that it has already stays once."""
    return _set_labels(folder, labels, has=True)


def remove_labels(folder: RunFolder, labels: list[str]) -> list[Edit]:
    """Take labels off a run; one that it has not is passed over."""
    return _set_labels(folder, labels, has=False)


def _set_labels(folder: RunFolder, labels: list[str], *, has: bool) -> list[Edit]:
    """Write what changes by the labels that the run has now, whatever a page or an index shows."""
    wanted = [_label(label, folder) for label in labels]
    try:
        with readme.alone(folder.path):
            now = labels_of(read_edits(folder.edits))
            changing = [label for label in dict.fromkeys(wanted) if (label in now) != has]
            return [
                append(folder, Edit(what="label", key=label, new=has, old=None if has else True))
                for label in changing
            ]
    except FileNotFoundError:
        raise InputError("There is no such run.", where=str(folder.path)) from None
    except OSError as error:
        raise refusal(error, folder.edits, "The labels cannot be changed") from error


def retag(folder: RunFolder, tag: str, *, old: str = "") -> Edit:
    """Give a run another title. Its folder keeps its name, and `run.json` the first title."""
    return append(folder, Edit(what="tag", new=tag, old=old))


def describe(folder: RunFolder, text: str, *, title: str = "", revision: str = "") -> None:
    """Write the description of a run into its README, between title and generated block.

    ConflictError when the description is not at `revision` any more, if that is given.
    """
    if not folder.path.is_dir():
        raise InputError("There is no such run.", where=str(folder.path))
    try:
        readme.write_description(folder.readme, title or folder.id, text, revision=revision)
    except OSError as error:
        fix = "Make the folder of the run writable, or copy it to where you may write."
        raise refusal(error, folder.readme, "The description cannot be written", fix=fix) from error


def correct(folder: RunFolder, name: str, value: Any, *, old: Any = None) -> Edit:
    """Correct a result. What was recorded stays in `run.json`, what it was before in the edit."""
    if not name.strip():
        raise InputError("A result needs a name.", where=str(folder.path))
    return append(folder, Edit(what="value", key=name, new=value, old=old))


def keep_verdict(folder: RunFolder, verdict: Verdict, tell: Callable[[str], None]) -> None:
    """Append the verdict to the edits of a run; print a note for a read-only record."""
    try:
        append(folder, Edit(what="verdict", key=verdict.question, new=to_plain(verdict)))
    except AssayError as error:  # a record that may only be read is proven all the same
        tell(f"The verdict is not kept with the run: {error.what}")


def append(folder: RunFolder, edit: Edit) -> Edit:
    """Append an edit, with time and user where it has none, and return it as written.

    Secrets in it are replaced: what people say about a run is kept with it.
    """
    cleaner = Secrets.among(os.environ)
    complete = Edit(
        what=edit.what,
        new=cleaner.tree(edit.new, edit.key),
        old=cleaner.tree(edit.old, edit.key),
        key=edit.key,
        who=edit.who or user(),
        at_ns=edit.at_ns or time.time_ns(),
    )
    if not folder.path.is_dir():
        raise InputError("There is no such run.", where=str(folder.path))
    try:
        append_line(folder.edits, edit_line(complete))
    except OSError as error:
        fix = "Make the folder of the run writable, or copy it to where you may write."
        raise refusal(error, folder.edits, "The edit cannot be written", fix=fix) from error
    return complete


def append_line(path: Path, line: str) -> None:
    """Append a line in one write, so that processes never mix lines; end a line that was cut off.

    A link in the place of the file, or of its folder, is not followed: OSError says so.
    """
    with open_directory(path.parent) as folder:
        descriptor = folder.open(path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        data = (_mend(descriptor) + line + "\n").encode("utf-8", "backslashreplace")
        if os.write(descriptor, data) < len(data):  # the rest of a line would be no edit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def _mend(descriptor: int) -> str:
    """A line end, when the file does not end with one."""
    size = os.fstat(descriptor).st_size
    if not size:
        return ""
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return "" if os.read(descriptor, 1) == b"\n" else "\n"


def _label(label: str, folder: RunFolder) -> str:
    if not label.strip():
        raise InputError("A label is empty.", where=str(folder.path))
    return label.strip()


def user() -> str:
    """Return the name that edits are signed with."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no name
        return str(os.getuid()) if hasattr(os, "getuid") else ""
