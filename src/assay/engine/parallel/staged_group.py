"""Data-parallel axis of a pipeline: losses and metrics exist on its last stage only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import global_norm, local_tensor
from assay.engine.parallel.distributed_group import (
    BUCKET_BYTES,
    DistributedGroup,
    host_backend,
    peer_errors,
)


class StagedGroup(DistributedGroup):
    """Ranks that share the samples and hold the same stages of their pipelines.

    `pipeline` is the group of the ranks with the other stages, for the same samples. Losses,
    metrics and logged values arise on the last stage: they are reduced there and broadcast to the
    others.
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
        """Register weights that several ranks of the pipeline use; the first place owns each.

        Each rank gives its own; those of the same places are in the same order everywhere.
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
        """Return True if this rank counts a weight: of a tied one the first rank does."""
        return id(weight) not in self._borrowed

    def all_reduce_values(self, values: Sequence[float]) -> list[float]:
        found: list[float] = self.broadcast_last_stage(
            self.all_reduce_stage_values(values) if self.is_last else None
        )
        return found

    def all_reduce_losses(
        self, kind: str, values: Sequence[float], *, has_none: bool
    ) -> tuple[str, list[float]]:
        found = super().all_reduce_losses(kind, values, has_none=has_none) if self.is_last else None
        kind, sums = self.broadcast_last_stage(found)
        return kind, sums

    def all_gather(self, value: Any) -> list[Any]:
        found: list[Any] = self.broadcast_last_stage(
            self.all_gather_stage(value) if self.is_last else None
        )
        return found

    def clip_grad_norm_(self, parameters: Sequence[Tensor], max_norm: float) -> float:
        grads = [local_tensor(each.grad) for each in parameters if each.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise InputError(
                "Sparse gradients cannot be clipped.",
                fix="Leave out clip_norm, or use dense embeddings.",
            )
        counted = [each.grad for each in parameters if each.grad is not None and self.owns(each)]
        square = (
            global_norm(counted).double().square().cpu()
            if counted
            else torch.zeros((), dtype=torch.float64)
        )
        self._reduce(square, self._host_of_line)
        norm = math.sqrt(square.item())
        if math.isfinite(norm) and grads:
            private_torch.foreach_mul_(grads, min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def all_reduce_tied_(self, parameters: Sequence[Tensor]) -> None:
        for group, weights in self._shared:
            for weight in weights:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                self._reduce(local_tensor(weight.grad), group)

    def broadcast_last_stage(self, value: Any) -> Any:
        """Return the value that the last stage gives."""
        return self.broadcast_stage(self.places - 1, value)

    def broadcast_stage(self, place: int, value: Any) -> Any:
        """Return the value that the rank at a place of the pipeline gives."""
        box = [value]
        with peer_errors():
            dist.broadcast_object_list(box, src=self.line[place], group=self._host_of_line)
        return box[0]

    def gather_pipeline(self, value: Any) -> list[Any]:
        """Return the value of each rank of this pipeline on the first, [] on the others."""
        found: list[Any] = [None] * self.places if self.place == 0 else []
        with peer_errors():
            dist.gather_object(value, found or None, dst=self.line[0], group=self._host_of_line)
        return found
