"""Canonical form of a config, its hash, and a TOML text that reads back as the same tree.

Where its values stood is kept beside the text: `origins_of`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, time
from typing import Any

from assay.config.followers import has_follower
from assay.config.references import objects_used
from assay.config.secret_keys import without_secrets
from assay.config.sources.toml import read_toml
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Scalar,
    Table,
    dotted,
    get_at,
    parse_dotted,
    plain,
    same,
    spell_none,
    transform,
    walk,
)
from assay.core.diagnostics import Origin
from assay.core.errors import AssayError
from assay.core.keys import Key
from assay.formats.json_codec import dataclass_from, to_plain

_TRAINED_SPLIT = "train"
_OF_NUMBERS = ("data", "evaluate")
"""Sections that decide, whole, which numbers a run shows, but not all of them its weights."""

_FROM_OUTSIDE = re.compile(
    r"(?:from|default of) (?:env|global):.*|(?:drawn|known) by [^\x00-\x1f\x7f]*", re.ASCII
)
"""Note on the origin of a value that no file of a config holds."""

_FROM_KEY = re.compile(r"from (?P<key>[^:#\x00-\x1f\x7f]+)")
"""Note on the origin of a value that was copied from another key."""

_COMMENT = re.compile(r",?  # (?P<note>.*)")


def canonical(root: Table, *, seed: bool = True) -> str:
    """Return what determines the weights, in one line that is equal for equivalent configs.

    1 and 1.0 are alike, `module:Name` is `module.Name`, the order of keys does not count; `tag`,
    `desc`, saving, display and threads are left out, and so is a section that only these refer to.
    Evaluation and every split but train are, too, unless something follows a metric: then what
    measures it counts. All secrets are alike: nobody can try passwords against the hash, and a new
    one makes no other experiment.

    Without the seed it is what determines the numbers that are shown: evaluation and all of the
    data count, too.
    """
    root = without_secrets(root)
    return _text(Table(_what_counts(root, seed=seed), root.origin))


def config_hash(root: Table) -> str:
    """SHA-256 of the canonical form; people are shown the first 16 characters."""
    return hashlib.sha256(canonical(root).encode("utf-8", "surrogatepass")).hexdigest()


def seedless_hash(root: Table) -> str:
    """Return the hash without the seed, equal for repeats of one run: their numbers compare."""
    return hashlib.sha256(canonical(root, seed=False).encode("utf-8", "surrogatepass")).hexdigest()


def hash_of_all_keys(root: Table, *, seed: bool = True) -> str:
    """Return the hash over all keys, for the config of a script: its keys have no meaning here."""
    root = without_secrets(root, has_references=False)
    counted = {name: node for name, node in root.items.items() if seed or name != "seed"}
    return hashlib.sha256(
        _text(Table(counted, root.origin)).encode("utf-8", "surrogatepass")
    ).hexdigest()


def dump(root: Table, *, with_origins: bool = False) -> str:
    """Return `root` as TOML that reads back as an equal tree.

    That is tried here; a tree for which it fails is refused. With `with_origins` a comment behind a
    value says that it came from outside, was drawn, is one of the machine, or is a copy of a key
    that is not in the tree any more.
    """
    import tomli_w  # here: a config is read without it

    try:
        text = tomli_w.dumps(plain(spell_none(root)))
        text.encode("utf-8")
        if with_origins:
            text = _with_comments(text, root)
        is_equal = same(read_toml(text, "<dump>", excerpt=True), root)
    except (AssayError, ValueError, TypeError, RecursionError) as error:
        raise AssayError(f"The config cannot be written as TOML: {error}") from error
    if not is_equal:
        raise AssayError("The config cannot be written as TOML: it would read back as another one.")
    return text


def _with_comments(text: str, root: Table) -> str:
    """Return TOML with the origin of each value that the files of a config do not hold."""
    notes = {path: node.origin.note for path, node in walk(root) if node.origin.note}
    lines = text.split("\n")
    comments: dict[int, dict[str, None]] = {}
    for path, node in walk(read_toml(text, "<dump>", excerpt=True)) if notes else ():
        origin = _lasting_origin(notes.get(path, ""), root) if isinstance(node, Leaf) else ""
        if origin and node.origin.line == node.origin.end_line:
            comments.setdefault(node.origin.line - 1, {})[origin] = None
    for line, told in comments.items():
        lines[line] += f"  # {', '.join(told)}"
    return "\n".join(lines)


def outside_origins(root: Table) -> dict[KeyPath, str]:
    """Return the origin of each value that no file of a config holds, such as `from env:X`."""
    found = {
        path: _FROM_OUTSIDE.search(node.origin.note)
        for path, node in walk(root)
        if isinstance(node, Leaf)
    }
    return {path: origin[0] for path, origin in found.items() if origin is not None}


def _lasting_origin(note: str, root: Table) -> str:
    """Return the part of a note that says where a value came from that `root` does not hold."""
    if found := _FROM_OUTSIDE.search(note):
        return found[0]
    copied = _FROM_KEY.fullmatch(note)
    try:
        is_gone = copied is not None and get_at(root, parse_dotted(copied["key"])) is None
    except ValueError:  # a note of another kind
        return ""
    return note if is_gone else ""


def origins_noted(text: str, root: Table) -> dict[KeyPath, str]:
    """Return the origins that `dump` wrote behind the values of `text`, whose tree is `root`."""
    lines = text.split("\n")
    found = {}
    for path, node in walk(root):
        if isinstance(node, Leaf) and 0 < node.origin.end_line <= len(lines):
            behind = lines[node.origin.end_line - 1][node.origin.end_column - 1 :]
            comment = _COMMENT.fullmatch(behind)
            note = "" if comment is None else comment["note"]
            if _FROM_OUTSIDE.fullmatch(note) or _FROM_KEY.fullmatch(note):
                found[path] = note
    return found


def _what_counts(root: Table, *, seed: bool) -> dict[str, Node]:
    from assay.core import schema  # here: a script records a config without it

    standard = {key.name: key for key in schema.SECTIONS}
    counted: dict[str, Node] = {}
    for name, node in root.items.items():
        key = standard.get(name)
        if name in _OF_NUMBERS and not seed:
            counted[name] = node
            continue
        if key is None or not key.weights or name in schema.LAUNCH or (name == "seed" and not seed):
            continue
        if name == "data" and isinstance(node, Table):
            node = Table(
                {split: item for split, item in node.items.items() if split == _TRAINED_SPLIT},
                node.origin,
            )
        counted[name] = _without_weightless(key, node)
    if seed and has_follower(root, counted.values()):
        for name in _OF_NUMBERS:
            if name in root.items:
                counted[name] = _without_weightless(standard[name], root.items[name])
    todo = list(counted.values())
    while todo:
        for _, target, _ in objects_used(todo.pop()):
            name = str(target[0])
            # A part of a section that is left out counts when something that counts is built from
            # it.
            if name in root.items and name not in counted:
                counted[name] = root.items[name]
                todo.append(root.items[name])
            elif name == "data" and len(target) > 1:
                todo += _add_split(root, counted, str(target[1]))
    return counted


def _add_split(root: Table, counted: dict[str, Node], split: str) -> list[Node]:
    """Add the split that a counted node refers to: data.train with source = "@data.all.source"."""
    data = root.items.get("data")
    kept = counted.get("data")
    if (
        not isinstance(data, Table)
        or not isinstance(kept, Table)
        or split in kept.items
        or split not in data.items
    ):
        return []
    counted["data"] = Table({**kept.items, split: data.items[split]}, kept.origin)
    return [data.items[split]]


def _without_weightless(key: Key, node: Node) -> Node:
    if not isinstance(node, Table) or key.kind not in ("table", "tables"):
        return node
    if key.kind == "tables":
        inner = Key(name="", kind="table", doc="", keys=key.keys)
        items = {name: _without_weightless(inner, item) for name, item in node.items.items()}
        return Table(items, node.origin)
    weightless = {each.name for each in key.keys if not each.weights}
    items = {name: item for name, item in node.items.items() if name not in weightless}
    return Table(items, node.origin)


def _text(node: Node) -> str:
    match node:
        case Leaf():
            return _scalar(node.value)
        case List():
            return f"[{','.join(map(_text, node.items))}]"
        case Table():
            return (
                f"{{{','.join(_pair(key, node.items[key], node) for key in sorted(node.items))}}}"
            )


def _pair(key: str, node: Node, table: Table) -> str:
    value = _text(node)
    if key == "type" and table.target is not None:
        value = _scalar(table.target.replace(":", "."))
    return f"{json.dumps(key)}:{value}"


def _scalar(value: Scalar) -> str:
    match value:
        case None | "@none":
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value)
        case float() if value.is_integer() and not (value == 0 and str(value).startswith("-")):
            return _integer(int(value))
        case float():
            return repr(value)
        case int():
            return _integer(value)
        case date() | time():
            return f"{type(value).__name__}:{value.isoformat()}"


def _integer(value: int) -> str:
    # `str` refuses more than 4,300 digits.
    return str(value) if value.bit_length() <= 64 else hex(value)


def origins_of(root: Node) -> dict[str, Any]:
    """Return where each node and key below `root` stands, and leaves as typed, by their paths.

    For an OS process that reads a dump of the tree: see `with_origins`.
    """
    return {dotted(path): _origin_of(node) for path, node in walk(root)}


def _origin_of(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {"at": to_plain(node.origin)}
    if isinstance(node, Table):
        found["keys"] = to_plain(node.key_origins)
    elif isinstance(node, Leaf):
        found["typed"] = node.typed
    return found


def with_origins(root: Node, origins: Mapping[str, Any]) -> Node:
    """Return an equal tree with origins from `origins_of`."""

    def place(node: Node, path: KeyPath) -> Node:
        known = origins[dotted(path)]
        node = replace(node, origin=dataclass_from(Origin, known["at"]))
        if isinstance(node, Table):
            keys = {key: dataclass_from(Origin, at) for key, at in known["keys"].items()}
            return replace(node, key_origins=keys)
        return replace(node, typed=known.get("typed")) if isinstance(node, Leaf) else node

    return transform(root, place)
