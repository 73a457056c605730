"""Names of runs: an id nobody else has, and a folder name people can read."""

from __future__ import annotations

import os
import re
from datetime import datetime

ID_LENGTH = 8
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # RFC 4648 base32, lower case
ID_PATTERN = re.compile(rf"[{_ALPHABET}]{{{ID_LENGTH}}}")
_FOLDER = re.compile(rf"\d{{6}}-\d{{4}}-(?P<id>[{_ALPHABET}]{{{ID_LENGTH}}})(?:-.*)?")


def new_run_id() -> str:
    """Eight random base32 characters (40 bits); starts with a letter so that it never reads as a
    number."""
    return _id_of(os.urandom(ID_LENGTH))


def run_id_of(text: str) -> str:
    """The id of a run that is known by `text` elsewhere: the same text always gives the same id.

    >>> run_id_of("mlflow 0a1b")
    'w7w5y5il'
    """
    from hashlib import sha256  # brings OpenSSL along, which what records would have to load

    return _id_of(sha256(text.encode("utf-8", "surrogatepass")).digest()[:ID_LENGTH])


def _id_of(data: bytes) -> str:
    first, *others = data
    # 256 is a multiple of 32, and of 26 nearly: an id need not be secret.
    return _ALPHABET[first % 26] + "".join(_ALPHABET[each % 32] for each in others)


def slug(text: str, *, limit: int = 40) -> str:
    """Lower-case ASCII letters, digits and single dashes; safe as a part of any file name.

    >>> slug("MNIST CNN, größer!")
    'mnist-cnn-groer'
    >>> slug("../../etc/passwd")
    'etc-passwd'
    """
    if not text.isascii():
        import unicodedata

        text = unicodedata.normalize("NFKD", text)
    ascii_text = text.encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_text).strip("-")[:limit].rstrip("-")


def folder_name(created: datetime, run_id: str, tag: str) -> str:
    """`261121-0339-kq3f7abc-mnist-cnn`: sorts by time, found by id, read by tag."""
    return "-".join(part for part in (f"{created:%y%m%d-%H%M}", run_id, slug(tag)) if part)


def id_of_folder(name: str) -> str | None:
    """The run id inside a folder name, or None when the name is not one of ours."""
    match = _FOLDER.fullmatch(name)
    return match["id"] if match else None


def is_plain_name(name: str) -> bool:
    """Whether a name may be that of a folder anywhere: letters, digits, `_`, `-`, `.`, and not
    hidden.

    >>> [is_plain_name(name) for name in ("save-1", "../up", ".git", "")]
    [True, False, False, False]
    """
    return re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,99}", name, re.ASCII) is not None
