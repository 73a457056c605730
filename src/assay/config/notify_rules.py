"""Rules of `[[notify]]` in a project's settings: the messages to send, and the channel of each.

Secrets are never written into the file: their keys take the name of an environment variable, as
`"${env:HOOK_TOKEN}"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from assay.config.tree import List, Node, Table, plain, problem_at
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import choose
from assay.core.secrets.texts import secrets_in

Channel = Literal["command", "webhook", "apprise"]
Shape = Literal["text", "texts", "secret", "count", "flag", "kinds"]

NOTIFY = "notify"
KINDS = (
    "finished",
    "failed",
    "stopped",
    "killed",
    "resumed",
    "nan",
    "disk full",
    "stalled",
    "plateau",
)
BAD = ("failed", "killed", "nan", "disk full", "stalled", "plateau")
AN_HOUR = 20
"""Messages that a rule sends within an hour, unless it says `at_most`."""

_COMMON: Mapping[str, Shape] = {
    "channel": "text",
    "when": "kinds",
    "tag": "text",
    "at_most": "count",
}
_KEYS: Mapping[Channel, Mapping[str, Shape]] = {
    "webhook": {"url": "text", "token": "secret", "private": "flag"},
    "command": {"command": "texts"},
    "apprise": {"url": "secret"},
}
_NEEDED: Mapping[Channel, tuple[str, ...]] = {
    "webhook": ("url",),
    "command": ("command",),
    "apprise": ("url",),
}
_EXPECTED: Mapping[Shape, str] = {
    "text": "text in quotes",
    "texts": 'text in quotes, or a list as in ["a", "b"]',
    "secret": 'the name of an environment variable, as in "${env:NAME}"',
    "count": "a whole number from 1 on",
    "flag": "true or false",
    "kinds": "a list of kinds of messages",
}
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyRule:
    """Rule that sends messages of the kinds `when`, of runs whose tag fits the pattern `tag`.

    `options` are the other keys of its channel, as they were written: `variable_of` tells whether
    a value stands in the environment.
    """

    channel: Channel
    when: tuple[str, ...] = BAD
    tag: str = "*"
    at_most: int = AN_HOUR
    options: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = field(default=Origin(source="<rule>"))


def variable_of(value: str) -> str | None:
    """Return the name of the environment variable that `value` stands for, None for plain text.

    >>> variable_of("${env:HOOK_TOKEN}"), variable_of("me@example.org")
    ('HOOK_TOKEN', None)
    """
    found = _VARIABLE.fullmatch(value)
    return found[1] if found else None


def notify_rules(node: Node | None) -> list[NotifyRule]:
    """Return the rules of a settings file in which `wrong_rules` has found nothing."""
    rules = node.items if isinstance(node, List) else ()
    return [_rule(rule) for rule in rules if isinstance(rule, Table)]


def wrong_rules(node: Node) -> Iterator[Problem]:
    """Yield each mistake in the rules, with its place."""
    if not isinstance(node, List) or not all(isinstance(each, Table) for each in node.items):
        message = f"`{NOTIFY}` must be tables, each under [[{NOTIFY}]]"
        yield problem_at("wrong-type", message, node.origin, NOTIFY)
        return
    for number, rule in enumerate(node.items):
        assert isinstance(rule, Table)
        yield from _wrong_rule(rule, f"{NOTIFY}.{number}")


def _rule(rule: Table) -> NotifyRule:
    values = plain(rule)
    channel: Channel = values["channel"]
    return NotifyRule(
        channel=channel,
        when=tuple(values.get("when", BAD)),
        tag=values.get("tag", "*"),
        at_most=values.get("at_most", AN_HOUR),
        options={name: value for name, value in values.items() if name not in _COMMON},
        origin=rule.origin,
    )


def _wrong_rule(rule: Table, path: str) -> Iterator[Problem]:
    channels: tuple[Channel, ...] = get_args(Channel)
    leaf = rule.items.get("channel")
    if leaf is None:
        fix = f"it is {', '.join(channels)}"
        yield problem_at("missing-key", "the rule has no `channel`", rule.origin, path, fix)
        return
    named = str(plain(leaf))
    channel = next((each for each in channels if each == named), None)
    if channel is None:
        fix = choose(named, channels, "it is")
        message = f"there is no channel `{named}`"
        yield problem_at("wrong-value", message, leaf.origin, f"{path}.channel", fix)
        return
    known = {**_COMMON, **_KEYS[channel]}
    for name, node in rule.items.items():
        if name not in known:
            message = f"the channel `{channel}` has no `{name}`"
            fix = choose(name, known, "it has")
            yield problem_at("unknown-key", message, rule.key_origin(name), f"{path}.{name}", fix)
        else:
            yield from _wrong_value(name, node, known[name], path)
    for name in _NEEDED[channel]:
        if name not in rule.items:
            message = f"the channel `{channel}` needs `{name}`"
            yield problem_at("missing-key", message, rule.origin, path)


def _wrong_value(name: str, node: Node, shape: Shape, path: str) -> Iterator[Problem]:
    value = plain(node)
    key = f"{path}.{name}"
    if not _fits(value, shape):
        message = f"`{name}` must be {_EXPECTED[shape]}"
        yield problem_at("wrong-value", message, node.origin, key)
    elif shape == "kinds":
        for kind in value:
            if kind not in KINDS:
                fix = choose(str(kind), KINDS)
                message = f"there are no messages `{kind}`"
                yield problem_at("wrong-value", message, node.origin, key, fix)
    elif shape in ("text", "texts") and _holds_secret(value):
        fix = f'put it into an environment variable: {name} = "${{env:NAME}}"'
        message = f"`{name}` holds a secret, and this file is committed"
        yield problem_at("secret", message, node.origin, key, fix)


def _fits(value: Any, shape: Shape) -> bool:
    match shape:
        case "text":
            return isinstance(value, str) and bool(value)
        case "texts":
            texts = [value] if isinstance(value, str) else value
            is_list = isinstance(texts, list) and bool(texts)
            return is_list and all(isinstance(each, str) and each for each in texts)
        case "secret":
            return isinstance(value, str) and variable_of(value) is not None
        case "count":
            is_number = isinstance(value, int) and not isinstance(value, bool)
            return is_number and 1 <= value <= 1_000_000
        case "flag":
            return isinstance(value, bool)
        case "kinds":
            return isinstance(value, list) and bool(value)


def _holds_secret(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return any(secrets_in(each, "text") for each in texts)
