"""Report of a rehearsal: one step of training tried without its memory. Format 1, plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FORMAT = 1

Rung = Literal["fake", "converted", "real", "unchecked"]
"""Way in which the step was tried, from the cheapest on.

`fake`: model and step on fake tensors. `converted`: the model was built for real on the CPU, and
its tensors were replaced by fake ones. `real`: the step was computed on the CPU. `unchecked`: it
could not be tried at all.
"""
Kind = Literal["shape", "dtype", "device", "value", "memory", "loss", "error", "unchecked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A mistake, or something that could not be tried (`unchecked`).

    `module` is a path as `model.blocks.0 (Block)`, `given` the shapes of its inputs; `source` and
    `line` are the place in the user's code, `code` the text of that line.
    """

    kind: Kind
    message: str
    module: str = ""
    given: str = ""
    source: str = ""
    line: int = 0
    code: str = ""
    fix: str = ""
    stage: int | None = None
    """Pipeline stage at work, from 0; None without a pipeline."""

    @property
    def is_failure(self) -> bool:
        return self.kind != "unchecked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A module in its first call. `params` are its own, of which `trained` get gradients.

    `flops` are those of its forward pass, submodules included: a multiply-add counts as two.
    `given` and `gave` are "" for a module that was not called; `gave` is "failed" for one that
    raised.
    """

    name: str
    kind: str
    depth: int
    given: str = ""
    gave: str = ""
    params: int = 0
    trained: int = 0
    flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStage:
    """A stage of the data flow: its name, its class, and the dtypes and shapes that it gives."""

    name: str
    kind: str
    gives: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Peak memory of one rank in bytes, by use at the moment of the peak.

    `gathered_bytes` are weights of other ranks that are here for a while. `activations_bytes` is
    everything that is none of the others: saved activations, their gradients, temporaries. `where`
    names the module at work and the phase. `workspace_bytes` is what libraries need on top of the
    peak, 0 where that is unknown.
    """

    peak_bytes: int
    weights_bytes: int = 0
    gathered_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    activations_bytes: int = 0
    batch_bytes: int = 0
    workspace_bytes: int = 0
    where: str = ""

    @property
    def most_bytes(self) -> int:
        """Peak with the workspaces of libraries."""
        return self.peak_bytes + self.workspace_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest micro-batch of one rank whose peak fits into `usable_bytes`; 0 when none does."""

    samples: int
    peak_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Space for checkpoints: the size of one, how many exist at once, and the free space.

    `seconds` is what writing one takes at a bandwidth that was given, all ranks together.
    """

    checkpoint_bytes: int
    checkpoints: int
    free_bytes: int
    seconds: float | None = None

    @property
    def needed_bytes(self) -> int:
        return self.checkpoint_bytes * self.checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTraffic:
    """Traffic of one rank along an axis of the layout in a step, or along two ("data x shard").

    `seconds` is what that takes at a bandwidth that was given, with nothing computed meanwhile.
    """

    axis: str
    collectives: int
    sent_bytes: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRank:
    """Share of one rank of a pipeline in a step: the stages that it holds, and their needs.

    `parts` are the names of what its stages run. `memory` is None if the rank could not be tried.
    """

    rank: int
    stages: tuple[int, ...]
    parts: tuple[str, ...]
    parameters: int
    flops_per_step: int = 0
    memory: PeakMemory | None = None
    traffic: tuple[AxisTraffic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Result of a rehearsal.

    `device` is the kind of device whose operations were tried. `samples` are those of one
    micro-batch of one rank, `micro_batches` how many of them make a step. FLOPs are those of a step
    of one rank: forward and backward.

    `left_out` are the trained parameters that got no gradient in this step: their states in the
    optimizer are counted, what another step keeps of them for its backward pass is not.

    In a pipeline, `ranks` has an entry for each rank of one pipeline. `memory` is then that of the
    rank with the highest peak; parameters, FLOPs and layers are those of the whole model. `traffic`
    is what one rank sends, and `bubble` the share of a step in which a rank of a pipeline waits.
    """

    format: int = FORMAT
    rung: Rung
    device: str = "cpu"
    findings: tuple[Finding, ...] = ()
    batch: str = ""
    samples: int = 0
    micro_batches: int = 1
    layout: Mapping[str, int] = field(default_factory=dict)
    parameters: int = 0
    trained: int = 0
    left_out: int = 0
    flops_per_step: int = 0
    layers: tuple[Layer, ...] = ()
    stages: tuple[DataStage, ...] = ()
    memory: PeakMemory | None = None
    evaluation: PeakMemory | None = None
    largest: Largest | None = None
    disk: Disk | None = None
    ranks: tuple[PipelineRank, ...] = ()
    traffic: tuple[AxisTraffic, ...] = ()
    bubble: float = 0.0
    seconds: float = 0.0

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_failure)

    @property
    def unchecked(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.is_failure)
