"""Groups of ranks: of the data axis, with or without a pipeline, and of a checkpoint."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from assay.core.errors import InputError, PeerError
from assay.core.stop import Stop
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import global_norm, local_tensor
from assay.engine.numerics.sparse import components
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.parallel.gradient_buckets import GradientBuckets
from assay.engine.parallel.peer_errors import peer_error, peer_errors
from assay.formats.manifest import MeshAxis

BUCKET_BYTES = 25 * 2**20
"""Gradients are sent together in pieces of about this size, as DistributedDataParallel does it."""


_LOST = re.compile(r"gloo/|Connection (?:closed|reset) by peer|NCCL")


class DistributedGroup(DataParallelGroup):
    """Ranks that share the samples of each step; this process is number `rank` of `size`.

    Every method is collective: all ranks call it, in the same order. `bucket_bytes` is the size of
    one all-reduce, `gradient_dtype` the format of sums of gradients, None: their own. Where the
    model is divided too, there are ranks outside this group, which take part in agreements and
    barriers only.
    """

    is_distributed = True

    def __init__(
        self,
        group: Any = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        gradient_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.bucket_bytes = bucket_bytes
        self.gradient_dtype = gradient_dtype
        # Where what is agreed on is sent from: a number on the CPU makes no device wait.
        own = dist.get_process_group_ranks(group)
        self._known = "", 0
        """Kind of the losses of the newest step, and how many numbers of them are on the CPU."""
        self._world = dist.new_group(backend=host_backend())
        self._host = self._world
        if self.size < dist.get_world_size():
            self._host = dist.new_group(own, backend=host_backend(), use_local_synchronization=True)
        self.is_first = dist.get_rank() == 0

    def all_reduce_values(self, values: Sequence[float]) -> list[float]:
        return self.all_reduce_stage_values(values)

    def all_reduce_stage_values(self, values: Sequence[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        self._reduce(tensor, self._host)
        return tensor.tolist()

    def agree_on_losses(
        self, kind: str, own: Tensor, *, has_logged: bool
    ) -> tuple[str, Tensor | None, bool]:
        known, count = self._known
        places = torch.tensor([[0.0] * (2 + count)] * self.size, dtype=torch.float64)
        places[self.rank, 0] = _number_of(kind)
        places[self.rank, 1] = has_logged
        if kind == known:
            places[self.rank, 2:] = own[:count]
        self._reduce(places, self._host)
        numbers, logged, *_ = zip(*places.tolist(), strict=True)
        has_logged = any(logged)
        if set(numbers) == {_number_of(known)}:
            return known, _sum_places(places[:, 2:]) if count else None, has_logged
        is_agreed = 0.0 not in numbers and len(set(numbers)) == 1
        kind = kind if is_agreed else self._find_kind(kind)
        self._known = kind, count if kind == known else 0
        return kind, None, has_logged

    def all_reduce_losses(self, own: Tensor) -> Tensor:
        if own.device.type == "cpu":
            self._known = self._known[0], len(own)
        places = own.new_zeros(self.size, len(own))
        places[self.rank] = own
        self._reduce(places, self.group)
        return _sum_places(places)

    def gradient_buckets(self, parameters: Sequence[Tensor]) -> GradientBuckets:
        # The backward pass comes to the last parameters first.
        buckets = list(_buckets(reversed(parameters), self.bucket_bytes))
        return GradientBuckets(buckets, self.group, dtype=self.gradient_dtype)

    def _find_kind(self, own: str) -> str:
        """Return the kind of the losses of rank 0. InputError where another rank has another."""
        known = self.all_gather_stage(own)
        for rank, theirs in enumerate(known):
            if theirs not in ("", known[0]):
                raise InputError(
                    f"The losses of one step are of another kind on rank {rank} ({theirs})"
                    f" than on rank 0 ({known[0]}).",
                    fix=(
                        "Return the same losses for every batch; one that is not to count may be 0."
                    ),
                )
        kind: str = known[0]
        return kind

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0; a sparse one has as many entries on each rank."""
        dense = (part for tensor in tensors for part in components(local_tensor(tensor)))
        for bucket in _buckets(dense, self.bucket_bytes):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with peer_errors():
                dist.broadcast(flat, group=self.group, group_src=0)
            for tensor, part in zip(
                bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True
            ):
                tensor.copy_(part.view_as(tensor))

    def begin_backward(self, *, is_last: bool) -> None:
        if self.sharding is not None:
            self.sharding.begin_backward(is_last=is_last)

    def reshard(self) -> None:
        if self.sharding is not None:
            self.sharding.reshard()

    def all_true(self, value: bool) -> bool:
        tensor = torch.tensor([value], dtype=torch.uint8)
        with peer_errors():
            dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._world)
        return bool(tensor.item())

    def all_gather(self, value: Any) -> list[Any]:
        return self.all_gather_stage(value)

    def all_gather_stage(self, value: Any) -> list[Any]:
        """Return the value of each rank that holds the same part of the model, in rank order."""
        found: list[Any] = [None] * self.size
        with peer_errors():
            dist.all_gather_object(found, _pickle_on_host(value), group=self._host)
        return [pickle.loads(each) for each in found]

    def all_gather_world(self, value: Any) -> list[Any]:
        """Return the value of every rank of the run, in rank order."""
        found: list[Any] = [None] * dist.get_world_size()
        with peer_errors():
            dist.all_gather_object(found, value, group=self._world)
        return found

    def first_report(self, word: str, *, unless: str) -> str:
        words = self.all_gather_world(word)
        told = next((rank for rank, each in enumerate(words) if each and each != unless), None)
        return f"{words[told]} (rank {told})" if told is not None else word

    def agree(
        self, stop: Stop, max_steps: int | None, *, ends_epoch: bool, fetches: bool
    ) -> tuple[int | None, bool, bool]:
        self.beats.beat()
        bound = math.inf if max_steps is None else max_steps
        asked = stop.asked  # a signal may change it at any line
        own = [bool(asked.reason), -bound, ends_epoch, fetches]
        tensor = torch.tensor(own, dtype=torch.float64)
        with peer_errors():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._world)
        is_asked, least, is_over, is_fetched = tensor.tolist()
        if is_asked:
            requests = [each for each in self.all_gather_world(asked) if each.reason]
            stop.agree(next((each for each in requests if each.interrupts), requests[0]))
        return None if math.isinf(least) else int(-least), bool(is_over), bool(is_fetched)

    def barrier(self) -> None:
        with peer_errors():
            dist.barrier(group=self._world)

    def as_peer_error(self, error: BaseException) -> PeerError | None:
        is_lost = isinstance(error, dist.DistError) or (
            type(error) is RuntimeError and _LOST.search(str(error))
        )
        return peer_error(error) if is_lost else None

    def _reduce(self, tensor: Tensor, group: Any) -> None:
        with peer_errors():
            dist.all_reduce(tensor, group=group)


def _sum_places(places: Tensor) -> Tensor:
    """Return the sum over ranks: in one order, whatever gloo does with longer lists."""
    return sum(places.unbind(), torch.zeros_like(places[0]))


def broadcast_from_first_(tensor: Tensor, group: Any) -> None:
    """Overwrite a tensor with that of the first rank of a group. Collective."""
    row_by_row = tensor.detach().contiguous()
    with peer_errors():
        dist.broadcast(row_by_row, group=group, group_src=0)
    if not tensor.is_contiguous():
        tensor.detach().copy_(row_by_row)


def _number_of(kind: str) -> float:
    """Return a number for the kind of losses; 0 where there are none."""
    return 1.0 + crc32(kind.encode()) if kind else 0.0


class _HostPickler(pickle.Pickler):
    """Pickler that copies tensors to the CPU: those of two GPUs could not be added on arrival."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return value.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        return NotImplemented


def _pickle_on_host(value: Any) -> bytes:
    buffer = io.BytesIO()
    _HostPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def host_backend() -> str:
    """Return the backend for CPU tensors; "fake" in a simulated world."""
    return "fake" if dist.get_backend() == "fake" else "gloo"


def _buckets(tensors: Iterable[Tensor], size: int) -> Iterable[list[Tensor]]:
    """Return lists of tensors of one dtype and device, each of up to about `size` bytes."""
    kinds: dict[tuple[torch.device, torch.dtype], list[list[Tensor]]] = {}
    filled: dict[tuple[torch.device, torch.dtype], int] = {}
    for tensor in tensors:
        kind = tensor.device, tensor.dtype
        own = tensor.numel() * tensor.element_size()
        if kind not in kinds or (filled[kind] and filled[kind] + own > size):
            kinds.setdefault(kind, []).append([])
            filled[kind] = 0
        kinds[kind][-1].append(tensor)
        filled[kind] += own
    return [bucket for buckets in kinds.values() for bucket in buckets]


class CheckpointGroup:
    """All ranks of a run, in a group of their own, so that they may write during training.

    Made by all of them together. `axes` are those of the layout that they write in.
    """

    def __init__(self, axes: tuple[MeshAxis, ...] = ()) -> None:
        self.rank = dist.get_rank()
        self.axes = axes
        self._group = dist.new_group(backend=host_backend())

    @property
    def is_first(self) -> bool:
        """True for the rank that publishes the checkpoint."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each rank, which is plain data, in rank order."""
        found: list[Any] = [None] * dist.get_world_size()
        with peer_errors():
            dist.all_gather_object(found, json.dumps(value), group=self._group)
        return [json.loads(each) for each in found]


class StagedGroup(DistributedGroup):
    """Ranks that share the samples and hold the same stages of their pipelines.

    `pipeline` is the group of the ranks with the other stages, for the same samples. Losses,
    metrics and logged values arise on the last stage: they are reduced there and broadcast to the
    others.
    """

    is_staged = True

    def __init__(self, group: Any, pipeline: Any, **how: Any) -> None:
        super().__init__(group, **how)
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

    def agree_on_losses(
        self, kind: str, own: Tensor, *, has_logged: bool
    ) -> tuple[str, Tensor | None, bool]:
        found: tuple[str, Tensor | None, bool] = self.broadcast_last_stage(
            super().agree_on_losses(kind, own, has_logged=has_logged) if self.is_last else None
        )
        return found

    def all_reduce_losses(self, own: Tensor) -> Tensor:
        found: Tensor = self.broadcast_last_stage(
            super().all_reduce_losses(own).cpu() if self.is_last else None
        )
        return found

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
