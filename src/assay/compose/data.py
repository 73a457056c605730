"""The data of a config by itself: looked at, and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.compose.checks import sound
from assay.compose.house import House, open_house
from assay.compose.launch import Launch
from assay.compose.parts import make_loader, promise_no_training, splits_of
from assay.config.loading import Config
from assay.config.references import asks_lengths
from assay.config.tree import Table
from assay.core.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from assay.engine.data.audit import Audit
    from assay.engine.data.bench import Speed


def audit_data(config: Config) -> list[Audit]:
    """One epoch of every split, loaded in several ways and compared. Nothing is trained or
    recorded."""
    from assay.engine.data.audit import audit

    with open_house(sound(config), Launch()) as house:
        _promise_nothing(house)
        accumulate = house.values("train").get("accumulate", 1)
        return [
            audit(
                make_loader(house, split),
                split=split,
                accumulate=accumulate if split == "train" else 1,
                seed=house.seed,
            )
            for split in splits_of(house.root)
        ]


def bench_data(config: Config, *, seconds: float, workers: tuple[int, ...] = ()) -> list[Speed]:
    """How fast data.train is loaded, with and without pinned memory, by so many workers."""
    from assay.engine import Loader
    from assay.engine.data.bench import bench

    with open_house(sound(config), Launch()) as house:
        _promise_nothing(house)
        if "train" not in splits_of(house.root):
            raise InputError("The config has no [data.train], whose speed could be measured.")
        data = make_loader(house, "train")
        if not isinstance(data, Loader) and workers:
            raise InputError(
                f"data.train is a {type(data).__name__}, which loads by itself: --workers cannot change that.",
                fix="Leave out --workers, or give a data set (__len__ and __getitem__) and batch_size.",
            )
        return bench(data, seconds=seconds, workers=workers)


def lengths_of(config: Config, splits: Sequence[str]) -> dict[str, int]:
    """Optimizer steps of an epoch of each split (batches of those that are not trained on); its
    data set is built."""
    data = config.root.items.get("data")
    if isinstance(data, Table) and (asked := asks_lengths(data)):
        raise InputError(
            f"The data cannot depend on how long data.{asked[0]} is.", fix="Write the number."
        )
    lengths = {}
    with open_house(config, Launch()) as house:
        _promise_nothing(house)
        for split in splits:
            known = splits_of(house.root)
            if split not in known:
                fix = did_you_mean(split, known) or f"There are: {', '.join(known)}."
                raise InputError(
                    f"`${{length:data.{split}}}`: there is no [data.{split}].", fix=fix
                )
            length = _length(house, split)
            if length is None:
                raise InputError(
                    f"`${{length:data.{split}}}`: nobody knows how long data.{split} is.",
                    fix="Write it.",
                )
            lengths[split] = length
    return lengths


def _length(house: House, split: str) -> int | None:
    from assay.engine.data.adopt import as_source
    from assay.engine.data.source import Source

    data = make_loader(house, split)
    if isinstance(data, Source):
        return data.steps_per_epoch
    accumulate = house.values("train").get("accumulate", 1) if split == "train" else 1
    return as_source(data, accumulate=accumulate).steps_per_epoch


def _promise_nothing(house: House) -> None:
    promise_no_training(house.context)
