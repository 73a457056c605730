"""Strings with a meaning. Never code.

`"@model"` is an object, `"${a.b}"` a value, `"${.b}"` and `"${..b}"` values beside and above.
`"${env:X}"`, `"${env:X,default}"` and `"${global:X}"` come from outside, `"${random:int:0:9}"` is
drawn, `"${device:count}"` and `"${length:data.train}"` are known when a run starts,
`"run:last@best"` is a run. A tree keeps the written form of what is decided later: object
references, secrets from outside, references to the machine, runs and the escapes `"@@text"` and
`"$${"`. So resolving twice is resolving once, and a saved tree reads back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, time
from typing import Any

from assay.config.tree import (
    IN_TEXT,
    KeyPath,
    Leaf,
    Node,
    Scalar,
    Table,
    parse_dotted,
    reference_of,
    walk,
)
from assay.core.diagnostics import Origin
from assay.core.secrets.names import is_folder_of_shell, sureness
from assay.core.secrets.replacement import Secrets

OUTSIDE = re.compile(
    r"(?P<kind>env|global):(?P<name>(?a:[A-Za-z_][\w-]*))(?:,(?P<default>.*))?", re.DOTALL
)
LENGTH = re.compile(r"length:data\.(?P<split>[A-Za-z_][\w-]*)", re.ASCII)
RANDOM = re.compile(r"random:(?P<kind>int|float):(?P<low>[^:]+):(?P<high>[^:]+)")

_NOTED = re.compile(r"\b(?:env|global):(?P<name>[\w-]+)")
MACHINE = ("device:count",)
"""References that the machine of the run resolves: the devices. Recorded when a run starts."""

RUN = "run:"
"""What an address of a run starts with in a config."""


def run_of(value: object) -> str | None:
    """Return the address in `"run:last@best"`; None for everything else.

    >>> run_of("run:last@best"), run_of("last")
    ('last@best', None)
    """
    return (
        value.removeprefix(RUN).strip()
        if isinstance(value, str) and value.startswith(RUN)
        else None
    )


def escape(text: str) -> str:
    """Return `text` with its references escaped: the inverse of `literal`."""
    return ("@" if text.startswith("@") else "") + text.replace("${", "$${")


def outside_used(root: Table) -> list[str]:
    """Return every `env:X` and `global:X` that `root` mentions, each once, in order."""
    texts = (
        node.value
        for _, node in walk(root)
        if isinstance(node, Leaf) and isinstance(node.value, str) and "${" in node.value
    )
    return list(
        dict.fromkeys(f"{kind}:{name}" for text in texts for kind, name in external_names(text))
    )


def external_names(text: str) -> list[tuple[str, str]]:
    """Return the kind and name of each variable that a string takes from outside.

    >>> external_names("${env:HOME}/${global:sets,mnist}")
    [('env', 'HOME'), ('global', 'sets')]
    """
    found = (OUTSIDE.fullmatch(inside.strip()) for inside in insides(text))
    return [(each["kind"], each["name"]) for each in found if each is not None]


def value_named(text: str, path: KeyPath) -> list[KeyPath]:
    """Return the path of each value that the string at `path` copies.

    >>> value_named("${model.width} of ${env:HOME} by ${..rate}", ("data", "train", "size"))
    [('model', 'width'), ('data', 'rate')]
    """
    return [target for inside in insides(text) if (target := referred_path(inside, path))]


def insides(text: str) -> list[str]:
    return [found["inside"] for found in IN_TEXT.finditer(text) if found["inside"] is not None]


class Uses:
    """References between the sections of a tree. Trees that share a section share its reading."""

    def __init__(self) -> None:
        # By identity: trees that differ in one key share all other nodes, which are kept here so
        # that none is reused.
        self._by_section: dict[
            tuple[str, int], tuple[Node, frozenset[KeyPath], frozenset[KeyPath]]
        ] = {}

    def paths(self, root: Table) -> set[KeyPath]:
        """Return what some `${path}` mentions from another section, and what `"@path"` names."""
        found: set[KeyPath] = set()
        for name, node in root.items.items():
            _, values, objects = self._of(name, node)
            found |= values | objects
        return found

    def names(self, root: Table) -> set[str]:
        """Return the top-level names that a `${name...}` in another section of `root` mentions."""
        return {
            str(path[0]) for name, node in root.items.items() for path in self._of(name, node)[1]
        }

    def _of(self, name: str, node: Node) -> tuple[Node, frozenset[KeyPath], frozenset[KeyPath]]:
        known = self._by_section.get((name, id(node)))
        if known is None:
            values: set[KeyPath] = set()
            for path, inner in walk(node, (name,)):
                if isinstance(inner, Leaf) and isinstance(inner.value, str) and "${" in inner.value:
                    values.update(
                        target
                        for target in value_named(inner.value, path)
                        if target[:1] != path[:1]
                    )
            objects = frozenset(
                target for _, target, _ in objects_used(node, path=(name,)) if target
            )
            known = self._by_section[name, id(node)] = node, frozenset(values), objects
        return known


def objects_used(root: Node, *, path: KeyPath = ()) -> Iterator[tuple[KeyPath, KeyPath, Origin]]:
    """Yield place, target and origin of each well-formed object reference below `root`."""
    for here, node in walk(root, path):
        try:
            target = reference_of(node)
        except ValueError:
            continue
        if target is not None:
            yield here, target, node.origin


def referred_path(inside: str | None, path: KeyPath) -> KeyPath | None:
    """Return the path of a value reference at `path`; None if malformed or from outside.

    Leading dots count from the table or list that the reference stands in: one is beside, each
    further one above.
    """
    if inside is None or ":" in inside:
        return None
    name = inside.strip()
    dots = len(name) - len(name.lstrip("."))
    if dots > len(path):
        return None
    try:
        target = parse_dotted(name[dots:])
    except ValueError:
        return None
    return (*path[: len(path) - dots], *target) if dots else target


def is_well_formed(inside: str) -> bool:
    """Return whether `${inside}` says what comes from outside, is drawn or is of the machine."""
    return inside in MACHINE or any(form.fullmatch(inside) for form in (OUTSIDE, LENGTH, RANDOM))


def is_kept(inside: str) -> bool:
    """Return whether `${inside}` is resolved elsewhere: from outside, by the machine, or bad."""
    inside = inside.strip()
    return is_well_formed(inside) or inside.startswith("random:")


def text_within(value: Scalar) -> str:
    """Return a value as it stands inside a longer string."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)


def is_secret_variable(name: str, value: Any) -> bool:
    """Return True if the name or the value of a variable says that it is a secret."""
    if is_folder_of_shell(name, str(value)):
        return False
    return bool(sureness(name)) or Secrets().tree(value, name) != value


def holds_secret(node: Node) -> bool:
    """Return True if a value in `node` came from a variable that holds a secret, by its origin."""
    return any(
        is_secret_variable(noted["name"], leaf.value)
        for _, leaf in walk(node)
        if isinstance(leaf, Leaf)
        for noted in _NOTED.finditer(leaf.origin.note)
    )
