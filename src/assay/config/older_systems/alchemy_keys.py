"""Keys of alchemy's configs that stand for a key of another name here."""

from __future__ import annotations

from dataclasses import replace

from assay.config.older_systems.entries import Alias
from assay.config.tree import List, Node, Table, delete_at, from_plain, get_at, set_at


def _splits(node: Node) -> Node | None:
    """Return datasets as splits: pipes that stand alone become the chain that is their source."""
    if not isinstance(node, Table):
        return node
    return replace(node, items={name: _split(item) for name, item in node.items.items()})


def _split(node: Node) -> Node:
    pipes = get_at(node, ("pipes",)) if isinstance(node, Table) else None
    if not isinstance(node, Table) or not isinstance(pipes, List) or "type" in node.items:
        return node
    origin = node.key_origin("pipes")
    chain = from_plain({"type": "assay.engine.chain"}, origin)
    assert isinstance(chain, Table)
    source = set_at(chain, ("pipes",), pipes, origin)
    return set_at(delete_at(node, ("pipes",)), ("source",), source, origin)


KEYS: tuple[Alias, ...] = (
    Alias(old="task.datasets", new="data", note="one section for each split", value=_splits),
    Alias(old="task.evalpipes", new="evaluate.pipes", note="a part of [evaluate]"),
    Alias(old="optim", new="optimizer", note="in full"),
    Alias(old="sched", new="schedule", note="the learning rate over the run"),
    Alias(old="model.model_path", new="load_weights", note="weights to begin with"),
    Alias(
        old="use_deterministic_algorithms", new="train.deterministic", note="a setting of training"
    ),
)
"""Aliases that hold in a config which names a target or the runner of alchemy."""

EVERYWHERE: tuple[Alias, ...] = (
    Alias(old="backward.period", new="train.accumulate", note="micro-steps of one step"),
    Alias(old="backward.clip_norm", new="train.clip_norm", note="a setting of training"),
    Alias(old="backward.non_finite", new="train.non_finite", note="a setting of training"),
)
"""Aliases that hold in every config: those of alchemy's backward handler."""
