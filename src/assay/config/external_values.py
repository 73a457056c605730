"""Values from outside a config: `${env:X}` from the environment, `${global:X}` from settings."""

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
)
from assay.core import schema
from assay.core.diagnostics import Problem
from assay.core.errors import did_you_mean


def with_external_values(
    root: Table, environ: Mapping[str, str], variables: Mapping[str, Any]
) -> tuple[Table, list[Problem]]:
    """Return `root` with every `${env:X}` and `${global:X}` replaced, and the problems.

    A variable that is alone in its string is parsed like an override (`8` is a number, unless text
    is wanted); a global keeps its type. A value from outside is never a reference itself.
    """
    outside = _ExternalValues(environ, variables)
    return each_text(root, outside.node), outside.problems


@dataclass
class _ExternalValues:
    environ: Mapping[str, str]
    variables: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)

    def node(self, leaf: Leaf, text: str, path: KeyPath) -> Node:
        whole = IN_TEXT.fullmatch(text)
        named = OUTSIDE.fullmatch((whole["inside"] or "").strip()) if whole is not None else None
        if named is not None:
            return self.whole(leaf, named, path)

        def put_in(found: re.Match[str]) -> str:
            named = OUTSIDE.fullmatch((found["inside"] or "").strip())
            if named is None or not self.is_there(named, leaf, path):
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
            written = value if isinstance(value, str) else text_of(value)
            return written.replace("${", "$${")

        filled = IN_TEXT.sub(put_in, text)
        # What comes from outside is never a reference to an object.
        if filled.startswith("@") and not text.startswith("@"):
            filled = f"@{filled}"
        return replace(leaf, value=filled)

    def whole(self, leaf: Leaf, named: re.Match[str], path: KeyPath) -> Node:
        if not self.is_there(named, leaf, path):
            return leaf
        name = named["name"]
        if named["kind"] == "global":
            origin = replace(leaf.origin, note=f"from the global {name}")
            return from_plain(_escaped_all(self.variables[name]), origin)
        text = self.environ[name]
        standard = schema.find(path)
        is_text = standard is not None and standard.kind in (
            "text",
            "period",
            "steps",
            "duration",
            "choice",
        )
        value = text if is_text else value_of(text)
        if not isinstance(value, bool | int | float | str | date | time | None):
            value = text
        plain = escaped(value) if isinstance(value, str) else value
        return Leaf(
            plain, replace(leaf.origin, note=f"from the environment variable {name}"), typed=text
        )

    def value(self, named: re.Match[str]) -> Any:
        return (self.variables if named["kind"] == "global" else self.environ)[named["name"]]

    def is_there(self, named: re.Match[str], leaf: Leaf, path: KeyPath) -> bool:
        name = named["name"]
        if named["kind"] == "global":
            known: Iterable[str] = self.variables
            message = f"the global `{name}` is not set"
            fix = f"assay config set --global {name} VALUE"
        else:
            known = self.environ
            message = f"the environment variable `{name}` is not set"
            fix = f"export {name}=..."
        if name in known:
            return True
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
