"""Gradients that are summed over ranks while the backward pass still makes others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakMethod, finalize

import torch
import torch.distributed as dist
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.parallel.peer_errors import peer_errors

MAX_FLYING = 2
"""Buckets on their way at once after the backward pass: each is a copy of its gradients."""


class GradientBuckets:
    """Sums of gradients over ranks, bucket by bucket, in the same order on each rank.

    After `open` a bucket is sent once the backward pass has made all its gradients, and those
    before it are sent. `finish` sends the rest, with zeros where this rank has no gradient, and
    puts the sums in place: until then a gradient is that of this rank alone.

    A parameter may get its gradient in pieces, as from a reentrant checkpoint: the first window,
    in which nothing is sent early, shows it, and then nothing ever is.

    In `dtype` they are sent and summed; None: in their own.
    """

    def __init__(
        self,
        buckets: Sequence[Sequence[Tensor]],
        group: Any,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.group = group
        self.dtype = dtype
        self.buckets = buckets
        self._places = {parameter: i for i, bucket in enumerate(buckets) for parameter in bucket}
        note = WeakMethod(self._note)

        def hear(parameter: Tensor) -> None:
            if (heard := note()) is not None:
                heard(parameter)

        hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(hear)  # type: ignore[no-untyped-call]
            for parameter in self._places
        ]
        # A parameter keeps its hooks: those of an optimizer step that is gone would be called on.
        self.close = finalize(self, _remove, hooks)
        self._awaited: list[set[Tensor]] = []
        self._flying: list[tuple[Sequence[Tensor], Tensor, Any]] = []
        self._sent = 0
        self._lacking: set[Tensor] = set()
        self._is_open = self._is_known = self._has_pieces = False

    def open(self) -> None:
        """Begin the last backward pass of a window."""
        self._awaited = [set(bucket) for bucket in self.buckets]
        self._is_open = True

    def finish(self) -> None:
        """Send what is left and wait for all; a gradient that no rank has is None again.

        InputError for a sparse gradient.
        """
        self._is_known |= self._is_open
        self._is_open = False
        while self._sent < len(self.buckets):
            if len(self._flying) >= MAX_FLYING:
                self._land()
            self._send()
        while self._flying:
            self._land()
        self.forget()

    def forget(self) -> None:
        """Forget a window, as one that failed."""
        self._is_open = False
        self._flying.clear()
        self._lacking.clear()
        self._sent = 0

    def _note(self, parameter: Tensor) -> None:
        """Hear of a gradient that the backward pass has made."""
        if not self._is_open:
            return
        place = self._places[parameter]
        if parameter not in self._awaited[place]:
            self._has_pieces = True
            if place < self._sent:
                raise InputError(
                    "A parameter got its gradient in pieces, and the first one was sent to the"
                    " other processes.",
                    fix="Call torch.utils.checkpoint.checkpoint with use_reentrant=False.",
                )
        self._awaited[place].discard(parameter)
        if not self._is_known or self._has_pieces:
            return
        while self._sent < len(self.buckets) and not self._awaited[self._sent]:
            self._send()

    def _send(self) -> None:
        bucket = self.buckets[self._sent]
        self._sent += 1
        for parameter in bucket:
            if parameter.grad is None:
                self._lacking.add(parameter)
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                raise InputError(
                    "Sparse gradients are not shared between processes.",
                    fix="Use dense embeddings.",
                )
        with torch.no_grad(), peer_errors():
            parts = [_own_grad(parameter).reshape(-1) for parameter in bucket]
            if self._sent == len(self.buckets):
                parts.append(self._presence(parts[0]))
            flat = torch.cat(parts).to(self.dtype or parts[0].dtype)
            work = dist.all_reduce(flat, group=self.group, async_op=True)
        self._flying.append((bucket, flat, work))

    def _presence(self, like: Tensor) -> Tensor:
        """Return 1 for each parameter of which this rank has a gradient, and 0 for the others.

        It goes with the last bucket. Where a rank has all of them nothing is read.
        """
        if not self._lacking:
            return like.new_ones(len(self._places))
        return like.new_tensor([float(each not in self._lacking) for each in self._places])

    def _land(self) -> None:
        bucket, flat, work = self._flying.pop(0)
        with torch.no_grad(), peer_errors():
            work.wait()
            own = [_own_grad(parameter) for parameter in bucket]
            sizes = [grad.numel() for grad in own]
            *parts, rest = torch.split(flat, [*sizes, len(flat) - sum(sizes)])
            for grad, part in zip(own, parts, strict=True):
                grad.copy_(part.view_as(grad))
            if self._lacking and len(rest):
                self._take_back(rest)

    def _take_back(self, presence: Tensor) -> None:
        """Take back the zeros of each parameter of which no rank has a gradient."""
        is_simulated = dist.get_backend(self.group) == "fake"  # the others are as this rank
        counts = [each not in self._lacking for each in self._places]
        for parameter, count in zip(
            self._places, counts if is_simulated else presence.tolist(), strict=True
        ):
            if not count:
                parameter.grad = None


def _remove(hooks: Sequence[Any]) -> None:
    """Hear of no backward pass any more."""
    for hook in hooks:
        hook.remove()


def _own_grad(parameter: Tensor) -> Tensor:
    """Return the part of a gradient that this rank has."""
    assert parameter.grad is not None
    return local_tensor(parameter.grad)
