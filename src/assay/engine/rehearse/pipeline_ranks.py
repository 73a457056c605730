"""Rehearsal of a pipeline: the whole model stage after stage, then each rank with its schedule."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from assay.engine.parallel.layout import Layout
from assay.engine.rehearse.ladder import (
    Build,
    BuildFailedError,
    Parts,
    Site,
    rehearse,
    rehearse_rank,
)
from assay.engine.rehearse.staged_forward import StagedForward
from assay.formats.rehearsal import Finding, PeakMemory, PipelineRank, Rehearsal


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
    whole = replace(rehearse(build), memory=None, evaluation=None)
    if staged is None:  # nothing could be built
        return whole
    findings = tuple(_at_stage(each, staged.stage) for each in whole.findings)
    whole = replace(whole, findings=findings, ranks=_planned(staged, layout))
    if whole.failures:
        return whole
    if whole.rung not in ("fake", "converted") or True not in staged.boundaries:
        message = "the memory of each rank of the pipeline: the step needs values of tensors"
        unknown = Finding(kind="unchecked", message=message)
        return replace(whole, findings=(*whole.findings, unknown))
    tried = _rehearse_ranks(whole, build_rank, staged, limit_bytes)
    return replace(_merged(whole, tried), seconds=time.perf_counter() - begun)


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


def _planned(staged: StagedForward, layout: Layout) -> tuple[PipelineRank, ...]:
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


def _merged(whole: Rehearsal, tried: Sequence[Rehearsal]) -> Rehearsal:
    """Put the ranks into the report of the whole model; `memory` is that of the highest peak."""
    ranks = tuple(
        replace(rank, memory=each.memory, flops_per_step=each.flops_per_step)
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
