"""Tree that every front end produces: immutable tables, lists and scalars with their origins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from types import MappingProxyType
from typing import Any, TypeVar, cast

from assay.core.diagnostics import Origin, Problem
from assay.core.errors import InputError

Scalar = bool | int | float | str | datetime | date | time | None
KeyPath = tuple[str | int, ...]

NONE = "@none"
"""How the front ends that have no word for it write None; in a tree it is None itself."""

CLI = "<cli>"
"""Source of what was typed on the command line."""

IN_TEXT = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)\}|\$\{")
"""References in a text, with what stands inside; `$${` is an escape, an open `${` a mistake."""

MAX_DEPTH = 200
"""Levels of nesting; deeper trees are a mistake or an attack, and raise RecursionError."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """One scalar. Compared by identity; `same` compares what trees say.

    `typed` is the text it was read from, where that had no quotes to say whether `123` is a number
    or text.
    """

    value: Scalar
    origin: Origin
    typed: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class List:
    """Nodes in order."""

    items: tuple[Node, ...]
    origin: Origin


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Table of nodes.

    `key_origins` holds where a key was written, else its node's origin counts.
    """

    items: Mapping[str, Node]
    origin: Origin
    key_origins: Mapping[str, Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", MappingProxyType(dict(self.items)))
        object.__setattr__(self, "key_origins", MappingProxyType(dict(self.key_origins)))

    @property
    def target(self) -> str | None:
        """Target that is called with the other keys: the `type`, or None for plain data."""
        leaf = self.items.get("type")
        return leaf.value if isinstance(leaf, Leaf) and isinstance(leaf.value, str) else None

    @property
    def args(self) -> tuple[Node, ...]:
        """Positional arguments of a call."""
        node = self.items.get("args")
        return node.items if isinstance(node, List) else ()

    def key_origin(self, key: str) -> Origin:
        """Return where `key` was written."""
        return self.key_origins.get(key) or self.items[key].origin


Node = Leaf | List | Table
Tree = TypeVar("Tree", bound=Node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Key to set, from an argument, a variant or a sweep point. `value` None deletes the key.

    `origins` are the places of the parts of the key. `creates`: a table or list item that is not
    there is meant. `to_create` is how that would be written. `text` is the value as typed, where it
    was typed without quotes.
    """

    parts: KeyPath
    value: Node | None
    origins: tuple[Origin, ...]
    creates: bool = False
    to_create: str = ""
    text: str | None = None

    def key_origin(self, first: int = 0, last: int | None = None) -> Origin:
        """Return the place of the parts `first` up to `last` of the key."""
        start = self.origins[first]
        end = self.origins[(len(self.parts) if last is None else last) - 1]
        return replace(start, end_line=end.end_line, end_column=end.end_column)


def is_given(table: Table, name: str) -> bool:
    """Return whether a table has a key with a value; one set to none counts as absent."""
    node = table.items.get(name)
    return node is not None and not (isinstance(node, Leaf) and node.value is None)


def get_at(root: Node, path: KeyPath) -> Node | None:
    """Return the node at `path`, or None."""
    node = root
    for part in path:
        match node, part:
            case Table(), str() if part in node.items:
                node = node.items[part]
            case List(), int() if 0 <= part < len(node.items):
                node = node.items[part]
            case _:
                return None
    return node


def key_origin_at(root: Table, path: KeyPath) -> Origin:
    """Return where the last key of `path`, which must exist, or its list item, was written."""
    if not path:
        return root.origin
    parent = get_at(root, path[:-1])
    last = path[-1]
    if isinstance(parent, Table) and isinstance(last, str) and last in parent.items:
        return parent.key_origin(last)
    node = get_at(root, path)
    if node is None:
        raise KeyError(dotted(path))
    return node.origin


def set_at(root: Table, path: KeyPath, node: Node, key_origin: Origin | None = None) -> Table:
    """Return `root` with `node` at `path`; missing tables are made, a list may grow by one.

    Raises KeyError with the dotted path of the first part that cannot hold what follows.
    """
    if not path:
        raise KeyError("")
    changed = _set(root, path, 0, node, key_origin or node.origin)
    assert isinstance(changed, Table)
    return changed


def delete_at(root: Table, path: KeyPath) -> Table:
    """Return `root` without the node at `path`. Raises KeyError when nothing is there."""
    if not path or get_at(root, path) is None:
        raise KeyError(dotted(path))
    parent = get_at(root, path[:-1])
    last = path[-1]
    smaller: Node
    if isinstance(parent, Table):
        items = {key: node for key, node in parent.items.items() if key != last}
        origins = {key: origin for key, origin in parent.key_origins.items() if key != last}
        smaller = replace(parent, items=items, key_origins=origins)
    else:
        assert isinstance(parent, List)
        row = [node for i, node in enumerate(parent.items) if i != last]
        smaller = replace(parent, items=tuple(row))
    if not path[:-1]:
        assert isinstance(smaller, Table)
        return smaller
    return set_at(root, path[:-1], smaller, key_origin_at(root, path[:-1]))


def without_names(root: Table, names: Iterable[str]) -> Table:
    """Return `root` without the top-level keys of these names."""
    gone = root.items.keys() & set(names)
    if not gone:
        return root
    items = {key: node for key, node in root.items.items() if key not in gone}
    origins = {key: origin for key, origin in root.key_origins.items() if key not in gone}
    return Table(items, root.origin, origins)


def walk(root: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
    """Yield every node with its path, `root` first, the outer before the inner."""
    todo: list[tuple[KeyPath, Node]] = [(path, root)]
    while todo:
        here, node = todo.pop()
        yield here, node
        match node:
            case Table():
                todo.extend(
                    ((*here, key), item) for key, item in reversed(list(node.items.items()))
                )
            case List():
                todo.extend(((*here, i), node.items[i]) for i in range(len(node.items) - 1, -1, -1))
            case Leaf():
                pass


def transform(node: Node, change: Callable[[Node, KeyPath], Node], path: KeyPath = ()) -> Node:
    """Return `node` with `change(part, its path)` for every part, the inner before the outer.

    Parts that nothing changes in stay shared.
    """
    match node:
        case Table():
            items = {key: transform(item, change, (*path, key)) for key, item in node.items.items()}
            if any(node.items[key] is not item for key, item in items.items()):
                node = replace(node, items=items)
        case List():
            row = [transform(item, change, (*path, i)) for i, item in enumerate(node.items)]
            if any(one is not other for one, other in zip(row, node.items, strict=True)):
                node = replace(node, items=tuple(row))
        case Leaf():
            pass
    return change(node, path)


def relocate(root: Node, place: Callable[[Origin], Origin]) -> Node:
    """Return an equal tree whose parts stand where `place` says, given where they stood."""

    def move(node: Node, _: KeyPath) -> Node:
        if isinstance(node, Table):
            keys = {key: place(origin) for key, origin in node.key_origins.items()}
            return replace(node, origin=place(node.origin), key_origins=keys)
        return replace(node, origin=place(node.origin))

    return transform(root, move)


def plain(node: Node) -> Any:
    """Return a fresh copy of dictionaries, lists and scalars."""
    match node:
        case Leaf():
            return node.value
        case List():
            return [plain(item) for item in node.items]
        case Table():
            return {key: plain(item) for key, item in node.items.items()}


def spell_none(root: Node) -> Node:
    """Return `root` with None as the front ends without a word for it write it."""
    return transform(
        root,
        lambda node, _: (
            replace(node, value=NONE) if isinstance(node, Leaf) and node.value is None else node
        ),
    )


def from_plain(value: object, origin: Origin) -> Node:
    """Return the tree of dictionaries, lists, tuples and scalars; every part gets `origin`."""
    return _from_plain(value, origin, ())


def same(a: Node, b: Node) -> bool:
    """Return whether two trees are equal; origins and the order of keys do not count.

    Stricter than `==` on plain values: true is not 1, 1 is not 1.0, -0.0 is not 0.0. And nan is
    nan.
    """
    match a, b:
        case Leaf(), Leaf():
            return _mark(a.value) == _mark(b.value)
        case List(), List():
            return len(a.items) == len(b.items) and all(map(same, a.items, b.items))
        case Table(), Table():
            return a.items.keys() == b.items.keys() and all(
                same(item, b.items[key]) for key, item in a.items.items()
            )
        case _:
            return False


def problem_at(
    kind: str, message: str, place: Node | Origin, key: str | KeyPath, fix: str = ""
) -> Problem:
    """Return what is wrong with the value at `key`, at its place."""
    origin = place if isinstance(place, Origin) else place.origin
    path = key if isinstance(key, str) else dotted(key)
    return Problem(kind=kind, message=message, origin=origin, key=path, fix=fix)


# --- what the scalars of a tree say ---------------------------------------------------------------


def reference_of(node: Node) -> KeyPath | None:
    """Return the path that `"@path"` names; None for other nodes.

    ValueError for a malformed path.
    """
    if (
        not isinstance(node, Leaf)
        or not isinstance(node.value, str)
        or node.value[:1] != "@"
        or node.value[1:2] == "@"
    ):
        return None
    return parse_dotted(node.value[1:])


def is_reference(node: Node) -> bool:
    """Return True for a scalar such as "@model"; "@none" and the text "@@x" are no references."""
    text = node.value if isinstance(node, Leaf) else None
    return (
        isinstance(text, str)
        and text.startswith("@")
        and not text.startswith("@@")
        and text != NONE
    )


def is_unresolved(leaf: Leaf) -> bool:
    """Return whether a value holds a reference that is broken or comes from outside."""
    value = leaf.value
    return isinstance(value, str) and any(found[0] != "$${" for found in IN_TEXT.finditer(value))


def is_data(root: Node) -> bool:
    """Return True if a value holds no call and no reference of any kind."""
    for _, node in walk(root):
        is_call = isinstance(node, Table) and "type" in node.items
        if is_call or is_reference(node) or (isinstance(node, Leaf) and is_unresolved(node)):
            return False
    return True


def literal(value: Scalar) -> Scalar:
    """Return a scalar with the escapes `@@` and `$${` replaced by `@` and `${`.

    >>> literal("@@home"), literal("$${HOME}")
    ('@home', '${HOME}')
    """
    if not isinstance(value, str):
        return value
    return value.removeprefix("@" if value.startswith("@@") else "").replace("$${", "${")


def as_text_leaf(leaf: Leaf) -> Leaf:
    """Return a scalar as the text it was typed as: `name=123` is "123" for a text."""
    if leaf.typed is None or isinstance(leaf.value, str):
        return leaf
    return replace(leaf, value=leaf.typed.strip())


def change_texts(
    root: Tree, change: Callable[[Leaf, str, KeyPath], Node], path: KeyPath = ()
) -> Tree:
    """Return the node at `path` with every string that holds `${` changed."""

    def change_text(node: Node, here: KeyPath) -> Node:
        text = node.value if isinstance(node, Leaf) else None
        if not isinstance(text, str) or "${" not in text:
            return node
        assert isinstance(node, Leaf)
        return change(node, text, here)

    return cast("Tree", transform(root, change_text, path))


# --- paths as text --------------------------------------------------------------------------------


_BARE = re.compile(r"[A-Za-z_][\w-]*")
_PART = re.compile(
    r"""\[(?P<index>\d+)\]|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^.\[\]"]+)""", re.DOTALL
)


def dotted(path: KeyPath) -> str:
    """Return a path in the notation of overrides; `fit_path` and `parse_dotted` invert it.

    >>> dotted(("plugins", 0, "type"))
    'plugins.0.type'
    >>> dotted(("optimizer", "a.b"))
    'optimizer."a.b"'
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            part = str(part)
        elif not _BARE.fullmatch(part):
            escaped = part.replace("\\", "\\\\").replace('"', '\\"')
            part = f'"{escaped}"'
        text += f".{part}" if text else part
    return text


def parse_dotted(text: str) -> KeyPath:
    """Return the path that `text` writes. Raises ValueError when it writes none.

    >>> parse_dotted('data.train.pipes[2]."a.b"')
    ('data', 'train', 'pipes', 2, 'a.b')
    """
    path: list[str | int] = []
    at = 0
    while at < len(text) or not path:
        if path and text[at] == ".":
            at += 1
        elif path and text[at] != "[":
            raise ValueError(f"not a path of keys: {text!r}")
        found = _PART.match(text, at)
        if found is None or (found["index"] and (not path or text[at - 1] == ".")):
            raise ValueError(f"not a path of keys: {text!r}")
        if found["index"]:
            path.append(int(found["index"]))
        elif found["bare"]:
            path.append(found["bare"])
        else:
            path.append(re.sub(r"\\(.)", r"\1", found["quoted"], flags=re.DOTALL))
        at = found.end()
    return tuple(path)


def fit_path(root: Node, parts: KeyPath) -> KeyPath:
    """Return `parts` with "0" turned into 0 where the tree has a list: `plugins.0.type`."""
    path: list[str | int] = []
    node: Node | None = root
    for part in parts:
        if isinstance(node, List) and isinstance(part, str) and part.isascii() and part.isdigit():
            part = int(part)
        path.append(part)
        node = get_at(node, (part,)) if node is not None else None
    return tuple(path)


def _set(node: Node | None, path: KeyPath, depth: int, new: Node, key_origin: Origin) -> Node:
    if depth == len(path):
        return new
    part = path[depth]
    match node, part:
        case None, str():
            inner = _set(None, path, depth + 1, new, key_origin)
            return Table({part: inner}, key_origin, {part: key_origin})
        case Table(), str():
            inner = _set(node.items.get(part), path, depth + 1, new, key_origin)
            is_new = part not in node.items or depth == len(path) - 1
            origins = {**node.key_origins, part: key_origin} if is_new else node.key_origins
            return replace(node, items={**node.items, part: inner}, key_origins=origins)
        case List(), int() if 0 <= part <= len(node.items):
            old = node.items[part] if part < len(node.items) else None
            inner = _set(old, path, depth + 1, new, key_origin)
            return replace(node, items=(*node.items[:part], inner, *node.items[part + 1 :]))
        case _:
            raise KeyError(dotted(path[:depth]))


def leaf_of(value: object, origin: Origin) -> Leaf | None:
    """Return the leaf of a plain scalar as a builtin type; None for anything else."""
    match value:
        case bool() | None | date() | time():
            return Leaf(value, origin)
        case int():
            return Leaf(int(value), origin)
        case float():
            return Leaf(float(value), origin)
        case str():
            text = str.__str__(value)
            return Leaf(None if text == NONE else text, origin)
        case _:
            return None


def _from_plain(value: object, origin: Origin, path: KeyPath) -> Node:
    if len(path) > MAX_DEPTH:
        raise InputError(f"The value nests more than {MAX_DEPTH} levels deep.", where=str(origin))
    leaf = leaf_of(value, origin)
    if leaf is not None:
        return leaf
    match value:
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise InputError(
                        f"The key {key!r} of `{dotted(path)}` is no string.", where=str(origin)
                    )
            items = {
                str.__str__(key): _from_plain(item, origin, (*path, key))
                for key, item in value.items()
            }
            return Table(items, origin, dict.fromkeys(items, origin))
        case list() | tuple():
            return List(
                tuple(_from_plain(item, origin, (*path, i)) for i, item in enumerate(value)), origin
            )
        case _:
            raise InputError(
                f"`{dotted(path)}` is a {type(value).__name__};"
                " a config holds tables, lists, numbers, strings,"
                " true/false, dates and none.",
                where=str(origin),
                fix='Write the call down instead: {"type": "package.module.Name", ...}.',
            )


def _mark(value: Scalar) -> tuple[type, str]:
    if isinstance(value, date | time):
        return type(value), value.isoformat()
    return (type(None), "None") if value == NONE else (type(value), repr(value))
