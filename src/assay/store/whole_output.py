"""File or folder for a person that appears when it is whole; what was there is moved aside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import InputError
from assay.formats.json_codec import write_atomic
from assay.store.code_trees import make_room
from assay.store.layout import refusal

_OTHER = "name another place"


def refuse_taken(place: Path, *, force: bool) -> None:
    """Raise InputError where something is in the place already, unless `force` moves it away."""
    if os.path.lexists(place) and not force:
        raise InputError(
            "There is something in this place already.",
            where=str(place),
            fix=f"{_OTHER}, or --force moves it away",
        )


@dataclass(frozen=True, slots=True)
class NewFolder:
    """Folder of an output that is written in `scratch`, beside its place."""

    scratch: Path
    place: Path

    def write(self, name: str, text: str) -> None:
        """Write a text into the folder; what UTF-8 lacks is replaced."""
        (self.scratch / name).write_text(text, encoding="utf-8", errors="replace")

    def put_in_place(self, name: str = "") -> Path | None:
        """Rename the finished folder, or the file `name` in it, to its place.

        Return where what was there has been moved.
        """
        moved = make_room(self.place, force=True)
        self.place.rmdir()
        os.rename(self.scratch / name, self.place)
        return moved


@contextmanager
def new_folder(place: Path, what: str) -> Iterator[NewFolder]:
    """Make a folder beside `place`, which is gone at exit unless it was put in place.

    The error where it cannot be made begins with `what`.
    """
    scratch = place.with_name(f".{place.name}-{os.urandom(4).hex()}.tmp")
    with explain_disk_errors(place, what):
        scratch.mkdir(parents=True)
    try:
        yield NewFolder(scratch, place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def replace_file(place: Path, data: bytes, what: str) -> None:
    """Write a file with its folder; what is in its place is replaced at once, or stays as it is.

    InputError where that is no file; the error where it cannot be written begins with `what`.
    """
    if place.exists() and not place.is_file():
        what = f"{what}: something else is in its place."
        raise InputError(what, where=str(place), fix=_OTHER)
    with explain_disk_errors(place, what):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, data, durable=False)


@contextmanager
def explain_disk_errors(place: Path, what: str) -> Iterator[None]:
    """Turn an OSError of writing into one clear error that begins with `what`."""
    try:
        yield
    except OSError as error:
        raise refusal(error, place, what, fix=_OTHER) from error
