"""Keys of LiBai's `train` that stand for a key of another name here."""

from __future__ import annotations

from assay.config.older_systems.entries import Alias
from assay.config.tree import Leaf, List, Node, Table, from_plain, get_at, set_at


def _nothing(node: Node) -> Node | None:
    return None


def _count(node: Node) -> Node | None:
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


EVERYWHERE: tuple[Alias, ...] = (
    Alias(old="train.eval_period", new="evaluate.every", note="in steps", value=_steps),
    Alias(old="train.topk", new="process.metrics", note="one Accuracy for each", value=_accuracies),
    Alias(
        old="train.recompute_grad",
        new="train.activation_checkpoint",
        note="the switch",
        value=_switch,
    ),
    Alias(old="train.train_epoch", new="train.epochs", note="0 is left out", value=_count),
    Alias(old="train.train_iter", new="train.steps", note="0 is left out", value=_count),
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


def with_larger_length(root: Table) -> Table:
    """Return `root` with `train.until = "last"` where both `train_iter` and `train_epoch` count.

    LiBai trains for the larger of both.
    """
    both = [get_at(root, ("train", name)) for name in ("train_iter", "train_epoch")]
    given = [node for node in both if node is not None and _count(node) is not None]
    if len(given) < 2 or get_at(root, ("train", "until")) is not None:
        return root
    origin = given[0].origin
    return set_at(root, ("train", "until"), Leaf("last", origin), origin)
