"""Explanation of a value: what set it, what that replaced, and what it was copied from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from assay.config.loading import Config
from assay.config.references import external_names, value_named
from assay.config.tree import KeyPath, Leaf, Node, dotted, get_at, key_origin_at
from assay.core.diagnostics import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Place that had a part in a value. `how` says what happened there, `text` is its line."""

    how: str
    origin: Origin
    text: str


def origin_steps(config: Config, path: KeyPath) -> list[Step]:
    """Return the places that had a part in the value at `path`, the winner first; [] for none."""
    return list(_steps(config, path, "set", frozenset()))


def _steps(config: Config, path: KeyPath, how: str, seen: frozenset[KeyPath]) -> Iterator[Step]:
    node = get_at(config.written, path)
    if node is None:
        yield from _copies_from_above(config, path, how, seen)
        return
    for link in _links(config, path, node):
        yield Step(how=how, origin=replace(link, replaced=None), text=_line(config, link))
        how = "replaces"
    text = node.value if isinstance(node, Leaf) else None
    if not isinstance(text, str):
        return
    for target in value_named(text, path):
        if target not in seen:
            yield from _steps(config, target, f"copies {dotted(target)}", seen | {target})
    if "${random:" in text:
        yield Step(
            how="drawn anew at each start",
            origin=Origin(source="a run keeps the number it got"),
            text="",
        )
    if "${device:" in text:
        yield Step(
            how="known when it starts",
            origin=Origin(source="a run keeps the number it found"),
            text="",
        )
    for kind, name in external_names(text):
        origin = (
            config.settings.origin_of(name)
            if kind == "global"
            else Origin(source=f"the environment ({name})")
        )
        if origin is not None:
            yield Step(
                how=f"takes the {'global' if kind == 'global' else 'variable'} {name}",
                origin=origin,
                text="",
            )


def _links(config: Config, path: KeyPath, node: Node) -> list[Origin]:
    """Return the origins of a value, newest first; a table begins where its key is written."""
    links = node.origin.chain()
    if not isinstance(node, Leaf) and path:
        links[0] = key_origin_at(config.written, path)
    return links


def _copies_from_above(
    config: Config, path: KeyPath, how: str, seen: frozenset[KeyPath]
) -> Iterator[Step]:
    """Yield the steps of `model.width` where `model = "${base}"`: they lead on to `base.width`."""
    for length in range(len(path) - 1, 0, -1):
        node = get_at(config.written, path[:length])
        if node is None:
            continue
        if isinstance(node, Leaf) and isinstance(node.value, str):
            for target in value_named(node.value, path[:length]):
                whole = (*target, *path[length:])
                if whole not in seen:
                    yield Step(how=how, origin=node.origin, text=_line(config, node.origin))
                    yield from _steps(config, whole, f"copies {dotted(target)}", seen | {whole})
        return


def _line(config: Config, origin: Origin) -> str:
    source = origin.text if origin.text is not None else config.files.get(origin.source)
    if source is None or not origin.line:
        return ""
    lines = source.removeprefix("\ufeff").split("\n")
    return lines[origin.line - 1].strip() if origin.line <= len(lines) else ""
