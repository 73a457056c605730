"""Suggestions for a key in the wrong section: `lr` belongs to the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from assay.config.tree import KeyPath, List, Node, Table, dotted
from assay.core import schema
from assay.core.errors import can_suggest, suggested

_MOST = 3
_NO_HOMES = {*schema.MAKERS}
_USUAL = {
    "lr": "optimizer.lr",
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "momentum": "optimizer.momentum",
}
"""Parameters of calls that people look for, where the config does not write them."""


def keys_named(word: str, root: Table | None = None) -> list[str]:
    """Return the keys of the standard sections, and of `root`, whose last part is `word`.

    >>> keys_named("epochs"), keys_named("batch_size"), keys_named("lr")
    (['train.epochs'], ['data.train.batch_size'], ['optimizer.lr'])
    """
    sections = [section for section in schema.SECTIONS if section.kind == "table"]
    found = [
        f"{section.name}.{key.name}"
        for section in sections
        for key in section.keys
        if key.name == word
    ]
    splits = next(section for section in schema.SECTIONS if section.name == "data")
    found += [f"data.train.{word}" for key in splits.keys if key.name == word]
    paths = list(_paths(root, ())) if root is not None and can_suggest() else []
    can_suggest(len(paths))  # of ten thousand unknown keys each would walk through all of them
    written = [path for path in paths if path[-1] == word and len(path) > 1]
    usual = [_USUAL[word]] if word in _USUAL else []
    return list(dict.fromkeys([*found, *map(dotted, written), *usual]))


def suggest_other_section(word: str, root: Table, *, above: KeyPath = ()) -> str:
    """Return `did you mean `optimizer.lr`?` for a key of the table `above` that is misplaced."""
    here = dotted((*above, word))
    return suggested([home for home in keys_named(word, root) if home != here][:_MOST])


def _paths(node: Node, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(node, Table):
        for name, item in node.items.items():
            if path or name not in _NO_HOMES:
                yield (*path, name)
                yield from _paths(item, (*path, name))
    elif isinstance(node, List):
        for i, item in enumerate(node.items):
            yield from _paths(item, (*path, i))
