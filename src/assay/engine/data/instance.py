"""Named parts of a sample or batch; an `Instance` knows which ranks and stages need each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from assay.core.errors import InputError, choose, did_you_mean
from assay.engine.data.batches import size_of
from assay.engine.numerics.structures import map_values, parts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Pipeline stage that needs a field (0 the first, -1 the last), and the dim it is split along.

    `split` None: every data rank has the whole of it.
    """

    stage: int = 0
    split: int | None = 0

    def is_on(self, stage: int, stages: int) -> bool:
        """Return True if stage `stage` of `stages` needs the field."""
        if not -stages <= self.stage < stages:
            raise InputError(f"There is no stage {self.stage} among {stages}.")
        return self.stage % stages == stage


@dataclass(frozen=True, slots=True)
class DistTensorData:
    """Tensor with its placement, for a field of an `Instance` such as labels for the last stage."""

    tensor: Tensor
    placement_idx: int = 0
    split: int | None = 0

    @property
    def placement(self) -> Placement:
        return Placement(stage=self.placement_idx, split=self.split)


class Instance:
    """Named fields of one sample, or of a batch made by `stack`; `model(**instance)` unpacks them.

    >>> sample = Instance(x=torch.tensor([1.0, 2.0]), y=torch.tensor(0))
    >>> batch = Instance.stack([sample] * 4)
    >>> batch.x.shape, batch.y.shape, len(batch)
    (torch.Size([4, 2]), torch.Size([4]), 4)
    """

    __slots__ = ("_fields", "_placements")
    __iter__ = None  # by name, not one after another

    def __init__(self, /, **fields: Any) -> None:
        marked = {
            name: value for name, value in fields.items() if isinstance(value, DistTensorData)
        }
        self._fields = {
            name: value.tensor if name in marked else value for name, value in fields.items()
        }
        self._placements = {name: value.placement for name, value in marked.items()}

    @classmethod
    def stack(cls, samples: Sequence[Instance]) -> Instance:
        """Return a batch of samples with the same fields; InputError names a field that differs."""
        if not samples:
            raise InputError("There is nothing to stack.")
        first = samples[0]
        for place, sample in enumerate(samples):
            if odd := sorted(sample._fields.keys() ^ first._fields.keys()):
                has, other = (place, 0) if sample.has(odd[0]) else (0, place)
                raise InputError(f"Sample {has} has a field {odd[0]!r} and sample {other} has not.")
            for name in first._fields:
                _check_alike(name, first, sample, place)
            for name in first._fields:
                _check_placed_alike(name, first, sample, place)
        return cls._of(
            {
                name: _stack_values([sample._fields[name] for sample in samples])
                for name in first._fields
            },
            first._placements,
        )

    def placement(self, name: str) -> Placement:
        """Return the placement of a field; by default the first stage, split along the batch."""
        self[name]
        return self._placements.get(name, Placement())

    def on_stage(self, stage: int, stages: int) -> Instance:
        """Return the fields that stage `stage` of `stages` needs."""
        kept = {
            name: value
            for name, value in self._fields.items()
            if self.placement(name).is_on(stage, stages)
        }
        return self._of(
            kept, {name: self._placements[name] for name in kept if name in self._placements}
        )

    def place_on(self, stages: Iterable[int], count: int) -> Instance:
        """Return the instance with only the shapes of tensors that none of these stages needs."""
        own = list(stages)

        def at(name: str, value: Any) -> Any:
            place = self.placement(name)
            if any(place.is_on(stage, count) for stage in own):
                return value
            return map_values(value, lambda tensor: torch.empty_like(tensor, device="meta"))

        return self._of(
            {name: at(name, value) for name, value in self._fields.items()}, self._placements
        )

    def has(self, name: str) -> bool:
        return name in self._fields

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(name, default)

    def keys(self) -> KeysView[str]:
        """Return the names of the fields."""
        return self._fields.keys()

    def to(self, device: torch.device | str) -> Instance:
        """Return the instance with every tensor on `device`."""
        return self.map_values(
            lambda tensor: tensor if tensor.is_meta else tensor.to(device, non_blocking=True)
        )

    def map_values(self, function: Callable[[Any], Any], kind: type = Tensor) -> Instance:
        """Return the instance with `function` applied to every tensor, or value of a kind."""
        return self._of(
            {name: map_values(value, function, kind) for name, value in self._fields.items()},
            self._placements,
        )

    def __getitem__(self, name: str) -> Any:
        try:
            return self._fields[name]
        except KeyError:
            raise KeyError(self._unknown(name)) from None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is being copied or unpickled there are none
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(self._unknown(name)) from None

    def __len__(self) -> int:
        """Return the number of samples in a batch: the first dim of its first tensor."""
        return size_of(self._fields)

    def __repr__(self) -> str:
        shapes = [f"{name}={_shape(value)}" for name, value in self._fields.items()]
        return f"Instance({', '.join(shapes)})"

    def __getstate__(self) -> Any:
        return self._fields, self._placements

    def __setstate__(self, state: Any) -> None:
        self._fields, self._placements = state

    @classmethod
    def _of(cls, fields: Mapping[str, Any], placements: Mapping[str, Placement]) -> Instance:
        made = cls()
        made._fields = dict(fields)
        made._placements = dict(placements)
        return made

    def _unknown(self, name: str) -> str:
        fix = choose(name, self._fields)
        return f"there is no field {name!r}; {fix}" if fix else f"there is no field {name!r}"


def _check_alike(name: str, first: Instance, sample: Instance, place: int) -> None:
    one = first[name]
    other = sample[name]
    if _shape(one) != _shape(other):
        raise InputError(
            f"The field {name!r} of sample {place} is {_shape(other)}, that of sample 0 is "
            f"{_shape(one)}.",
            fix="Fill up what differs in length, or give a collate_fn of your own.",
        )


def _check_placed_alike(name: str, first: Instance, sample: Instance, place: int) -> None:
    if first.placement(name) != sample.placement(name):
        raise InputError(
            f"The field {name!r} of sample {place} is placed otherwise than that of sample 0."
        )


def _stack_values(values: list[Any]) -> Any:
    return torch.stack(values) if isinstance(values[0], Tensor) else default_collate(values)


def _shape(value: Any) -> str:
    return (
        f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
    )


Part = str | int
"""Name of a field of a batch, or its place."""


def has_parts(batch: Any) -> bool:
    """Return True for anything that holds parts by name or by place."""
    return parts_of(batch) is not None


def part_names(batch: Any) -> tuple[str, ...]:
    """Return the names of the parts; () for a tensor, and for a tuple without names."""
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return ()
    return tuple(str(name) for name, _ in parts_of(batch) or ())


def part_of(batch: Any, name: Part) -> Any:
    """Return a part of a batch; InputError names those that there are."""
    try:
        if isinstance(batch, Mapping | Instance) or (
            isinstance(name, int) and isinstance(batch, list | tuple)
        ):
            return batch[name]  # type: ignore[index]
        return getattr(batch, str(name))
    except (KeyError, IndexError, AttributeError):
        raise InputError(
            f"A batch has no {name!r}; it is {describe_parts(batch)}.",
            where="[process] input, target",
            fix=did_you_mean(str(name), part_names(batch)) or "Name a part that it has.",
        ) from None


def describe_parts(batch: Any) -> str:
    """Return the kind of a batch with its names, as "a mapping of image, label"."""
    names = part_names(batch)
    if isinstance(batch, Mapping):
        return f"a mapping of {', '.join(names)}" if names else "an empty mapping"
    if isinstance(batch, list | tuple) and not names:
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}" + (f" of {', '.join(names)}" if names else "")
