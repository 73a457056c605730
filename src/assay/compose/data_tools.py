"""Audit and benchmark of a config's data, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.compose.checks import sound
from assay.compose.launch_settings import Launch
from assay.compose.make_loaders import make_loader, splits_of
from assay.compose.make_parts import promise_no_training
from assay.compose.run_scope import open_run_scope
from assay.config.loading import Config
from assay.core.errors import InputError

if TYPE_CHECKING:
    from assay.engine.data.audit import Audit
    from assay.engine.data.bench import Speed


def audit_data(config: Config) -> list[Audit]:
    """Load one epoch of every split in several ways, and compare the batches."""
    from assay.engine.data.audit import audit

    with open_run_scope(sound(config), Launch()) as scope:
        promise_no_training(scope.context)
        accumulate = scope.sections.train.accumulate or 1
        return [
            audit(
                make_loader(scope, split),
                split=split,
                accumulate=accumulate if split == "train" else 1,
                seed=scope.seed,
            )
            for split in splits_of(scope.root)
        ]


def bench_data(config: Config, *, seconds: float, workers: tuple[int, ...] = ()) -> list[Speed]:
    """Measure the speed of data.train, with and without pinned memory, by number of workers."""
    from assay.engine import Loader
    from assay.engine.data.bench import bench

    with open_run_scope(sound(config), Launch()) as scope:
        promise_no_training(scope.context)
        if "train" not in splits_of(scope.root):
            raise InputError("The config has no [data.train], whose speed could be measured.")
        data = make_loader(scope, "train")
        if not isinstance(data, Loader) and workers:
            raise InputError(
                f"data.train is a {type(data).__name__}, which loads by itself: --workers cannot"
                " change that.",
                fix="Leave out --workers, or give a data set (__len__ and __getitem__) and"
                " batch_size.",
            )
        return bench(data, seconds=seconds, workers=workers)
