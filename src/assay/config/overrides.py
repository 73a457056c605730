"""`optimizer.lr=1e-2` on the command line: which arguments are overrides, what they set, what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assay.config.tree import KeyPath, List, Node, Table, delete_at, dotted, fitted, from_plain, get_at, set_at
from assay.config.values import value_of
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean

CLI = "<cli>"
DELETE = "@delete"
_OVERRIDE = re.compile(r"(?P<plus>\+?)(?P<key>[A-Za-z_][\w.-]*)=", re.ASCII)


def is_override(argument: str) -> bool:
    """Whether a command-line argument is an override: it looks like `key=value` and no file has that name.

    >>> is_override("optimizer.lr=1e-2"), is_override("digits.toml"), is_override("--lr=1")
    (True, False, False)
    """
    if not _OVERRIDE.match(argument):
        return False
    try:
        return not Path(argument).exists()
    except (OSError, ValueError):
        return True


def apply(root: Table, arguments: Sequence[str]) -> tuple[Table, list[Problem]]:
    """`root` with the overrides done one after another. A wrong one is told and changes nothing."""
    problems: list[Problem] = []
    for argument in arguments:
        try:
            root = _applied(root, _read(argument))
        except _Refused as refused:
            problems.append(refused.problem)
    return root, problems


def typed_text(node: Node) -> str | None:
    """The value of an override exactly as typed, for parameters that want text: `name=123` means "123" to a str."""
    origin = node.origin
    if origin.source != CLI or origin.text is None:
        return None
    return origin.text[origin.column - 1 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Override:
    argument: str
    creates: bool
    parts: tuple[str, ...]
    key_start: int
    value_start: int

    @property
    def value(self) -> str:
        return self.argument[self.value_start :]

    @property
    def value_origin(self) -> Origin:
        return _origin(self.argument, self.value_start, len(self.argument))

    def key_origin(self, first: int = 0, last: int | None = None) -> Origin:
        """Where the parts `first` up to `last` of the key stand."""
        last = len(self.parts) if last is None else last
        start = self.key_start + sum(len(part) + 1 for part in self.parts[:first])
        return _origin(self.argument, start, start + len(".".join(self.parts[first:last])))


class _Refused(Exception):
    def __init__(self, kind: str, message: str, origin: Origin, *, key: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(kind=kind, message=message, origin=origin, key=key, fix=fix)


def _origin(argument: str, start: int, end: int) -> Origin:
    return Origin(source=CLI, line=1, column=start + 1, end_line=1, end_column=end + 1, text=argument)


def _read(argument: str) -> _Override:
    found = _OVERRIDE.match(argument)
    if found is None:
        whole = _origin(argument, 0, len(argument))
        bare = argument.lstrip("-")
        if argument.startswith("-") and _OVERRIDE.match(bare):
            raise _Refused("syntax", f"`{argument}` is no option of assay", whole, fix=f"write {bare}")
        if re.fullmatch(r"~[A-Za-z_][\w.-]*", argument):
            raise _Refused("syntax", f"`{argument}` is no override", whole, fix=f"write {argument[1:]}={DELETE}")
        raise _Refused("syntax", f"`{argument}` is no override", whole, fix="write key=value, as in optimizer.lr=0.01")
    override = _Override(
        argument=argument,
        creates=bool(found["plus"]),
        parts=tuple(found["key"].split(".")),
        key_start=found.start("key"),
        value_start=found.end(),
    )
    if "" in override.parts:
        raise _Refused("syntax", f"`{found['key']}` has an empty part", override.key_origin(), fix="write a.b=value")
    return override


def _applied(root: Table, override: _Override) -> Table:
    path = fitted(root, override.parts)
    old = get_at(root, path)
    if override.value.strip() == DELETE:
        if old is None:
            raise _not_there(root, override, path)
        return delete_at(root, path)
    if override.creates:
        if isinstance(old, List):
            path = (*path, len(old.items))
        elif old is not None:
            fix = f"write {override.argument[1:]}"
            raise _Refused(
                "duplicate-key", f"`{dotted(path)}` is there already", override.key_origin(), key=dotted(path), fix=fix
            )
        elif len(path) == 1:
            raise _not_there(root, override, path)
    elif old is None:
        _check_new(root, override, path)
    node = _node(path, override)
    if old is not None and not override.creates:
        node = replace(node, origin=replace(node.origin, replaced=old.origin))
    try:
        return set_at(root, path, node, override.key_origin())
    except KeyError:
        raise _not_there(root, override, path) from None


def _node(path: KeyPath, override: _Override) -> Node:
    value = value_of(override.value)
    standard = schema.find(path)
    if standard is not None and standard.kind in ("text", "period", "duration", "choice") and value is not None:
        value = override.value
    return from_plain(value, override.value_origin)


def _check_new(root: Table, override: _Override, path: KeyPath) -> None:
    """Refuses a key that is neither in the file nor possible in the table it would stand in."""
    parent = get_at(root, path[:-1])
    is_new_split = path[0] == "data" and get_at(root, path[:2]) is None
    if schema.find(path) is not None and not is_new_split:
        return
    standard = schema.find(path[:-1])
    is_closed = _is_split(path[:-1]) or (standard is not None and standard.kind in ("table", "tables"))
    if len(path) == 1 or not isinstance(parent, Table) or is_closed:
        raise _not_there(root, override, path)


def _is_split(path: KeyPath) -> bool:
    return len(path) == 2 and path[0] == "data"


def _not_there(root: Table, override: _Override, path: KeyPath) -> _Refused:
    """The first part of the key that leads nowhere, and what was probably meant."""
    length = 0
    while length < len(path) - 1 and _exists(root, path[: length + 1]):
        length += 1
    word = override.parts[length]
    above, key = path[:length], dotted(path[: length + 1])
    origin = override.key_origin(length, length + 1)
    parent = get_at(root, above)
    if not above and word in schema.LAUNCH:
        message = f"`{word}` is a setting of one launch, not of the config"
        fix = f"give it on the command line: {schema.LAUNCH[word]}"
        return _Refused("launch-setting", message, origin, key=key, fix=fix)
    if isinstance(parent, List):
        count = len(parent.items)
        fix = f"its items are 0 to {count - 1}; " if count else ""
        fix += f"+{dotted(above)}=... adds one"
        return _Refused("unknown-key", f"`{dotted(above)}` has no item `{word}`", origin, key=key, fix=fix)
    if parent is not None and not isinstance(parent, Table):
        message = f"`{dotted(above)}` is one value, so it has no `{word}`"
        return _Refused("unknown-key", message, origin, key=key)
    choices = _choices(root, above)
    fix = did_you_mean(word, choices)
    standard = schema.find(above)
    is_open = bool(above) and not _is_split(above) and (standard is None or standard.kind in ("call", "tables"))
    if is_open and not override.creates and override.value.strip() != DELETE:
        fix = f"{fix[:-1]}, or" if fix else "write"
        fix += f" +{override.argument} to make it"
        fix += "?" if fix.startswith("did") else ""
    elif not fix and above:
        fix = f"it takes: {', '.join(dict.fromkeys(choices))}"
    return _Refused("unknown-key", f"unknown key `{key}`", origin, key=key, fix=fix)


def _exists(root: Table, path: KeyPath) -> bool:
    standard = schema.find(path)
    return get_at(root, path) is not None or (standard is not None and standard.kind == "table")


def _choices(root: Table, above: KeyPath) -> list[str]:
    """Names that may stand in the table at `above`."""
    parent = get_at(root, above)
    names = list(parent.items) if isinstance(parent, Table) else []
    if not above:
        return [*names, *(key.name for key in schema.SECTIONS)]
    if _is_split(above):
        data = schema.section("data")
        return [*names, *(key.name for key in data.keys)] if data else names
    standard = schema.find(above)
    return [*names, *(key.name for key in standard.keys)] if standard and standard.kind == "table" else names
