"""What other trackers wrote: archives in `tests/interop`, made by `make_files.py` there."""

from __future__ import annotations

import tarfile
from pathlib import Path

FOLDER = Path(__file__).parent / "interop"


def unpacked(name: str, to: Path) -> Path:
    """The folder `to`, with what is in the archive of that name."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as tar:
        tar.extractall(to, filter="data")
    return to
