"""Rehearsal of ranks that do not exist: one process computes as one of many.

Of a pipeline the whole model is tried stage after stage, then each rank with its schedule.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.core.sections import ParallelSection
from assay.engine.parallel.distributed_group import DistributedGroup, StagedGroup
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.pipeline_stages import Shapes, sendable, shapes_of, split_model
from assay.engine.parallel.process_group import Mesh, choose_gradient_format, init_mesh
from assay.engine.rehearse.fake import can_imagine_world, imagined_world
from assay.engine.rehearse.ladder import (
    Build,
    BuildFailedError,
    Parts,
    Site,
    climb,
    rehearse_rank,
)
from assay.formats.rehearsal import Finding, PeakMemory, PipelineRank, Rehearsal


class ImaginedGroup(DistributedGroup):
    """Stand-in DistributedGroup in which every rank has the values of this one."""

    def all_reduce_stage_values(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def agree_on_losses(
        self, kind: str, own: Tensor, *, has_logged: bool
    ) -> tuple[str, Tensor | None, bool]:
        return kind, None, has_logged

    def all_reduce_losses(self, own: Tensor) -> Tensor:
        return own

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Nobody has other values."""

    def all_true(self, value: bool) -> bool:
        return value

    def all_gather_stage(self, value: Any) -> list[Any]:
        return [value] * self.size


class ImaginedStagedGroup(ImaginedGroup, StagedGroup):
    """Stand-in StagedGroup: a rank without the last stage takes a mean for the loss."""

    def all_reduce_values(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def agree_on_losses(
        self, kind: str, own: Tensor, *, has_logged: bool
    ) -> tuple[str, Tensor | None, bool]:
        return kind or json.dumps([False, [["", ""]], ""]), None, has_logged

    def all_gather(self, value: Any) -> list[Any]:
        return [value] * self.size


@contextmanager
def imagined_mesh(
    layout: Layout,
    device: torch.device,
    section: ParallelSection | None = None,
    *,
    place: int = 0,
) -> Iterator[Mesh]:
    """Lay out as many ranks as `layout` has; this process is the first at a place of the pipeline.

    The pipeline is the outermost axis: see `AXES`.
    """
    if not can_imagine_world():
        what = f"torch {torch.__version__} cannot stand for ranks that are not there."
        raise InputError(what, fix="Leave out --layout and [parallel].")
    with imagined_world(place * layout.processes // layout.pipeline, layout.processes):
        mesh = init_mesh(layout, device, section)
        group, how = mesh.ranks.group, choose_gradient_format(section or ParallelSection())
        if layout.pipeline > 1:
            line = mesh.devices["pipeline"].get_group()
            mesh.ranks = ImaginedStagedGroup(group, line, **how)
        else:
            mesh.ranks = ImaginedGroup(group, **how)
        yield mesh


def groups_of(mesh: Mesh) -> dict[str, tuple[str, int]]:
    """Return the axis and the size of each group of ranks, by the name of the group."""
    sizes = mesh.layout.sizes
    groups = {
        str(mesh.devices.get_group(axis).group_name): (axis, count) for axis, count in sizes.items()
    }
    shared = [axis for axis in ("data", "shard") if sizes[axis] > 1]
    together = " x ".join(shared), math.prod(sizes[axis] for axis in shared)
    return {str(mesh.ranks.group.group_name): together} | groups


class StagedForward:
    """Replacement of a model's forward pass by its pipeline stages, one after another.

    It records what each stage gives to the next, and at which stage the model is. InputError if the
    model cannot be split as `layout` says.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.split = split_model(model, layout.stage_count, layout.split)
        self.stage: int | None = None
        """Stage at work, or the last one after all have run; None before the first call."""
        self.boundaries: dict[bool, tuple[Shapes, ...]] = {}
        """Shapes between the stages in the first call in training (True) and in evaluation."""
        self._model = model
        model.forward = self._forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        given: list[Shapes] = []
        for number, parts in enumerate(self.split.stages):
            self.stage = number
            for part in parts:
                args = (part.run(*args, **kwargs),)
                kwargs = {}
            if number + 1 < len(self.split.stages):
                args = (sendable(args[0], parts[-1].name),)
                given.append(shapes_of(args[0]))
        self.boundaries.setdefault(self._model.training, tuple(given))
        return args[0]


class BuildRank(Protocol):
    """Builds the parts of the rank at a place of the pipeline."""

    def __call__(self, site: Site, *, place: int) -> AbstractContextManager[Parts]: ...


def rehearse_pipeline(
    build_whole: Build, build_rank: BuildRank, layout: Layout, *, limit_bytes: int | None = None
) -> Rehearsal:
    """Rehearse the model as a whole, through its stages, and then each rank of one pipeline.

    The first finds mistakes and names the stage. The second runs the schedule of a run, in a
    process group without other ranks: what a stage receives has only a shape. So it is left out
    where the step needs values, and then the memory of the ranks is unchecked.
    """
    staged: StagedForward | None = None

    @contextmanager
    def build(site: Site) -> Iterator[Parts]:
        nonlocal staged
        with build_whole(site) as parts:
            try:
                staged = StagedForward(parts.process.model, layout)
            except Exception as error:
                raise BuildFailedError(str(error)) from error
            yield parts

    begun = time.perf_counter()
    whole = replace(climb(build), memory=None, evaluation=None, traffic=())
    if staged is None:  # nothing could be built
        return whole
    findings = tuple(_at_stage(each, staged.stage) for each in whole.findings)
    whole = replace(whole, findings=findings, ranks=_plan_ranks(staged, layout))
    if whole.failures:
        return whole
    if whole.rung not in ("fake", "converted") or True not in staged.boundaries:
        message = "the memory of each rank of the pipeline: the step needs values of tensors"
        unknown = Finding(kind="unchecked", message=message)
        return replace(whole, findings=(*whole.findings, unknown))
    tried = _rehearse_ranks(whole, build_rank, staged, limit_bytes)
    return replace(_merge_reports(whole, tried), seconds=time.perf_counter() - begun)


def _rehearse_ranks(
    whole: Rehearsal, build_rank: BuildRank, staged: StagedForward, limit_bytes: int | None
) -> list[Rehearsal]:
    """Run the schedule on each rank; a later one tries no more samples than fit on those before."""
    tried: list[Rehearsal] = []
    for rank in whole.ranks:
        fits = min((each.largest.samples for each in tried if each.largest), default=None)
        found = rehearse_rank(
            partial(build_rank, place=rank.rank),
            whole.rung,
            staged.boundaries,
            limit_bytes=limit_bytes,
            fits=fits,
        )
        tried.append(found)
    return tried


def _at_stage(finding: Finding, stage: int | None) -> Finding:
    """Add the stage to a finding that names a module."""
    return replace(finding, stage=stage) if finding.module else finding


def _plan_ranks(staged: StagedForward, layout: Layout) -> tuple[PipelineRank, ...]:
    """Return what each rank of one pipeline holds."""
    split, count = staged.split, layout.pipeline
    held = [tuple(range(place, layout.stage_count, count)) for place in range(count)]
    return tuple(
        PipelineRank(
            rank=place,
            stages=stages,
            parts=tuple(part.name for stage in stages for part in split.stages[stage]),
            parameters=sum(split.sizes[name] for name in split.weights(*stages)),
        )
        for place, stages in enumerate(held)
    )


def _merge_reports(whole: Rehearsal, tried: Sequence[Rehearsal]) -> Rehearsal:
    """Put the ranks into the report of the whole model; `memory` is that of the highest peak."""
    ranks = tuple(
        replace(rank, memory=each.memory, flops_per_step=each.flops_per_step, traffic=each.traffic)
        for rank, each in zip(whole.ranks, tried, strict=True)
    )
    found = [
        replace(finding, message=f"rank {rank.rank} of the pipeline: {finding.message}")
        for rank, each in zip(ranks, tried, strict=True)
        for finding in each.findings
    ]
    memories = [each.memory for each in tried if each.memory is not None]
    evaluations = [each.evaluation for each in tried if each.evaluation is not None]
    largest = [each.largest for each in tried if each.largest is not None]
    return replace(
        whole,
        ranks=ranks,
        findings=(*whole.findings, *found),
        memory=max(memories, key=_peak, default=None),
        evaluation=max(evaluations, key=_peak, default=None),
        largest=min(largest, key=lambda each: each.samples, default=None),
    )


def _peak(memory: PeakMemory) -> int:
    return memory.peak_bytes
