"""Places of secrets in a text: of known kinds, behind names that say so, and private keys.

The time to find them grows with the length of the text and no faster: each pattern begins with what
is rare, and none repeats without a limit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from assay.core.secrets.names import (
    PATTERNS,
    entropy,
    is_like_password,
    is_opaque,
    is_secret,
    sureness,
)
from assay.core.secrets.places import PLACES, Kind, Places, Span

if TYPE_CHECKING:
    from assay.core.secrets.rules import Rule


# Tokens as gitleaks has them, but of any length, and those of services that it does not know;
# addresses and headers.
_OWN_RULES: tuple[Rule, ...] = (
    ("token", ("sk-",), r"sk-(?:[a-z0-9]{1,12}-){0,3}[\w-]{16,300}", 0, 2, True),
    ("token", ("gh", "github_pat_"), r"(?:gh[pousr]_|github_pat_)\w{20,300}", 0, 2, True),
    ("token", ("hf_",), r"hf_[A-Za-z0-9]{20,300}", 0, 2, True),
    ("token", ("glpat-",), r"glpat-[\w-]{20,300}", 0, 2, True),
    ("token", ("xox",), r"xox[abeprs]-[\w-]{10,300}", 0, 2, True),
    ("token", ("akia", "asia"), r"(?:AKIA|ASIA)[0-9A-Z]{16}", 0, 2, True),
    ("token", ("aiza",), r"AIza[\w-]{30,300}", 0, 2, True),
    ("token", ("ya29.", "gocspx-"), r"(?:ya29\.|GOCSPX-)[\w-]{20,1000}", 0, 2, True),
    ("token", ("1//0",), r"1//0[\w-]{30,300}", 0, 2, True),
    ("token", ("pypi-",), r"pypi-[\w-]{50,1000}", 0, 2, True),
    ("token", ("dckr_pat_",), r"dckr_pat_[\w-]{20,100}", 0, 2, True),
    (
        "token",
        ("r8_", "gsk_", "xai-", "nvapi-", "tgp_v1_", "wandb_v1_", "figd_", "sbp_", "whsec_"),
        r"(?:r8_|gsk_|xai-|nvapi-|tgp_v1_|wandb_v1_|figd_|sbp_|whsec_)[\w-]{20,300}",
        *(0, 2, True),
    ),
    ("token", ("eyj",), r"eyJ[\w-]{10,4000}\.[\w-]{10,4000}(?:\.[\w-]{1,4000})?", 0, 2, True),
    ("token", ("eyjhcglf",), r"eyJhcGlf[\w+/=-]{30,1000}", 0, 2, True),
    ("bot", (":aa",), r"[0-9]{8,10}:AA[\w-]{33}", 0, 2, True),
    ("bot", (".",), r"[MNO][A-Za-z0-9_-]{23,25}\.[\w-]{6}\.[\w-]{27,40}", 0, 4, True),
    (
        "webhook",
        ("/api/webhooks/",),
        r"discord(?:app)?\.com/api/webhooks/([0-9]{10,20}/[\w-]{30,100})",
        1,
        3,
        False,
    ),
    (
        "address",
        ("://",),
        r"://[^/\s:@'\"<>{}$]{0,256}:([^/\s'\"<>{}$]{1,512})@(?=[\w.\[-])",
        1,
        0,
        False,
    ),
    ("address", ("://",), r"://([\w~.%+-]{16,512})@(?=[\w.\[-])", 1, 3, False),
    ("header", ("bearer",), r"(?i:bearer)[ \t]{1,4}([\w.~+/=-]{16,2000})", 1, 2.5, False),
    (
        "header",
        ("authorization",),
        r"(?i:authorization)[\"']?[ \t]{0,4}[:=,][ \t]{0,4}[\"']?(?:[A-Za-z]{3,12}[ \t]{1,4})?([\w.~+/=:-]{6,2000})",
        *(1, 2, False),
    ),
    (
        "header",
        ("cookie:", "cookie'", 'cookie"'),
        r"(?i:cookie)[\"']?[:,][ \t]{0,4}[\"']?((?=[\w.!$%*+-]{1,200}=)[^\r\n\"']{6,4000})",
        1,
        0,
        False,
    ),
    (
        "netrc",
        ("login",),
        r"(?i:login)[ \t\n]{1,4}\S{1,256}[ \t\n]{1,4}password[ \t\n]{1,4}(\S{1,512})",
        1,
        0,
        False,
    ),
    (
        "hash",
        ("$",),
        r"\$(?:2[abxy]?|1|5|6|y|apr1|argon2(?:id|i|d))\$[A-Za-z0-9./$=,+]{20,200}",
        0,
        3,
        False,
    ),
    (
        "user",
        ("-u", "--user"),
        r"(?<=[\s'\"])(?:-u|--user)(?:['\"],)?[ \t=]{1,4}['\"]?[\w.@-]{1,100}:([^\s'\"]{3,512})",
        *(1, 0, False),
    ),
    ("odbc", (";pwd=",), r";(?i:pwd)=([^;\s\"']{3,512})", 1, 0, False),
    ("sshpass", ("sshpass",), r"sshpass[ \t]{1,4}-p[ \t]{0,4}['\"]?([^\s'\"]{3,512})", 1, 0, False),
    (
        "chinese",
        ("密码", "口令", "密钥"),
        r"(?:密码|口令|密钥)[ \t]{0,4}[是为:：=][ \t]{0,4}[\"'`]?((?=[A-Za-z]{0,60}[0-9!#$%&*+=@?^~-])[!#-&(-_a-~]{6,200})",
        1,
        2,
        False,
    ),
)
_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}

_KEY = re.compile(
    r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d:|Private-Lines: ?\d{1,4}"
)
_KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=_\s\"',:;>|.()#*]|\\[nr]|-(?!-)){40,20000}")

_HINT = re.compile(
    r"p(?:ass|wd?|at|rivate)|s(?:ecret|ig|alt)|token|key|auth|c(?:red|ookie)|bearer|dsn|webhook|otp"
)
_NAME_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."
_REST_OF_NAME = re.compile(r"[\w.-]{0,40}", re.ASCII)
_WORD_BEFORE = re.compile(r"([A-Za-z]{2,20})[ \t]\Z")
_BEHIND_NAME = re.compile(
    r"""\\?["'`]? (?:\[\d{0,6})?\]? \*{0,2}
    (?: [ \t]{0,8} (?::[ \t]{0,4}[A-Za-z_][\w.\[\]|, ]{0,40}?[ \t]{0,4}(?==))?
        (?P<operator>[=-]>|→|[:?+]=|={1,2}|!=|[:：>,|]) \*{0,2} [ \t]{0,8}
        (?:[&!][\w!./-]{0,60}[ \t]{1,4}){0,2} (?:<!\[CDATA\[)?
        \(? (?:[A-Za-z_.]{1,40}\()? (?:default[ ]?=[ ]?)? (?:[rbfuRBFU]{1,2}(?=["']))?
    | [ \t]{1,4}(?!-) )
    (?: (?P<quote>\\?(?:\"{3}|'{3}|["'`])) (?P<quoted>(?:(?!(?P=quote))[^\n]){1,2000}) (?P=quote)
    | (?P<plain>[^\s"'`,;)\]}<>&|\\]{1,2000}) )""",
    re.VERBOSE | re.ASCII,
)
_LOOKED_AT = 300
"""So much of a value says what it is."""

_REST_OF_WORD = re.compile(r"[^\s\"'`]{0,2000}")
_REST_OF_ELEMENT = re.compile(r"[^<\]\n]{0,2000}")
_REST_OF_LINE = re.compile(r"(?:(?![ \t]#)[^\n]){0,2000}")


def secrets_in(text: str, kind: Kind) -> list[Span]:
    """Return where secrets stand in `text`, in order and apart from each other."""
    low = text.lower()
    if len(low) != len(text):  # a letter that is two in lower case
        low = text.translate(_LOWER)
    found = sorted([*_of_known_kinds(text, low), *_private_keys(text), *_of_names(text, low, kind)])
    apart: list[Span] = []
    for begin, end in found:
        if apart and begin <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((begin, end))
    return apart


def edition() -> str:
    """Return a text that changes with the rules by which secrets are found."""
    from assay.core.secrets.rules import SOURCE  # as below

    return repr((SOURCE, _OWN_RULES, _HINT.pattern, _BEHIND_NAME.pattern, *PATTERNS, *PLACES))


def _of_known_kinds(text: str, low: str) -> Iterator[Span]:
    search, rules_of = _search()
    for rule in {rule for word in set(search.findall(low)) for rule in rules_of[word]}:
        _, _, pattern, group, least, is_alone = rule
        for match in _compile(pattern).finditer(text):
            begin, end = match.span(
                next((n for n, it in enumerate(match.groups(), 1) if it), 0)
                if group == 1
                else group
            )
            it = text[begin:end]
            if (
                is_alone
                and begin
                and text[begin - 1].isalnum()
                and text[begin - 2 : begin - 1] != "\\"
            ):
                continue
            if entropy(it) >= least:
                yield begin, end


@functools.cache
def _search() -> tuple[re.Pattern[str], dict[str, list[Rule]]]:
    """Return a pattern that finds all words of rules in one pass, and the rules by each word.

    Of two words with the same begin it finds the shorter, which then stands for both.
    """
    from assay.core.secrets.rules import RULES  # large: a process that writes nothing needs none

    rules_of: dict[str, list[Rule]] = {}
    of_words = [(word, rule) for rule in (*_OWN_RULES, *RULES) for word in rule[1]]
    for word, rule in sorted(of_words, key=lambda pair: pair[0]):
        begins = (word[:n] for n in range(1, len(word)))
        shortest = next((begin for begin in begins if begin in rules_of), word)
        rules_of.setdefault(shortest, []).append(rule)
    pattern = re.compile(f"(?=({_one_of(rules_of)}))")
    return pattern, rules_of


def _one_of(words: Iterable[str]) -> str:
    """Return a pattern for one of several words that tries each first letter once."""
    by_letter: dict[str, list[str]] = {}
    for word in sorted(words):
        by_letter.setdefault(word[:1], []).append(word[1:])
    branches = [
        re.escape(letter) + (_one_of(rest) if any(rest) else "")
        for letter, rest in by_letter.items()
    ]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _private_keys(text: str) -> Iterator[Span]:
    """Yield the body of each private key, up to the end of the text if its last line is missing."""
    if "PRIVATE KEY" not in text and "Private-Lines" not in text:
        return
    for match in _KEY.finditer(text):
        end = text.find("-----END", match.end(), match.end() + 20_000)
        body = _KEY_BODY.match(text, match.end(), len(text) if end < 0 else end)
        if body is not None:
            yield body.span()


def _of_names(text: str, low: str, kind: Kind) -> Iterator[Span]:
    """Yield the values that belong to names of secrets: behind them, else near them."""
    done = 0
    places = Places(text, kind)
    for hint in _HINT.finditer(low):
        if hint.start() < done:
            continue
        end = hint.end() + len(_rest_of_name(text, hint.end()))
        before = text[max(0, hint.start() - 80) : hint.start()]
        begin = hint.start() - len(before) + len(before.rstrip(_NAME_CHARS))
        name = text[begin:end]
        if name.lower() == "pwd" and text[begin - 1 : begin] == ";":
            continue  # of an ODBC address, which has a pattern of its own
        how, is_two_words = sureness(name), False
        if how != "surely" and (word := _WORD_BEFORE.search(text, max(0, begin - 24), begin)):
            is_two_words = sureness(f"{word[1]} {name}") == "surely"  # "API key"
        if not how and not is_two_words:
            continue
        span = _value_behind(begin, end, places) if how else None
        spans = [] if span is None else [span]
        if not spans and (how == "surely" or is_two_words):
            spans = places.near(begin, end)
        for span in spans:
            done = max(done, span[1])
            yield span


def _rest_of_name(text: str, at: int) -> str:
    rest = _REST_OF_NAME.match(text, at)
    return rest[0] if rest else ""


def _value_behind(begin: int, end: int, places: Places) -> Span | None:
    """Return where the value of the name at `begin:end` is, if it is right behind it."""
    text, kind, name = places.text, places.kind, places.text[begin:end]
    behind = _BEHIND_NAME.match(text, end)
    if behind is None:
        return None
    is_quoted = behind["quoted"] is not None
    first, last = behind.span("quoted" if is_quoted else "plain")
    operator = behind["operator"]
    value = text[first : min(last, first + _LOOKED_AT)]
    is_sure = sureness(name) == "surely"
    is_option = name.startswith("-")
    is_literal = kind == "code" and not is_quoted and places.is_loose(first)
    is_variable = kind == "code" and not is_quoted and not is_literal
    if operator is None and not is_option:
        # Words of a sentence: only what is none.
        if not (is_sure and places.is_loose(first) and is_like_password(value)):
            return None
    elif is_variable or (operator == "," and not is_option):
        # Items of a list, arguments of a call, other variables: only what cannot be a word.
        return (first, last) if is_opaque(value, 20 if is_variable else 12) else None
    elif operator == "|":  # a cell of a table, or another type
        return (first, last) if is_like_password(value) else None
    elif kind == "code" and " " in value:
        return None  # a message
    elif not is_secret(name, value) or (is_literal and not is_like_password(value)):
        return None
    is_of_query = text[begin - 1 : begin] in ("?", "&")
    if is_sure and not is_quoted and not is_of_query:
        is_line = kind == "data" and operator is not None
        rest = _REST_OF_ELEMENT if operator == ">" else _REST_OF_LINE if is_line else _REST_OF_WORD
        more = rest.match(text, last)
        last += len(more[0].rstrip(" \t\r,;.)]}>")) if more else 0
    return first, last
