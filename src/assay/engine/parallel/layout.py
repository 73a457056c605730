"""Layout of the ranks of a run along its axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from assay.core.errors import InputError
from assay.core.sections import PARALLEL_AXES as AXES
from assay.core.sections import ParallelSection, ZeroSection

Schedule = Literal["1f1b", "gpipe", "interleaved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Number of ranks along each axis.

    Ranks along `data` and `shard` have different samples; those along `tensor` and `pipeline` have
    parts of one model, and see the same samples.
    """

    pipeline: int = 1
    data: int = 1
    shard: int = 1
    tensor: int = 1
    schedule: Schedule = "1f1b"
    """In which order a pipeline takes the micro-batches of a step forward and back."""
    stages: int = 0
    """Of the pipeline; 0: one for each of its processes, or two where stages are interleaved."""
    split: tuple[str, ...] = ()
    """Parts with which stages after the first begin; none: stages of about equal size."""

    stage: int = 3
    """Stage of ZeRO, for the axis over which weights are sharded."""

    @classmethod
    def of(cls, section: ParallelSection, *, processes: int = 1) -> Layout:
        """Return the layout of [parallel]; without axes, `processes` ranks share the data.

        With ZeRO, weights are sharded among the ranks of `data` unless there is `shard`. InputError
        for an uneven pipeline.
        """
        sizes = section.axes or {"data": processes}
        zero = section.zero or ZeroSection(enabled=False)
        if zero.enabled and sizes.get("shard", 1) == 1:
            sizes |= {"shard": sizes.get("data", 1), "data": 1}
        layout = cls(
            **sizes,
            schedule=section.schedule,
            stages=section.stages,
            split=tuple(section.split or ()),
            stage=zero.stage if zero.enabled else ZeroSection().stage,
        )
        layout._check_stages()
        return layout

    def bubble(self, micro_batches: int) -> float:
        """Return the share of a step in which a rank waits for other stages of the pipeline.

        (p - 1) / (v m + p - 1) for p ranks of v stages each and m micro-batches, with stages that
        take equal times (Narayanan et al., "Efficient large-scale language model training on GPU
        clusters using Megatron-LM", 2021).
        """
        waits = self.pipeline - 1
        return waits / (self.stage_count // self.pipeline * micro_batches + waits) if waits else 0.0

    def describe_zero(self, section: ParallelSection) -> str:
        """Describe the stage of ZeRO, "" where it is off."""
        if section.zero is None or not section.zero.enabled:
            return ""
        sizes = f"data {self.shard} is shard {self.shard}, " if section.shard in (None, 1) else ""
        kept = {
            1: "weights and gradients stay whole in a step",
            2: "weights stay whole in a step",
            3: "all is shared out",
        }
        return f"ZeRO stage {self.stage}: {sizes}{kept[self.stage]}"

    def _check_stages(self) -> None:
        if self.pipeline == 1:
            return
        per_process, rest = divmod(self.stage_count, self.pipeline)
        if rest or not per_process:
            what = (
                f"{self.stage_count} stages cannot be divided evenly among {self.pipeline}"
                " processes."
            )
            raise InputError(
                what, fix=f"[parallel] stages can be {self.pipeline} or {2 * self.pipeline}."
            )
        if (per_process > 1) != (self.schedule == "interleaved"):
            what = (
                f"{self.stage_count} stages are {per_process} for each of {self.pipeline} processes"
            )
            wanted = "wants several" if self.schedule == "interleaved" else "has one"
            raise InputError(
                f"{what}; schedule = {self.schedule!r} {wanted}.",
                fix='schedule = "interleaved" is for several stages in each process.',
            )

    @property
    def stage_count(self) -> int:
        return self.stages or self.pipeline * (2 if self.schedule == "interleaved" else 1)

    def check_micro_batches(self, count: int, *, arithmetic: str = "") -> None:
        """Raise InputError if `count` micro-batches for each pipeline do not fit its schedule."""
        if self.pipeline == 1:
            return
        of = f" ({arithmetic})" if arithmetic else ""
        batches = f"{count} micro-batch{'es' if count > 1 else ''}"
        if self.schedule == "1f1b" and count < self.pipeline:
            raise InputError(
                f"A step has {batches}{of}; 1f1b keeps {self.pipeline} stages busy with one each.",
                fix=(
                    f"Write [train] accumulate = {self.pipeline} or more, or [parallel]"
                    ' schedule = "gpipe".'
                ),
            )
        rounds = max(1, count // self.pipeline)
        if self.schedule == "interleaved" and count % rounds:
            even = [count - count % self.pipeline, count - count % self.pipeline + self.pipeline]
            raise InputError(
                f"A step has {batches}{of}, which interleaved stages take in {rounds}"
                " rounds of as many.",
                fix=f"[train] accumulate can be {even[0]} or {even[1]}.",
            )

    def waiting(self, count: int) -> float:
        """Return the idle share of a pipeline rank's step of `count` micro-batches."""
        filling = (self.pipeline - 1) * self.pipeline / self.stage_count
        return filling / (filling + count)

    @property
    def without_pipeline(self) -> Layout:
        """Layout of the ranks that would hold the whole model, each with all stages."""
        data = self.data_parallel_size
        return replace(self, pipeline=1, data=data, shard=1, schedule="1f1b", stages=0, split=())

    @property
    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in AXES}

    @property
    def processes(self) -> int:
        return self.pipeline * self.data * self.shard * self.tensor

    @property
    def is_divided(self) -> bool:
        """True if no rank holds the whole model."""
        return self.processes > self.data

    @property
    def data_parallel_size(self) -> int:
        """Number of ranks with different samples."""
        return self.data * self.shard

    def __str__(self) -> str:
        """Return a line such as `data 2 x tensor 2 = 4 processes`."""
        shown = [f"{name} {size}" for name, size in self.sizes.items() if size > 1] or [
            f"data {self.data}"
        ]
        how = f" ({self.schedule})" if self.pipeline > 1 and self.schedule != "1f1b" else ""
        return f"{' x '.join(shown)} = {self.processes} processes{how}"
