"""Data-parallel axis of a run, as loop and optimizer step see it: a lone process has size 1.

The implementations for several ranks are in `engine.parallel`, above this room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from assay.core.errors import PeerError
from assay.core.stop import Stop
from assay.engine.data.source import Window
from assay.engine.numerics.dtensor import clip_dtensor_norm_, is_dtensor
from assay.engine.optim.clip import clip_norm_
from assay.formats.heartbeats import Heartbeats, NoHeartbeats


@dataclass(slots=True)
class StepShare:
    """Share of this rank in the step that is made, and what all ranks have agreed on in it.

    `samples` and `micro_steps` are those of the step, over all ranks. `is_idle` marks a micro-batch
    that counts for nothing: this rank runs it only because another one has one more. `is_open`: all
    ranks are in the step, and its gradients are not added up yet; where one looks again at a step
    that has failed, the others may not. `has_logged`: any rank has logged values in this step, to
    be merged.
    """

    samples: int = 0
    micro_steps: int = 0
    is_idle: bool = False
    is_open: bool = False
    has_logged: bool = False

    def begin(self, window: Window) -> None:
        """Begin a step."""
        self.is_open = True
        self.samples = window.samples
        self.micro_steps = window.micro_steps


class DataParallelGroup:
    """Ranks that share the samples of each step; this default is a lone process.

    Engine, optimizer step and evaluation call the group at fixed points and do not ask how many
    ranks there are: here every collective returns what it is given. `DistributedGroup` is the group
    of several OS processes, `StagedGroup` that of processes whose model is a pipeline. Loop and
    optimizer step share the `step` of this rank.
    """

    is_distributed = False
    """True where there are other ranks: on this axis, or on one along which the model is split."""
    is_staged = False
    """True where the model is split into pipeline stages."""

    @property
    def has_whole_model(self) -> bool:
        """True where each rank has all weights, and so comes to the same gradients and flags."""
        return not self.is_staged and self.sharding is None

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.is_first = True
        self.step = StepShare()
        self.sharding: Any = None
        self.beats: Heartbeats = NoHeartbeats()

    def begin_step(self, window: Window, step: int) -> None:
        """Begin the step after `step` completed ones."""
        self.beats.step(step)
        self.step.begin(window)

    def micro_batch_number(self, i: int) -> int:
        """Return the index over all ranks of micro-batch `i` of this rank."""
        return i * self.size + self.rank

    def all_reduce_values(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, in double precision; the same bits on each."""
        return list(values)

    def all_reduce_stage_values(self, values: Sequence[float]) -> list[float]:
        """Return the sums over the ranks that hold the same part of the model."""
        return list(values)

    def agree_on_losses(
        self, kind: str, own: Tensor, *, has_logged: bool
    ) -> tuple[str, Tensor | None, bool]:
        """Return the kind of the losses of all ranks, their sums, and whether any has logged.

        The sums are what `all_reduce_losses` returns of `own`; None, and that has to be called, off
        the CPU or where the kind is not that of the step before. A rank without a loss has the kind
        "", and takes that of rank 0, which always has one. InputError where two ranks have
        different kinds.
        """
        return kind, own, has_logged

    def all_reduce_losses(self, own: Tensor) -> Tensor:
        """Return losses and weights, in double precision, added up to the same bits on each rank.

        Nothing waits for the device.
        """
        return own

    def gradient_buckets(self, parameters: Sequence[Tensor]) -> Any:
        """Return the GradientBuckets of parameters; None for a lone process."""
        return None

    def all_reduce_tied_(self, parameters: Sequence[Tensor]) -> None:
        """Sum the gradients of weights that several pipeline stages use."""

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the values they have on rank 0."""

    def all_gather(self, value: Any) -> list[Any]:
        """Return the value of each rank, in rank order; tensors arrive on the CPU."""
        return [value]

    def all_true(self, value: bool) -> bool:
        """Return True if `value` is true on every rank of the run."""
        return value

    def first_report(self, report: str, *, unless: str) -> str:
        """Return the report of the first rank that has one other than `unless`, with its rank."""
        return report

    def begin_backward(self, *, is_last: bool) -> None:
        """Prepare a backward pass, the last one of a step or not."""

    def reshard(self) -> None:
        """Free gathered weights after forward passes that no backward pass follows."""

    def clip_grad_norm_(self, parameters: Sequence[Tensor], max_norm: float) -> float:
        """Scale gradients so that their norm over all ranks is at most `max_norm`; return it."""
        clip = clip_dtensor_norm_ if any(map(is_dtensor, parameters)) else clip_norm_
        return clip(parameters, max_norm)

    def agree(
        self, stop: Stop, max_steps: int | None, *, ends_epoch: bool, fetches: bool
    ) -> tuple[int | None, bool, bool]:
        """Apply a stop of any rank to all; return the least bound, and what any rank asks for.

        That is to end the epoch, and to fetch the numbers of the steps from the device.
        """
        return max_steps, ends_epoch, fetches

    def as_peer_error(self, error: BaseException) -> PeerError | None:
        """Return the PeerError for an error of torch about a lost connection, else None."""
        return None

    def barrier(self) -> None:
        """Return when all ranks of the run have called this."""
