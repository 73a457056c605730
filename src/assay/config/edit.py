"""Edits of one key in a user's TOML text: comments, order and spelling stay.

The text is edited at the place where the parser saw the key. Edits for which that fails are made by
tomlkit. The result is parsed again: unless it has the wanted tree, nothing is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from assay.core.diagnostics import Origin
from assay.core.errors import InputError


def with_key(text: str, path: KeyPath, value: Node, *, source: str = "<string>") -> str:
    """Return `text` with `value` at `path`, whether the key was there or not.

    >>> lr = read_toml("x = 0.01", "").items["x"]
    >>> print(with_key("lr = 0.1  # too much?\\n", ("lr",), lr), end="")
    lr = 0.01  # too much?
    """
    page = _TomlDocument.of(text, source)
    try:
        wanted = set_at(page.root, path, value)
    except KeyError as error:
        raise InputError(f"`{error.args[0]}` cannot hold `{dotted(path)}`.", where=source) from None
    texts = [*page.with_key(path, value), _put_by_tomlkit(page.text, path, value)]
    return page.first_that_says((wanted,), path, texts)


def without_key(text: str, path: KeyPath, *, source: str = "<string>") -> str:
    """Return `text` without the key at `path`. Raises InputError when it is missing."""
    page = _TomlDocument.of(text, source)
    if get_at(page.root, path) is None:
        raise InputError(f"There is no `{dotted(path)}` to remove.", where=source)
    wanted = delete_at(page.root, path)
    # [data.train] alone makes `data`: when it goes, so does what it stood in.
    without_parents = wanted
    above = path[:-1]
    while above and isinstance(above[-1], str) and _is_empty(get_at(without_parents, above)):
        without_parents = delete_at(without_parents, above)
        above = above[:-1]
    texts = [*page.without_key(path), _remove_by_tomlkit(page.text, path)]
    return page.first_that_says((wanted, without_parents), path, texts)


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


@dataclass(frozen=True, slots=True)
class _TomlDocument:
    """A text, what it says, and where its lines begin."""

    text: str
    root: Table
    source: str
    mark: str
    line_starts: tuple[int, ...]

    @classmethod
    def of(cls, text: str, source: str) -> _TomlDocument:
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        bare = text.removeprefix(mark)
        starts = (0, *(i + 1 for i, letter in enumerate(bare) if letter == "\n"))
        return cls(bare, read_toml(bare, source, excerpt=True), source, mark, starts)

    def first_that_says(
        self, wanted: Sequence[Table], path: KeyPath, texts: Iterable[str | None]
    ) -> str:
        """Return the first text with the first of the wanted trees, else with the next."""
        parsed = [(text, self._parse(text)) for text in texts if text is not None]
        for tree in wanted:
            for text, root in parsed:
                if root is not None and same(root, tree):
                    return self.mark + text
        raise InputError(
            f"`{dotted(path)}` cannot be changed here without changing something else too.",
            where=self.source,
            fix="Change it in an editor.",
        )

    def with_key(self, path: KeyPath, value: Node) -> Iterator[str]:
        """Yield texts that may have `value` at `path`, the most careful edit first."""
        old = get_at(self.root, path)
        if old is not None:
            start, end = self._span(old.origin)
            yield self._with(start, end, inline(value))
            return
        holder = get_at(self.root, path[:-1])
        last = path[-1]
        said = inline(value) if isinstance(last, int) else f"{_key(last)} = {inline(value)}"
        if holder is None:
            yield self._with_new_table(path, said)
            return
        inside = [self._span(node.origin)[1] for node in _children(holder)]
        start, end = self._span(holder.origin)
        if self.text[start:end].endswith(("}", "]")) and not self._is_header(start):
            if inside:
                last_end = max(inside)
                yield self._with(last_end, last_end, f", {said}")
            else:
                padded = f" {said} " if isinstance(holder, Table) else said
                yield self._with(end - 1, end - 1, padded)
            return
        ends = sorted({self._end_of_line(at) for at in inside}, reverse=True)
        if path[:-1]:
            ends.append(self._end_of_line(end))
        for at in ends:
            yield self._with(at, at, f"{self._newline}{said}")
        if not path[:-1]:
            at = self._end_of_heading()
            gap = self._newline if at else ""
            yield f"{self.text[:at]}{said}{self._newline}{gap}{self.text[at:]}"
            yield f"{said}{self._newline}{self.text}"

    def without_key(self, path: KeyPath) -> Iterator[str]:
        """Yield texts that may lack `path`, the most careful edit first."""
        holder = get_at(self.root, path[:-1])
        last = path[-1]
        node = get_at(self.root, path)
        assert holder is not None and node is not None
        start, end = self._span(node.origin)
        if isinstance(holder, Table) and isinstance(last, str):
            start, _ = self._span(holder.key_origin(last))
        line = self._start_of_line(start)
        if isinstance(last, int):
            line = self.line_starts[node.origin.line - 1]
        next_line = self._end_of_line(end) + len(self._newline)
        yield self._with(line, min(next_line, len(self.text)), "")
        siblings = [self._span(each.origin) for each in _children(holder)]
        before = [stop for _, stop in siblings if stop <= start]
        if before:
            yield self._with(max(before), end, "")
        after = [self._start_of_item(holder, each) for each in _children(holder)]
        following = [at for at in after if at > end]
        if following:
            yield self._with(start, min(following), "")
        rest = self.text[end:].lstrip()
        stop = len(self.text) - len(rest)
        if rest.startswith(","):
            stop += 1
        yield self._with(start, stop, "")

    def _parse(self, text: str) -> Table | None:
        try:
            return read_toml(text, self.source, excerpt=True)
        except InputError:
            return None

    def _with_new_table(self, path: KeyPath, said: str) -> str:
        header = ".".join(_key(str(part)) for part in path[:-1])
        gap = (
            ""
            if not self.text
            else self._newline
            if self.text.endswith("\n")
            else self._newline * 2
        )
        return f"{self.text}{gap}[{header}]{self._newline}{said}{self._newline}"

    def _start_of_item(self, holder: Node, node: Node) -> int:
        if isinstance(holder, Table):
            key = next(key for key, item in holder.items.items() if item is node)
            return self._span(holder.key_origin(key))[0]
        return self._span(node.origin)[0]

    def _span(self, origin: Origin) -> tuple[int, int]:
        if not origin.line:
            return 0, 0
        start = self.line_starts[origin.line - 1] + origin.column - 1
        return start, self.line_starts[origin.end_line - 1] + origin.end_column - 1

    def _with(self, start: int, end: int, new: str) -> str:
        return f"{self.text[:start]}{new}{self.text[end:]}"

    def _is_header(self, at: int) -> bool:
        return self.text[self._start_of_line(at) : at + 1].strip().startswith("[")

    def _end_of_heading(self) -> int:
        """Return the end of the comment that begins the file, unless a table follows at once."""
        at = 0
        while self.text[at : at + 1] == "#":
            at = min(self._end_of_line(at) + len(self._newline), len(self.text))
        if not at or not self.text[:at].endswith("\n"):
            return 0
        rest = self.text[at:]
        blank = len(rest) - len(rest.lstrip(" \t\r\n"))
        return at + blank if blank or not rest else 0

    def _start_of_line(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def _end_of_line(self, at: int) -> int:
        """Return the end of the line around `at`, before its line feed."""
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        return end - 1 if self.text[end - 1 : end] == "\r" else end

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"


def _children(node: Node) -> list[Node]:
    match node:
        case Table():
            return list(node.items.values())
        case List():
            return list(node.items)
        case Leaf():
            return []


def _is_empty(node: Node | None) -> bool:
    return isinstance(node, Table | List) and not node.items


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "_").isidentifier()
    return key if is_bare else _quote(key)


def _quote(text: str) -> str:
    # The escapes of JSON are escapes of TOML; DEL alone is free there and forbidden here.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _put_by_tomlkit(text: str, path: KeyPath, value: Node) -> str | None:
    """Return `text` with `value` at `path`; None where tomlkit cannot do it."""
    return _edit_by_tomlkit(text, path, lambda holder: _put(holder, path, value))


def _remove_by_tomlkit(text: str, path: KeyPath) -> str | None:
    """Return `text` without the key at `path`; None where tomlkit cannot do it."""

    def remove(holder: Any) -> None:
        del holder[path[-1]]

    return _edit_by_tomlkit(text, path, remove)


def _edit_by_tomlkit(text: str, path: KeyPath, change: Callable[[Any], object]) -> str | None:
    import tomlkit  # here: loading it takes longer than to edit most configs
    from tomlkit.exceptions import TOMLKitError

    # Besides its own errors tomlkit raises these, for texts and edits that it does not foresee.
    unforeseen = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
    try:
        document = tomlkit.parse(text)
        change(_holder(document, path))
        return tomlkit.dumps(document)
    except (TOMLKitError, *unforeseen):
        return None


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
