"""One process among those that share the data: what they add up, and what they agree on."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from assay.core.errors import InputError, PeerError
from assay.core.stop import Stop
from assay.engine.data.source import Window
from assay.engine.numerics.dtensor import clip_dtensor_norm_, is_dtensor, local_tensor
from assay.engine.numerics.sparse import components
from assay.engine.optim.clip import clip_norm_
from assay.engine.parallel.heartbeats import Heartbeats, NoHeartbeats

if TYPE_CHECKING:
    from assay.engine.parallel.sharding import Sharding

BUCKET_BYTES = 25 * 2**20
"""Gradients are sent together in pieces of about this size, as DistributedDataParallel does it."""


_LOST = re.compile(r"gloo/|Connection (?:closed|reset) by peer|NCCL")


class DataParallelGroup:
    """The processes that share the samples, of which this is number `rank` of `count`.

    Everything here is collective: all processes call it, in the same order. `bucket_bytes` is how
    much is sent at once. Where a model is divided too there are processes outside, with which this
    one only agrees when to stop, and waits.
    """

    is_staged = False
    """Whether the model is split into stages, of which other processes have the rest."""

    def __init__(self, group: Any = None, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.bucket_bytes = bucket_bytes
        self.samples = 0
        self.micro_steps = 0
        self.sharding: Sharding | None = None  # of the model, where its weights are shared out
        self.beats: Heartbeats = NoHeartbeats()
        self.is_idle = (
            False  # this rank takes part in a pass only because others have a micro-batch left
        )
        # Where what is agreed on is sent from: a number on the CPU makes no device wait.
        own = dist.get_process_group_ranks(group)
        self._world = dist.new_group(backend=host_backend())
        self._host = dist.new_group(own, backend=host_backend(), use_local_synchronization=True)
        self.is_first = dist.get_rank() == 0

    def begin(self, window: Window, step: int) -> None:
        """Begin the step after so many: `samples` of all ranks, in at most `micro_steps`
        batches."""
        self.beats.step(step)
        self.samples = window.samples
        self.micro_steps = window.micro_steps

    def all_reduce_values(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, in double precision; the same bits on each."""
        return self.all_reduce_stage_values(values)

    def all_reduce_stage_values(self, values: Sequence[float]) -> list[float]:
        """The same of what is about this part of the model, where that is divided."""
        tensor = torch.tensor(values, dtype=torch.float64)
        self._reduce(tensor, self._host)
        return tensor.tolist()

    def all_reduce_losses(
        self, kind: str, values: Sequence[float], *, has_none: bool
    ) -> tuple[str, list[float]]:
        """Sums of what `kind` says these values are; InputError where another rank has values of
        another kind.

        A rank that has none takes the kind of rank 0, which always has some.
        """
        kinds = [0.0] * self.size
        kinds[self.rank] = 0.0 if has_none else 1.0 + crc32(kind.encode())
        kinds = self.all_reduce_stage_values(kinds)
        if 0.0 in kinds or len(set(kinds)) > 1:
            known = self.all_gather_stage(None if has_none else kind)
            for rank, theirs in enumerate(known):
                if theirs not in (None, known[0]):
                    raise InputError(
                        f"The losses of one step are of another kind on rank {rank} ({theirs}) than on rank 0"
                        f" ({known[0]}).",
                        fix="Return the same losses for every batch; one that is not to count may be 0.",
                    )
            kind = known[0]
        width = 2 * len(json.loads(kind)[1])
        return kind, self.all_reduce_stage_values(values if not has_none else [0.0] * width)

    def all_reduce_(self, tensors: Iterable[Tensor]) -> None:
        """Add up tensors over all ranks in place; the same bits on each. They are as many, and
        alike, everywhere."""
        for bucket in _buckets(
            (local_tensor(tensor.detach()) for tensor in tensors), self.bucket_bytes
        ):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            self._reduce(flat, self.group)
            for tensor, part in zip(
                bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True
            ):
                tensor.copy_(part.view_as(tensor))

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values that they have on rank 0; a sparse one has as many entries on
        each."""
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
        """A backward pass comes, the last one of a step or not."""
        if self.sharding is not None:
            self.sharding.begin_backward(is_last=is_last)

    def reshard(self) -> None:
        """After forward passes that no backward pass follows."""
        if self.sharding is not None:
            self.sharding.reshard()

    def all_true(self, value: bool) -> bool:
        """Whether `value` is true on each process of the run."""
        tensor = torch.tensor([value], dtype=torch.uint8)
        with peer_errors():
            dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._world)
        return bool(tensor.item())

    def all_gather(self, value: Any) -> list[Any]:
        """Return what each rank gives, in their order; tensors arrive on the CPU, wherever they
        were."""
        return self.all_gather_stage(value)

    def all_gather_stage(self, value: Any) -> list[Any]:
        """The same of what is about this part of the model, where that is divided."""
        found: list[Any] = [None] * self.size
        with peer_errors():
            dist.all_gather_object(found, _packed(value), group=self._host)
        return [pickle.loads(each) for each in found]

    def clip_grad_norm_(self, parameters: Sequence[Tensor], max_norm: float) -> float:
        """Scale gradients so that the norm of all, whatever this process has of them, is at most
        that; returns it."""
        clip = clip_dtensor_norm_ if any(map(is_dtensor, parameters)) else clip_norm_
        return clip(parameters, max_norm)

    def all_reduce_tied_(self, parameters: Sequence[Tensor]) -> None:
        """Add up gradients of weights that other parts of the model have as well."""

    def all_gather_world(self, value: Any) -> list[Any]:
        """What each process of the run gives, in their order."""
        found: list[Any] = [None] * dist.get_world_size()
        with peer_errors():
            dist.all_gather_object(found, value, group=self._world)
        return found

    def first_report(self, word: str, *, unless: str) -> str:
        """What the first process says that has more to say than `unless`, and which it is; for all
        the same."""
        words = self.all_gather_world(word)
        told = next((rank for rank, each in enumerate(words) if each and each != unless), None)
        return f"{words[told]} (rank {told})" if told is not None else word

    def agree(self, stop: Stop, max_steps: int | None) -> int | None:
        """Put in force on all ranks what one of them was asked, as by a signal; return the least
        bound of all."""
        self.beats.beat()
        bound = math.inf if max_steps is None else max_steps
        asked = stop.asked  # a signal may change it at any line
        tensor = torch.tensor([bool(asked.reason), -bound], dtype=torch.float64)
        with peer_errors():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._world)
        is_asked, least = tensor.tolist()
        if is_asked:
            requests = [each for each in self.all_gather_world(asked) if each.reason]
            stop.agree(next((each for each in requests if each.interrupts), requests[0]))
        return None if math.isinf(least) else int(-least)

    def barrier(self) -> None:
        """Return when all processes of the run have come here."""
        with peer_errors():
            dist.barrier(group=self._world)

    def _reduce(self, tensor: Tensor, group: Any) -> None:
        with peer_errors():
            dist.all_reduce(tensor, group=group)


class _HostPickler(pickle.Pickler):
    """Pickler that copies tensors to the CPU: those of two GPUs could not be added where they
    arrive."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return value.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        return NotImplemented


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    _HostPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def host_backend() -> str:
    """What sends what lies on the CPU; in a world that is only imagined, nothing."""
    return "fake" if dist.get_backend() == "fake" else "gloo"


class peer_errors:
    """What torch says when a connection is lost becomes a PeerError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            raise _peer_error(error) from error


def as_peer_error(error: BaseException) -> PeerError | None:
    """What to raise in its place if `error` is torch's own about a lost connection: weights come
    together in it."""
    is_lost = isinstance(error, dist.DistError) or (
        type(error) is RuntimeError and _LOST.search(str(error))
    )
    return _peer_error(error) if is_lost else None


def _peer_error(error: BaseException) -> PeerError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    return PeerError(
        "Another process of this run ended, or does not answer; it tells why.", where=first[:200]
    )


def _buckets(tensors: Iterable[Tensor], size: int) -> Iterable[list[Tensor]]:
    """Tensors of one kind and device together, up to about `size` bytes."""
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
