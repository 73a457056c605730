"""Names of runs: an id nobody else has, and a folder name people can read."""

from __future__ import annotations

import os
import re
import unicodedata
from datetime import datetime

_ID_LENGTH = 8
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # RFC 4648 base32, lower case
_FOLDER = re.compile(rf"\d{{6}}-\d{{4}}-(?P<id>[{_ALPHABET}]{{{_ID_LENGTH}}})(?:-.*)?")


def new_run_id() -> str:
    """Return eight random base32 characters (40 bits).

    The first is a letter, so that an id never reads as a number.
    """
    return _id_of(os.urandom(_ID_LENGTH))


def run_id_of(text: str) -> str:
    """Return the id of an imported run: the same text always gives the same id.

    >>> run_id_of("mlflow 0a1b")
    'w7w5y5il'
    """
    from hashlib import sha256  # loads OpenSSL: a recorder does without

    return _id_of(sha256(text.encode("utf-8", "surrogatepass")).digest()[:_ID_LENGTH])


def _id_of(data: bytes) -> str:
    first, *others = data
    # 256 is a multiple of 32, and of 26 nearly: an id need not be secret.
    return _ALPHABET[first % 26] + "".join(_ALPHABET[each % 32] for each in others)


def slug(text: str, *, limit: int = 40) -> str:
    """Return lower-case ASCII letters, digits and single dashes; safe as a part of any file name.

    >>> slug("MNIST CNN, größer!")
    'mnist-cnn-groer'
    >>> slug("../../etc/passwd")
    'etc-passwd'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
    ascii_text = text.encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_text).strip("-")[:limit].rstrip("-")


def folder_name(created: datetime, run_id: str, tag: str) -> str:
    """Return a folder name that sorts by time: `261121-0339-kq3f7abc-mnist-cnn`."""
    return "-".join(part for part in (f"{created:%y%m%d-%H%M}", run_id, slug(tag)) if part)


def id_of_folder(name: str) -> str | None:
    """Return the run id inside a folder name, or None for a folder of another kind."""
    match = _FOLDER.fullmatch(name)
    return match["id"] if match else None


def is_plain_name(name: str) -> bool:
    """Return whether a folder may have this name on every system.

    Letters, digits, `_`, `-` and `.` are safe; a name that begins with `.` is hidden.

    >>> [is_plain_name(name) for name in ("save-1", "../up", ".git", "")]
    [True, False, False, False]
    """
    return re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,99}", name, re.ASCII) is not None
