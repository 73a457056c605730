"""Names that hold secrets, and values that are worth to be kept secret."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from typing import Literal

REDACTED = "<redacted>"
"""Word in the place of a secret."""


def is_redacted(value: object) -> bool:
    """Return whether a value is, or holds, the word in the place of a secret."""
    return isinstance(value, str) and REDACTED in value


Sureness = Literal["", "perhaps", "surely"]

_WORDS_OF_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_END_OF_NAME = re.compile(
    r"(?:_?\d{1,9}|_(?:value|val|text|raw|plain|b64|base64|old|new|prod|dev|test|live|base)){1,3}$"
)
_SURE = re.compile(
    r"""(?: passwords? | passwd | passwort | passphrase | passcode | pwd | secrets? | api_?keys? | private_?key(?:_id)?
    | (?:access|secret|account|auth|signing|encryption|master|license|shared|service)_?key
    | (?:auth|access|refresh|bearer|oauth2?|session|security|api|deploy|csrf|jwt|private|personal|admin|login|sas
        |hub|hf|huggingface|github|gh|gitlab|slack|discord|telegram|wandb|comet|neptune|openai|anthropic|aws|azure|gcp
        |google|npm|pypi|docker|kaggle|vault|sentry)_?token
    | (?:^|_)(?:db|user|admin|root|smtp|mail|email|ftp|proxy|http|ssh|pg|mysql|redis|sudo)_?(?:pass|pw)
    )$""",
    re.VERBOSE,
)
_PERHAPS = re.compile(
    r"(?:token|(?:^|_)(?:key|auth|authorization|credentials?|creds?|cookie|pass|pw|pat|sig|signature|bearer|private"
    r"|salt|dsn|webhook|otp))$"
)
_NEVER = re.compile(r"(?:^|_)(?:public|pub|primary|foreign)_?key$")
_FOLDERS_OF_SHELLS = ("PWD", "OLDPWD")
_NO_SECRET = re.compile(
    r"""(?: none | null | nil | true | false | yes | no | on | off | undefined | default | auto | empty | unset
    | change_?me | example | optional | required | missing | incorrect | invalid | wrong | expired | not | is | was
    | and | for | the | must | should | str | string | int | bytes | any | env | environ | prompt | redacted
    | (?:your|my|the|some|a|user|api|db)? [ _-]{0,3} (?:password|passwd|secret|token|key)s?
    | x+ | \*+ | \.+ | -+ | _+ | <.* | \$.* | %.*% | \{.* | .*\$\{.* )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_SCHEME = re.compile(r"(?:basic|bearer|bot|digest|token) {1,4}", re.IGNORECASE)

# Of a sentence or of code: names of algorithms and types, numbers with units, identifiers, paths.
_ORDINARY = re.compile(
    r"""(?: (?:sha|md|utf|base|aes|rsa|ed|hs|rs|es|ps|pbkdf|scrypt|crc|x|v|ipv|u?int|float|bf|fp|oauth|rfc|win
        |python|py|http|tls|ssl|kerberos|ntlm|iso|latin|cp|ascii|pkcs|cuda|cpu|gpu|step|epoch|layer|block)
        [-_:]?\d[\w.+-]*
    | [\d.,:%+-]+[A-Za-z]{0,4} | [A-Za-z]+['\u2019][a-z]+ | \w+(?:[.:]\w*)+(?:\(.*)? | \w+/.* | \w+(?:_\w*)+
    | [\w.+-]+@[\w-]+\.[\w.-]+ | .*(?:://|\.\.\.).* | \W*\w{0,3}\W* )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL | re.ASCII,
)
_MARKUP = re.compile(r"[()\[\]{}<>;,\"\s\\]|%[-+0-9.]*[sdrfgi(]|\$\{|\w=\w")
_HYPHENATED = re.compile(r"[a-z]{2,20}(?:-[a-z]{2,20}){2,10}")

PATTERNS = tuple(
    it.pattern for it in (_SURE, _PERHAPS, _NEVER, _NO_SECRET, _ORDINARY, _MARKUP, _HYPHENATED)
)

_CHANGE = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")


@functools.lru_cache(1 << 12)
def sureness(name: str) -> Sureness:
    """Return how surely a variable, key or option of this name holds a secret.

    >>> names = ("HF_TOKEN", "apiKey", "db-password.v", "pad_token", "KEYBOARD", "max_tokens")
    >>> [sureness(name) for name in names]
    ['surely', 'surely', 'surely', 'perhaps', '', '']
    """
    above, _, own = name[-100:].rpartition(".")
    if own and above and sureness(above) == "surely":
        return "surely"  # all that stands below such a name
    words = _WORDS_OF_CAMEL.sub("_", name[-100:]).lower()
    words = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    words = _END_OF_NAME.sub("", words) or words
    if _NEVER.search(words):
        return ""
    return "surely" if _SURE.search(words) else "perhaps" if _PERHAPS.search(words) else ""


def is_secret(name: str, value: str) -> bool:
    """Return whether `value` is a secret, as what a variable of that name has.

    >>> is_secret("db.password", "correct horse"), is_secret("pad_token", "<pad>")
    (True, False)
    >>> is_secret("token", "a1b2c3d4e5f6g7")
    True
    """
    how = sureness(name)
    if not how or not may_be_secret(value) or is_folder_of_shell(name, value):
        return False
    return how == "surely" or is_opaque(_SCHEME.sub("", value.strip()))


def is_folder_of_shell(name: str, value: str) -> bool:
    """Return whether this is $PWD as a shell sets it; any other pwd is a password.

    >>> is_folder_of_shell("PWD", "/tmp/x"), is_folder_of_shell("db.pwd", "/tmp/x")
    (True, False)
    """
    return name in _FOLDERS_OF_SHELLS and value.startswith("/")


def may_be_secret(value: str) -> bool:
    """Return whether a value may be a secret: not empty, a placeholder, a reference or a path."""
    value = value.strip()
    return len(value) > 2 and not _NO_SECRET.fullmatch(value) and not _is_path(value)


def is_distinct(value: str) -> bool:
    """Return whether a secret may be replaced everywhere: it is no common word, number or path.

    >>> values = ("correct-horse-battery", "a1b2c3d4", "postgres", "12345", "/run/agent.1")
    >>> [is_distinct(value) for value in values]
    [True, True, False, False, False]
    """
    if not may_be_secret(value) or len(value) < 8:
        return False
    if value.isalpha() and value.islower():
        return len(value) >= 16
    return not value.replace(".", "").isdigit() or len(value) >= 12


def is_opaque(text: str, least: int = 12) -> bool:
    """Return whether a text looks random: letters and digits that alternate, not words or a number.

    >>> texts = ("q8Zr3LmX0tYv", "resnet50-imagenet-v2", "123456789012", "valid/acc_top5_mean")
    >>> [is_opaque(text) for text in texts]
    [True, False, False, False]
    """
    if len(text) < least or " " in text or "\n" in text:
        return False
    if len(_CHANGE.findall(text)) >= 3 and entropy(text) >= 2.5:
        return True
    is_mixed = (
        any(map(str.isupper, text)) and any(map(str.islower, text)) and any(map(str.isdigit, text))
    )
    return len(text) >= 20 and is_mixed and entropy(text) >= 3.9


def is_like_password(word: str) -> bool:
    """Return whether a word among words, or in a text of code, is none that people write there.

    >>> words = ("hunter2", "Tr0ub4dor&3", "correct-horse-battery", "base64", "config.password")
    >>> [is_like_password(word) for word in words]
    [True, True, True, False, False]
    """
    if not 6 <= len(word) <= 200 or not may_be_secret(word) or _MARKUP.search(word):
        return False
    if is_opaque(word):
        return True
    if sureness(word) or _ORDINARY.fullmatch(word):
        return False
    if _HYPHENATED.fullmatch(word):
        return len(word) >= 18
    core = word.strip("!#$^&*+=~@?.,:-")
    has_letter = any(map(str.isalpha, core))
    return has_letter and any(letter.isdigit() or letter in "!#$^&*+=~@?" for letter in core)


def entropy(text: str) -> float:
    """Return the bits per character."""
    return -sum(
        count / len(text) * math.log2(count / len(text)) for count in Counter(text).values()
    )


def _is_path(value: str) -> bool:
    return value.startswith(("/", "./", "../", "~/")) and not is_opaque(value.rpartition("/")[2])
