"""`src/assay/core/secrets/rules.py`, made of the rules of gitleaks.

`python tests/secret_rules.py GITLEAKS_TOML LICENSE COMMIT` writes it.

Gitleaks matches with Go's RE2, which never backtracks. Here each pattern begins at its keyword, and
no part of it may repeat without a limit: the time to match grows with the length of the text and no
faster. Rules that would replace what is no secret in the code of experiments are left out, each
with its reason.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULE = Path(__file__).resolve().parent.parent / "src" / "assay" / "core" / "secrets" / "rules.py"
MOST = 1_000
"""Limit for what a pattern of gitleaks repeats without one."""

LEFT_OUT = {
    "`assay.core.secrets.texts` finds these by its own rules, also where no quotes are": (
        *(
            "generic-api-key",
            "hashicorp-tf-password",
            "curl-auth-header",
            "curl-auth-user",
            "private-key",
        ),
    ),
    "searches several lines of one kind of file": (
        *("kubernetes-secret-yaml", "nuget-config-password", "freemius-secret-key"),
    ),
    "is the name of a file": ("pkcs12-file",),
    "its keyword is a word of models and data (`linear`: the checksum of a layer)": (
        *(
            "linear-client-secret",
            "looker-client-secret",
            "sumologic-access-token",
            "plaid-client-id",
        ),
        "lob-pub-api-key",
    ),
    "is public": (
        *(
            "asana-client-id",
            "adobe-client-id",
            "bitbucket-client-id",
            "discord-client-id",
            "linkedin-client-id",
        ),
        *("looker-client-id", "messagebird-client-id", "mailgun-pub-key", "flutterwave-public-key"),
        *("new-relic-user-api-id", "sendbird-access-id", "sumologic-access-id"),
    ),
}
CUT = {
    # Any commit of git in a file that mentions the service, and any long attribute of an object
    # called `s`.
    "sourcegraph-access-token": ("|[a-fA-F0-9]{40}", ""),
    "vault-service-token": (r"(?:hvs\.[\w-]{90,120}|s\.(?i:[a-z0-9]{24}))", r"hvs\.[\w-]{90,120}"),
    "facebook-access-token": (r"(\||%)", r"(?:\||%)"),
}
WHOLE = {"microsoft-teams-webhook"}
"""Rules whose groups hold no secret."""
KEYWORDS = {"jwt": [".ey"], "vault-service-token": ["hvs."], "snyk-api-token": ["snyk"]}
"""Where those of gitleaks are in every second text."""

HEAD = '''\
"""Rules for texts that are secrets by themselves, or behind the name of a service.

Data, made by tests/secret_rules.py from the rules of gitleaks, commit {commit}, under this
licence:

{licence}"""

from __future__ import annotations

Rule = tuple[str, tuple[str, ...], str, int, float, bool]
"""Name; words of which one is in every text that it fits, in lower case; pattern; group that is the secret, 1 for the
first that took part; least entropy of the secret in bits a character; whether no letter or digit stands before it."""

SOURCE = "gitleaks {commit}"

# fmt: off
RULES: tuple[Rule, ...] = (
'''

WITH_DIGIT = r"(?=[^0-9\s]{0,99}[0-9])"
"""Behind the name of a service, words that happen to have the length of its tokens are no secret."""

_BEFORE_VALUE = r"""[\x60'"\s=]{0,5}"""
_AHEAD_OF_NAME = r"[\w.-]{0,50}?"
_END = re.compile(
    r"""\(\?:\[\\x60'"\\s;\]\|\\\\\[nr\]\|\$(?:\|\\b)?\)$
    | \(\?:\[\^\\w-\]\|\\z\)$ | \(\?:\[\^a-zA-Z0-9\+/\]\|\\z\)$ | \\b$""",
    re.VERBOSE,
)
END = r"(?![A-Za-z0-9])"
"""Gitleaks wants a quote, a blank or the end; what is printed has commas, brackets and the like there."""

_TOKEN = re.compile(
    r"""\\. | \[(?:\[:\w+:\]|\\.|[^\]\\])+\] | \(\?P<\w+> | \(\?i\) | \(\?[a-z-]*:? | \{\d+(?:,\d*)?\} | .""",
    re.VERBOSE | re.DOTALL,
)


def rules(text: str) -> Iterator[tuple[str, tuple[str, ...], str, int, float, bool]]:
    """The rules of gitleaks that are kept, as those of this project."""
    left_out = {name for names in LEFT_OUT.values() for name in names}
    for rule in tomllib.loads(text)["rules"]:
        if rule["id"] in left_out:
            continue
        pattern = translated(rule)
        group = rule.get("secretGroup") or min(re.compile(pattern).groups, 1)
        words = tuple(KEYWORDS.get(rule["id"], rule["keywords"]))
        is_alone = re.match(r"(?:\(\?i\))?\\b", rule["regex"]) is not None
        yield (
            rule["id"],
            words,
            pattern,
            0 if rule["id"] in WHOLE else group,
            rule.get("entropy", 0.0),
            is_alone,
        )


def translated(rule: dict[str, Any]) -> str:
    """Return a rule's pattern in Python's syntax, from its keyword on, with bounded repeats."""
    pattern = rule["regex"]
    if rule["id"] in CUT:
        pattern = pattern.replace(*CUT[rule["id"]])
    pattern = pattern.replace(_AHEAD_OF_NAME, "")
    pattern = pattern.replace(_BEFORE_VALUE, _BEFORE_VALUE + WITH_DIGIT)
    pattern = re.sub(r"^(\(\?i\))?\\b", lambda found: found[1] or "", pattern)
    ended, count = _END.subn("", pattern)
    pattern = python_syntax(ended)
    # An end of several patterns that stand for one another is in the middle, too.
    pattern = re.sub(r"""\(\?:\[\\x60'"\\s;\]\|\\\\\[nr\]\|\$\)""", lambda _: END, pattern)
    return pattern + END * bool(count)


def python_syntax(pattern: str) -> str:
    """Translate Go's pattern syntax to Python's: mid-pattern flags, named classes, end of text."""
    out: list[str] = []
    opened = [0]  # for each group that is open, how many groups of flags are to be closed with it
    for token in _TOKEN.findall(pattern):
        match token:
            case "(?i)":
                out.append("(?i:")
                opened[-1] += 1
            case _ if token.startswith("("):
                out.append(token if not token.startswith("(?P<") else "(?:")
                opened.append(0)
            case ")":
                out.append(")" * opened.pop() + ")")
            case r"\z":
                out.append(r"\Z")
            case "+" | "*":
                out.append(f"{{{int(token == '+')},{MOST}}}")
            case _ if token.startswith("{") and token.endswith(",}"):
                out.append(f"{token[:-1]}{MOST}}}")
            case _:
                out.append(token.replace("[:alnum:]", "A-Za-z0-9"))
    return "".join(out) + ")" * opened.pop()


def module(text: str, commit: str, licence: str) -> str:
    lines = [f"    {rule!r},\n" for rule in rules(text)]
    return HEAD.format(commit=commit, licence=licence) + "".join(lines) + ")\n"


if __name__ == "__main__":
    toml, licence, commit = sys.argv[1:]
    texts = [Path(path).read_text(encoding="utf-8") for path in (toml, licence)]
    MODULE.write_text(module(texts[0], commit, texts[1]), encoding="utf-8")
