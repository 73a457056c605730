"""Secrets taken out of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.core.secret import Secrets
    from assay.core.secret_places import Kind

# fmt: off
_OF_VALUES = frozenset({
    ".bash", ".cfg", ".cmake", ".conf", ".env", ".gradle", ".ini", ".json", ".json5", ".mk",
    ".properties", ".ps1", ".sh", ".sql", ".tf", ".toml", ".xml", ".yaml", ".yml", ".zsh",
})
_OF_WORDS = frozenset({"", ".bib", ".html", ".md", ".rst", ".tex", ".txt"})
# fmt: on


def kind_of(name: str) -> Kind:
    """Return how the file of this name writes values.

    >>> kind_of("conf/db.yaml"), kind_of("README.md"), kind_of("train.py")
    ('data', 'text', 'code')
    """
    suffix = os.path.splitext(name)[1].lower()
    return "data" if suffix in _OF_VALUES else "text" if suffix in _OF_WORDS else "code"


def clean_file(path: Path, secrets: Secrets) -> None:
    """Replace known secrets in a file of lines of any size; leave a file without one alone."""
    try:
        with path.open("rb") as file:
            if all(secrets.without_known(line) == line for line in file):
                return
    except FileNotFoundError:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with path.open("rb") as file, temporary.open("wb") as out:
        for line in file:
            out.write(secrets.without_known(line))
    os.replace(temporary, path)
