"""Merge of evaluation results over ranks: counts, metrics and collected outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.errors import InputError
from assay.engine.metrics.metric import Adapted
from assay.engine.metrics.outputs import Evaluation
from assay.engine.optim.data_parallel_group import DataParallelGroup


def check_mergeable(
    pipes: Sequence[Any], metrics: Mapping[str, Any], *, is_staged: bool = False
) -> None:
    """Raise InputError for a pipe or metric whose results cannot be merged over ranks."""
    for pipe in pipes:
        can_merge = hasattr(pipe, "share") and hasattr(pipe, "join")
        if callable(pipe) and hasattr(pipe, "end_eval") and not can_merge:
            name = type(pipe).__name__
            raise InputError(
                f"The pipe {name} sees the outputs of one rank, and ends as if they were all.",
                fix=f"Give {name} share(), which returns its state, and join(shares), which gets"
                " the states of all ranks in their order; or read what Collect gathered in"
                " end_eval.",
            )
    for name, metric in metrics.items():
        # Its `sync` would add over all processes, not over the last stage only.
        adds_up = hasattr(getattr(metric, "metric", None), "sync") and not is_staged
        if not hasattr(metric, "merge") and not adds_up:
            kind = type(metric.metric if isinstance(metric, Adapted) else metric).__name__
            raise InputError(
                f"The metric {name!r} is a {kind}, which cannot be added up over ranks.",
                fix="Give it a method merge(other): what another one has counted is added.",
            )


def gather_evaluation(
    ranks: DataParallelGroup,
    evaluation: Evaluation,
    pipes: Sequence[Any],
    metrics: Mapping[str, Any],
) -> None:
    """Merge counts, metrics and outputs of all ranks on the CPU, in rank order. Collective."""
    evaluation.samples = int(ranks.all_reduce_values([evaluation.samples])[0])
    for metric in metrics.values():
        if not hasattr(metric, "merge"):
            continue  # one of torchmetrics, which adds up by itself when it computes
        others = ranks.all_gather(metric)
        metric.reset()
        for other in others:
            metric.merge(other)
    for pipe in pipes:
        if hasattr(pipe, "join"):
            pipe.join(ranks.all_gather(pipe.share()))
