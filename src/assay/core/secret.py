"""What looks like a secret, by its name or by itself: it is used and never written down."""

from __future__ import annotations

import math
import re
from collections import Counter

REDACTED = "<redacted>"

_NAMES = re.compile(
    r"(?:^|[_-])(?:api_?key|key|token|secret|passw(?:or)?d|pwd|pass|passphrase|credentials?|auth|cookie|bearer"
    r"|private|signature|dsn|pat)(?:$|[_\d-])",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"(?:\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|AIza|ya29\.|eyJ|npm_|pypi-|dop_v1_|r8_|nvapi-)"
    r"[\w.=/+-]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]*:[^/\s@]+@)"  # user:password@ in an address
)
_DENSE = re.compile(r"[\w+/=-]{24,}", re.ASCII)
_BITS = 3.9  # per character; words and paths stay below, random letters and digits of this length above


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name usually holds a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "API_KEY", "monkey", "KEYBOARD", "db-password")]
    [True, True, False, False, True]
    """
    return bool(_NAMES.search(name))


def is_secret_text(text: str) -> bool:
    """Whether a text holds what looks like a secret: a known kind of key, a password in an address, random letters.

    >>> is_secret_text("/data/imagenet/train"), is_secret_text("hf_" + "a1B2" * 8)
    (False, True)
    """
    return bool(_KNOWN.search(text)) or any(_is_random(found[0]) for found in _DENSE.finditer(text))


def redacted(name: str, value: object) -> object:
    """`value`, or a word in its place when its name or itself says that it is a secret."""
    if is_secret_name(name) or (isinstance(value, str) and is_secret_text(value)):
        return REDACTED
    if isinstance(value, list):
        return [redacted(name, item) for item in value]
    if isinstance(value, dict):
        return {key: redacted(str(key), item) for key, item in value.items()}
    return value


def _is_random(text: str) -> bool:
    if not (re.search(r"[A-Z]", text) and re.search(r"[a-z]", text) and re.search(r"\d", text)):
        return False
    counts = Counter(text)
    bits = -sum(count / len(text) * math.log2(count / len(text)) for count in counts.values())
    return bits >= _BITS and "/" not in text[:2]
