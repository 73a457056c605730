"""Edits of one key in a user's TOML text by tomlkit, which keeps comments, order and spelling.

The result is read again: unless it has the wanted tree, nothing is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, time
from typing import Any

from assay.config.sources.toml import read_toml
from assay.config.tree import (
    NONE,
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    delete_at,
    dotted,
    get_at,
    plain,
    same,
    set_at,
    spell_none,
)
from assay.core.errors import InputError


def with_key(text: str, path: KeyPath, value: Node, *, source: str = "<string>") -> str:
    """Return `text` with `value` at `path`, whether the key was there or not.

    >>> lr = read_toml("x = 0.01", "").items["x"]
    >>> print(with_key("lr = 0.1  # too much?\\n", ("lr",), lr), end="")
    lr = 0.01  # too much?
    """
    root = read_toml(text, source, excerpt=True)
    try:
        wanted = set_at(root, path, value)
    except KeyError as error:
        raise InputError(f"`{error.args[0]}` cannot hold `{dotted(path)}`.", where=source) from None
    return _edit(text, path, lambda holder: _put(holder, path, value), (wanted,), source)


def without_key(text: str, path: KeyPath, *, source: str = "<string>") -> str:
    """Return `text` without the key at `path`. Raises InputError when it is missing."""
    root = read_toml(text, source, excerpt=True)
    if get_at(root, path) is None:
        raise InputError(f"There is no `{dotted(path)}` to remove.", where=source)
    wanted = delete_at(root, path)
    # [data.train] alone makes `data`: when it goes, so does what it stood in.
    without_parents = wanted
    above = path[:-1]
    while above and isinstance(above[-1], str) and _is_empty(get_at(without_parents, above)):
        without_parents = delete_at(without_parents, above)
        above = above[:-1]

    def remove(holder: Any) -> None:
        del holder[path[-1]]

    return _edit(text, path, remove, (wanted, without_parents), source)


def inline(node: Node) -> str:
    """Return a value as TOML on one line.

    >>> inline(read_toml("x = { a = [1, inf], 'b c' = 2020-01-01 }", "").items["x"])
    '{ a = [1, inf], "b c" = 2020-01-01 }'
    """
    match node:
        case Leaf(None):
            return _quote(NONE)
        case Leaf(bool() as value):
            return "true" if value else "false"
        case Leaf(str() as value):
            return _quote(value)
        case Leaf(float() as value) if not math.isfinite(value):
            return str(value)
        case Leaf(date() | time() as value):
            return value.isoformat()
        case Leaf(value):
            return repr(value)
        case List(items):
            return f"[{', '.join(map(inline, items))}]"
        case Table(items):
            pairs = ", ".join(f"{_key(key)} = {inline(item)}" for key, item in items.items())
            return f"{{ {pairs} }}" if pairs else "{}"


def _edit(
    text: str,
    path: KeyPath,
    change: Callable[[Any], object],
    wanted: tuple[Table, ...],
    source: str,
) -> str:
    """Return `text` after a change of the table or list that holds `path`.

    InputError for a change after which it would not be one of the `wanted` trees.
    """
    import tomlkit  # here: loading it takes longer than to edit most configs
    from tomlkit.exceptions import TOMLKitError

    mark = "\ufeff" if text.startswith("\ufeff") else ""
    # Besides its own errors tomlkit raises these, for texts and edits that it does not foresee.
    unforeseen = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
    try:
        document = tomlkit.parse(text.removeprefix(mark))
        change(_holder(document, path))
        changed = tomlkit.dumps(document)
        root = read_toml(changed, source, excerpt=True)
        if any(same(root, tree) for tree in wanted):
            return mark + changed
    except (TOMLKitError, InputError, *unforeseen):
        pass
    raise InputError(
        f"`{dotted(path)}` cannot be changed here without changing something else too.",
        where=source,
        fix="Change it in an editor.",
    )


def _is_empty(node: Node | None) -> bool:
    return isinstance(node, Table | List) and not node.items


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "_").isidentifier()
    return key if is_bare else _quote(key)


def _quote(text: str) -> str:
    # The escapes of JSON are escapes of TOML; DEL alone is free there and forbidden here.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _holder(document: Any, path: KeyPath) -> Any:
    """Return tomlkit's table or list for the last key of `path`; missing tables are made."""
    import tomlkit

    holder = document
    for i, part in enumerate(path[:-1]):
        if isinstance(part, str) and part not in holder:
            # Above it there is nothing but tables: the header of the last one says it all.
            holder[part] = tomlkit.table(is_super_table=i < len(path) - 2)
        holder = holder[part]
    return holder


def _put(holder: Any, path: KeyPath, value: Node) -> None:
    import tomlkit

    given = plain(spell_none(value))
    item = tomlkit.item(given)
    if isinstance(value, Table):
        item = tomlkit.inline_table()
        item.update(given)
    if path[-1] == len(holder) and isinstance(path[-1], int):
        holder.append(item)
    else:
        holder[path[-1]] = item
