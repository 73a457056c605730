"""Lengths of splits, which `${length:data.train}` stands for in a config."""

from __future__ import annotations

from collections.abc import Sequence

from assay.compose.launch_settings import Launch
from assay.compose.make_loaders import make_loader, splits_of
from assay.compose.make_parts import promise_no_training
from assay.compose.run_scope import RunScope, open_run_scope
from assay.config.loading import Config
from assay.config.resolver import asks_lengths
from assay.config.tree import Table
from assay.core.errors import InputError, did_you_mean


def lengths_of(config: Config, splits: Sequence[str]) -> dict[str, int]:
    """Return the optimizer steps of an epoch of each split, or its batches if not trained on.

    Builds the dataset of each.
    """
    data = config.root.items.get("data")
    if isinstance(data, Table) and (asked := asks_lengths(data)):
        raise InputError(
            f"The data cannot depend on how long data.{asked[0]} is.", fix="Write the number."
        )
    lengths = {}
    with open_run_scope(config, Launch()) as scope:
        promise_no_training(scope.context)
        for split in splits:
            known = splits_of(scope.root)
            if split not in known:
                fix = did_you_mean(split, known) or f"There are: {', '.join(known)}."
                raise InputError(
                    f"`${{length:data.{split}}}`: there is no [data.{split}].", fix=fix
                )
            length = _length(scope, split)
            if length is None:
                raise InputError(
                    f"`${{length:data.{split}}}`: nobody knows how long data.{split} is.",
                    fix="Write it.",
                )
            lengths[split] = length
    return lengths


def _length(scope: RunScope, split: str) -> int | None:
    from assay.engine.data.adopt import as_source
    from assay.engine.data.source import Source

    data = make_loader(scope, split)
    if isinstance(data, Source):
        return data.steps_per_epoch
    accumulate = (scope.sections.train.accumulate or 1) if split == "train" else 1
    return as_source(data, accumulate=accumulate).steps_per_epoch
