"""The processes of a pipeline: what only the last stage knows is told to all, what all have parts
of is added up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.parallel.dtensor import norm_of, own
from assay.engine.parallel.ranks import BUCKET_BYTES, Ranks, host_backend, peers


class StagedRanks(Ranks):
    """The processes that share the samples and are at the same place of their pipelines.

    `pipeline` is the group of those that have the other stages, for the same samples. Losses, and
    what is measured or logged, come about on the last stage; what is summed or gathered of them is
    that of the last stages.
    """

    is_staged = True

    def __init__(self, group: Any, pipeline: Any, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, bucket_bytes=bucket_bytes)
        self.place = dist.get_rank(pipeline)
        self.places = dist.get_world_size(pipeline)
        self.line = dist.get_process_group_ranks(pipeline)
        self._host_of_line = dist.new_group(
            self.line, backend=host_backend(), use_local_synchronization=True
        )
        self._shared: list[tuple[Any, list[Tensor]]] = []
        self._borrowed: set[int] = set()

    @property
    def is_last(self) -> bool:
        return self.place == self.places - 1

    def share(self, weights: Sequence[tuple[tuple[int, ...], Tensor]]) -> None:
        """There are weights that several processes of the pipeline use: at which places, and here.
        The first owns it.

        Each process gives its own; those of the same places are in the same order everywhere.
        """
        by_places: dict[tuple[int, ...], list[Tensor]] = {}
        for places, weight in weights:
            by_places.setdefault(places, []).append(weight)
            if places[0] != self.place:
                self._borrowed.add(id(weight))
        for places, found in sorted(by_places.items(), key=lambda pair: pair[0]):
            group = dist.new_group(
                [self.line[place] for place in places], use_local_synchronization=True
            )
            self._shared.append((group, found))

    def owns(self, weight: Tensor) -> bool:
        """Whether this process counts a weight that it has, as its first owner does."""
        return id(weight) not in self._borrowed

    def sum_values(self, values: Sequence[float]) -> list[float]:
        found: list[float] = self.told(self.sum_own(values) if self.is_last else None)
        return found

    def sum_losses(
        self, kind: str, values: Sequence[float], *, has_none: bool
    ) -> tuple[str, list[float]]:
        found = super().sum_losses(kind, values, has_none=has_none) if self.is_last else None
        kind, sums = self.told(found)
        return kind, sums

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = self.told(self.gather_own(value) if self.is_last else None)
        return found

    def clip_(self, parameters: Sequence[Tensor], max_norm: float) -> float:
        grads = [own(each.grad) for each in parameters if each.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise InputError(
                "Sparse gradients cannot be clipped.",
                fix="Leave out clip_norm, or use dense embeddings.",
            )
        counted = [each.grad for each in parameters if each.grad is not None and self.owns(each)]
        square = (
            norm_of(counted).double().square().cpu()
            if counted
            else torch.zeros((), dtype=torch.float64)
        )
        self._reduce(square, self._host_of_line)
        norm = math.sqrt(square.item())
        if math.isfinite(norm) and grads:
            torch._foreach_mul_(grads, min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def join_(self, parameters: Sequence[Tensor]) -> None:
        for group, weights in self._shared:
            for weight in weights:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                self._reduce(own(weight.grad), group)

    def told(self, value: Any) -> Any:
        """What the last stage gives."""
        return self.told_by(self.places - 1, value)

    def told_by(self, place: int, value: Any) -> Any:
        """What the process at a place of the pipeline gives."""
        box = [value]
        with peers():
            dist.broadcast_object_list(box, src=self.line[place], group=self._host_of_line)
        return box[0]

    def gather_line(self, value: Any) -> list[Any]:
        """What each process of this pipeline gives, in their order, to the first; none to the
        others."""
        found: list[Any] = [None] * self.places if self.place == 0 else []
        with peers():
            dist.gather_object(value, found or None, dst=self.line[0], group=self._host_of_line)
        return found
