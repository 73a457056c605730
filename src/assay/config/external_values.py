"""Values from outside a config: `${env:X}` from the environment, `${global:X}` from settings.

They are put in when a config is read, so that all that looks at a config compares values. Secrets
are put in where a run needs them, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, time
from typing import Any

from assay.config.references import IN_TEXT, OUTSIDE, each_text, escaped, text_of
from assay.config.sources.literals import value_of
from assay.config.tree import (
    KeyPath,
    Leaf,
    Node,
    Table,
    dotted,
    from_plain,
    plain,
)
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean
from assay.core.secret import Secrets
from assay.core.secret_names import is_redacted, sureness


def with_external_values(
    root: Table,
    environ: Mapping[str, str],
    variables: Mapping[str, Any],
    *,
    with_secrets: bool = True,
) -> tuple[Table, list[Problem]]:
    """Return `root` with every `${env:X}` and `${global:X}` replaced, and the problems.

    A variable that is alone in its string is parsed like an override (`8` is a number, unless text
    is wanted); a global keeps its type. `${env:X,8}` is 8 where there is no X. A value from outside
    is never a reference itself. Without `with_secrets` a secret stays a reference.
    """
    outside = _ExternalValues(environ, variables, with_secrets=with_secrets)
    return each_text(root, outside.node), outside.problems


def with_recorded_values(root: Table, outside: Mapping[str, Any]) -> Table:
    """Return `root` with the values that an older record kept beside its config, by `env:X`."""
    by_kind: dict[str, dict[str, Any]] = {"env": {}, "global": {}}
    for name, value in outside.items():
        kind, _, variable = name.partition(":")
        if kind in by_kind and not is_redacted(value):
            by_kind[kind][variable] = value
    environ = {name: value for name, value in by_kind["env"].items() if isinstance(value, str)}
    kept = _ExternalValues(environ, by_kind["global"], takes_defaults=False)
    return each_text(root, kept.node)


@dataclass
class _ExternalValues:
    environ: Mapping[str, str]
    variables: Mapping[str, Any]
    with_secrets: bool = True
    takes_defaults: bool = True
    problems: list[Problem] = field(default_factory=list)

    def node(self, leaf: Leaf, text: str, path: KeyPath) -> Node:
        whole = IN_TEXT.fullmatch(text)
        named = OUTSIDE.fullmatch((whole["inside"] or "").strip()) if whole is not None else None
        node = self.joined(leaf, text, path) if named is None else self.whole(leaf, named, path)
        key = next((part for part in reversed(path) if isinstance(part, str)), "")
        # Values that are no secrets may be one together, or under the name of this key.
        if not self.with_secrets and Secrets().tree(plain(node), key) != plain(node):
            return leaf
        return node

    def joined(self, leaf: Leaf, text: str, path: KeyPath) -> Leaf:
        """Return `leaf` with the variables inside its text replaced by the text of their values."""
        names: list[str] = []

        def put_in(found: re.Match[str]) -> str:
            named = OUTSIDE.fullmatch((found["inside"] or "").strip())
            if named is None or not self.is_there(named, leaf, path) or self.stays(named):
                return found[0]
            value = self.value(named)
            if isinstance(value, Mapping | list):
                name = f"the global `{named['name']}`"
                message = f"{name} is a list or table and cannot stand inside text"
                self.problems.append(
                    Problem(
                        kind="wrong-type", message=message, origin=leaf.origin, key=dotted(path)
                    )
                )
                return found[0]
            names.append(self.note(named))
            written = value if isinstance(value, str) else text_of(value)
            return written.replace("${", "$${")

        filled = IN_TEXT.sub(put_in, text)
        if not names:
            return leaf
        # What comes from outside is never a reference to an object.
        if filled.startswith("@") and not text.startswith("@"):
            filled = f"@{filled}"
        return Leaf(filled, _with_note(leaf.origin, names), typed=filled)

    def whole(self, leaf: Leaf, named: re.Match[str], path: KeyPath) -> Node:
        if not self.is_there(named, leaf, path) or self.stays(named):
            return leaf
        origin = _with_note(leaf.origin, [self.note(named)])
        value = self.value(named)
        if named["kind"] == "global":
            return from_plain(_escaped_all(value), origin)
        is_set = named["name"] in self.environ
        text = str(value) if is_set else named["default"].strip()
        standard = schema.find(path)
        is_text = standard is not None and standard.kind in (
            "text",
            "period",
            "steps",
            "duration",
            "choice",
        )
        if is_set:
            value = value_of(text)
        if is_text and (is_set or not isinstance(value, str)):
            value = text
        if not isinstance(value, bool | int | float | str | date | time | None):
            value = text
        if isinstance(value, str):
            # The quotes of a default are not part of its text.
            return Leaf(escaped(value), origin, typed=text if is_set else value)
        return Leaf(value, origin, typed=text)

    def value(self, named: re.Match[str]) -> Any:
        """Return the value of a variable that is there; its default is written as an override."""
        known = self.known(named)
        if named["name"] in known:
            return known[named["name"]]
        return value_of(named["default"].strip())

    def known(self, named: re.Match[str]) -> Mapping[str, Any]:
        return self.variables if named["kind"] == "global" else self.environ

    def note(self, named: re.Match[str]) -> str:
        """Return the origin of a value, which stands behind it in a saved config."""
        name = f"{named['kind']}:{named['name']}"
        return f"from {name}" if named["name"] in self.known(named) else f"default of {name}"

    def stays(self, named: re.Match[str]) -> bool:
        """Return whether a variable is a secret that is not to be put in."""
        if self.with_secrets:
            return False
        name, value = named["name"], self.value(named)
        return bool(sureness(name)) or Secrets().tree(value, name) != value

    def is_there(self, named: re.Match[str], leaf: Leaf, path: KeyPath) -> bool:
        name = named["name"]
        known: Iterable[str] = self.known(named)
        if name in known or (self.takes_defaults and named["default"] is not None):
            return True
        if named["kind"] == "global":
            message = f"the global `{name}` is not set"
            fix = f"assay config set --global {name} VALUE"
        else:
            message = f"the environment variable `{name}` is not set"
            fix = f"export {name}=..."
        fix = did_you_mean(name, known) or fix
        self.problems.append(
            Problem(
                kind="unknown-reference",
                message=message,
                origin=leaf.origin,
                key=dotted(path),
                fix=fix,
            )
        )
        return False


def _with_note(origin: Origin, names: Iterable[str]) -> Origin:
    return replace(origin, note=", ".join(dict.fromkeys(filter(None, [origin.note, *names]))))


def _escaped_all(value: Any) -> Any:
    match value:
        case str():
            return escaped(value)
        case Mapping():
            return {key: _escaped_all(item) for key, item in value.items()}
        case list():
            return [_escaped_all(item) for item in value]
        case _:
            return value
