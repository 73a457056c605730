"""Rehearsal ladder: a step on fake tensors, else converted ones, else real ones, else none."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor

from assay.core.errors import AssayError
from assay.engine.checkpoint.codec import encode
from assay.engine.data.batches import size_of
from assay.engine.data.shapes import shape_of
from assay.engine.data.source import Window
from assay.engine.loop.engine_state import process_state
from assay.engine.loop.process import Process
from assay.engine.metrics.metric import Metric
from assay.engine.metrics.outputs import Pipes
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.private_torch import can_see_operations
from assay.engine.numerics.structures import map_values, tensors_in
from assay.engine.parallel.pipeline import Pipeline
from assay.engine.parallel.pipeline_stages import Shapes, scale_shapes
from assay.engine.rehearse.fake import Fakes, can_fake, is_unfakeable
from assay.engine.rehearse.findings import finding_of, unchecked_finding
from assay.engine.rehearse.known_values import MOST_WHOLE, Bound, Values
from assay.engine.rehearse.observer import Observer, StepTooLargeError
from assay.engine.rehearse.stages import step_stages
from assay.engine.rehearse.trial import StepFailedError, Trial
from assay.formats.rehearsal import (
    AxisTraffic,
    DataStage,
    Disk,
    Finding,
    Largest,
    PeakMemory,
    Rehearsal,
    Rung,
)

REAL_SECONDS = 30.0
"""Seconds that a step that is tried for real may take."""

REAL_SHARE = 0.5
"""Share of the memory that is free now that it may take."""

_LOOKED_AT_BATCHES = 8
_LOOKED_AT_SECONDS = 2.0
_BYTES = 4  # of a number in fp32
_MOST_MICRO_BATCHES = 2  # the second has the gradients of the first beside it, as all later ones


class BuildFailedError(Exception):
    """The process of a config could not be built as the rung wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Process and data of a rehearsal.

    `windows` are the steps of the first epoch, `stages` those of the data, `loader` the class that
    gives the batches. `evaluations` are the first batches of the splits that are evaluated, by
    name; their outputs go through `pipes` to `metrics`. There is room for `checkpoints` at once, on
    a disk with `free_bytes`. `pipeline` are the stages of one rank, where only those are tried.
    """

    process: Process
    windows: Iterator[Window]
    loader: str
    evaluations: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    pipes: Pipes = field(default_factory=Pipes)
    stages: tuple[DataStage, ...] = ()
    device: torch.device
    """The device of the run; tensors of the trial may be on another."""
    checkpoints: int = 0
    free_bytes: int = 0
    pipeline: Pipeline | None = None
    axes: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Axis and size of each group of ranks, by the name of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Place where one attempt computes: the kind of its tensors, and who observes them."""

    rung: Rung
    fakes: Fakes | None
    observer: Observer
    guard: Observer | None = None
    """Observes a model that is built for real, and ends it when it grows too large."""

    @contextmanager
    def building(self, observer: Observer) -> Iterator[None]:
        """Build something within, under `observer`."""
        values = observer.values
        with values.fakes.use() if values is not None else nullcontext(), observer:
            yield


Build = Callable[[Site], AbstractContextManager[Parts]]
"""Builds the parts for an attempt; whatever the attempt needs stays open within."""


@dataclass(slots=True)
class RungAttempt:
    """One rung: its report so far, and the failure that ended it."""

    report: Rehearsal
    failure: StepFailedError | None = None


def climb(build: Build, *, limit_bytes: int | None = None) -> Rehearsal:
    """Try one training step, one evaluation step and one checkpoint; report what they need.

    `limit_bytes` is the memory of the device: a peak above it is a failure, and the largest batch
    below it is looked for. An error of building that is not one of the trial is raised as it came:
    a run would end with it too.
    """
    begun = time.perf_counter()
    attempt = _climb(build, limit_bytes)
    return replace(attempt.report, seconds=time.perf_counter() - begun)


def rehearse_rank(
    build: Build,
    rung: Rung,
    boundaries: Mapping[bool, Sequence[Shapes]],
    *,
    limit_bytes: int | None = None,
    fits: int | None = None,
) -> Rehearsal:
    """Try the share of one pipeline rank in a step, of which the whole model was tried before.

    `boundaries` are the shapes between the stages, in training (True) and in evaluation. What fails
    here is unchecked, unless assay itself refuses it: a run would too. `fits` samples are known to
    fit into the ranks before; a smaller batch is looked for only if they do not fit here.
    """
    site = _site(rung)
    with build(site) as parts:
        rehearsing = _Rehearsing(parts, site, boundaries)
        attempt = rehearsing.run(limit_bytes, fits)
    if attempt.failure is None:
        return attempt.report
    if not isinstance(attempt.failure.cause, AssayError):
        attempt.failure.certainty = "none"
    return _add_failure(attempt).report


def _climb(build: Build, limit_bytes: int | None) -> RungAttempt:
    tried: RungAttempt | None = None
    not_built: Exception | None = None
    rungs: tuple[Rung, ...] = ("fake", "converted") if can_fake() else ()
    for rung in rungs:
        try:
            tried = _attempt(build, rung, limit_bytes)
        except BuildFailedError as error:
            not_built = not_built or error
            continue
        except StepTooLargeError:
            break
        if tried.failure is None:
            return tried
        if tried.failure.certainty == "sure" or not _fits_here(tried.report):
            return _add_failure(tried)
        break
    try:
        attempt = _attempt(build, "real", limit_bytes)
    except BuildFailedError as error:
        raise error.__cause__ or error from None
    except StepTooLargeError:
        return _without_real(tried, not_built)
    return _add_failure(attempt) if attempt.failure is not None else attempt


def _fits_here(report: Rehearsal) -> bool:
    """Return False if weights, gradients and optimizer alone do not fit into memory."""
    least = 4 * report.parameters * _BYTES if report.memory is None else report.memory.peak_bytes
    return least < _limit_bytes()


def _without_real(tried: RungAttempt | None, not_built: Exception | None) -> RungAttempt:
    """Return what is known when the step cannot be tried for real."""
    if tried is not None:
        return _add_failure(tried)
    cause = not_built.__cause__ if not_built is not None else None
    if isinstance(cause, Exception) and not is_unfakeable(cause):
        raise cause
    message = "the model cannot be built on fake tensors, and is too large to build here"
    return RungAttempt(Rehearsal(rung="unchecked", findings=(unchecked_finding(message, cause),)))


def _add_failure(attempt: RungAttempt) -> RungAttempt:
    """Add the failure to the findings: as one, or as something unchecked if that is all it is."""
    failure = attempt.failure
    assert failure is not None
    finding = failure.finding
    if failure.certainty == "none":
        finding = replace(finding, kind="unchecked", message=f"the step: {finding.message}")
    found = (*attempt.report.findings, finding)
    return RungAttempt(replace(attempt.report, findings=found), failure)


def _attempt(build: Build, rung: Rung, limit_bytes: int | None) -> RungAttempt:
    site = _site(rung)
    with build(site) as parts:
        return _Rehearsing(parts, site).run(limit_bytes)


def _site(rung: Rung) -> Site:
    limit = _limit_bytes()
    if rung == "real":
        real = Observer(None, limit_bytes=limit, limit_s=REAL_SECONDS)
        return Site(rung=rung, fakes=None, observer=real, guard=real)
    fakes = Fakes()
    guard = Observer(None, limit_bytes=limit, limit_s=REAL_SECONDS) if rung == "converted" else None
    return Site(rung=rung, fakes=fakes, observer=Observer(Values(fakes)), guard=guard)


def _limit_bytes() -> float:
    return float(psutil.virtual_memory().available * REAL_SHARE)


class _Rehearsing:
    """One attempt, from its first window to the report."""

    def __init__(
        self,
        parts: Parts,
        site: Site,
        boundaries: Mapping[bool, Sequence[Shapes]] | None = None,
    ) -> None:
        self.parts = parts
        self.site = site
        self.trial = Trial(
            parts.process,
            site.observer,
            parts.device,
            pipeline=parts.pipeline,
            boundaries=boundaries or {},
        )
        self.first: Window | None = None
        self.training: PeakMemory | None = None
        self.evaluation: PeakMemory | None = None
        self.largest: Largest | None = None
        self.checkpoint: int | None = None
        self.micro_flops = 0
        self.traffic: tuple[AxisTraffic, ...] = ()

    def run(self, limit_bytes: int | None, fits: int | None = None) -> RungAttempt:
        window = self.first = next(self.parts.windows, None)
        if window is None or not window.batches:
            return RungAttempt(self._report())
        count = self._micro_batches(window)
        is_whole = self.parts.pipeline is None
        sizes = window.sizes[:count] if window.sizes is not None else None
        try:
            self.training = self._with_kept(self.trial.train(window.batches[:count], sizes))
            self.micro_flops = self.site.observer.flops // count
            self.traffic = self._traffic(len(window.batches), count)
            if is_whole:
                self._keep_checkpoint()
            self._evaluate()
            if is_whole and self._is_stood_in():
                self.trial.look_at_devices(window.batches[0])
            if limit_bytes is not None:
                self._check_limit(limit_bytes)
                if self.site.fakes is not None:  # a larger batch is for those that take no memory
                    self._find_largest(window, limit_bytes, fits)
        except StepFailedError as failure:
            if self.training is None and failure.certainty == "none":
                self.training = self.trial.without_activations()
            return RungAttempt(self._report(), failure)
        if is_whole:
            self._look_at_values()
        return RungAttempt(self._report())

    def _traffic(self, wanted: int, tried: int) -> tuple[AxisTraffic, ...]:
        """Return what a step of `wanted` micro-batches sends, of which some were `tried`."""
        traffic = self.site.observer.traffic.copy()
        if self.trial.first_traffic is not None:
            traffic.repeat(self.trial.first_traffic, wanted - tried)
        found = traffic.by_axis(self.parts.axes)
        if self.parts.pipeline is None:
            return found
        return tuple(
            replace(
                each,
                collectives=each.collectives * wanted // tried,
                sent_bytes=each.sent_bytes * wanted // tried,
            )
            if each.axis == "pipeline"
            else each
            for each in found
        )

    def _micro_batches(self, window: Window) -> int:
        """Return how many micro-batches have the memory of all: fewer take less time to try."""
        count = len(window.batches)
        pipeline = self.parts.pipeline
        return min(
            count, _MOST_MICRO_BATCHES if pipeline is None else pipeline.most_in_flight(count)
        )

    def _evaluate(self) -> None:
        """Try an evaluation step of each split.

        Their gradients are none, so only a larger batch can matter.
        """
        if self.parts.pipeline is not None and False not in self.trial.boundaries:
            return
        parts = self.parts
        for split, batch in parts.evaluations.items():
            memory = self.trial.evaluate(split, batch, parts.metrics, parts.pipes)
            if self.evaluation is None or memory.most_bytes > self.evaluation.most_bytes:
                self.evaluation = memory

    def _keep_checkpoint(self) -> None:
        try:
            self.checkpoint = checkpoint_bytes(self.parts.process)
        except AssayError as error:
            self.trial.findings.append(finding_of(error, ()))
        except Exception as error:
            self.trial.findings.append(unchecked_finding(f"the checkpoint: {error}", error))

    def _is_stood_in(self) -> bool:
        """Return True if the CPU stands for an accelerator."""
        return self.site.fakes is not None and self.parts.device.type != "cpu"

    def _check_limit(self, limit_bytes: int) -> None:
        memory = self._with_prefetched(self.training)
        if memory is None or memory.most_bytes <= limit_bytes:
            return
        message = f"a step needs {memory.most_bytes:,} bytes, and the device has {limit_bytes:,}"
        module = memory.where
        fix = "Less at once: micro_batch_size, accumulate, or activation_checkpoint = true."
        self.trial.findings.append(Finding(kind="memory", message=message, module=module, fix=fix))

    def _find_largest(self, window: Window, limit_bytes: int, fits: int | None) -> None:
        """Look for the largest batch. A model of one batch size only has none to be found."""
        memory = self._with_prefetched(self.training)
        batch = window.batches[0]
        samples = size_of(batch)
        if memory is None or not samples:
            return
        fixed = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
        least = memory.most_bytes if memory.where == "update" else 0
        count = self._micro_batches(window)

        def peak_of(wanted: int) -> int:
            found = self.trial.differentiate(
                [resize_batch(batch, samples, wanted)] * count, scale=(samples, wanted)
            )
            told = self._with_prefetched(self._with_kept(found, (samples, wanted)))
            assert told is not None
            return max(least, told.most_bytes)

        usable = int(limit_bytes * USABLE)
        try:
            if fits is not None and peak_of(fits) <= usable:
                return
            self.largest = largest(peak_of, samples, memory.most_bytes, fixed, usable)
        except StepFailedError as failure:
            message = f"the largest batch: {failure.finding.message}"
            self.trial.findings.append(replace(failure.finding, kind="unchecked", message=message))

    def _look_at_values(self) -> None:
        """Check the labels and other indices of further batches against the bounds of the first."""
        window = self.first
        assert window is not None
        bounds = self.trial.bounds_in(window.batches[0])
        if not bounds:
            return
        until = time.monotonic() + _LOOKED_AT_SECONDS
        for number, later in enumerate(islice(self.parts.windows, _LOOKED_AT_BATCHES), 2):
            for batch in later.batches:
                wrong = _describe_misfit(bounds, batch)
                if wrong:
                    message = f"{wrong} (step {number})"
                    self.trial.findings.append(Finding(kind="value", message=message))
                    return
            if time.monotonic() > until:
                return

    def _with_kept(self, memory: PeakMemory, scale: tuple[int, int] = (1, 1)) -> PeakMemory:
        """Add what a pipeline rank keeps for the micro-batches that were not tried."""
        pipeline, window = self.parts.pipeline, self.first
        if pipeline is None or window is None:
            return memory
        boundaries = [scale_shapes(each, *scale) for each in self.trial.boundaries[True]]
        untried = len(window.batches) - self._micro_batches(window)
        more = untried * pipeline.kept_bytes(boundaries)
        return replace(
            memory,
            peak_bytes=memory.peak_bytes + more,
            activations_bytes=memory.activations_bytes + more,
        )

    def _with_prefetched(self, memory: PeakMemory | None) -> PeakMemory | None:
        """Add the batches that an accelerator holds besides: those of this step and of the next."""
        window, device = self.first, self.parts.device
        if not can_see_operations():
            return None
        if memory is None or window is None or device.type == "cpu":
            return memory
        more = memory.batch_bytes * (2 * len(window.batches) - 1)
        return replace(
            memory,
            peak_bytes=memory.peak_bytes + more,
            batch_bytes=memory.batch_bytes + more,
        )

    def _report(self) -> Rehearsal:
        process = self.parts.process
        window = self.first
        trial = self.trial
        layers = trial.stack.layers(process.model)
        batches = window.batches if window is not None else ()
        calls, output = trial.stack.calls, trial.told_output
        stages = step_stages(process, self.parts.loader, batches, layers, calls, output)
        return Rehearsal(
            rung=self.site.rung,
            device=self.parts.device.type,
            findings=tuple(trial.findings),
            batch=shape_of(batches[0]) if batches else "",
            samples=size_of(batches[0]) if batches else 0,
            micro_batches=len(batches),
            parameters=sum(layer.params for layer in layers),
            trained=sum(layer.trained for layer in layers),
            left_out=trial.left_out,
            flops_per_step=self.micro_flops * len(batches),
            layers=layers,
            stages=(*self.parts.stages, *stages),
            memory=self._with_prefetched(self.training),
            evaluation=self.evaluation if can_see_operations() else None,
            largest=self.largest,
            traffic=self.traffic,
            disk=self._disk(),
        )

    def _disk(self) -> Disk | None:
        if self.checkpoint is None or not self.parts.checkpoints:
            return None
        count, free = self.parts.checkpoints, self.parts.free_bytes
        return Disk(checkpoint_bytes=self.checkpoint, checkpoints=count, free_bytes=free)


def _describe_misfit(bounds: Sequence[tuple[int, Bound]], batch: Any) -> str:
    """Return what is wrong with the values of a batch; "" for nothing."""
    leaves = list(tensors_in(batch))
    for number, bound in bounds:
        if number < len(leaves):
            wrong = bound.broken_by(leaves[number])
            if wrong:
                return wrong
    return ""


def checkpoint_bytes(process: Process) -> int:
    """Return the size of a checkpoint of all ranks together, after an update.

    CheckpointError for a state that cannot be kept.
    """
    model, backward = process.model, process.backward
    parts = {"model": model.state_dict()}
    parts |= {name: part.state_dict() for name, part in backward.parts(model).items()}
    parts |= process_state(process)
    sizes: dict[int, int] = {}
    for part, state in parts.items():
        encode(_hollow(state), path=part)
        for tensor in tensors_in(state):
            size = math.prod(tensor.shape) * tensor.dtype.itemsize  # of a DTensor: the whole
            sizes[id(local_tensor(tensor).untyped_storage())] = size
    return sum(sizes.values())


def _hollow(state: Any) -> Any:
    """Return a state with an empty tensor for each: what is encoded has to be real."""
    if isinstance(state, Tensor):
        return torch.empty(0, dtype=state.dtype)
    if type(state) in (dict, OrderedDict):
        return {key: _hollow(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_hollow(value) for value in state)
    return state


USABLE = 0.9
"""Share of a device's memory that a step may use. The rest is for the allocator's fragments, for
libraries, and for the error of the estimate."""

_TRIES = 7
_MOST_SAMPLES = 2**20


def resize_batch(batch: Any, samples: int, wanted: int) -> Any:
    """Return a batch of `wanted` samples in place of `samples`, with the shapes of this one.

    Small tensors repeat their rows; large ones have no values (device `meta`). A tensor whose first
    dim is not `samples` stays as it is.
    """

    def resize(tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != samples:
            return tensor
        shape = (wanted, *tensor.shape[1:])
        if tensor.is_floating_point() or tensor.is_meta or math.prod(shape) > MOST_WHOLE:
            return torch.empty(shape, dtype=tensor.dtype, device="meta")
        return tensor.index_select(0, torch.arange(wanted) % samples)

    return map_values(batch, resize)


def largest(
    peak_of: Callable[[int], int], samples: int, peak_bytes: int, fixed_bytes: int, usable: int
) -> Largest:
    """Return the largest number of samples found whose peak fits into `usable` bytes.

    `peak_of` tries one; `samples` have `peak_bytes`, of which `fixed_bytes` belong to no sample.
    The peak grows in a line with the samples, until another place becomes the peak. So each guess
    is where the line through the last two points, one that fits and one that does not if there are
    both, meets the limit; and it is tried.
    """
    if fixed_bytes >= usable:
        return Largest(samples=0, peak_bytes=fixed_bytes, usable_bytes=usable)
    fits = (0, fixed_bytes)
    bursts = (_MOST_SAMPLES + 1, 0)
    one = fits
    other = (samples, peak_bytes)
    for _ in range(_TRIES):
        if other[1] <= usable:
            fits = max(fits, other)
        else:
            bursts = min(bursts, other)
        if fits[0] + 1 >= bursts[0]:
            break
        if fits[0] and bursts[1]:
            one, other = fits, bursts
        slope = (other[1] - one[1]) / (other[0] - one[0])
        guess = int(one[0] + (usable - one[1]) / slope) if slope > 0 else bursts[0] - 1
        if fits == other and guess == fits[0] and fits[1] + slope > usable and one[0]:
            break  # the line through two that were tried says that one more does not fit
        guess = max(fits[0] + 1, min(guess, bursts[0] - 1))
        one = other
        other = (guess, peak_of(guess))
    if other[1] <= usable:
        fits = max(fits, other)
    return Largest(samples=fits[0], peak_bytes=fits[1], usable_bytes=usable)
