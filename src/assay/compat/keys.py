"""Keys of other systems, torch's DataLoader among them, that stand for a key here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    delete_at,
    from_plain,
    get_at,
    parse_dotted,
    set_at,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Key `old` of another system for `new` here.

    `value` converts, where the alias does more than rename; it returns None to set nothing.
    """

    old: str
    new: str
    note: str
    value: Callable[[Node], Node | None] | None = None
    path: KeyPath = field(init=False)
    to: KeyPath = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", parse_dotted(self.old))
        object.__setattr__(self, "to", parse_dotted(self.new))

    def convert(self, node: Node) -> Node | None:
        """Return the value of the key here; None to set nothing."""
        return node if self.value is None else self.value(node)


OF_TORCH: Sequence[Alias] = tuple(
    Alias(
        old=f"data.{split}.{old}",
        new=f"data.{split}.{new}",
        note="the name in torch",
    )
    for split in ("train", "valid", "dev", "test")
    for old, new in (
        ("dataset", "source"),
        ("num_workers", "workers"),
        ("prefetch_factor", "prefetch"),
        ("collate_fn", "collate"),
        ("worker_init_fn", "worker_init"),
        ("multiprocessing_context", "start_method"),
    )
)
"""Arguments of torch's DataLoader, by their name in the section of a split."""


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


OF_ALCHEMY: tuple[Alias, ...] = (
    Alias(old="task.datasets", new="data", note="one section for each split", value=_splits),
    Alias(old="task.evalpipes", new="evaluate.pipes", note="a part of [evaluate]"),
    Alias(old="optim", new="optimizer", note="in full"),
    Alias(old="sched", new="schedule", note="the learning rate over the run"),
    Alias(
        old="use_deterministic_algorithms", new="train.deterministic", note="a setting of training"
    ),
)
"""Aliases that hold in a config which names a target or the runner of alchemy."""

_ALCHEMYS: tuple[Alias, ...] = (
    Alias(old="backward.period", new="train.accumulate", note="micro-steps of one step"),
    Alias(old="backward.clip_norm", new="train.clip_norm", note="a setting of training"),
    Alias(old="backward.non_finite", new="train.non_finite", note="a setting of training"),
)
"""Aliases that hold in every config: those of alchemy's backward handler."""


def _nothing(node: Node) -> Node | None:
    return None


def count_of(node: Node) -> Node | None:
    """Return a number of epochs or steps; None for 0, which means that the other one counts."""
    return None if isinstance(node, Leaf) and node.value == 0 else node


def _steps(node: Node) -> Node | None:
    if isinstance(node, Leaf) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return Leaf(f"{node.value} steps" if node.value > 0 else "never", node.origin)
    return node


def _precision(node: Node) -> Node | None:
    enabled = get_at(node, ("enabled",)) if isinstance(node, Table) else node
    if isinstance(enabled, Leaf) and isinstance(enabled.value, bool):
        return Leaf("bf16" if enabled.value else "fp32", enabled.origin)
    return node


def _switch(node: Node) -> Node | None:
    enabled = get_at(node, ("enabled",)) if isinstance(node, Table) else None
    return node if enabled is None else enabled


def _accuracies(node: Node) -> Node | None:
    tops = node.items if isinstance(node, List) else (node,)
    metrics = {
        "acc" if top.value == 1 else f"acc{top.value}": {
            "type": "assay.engine.Accuracy",
            "top": top.value,
        }
        for top in tops
        if isinstance(top, Leaf)
    }
    return from_plain(metrics, node.origin)


_LIBAIS: tuple[Alias, ...] = (
    Alias(old="train.eval_period", new="evaluate.every", note="in steps", value=_steps),
    Alias(old="train.topk", new="process.metrics", note="one Accuracy for each", value=_accuracies),
    Alias(
        old="train.recompute_grad",
        new="train.activation_checkpoint",
        note="the switch",
        value=_switch,
    ),
    Alias(old="train.train_epoch", new="train.epochs", note="0 is left out", value=count_of),
    Alias(old="train.train_iter", new="train.steps", note="0 is left out", value=count_of),
    Alias(old="train.log_period", new="display.every", note="in steps", value=_steps),
    Alias(old="train.warmup_ratio", new="schedule.warmup_ratio", note="a part of the schedule"),
    Alias(old="train.zero_optimization", new="parallel.zero", note="shares out the weights"),
    Alias(old="zero", new="parallel.zero", note="shares out the weights"),
    Alias(old="train.amp", new="train.precision", note="bf16 when it is enabled", value=_precision),
    Alias(
        old="train.nccl_fusion_threshold_mb",
        new="parallel.bucket_mb",
        note="gradients that are sent at once",
    ),
    Alias(
        old="train.nccl_fusion_max_ops",
        new="parallel.bucket_mb",
        note="by their size, not their number",
        value=_nothing,
    ),
)
"""Aliases that hold in every config, also in one that is none of LiBai."""

EVERYWHERE: tuple[Alias, ...] = (*OF_TORCH, *_ALCHEMYS, *_LIBAIS)
"""Aliases that hold in every config."""
