"""Training of windows: the loop over an epoch, gradients and update of one, micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Protocol

from assay.core.errors import PeerError
from assay.core.events import Event
from assay.core.facts import Warned
from assay.core.ports import Recorder
from assay.engine.data.source import Window
from assay.engine.loop.bus import Bus
from assay.engine.loop.epoch_times import EpochTimes
from assay.engine.loop.epoch_windows import EpochWindows, end_epoch
from assay.engine.loop.expected_length import ExpectedLength
from assay.engine.loop.failed_step import FailedStep
from assay.engine.loop.process import Process
from assay.engine.loop.state import State
from assay.engine.loop.step_results import StepResults
from assay.engine.metrics.means import LoggedMeans
from assay.engine.numerics.seed import WATCHED_STEPS, StepRandomness
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.parallel.pipeline import Pipeline


class WindowTrainer(Protocol):
    """Computes the gradients of a window; the update is made by the engine."""

    def train(self, window: Window) -> None:
        """Run forward and backward of each micro-batch; gradients add up."""
        ...


class MicroBatches:
    """Micro-batch loop: keys the randomness, fires the backward events and counts."""

    def __init__(
        self,
        state: State,
        bus: Bus,
        randomness: StepRandomness,
        recorder: Recorder,
        logged: LoggedMeans,
        ranks: DataParallelGroup,
    ) -> None:
        self.state = state
        self.randomness = randomness
        self.recorder = recorder
        self.logged = logged
        self.ranks = ranks
        # Looked up once: in every step it would be a seventh of all that the engine adds to one.
        self.begin = bus.points[Event.BACKWARD_BEGIN]
        self.end = bus.points[Event.BACKWARD_END]

    def of(self, window: Window) -> Iterator[object]:
        """Yield each micro-batch; what the caller does with it is its forward and backward pass."""
        state = self.state
        begin = self.begin
        end = self.end
        ranks = self.ranks
        randomness, size, rank = self.randomness, ranks.size, ranks.rank
        for i, batch in enumerate(window.batches):
            randomness.begin(state.step, i * size + rank)
            state.batch = batch
            ranks.beats.beat()
            if ranks.is_distributed and window.sizes is not None:
                self.logged.is_idle = ranks.is_idle = not window.sizes[i]
            if begin.due <= state.micro_step:
                begin.fire(state.micro_step)
            yield batch
            if randomness.end():
                self.note_draws()
            state.micro_step += 1
            if end.due <= state.micro_step:
                end.fire(state.micro_step)

    def number(self, i: int) -> int:
        """Return the index over all ranks of micro-batch `i` of this rank."""
        return i * self.ranks.size + self.ranks.rank

    def key(self, i: int) -> int:
        """Return the random key of micro-batch `i` of the current step."""
        return self.randomness.key(self.state.step, self.number(i))

    def note_draws(self) -> None:
        """Note that training draws from numpy or `random`: from here on they are keyed as well."""
        self.state.draws = True
        if self.state.step >= WATCHED_STEPS:
            message = (
                "Training has begun to draw from numpy or random since it was last looked at"
                f" (every {WATCHED_STEPS} steps): between, a run that goes on may draw other"
                " numbers."
            )
            self.recorder.tell(Warned(message=message, step=self.state.step))


class SequentialTrainer:
    """Trains the micro-batches of a window one after another."""

    def __init__(self, process: Process, micro_batches: MicroBatches) -> None:
        self.process = process
        self.micro_batches = micro_batches

    def train(self, window: Window) -> None:
        state = self.micro_batches.state
        training_step = self.process.training_step
        for batch in self.micro_batches.of(window):
            # The forward pass uses the memory of the last output again; new memory would cost more.
            state.output = None
            state.output = training_step(batch)


class PipelineTrainer:
    """Trains a window through the stages of a pipeline, several micro-batches at a time."""

    def __init__(self, pipeline: Pipeline, micro_batches: MicroBatches) -> None:
        self.pipeline = pipeline
        self.micro_batches = micro_batches

    def train(self, window: Window) -> None:
        loop = self.micro_batches
        state, begin, end = loop.state, loop.begin, loop.end
        first = state.micro_step

        def before(i: int, stage: int) -> None:
            state.batch = window.batches[i]
            loop.randomness.begin(state.step, loop.number(i), stage)

        for i in range(len(window.batches)):
            if begin.due <= first + i:
                begin.fire(first + i)
        state.output = self.pipeline.train(window.batches, before)
        if loop.randomness.end():
            loop.note_draws()
        for _ in window.batches:
            state.micro_step += 1
            if end.due <= state.micro_step:
                end.fire(state.micro_step)


def trainer_of(
    process: Process, pipeline: Pipeline | None, micro_batches: MicroBatches
) -> WindowTrainer:
    """Return what trains a window: in this process, or through the stages of a pipeline."""
    if pipeline is None:
        return SequentialTrainer(process, micro_batches)
    return PipelineTrainer(pipeline, micro_batches)


class TrainStep:
    """One step of training but for its gradients, which the engine or a loop by hand computes.

    `is_open` from its beginning until it is counted; `is_shared` is False while an update is made
    that other ranks do not have yet.
    """

    def __init__(self, results: StepResults, failed: FailedStep) -> None:
        self.results = results
        self.failed = failed
        self.process = failed.process
        self.buffers = failed.buffers
        self.state = results.state
        self.ranks = results.ranks
        self.logged = results.logged
        self.is_open = False
        self.is_shared = True
        self._micro_steps_before = 0

    def begin(self, window: Window) -> None:
        """Keep the buffers, and tell the optimizer step its window."""
        self.is_open = True
        self._micro_steps_before = self.state.micro_step
        self.buffers.keep()
        self.ranks.begin_step(window, self.state.step)
        self.process.backward.begin(window.sizes)

    def update(self) -> None:
        """Update the weights; an update that is left out leaves nothing behind."""
        if self.process.update(self.state.step) is False:
            self.state.left_out += 1
            self.buffers.put_back()
            self.results.report_empty()
        elif self.results.deferred is not None:
            self.buffers.put_back_where(self.results.deferred.flag)
        if self.ranks.is_distributed:
            self._share()

    def count(self, window: Window) -> None:
        """Count a step whose update was made."""
        self.is_open = False
        self.is_shared = True
        self.state.loss = self.process.backward.loss
        self.state.count_step(window.samples)

    def take_back(self) -> None:
        """Uncount the micro-steps of a step that was not completed."""
        self.state.micro_step = self._micro_steps_before

    def fail(self, window: Window, error: BaseException) -> None:
        """Take back what the step has counted; raise what says more than `error`, if found."""
        self.take_back()
        if isinstance(error, PeerError) and self.is_shared:
            self.buffers.put_back()  # so that the last step can be saved: another rank failed
        self.failed.explain(window, error)

    def _share(self) -> None:
        """Give each rank the buffers of rank 0, and count the micro-steps of the longest rank."""
        self.is_shared = False
        self.logged.is_idle = False
        self.state.micro_step = self._micro_steps_before + self.ranks.micro_steps
        self.ranks.broadcast_(self.process.model.buffers())


class EpochLoop:
    """Hands out the windows of an epoch, and does what surrounds the step of each.

    `agree` is called after each step, and puts in force what any rank was asked for. `is_loading`
    is True while the loop waits for a batch: every handler has seen the last step.
    """

    def __init__(
        self,
        results: StepResults,
        bus: Bus,
        windows: EpochWindows,
        *,
        length: ExpectedLength,
        times: EpochTimes,
        agree: Callable[[], None],
    ) -> None:
        self.results = results
        self.state = results.state
        self.backward = results.backward
        self.ranks = results.ranks
        self.bus = bus
        self.source = windows
        self.length = length
        self.times = times
        self.agree = agree
        self.is_loading = False
        self.is_in_epoch = False

    def windows(self, pipeline: Pipeline | None) -> Iterator[Window]:
        """Yield the windows of an epoch, or the rest of it; the caller makes a step of each.

        Ends early at a bound, or when a stop or the end of the epoch was asked for.
        """
        state = self.state
        ranks = self.ranks
        times = self.times
        agree = self.agree
        step_begin = self.bus.points[Event.STEP_BEGIN]
        step_end = self.bus.points[Event.STEP_END]
        record = None if self.results.is_idle else self.results.end_step
        self.length.begin_epoch()
        windows = self.source.rest(pipeline)
        self._begin()
        now = perf_counter()
        self.is_loading = True
        for window in windows:
            self.is_loading = False
            loaded = perf_counter()
            times.waiting += loaded - now
            if state.epoch_step == state.epoch_length:
                self.length.extend_epoch()
            if step_begin.due <= state.step:
                step_begin.fire(state.step)
            yield window
            computed = perf_counter()
            times.end_step(loaded, computed)
            if record is not None:
                record(window, computed)
            ranks.beats.between()
            if step_end.due <= state.step:
                step_end.fire(state.step)
            agree()
            ranks.beats.step(state.step)
            now = perf_counter()
            times.telling += now - computed
            if state.stop.reason or state.step == state.step_bound or state.ends_epoch:
                self._check_end(windows)
                break
            self.is_loading = True
        self.is_loading = False
        del windows  # workers that load the rest of this epoch are free for the next one
        self._end()

    def _check_end(self, windows: Iterator[Window]) -> None:
        """Look whether an epoch that the run leaves at its expected end has ended."""
        state = self.state
        is_expected = state.epoch_step == state.epoch_length
        if is_expected and not (state.ends_epoch or state.stop.interrupts) and any(windows):
            self.length.extend_epoch()

    def _begin(self) -> None:
        self.is_in_epoch = True
        self.times.begin(moved=self.source.moved_s, differentiated=self.backward.seconds)
        self.bus.fire_at(Event.EPOCH_BEGIN, self.state.epoch)

    def _end(self) -> None:
        """Fetch what the steps left on the device; count the epoch, unless it is to be resumed."""
        state = self.state
        self.ranks.beats.between()
        self.times.end(moved=self.source.moved_s, differentiated=self.backward.seconds)
        self.results.fetch()
        self.is_in_epoch = False
        if end_epoch(state):
            self.bus.fire_at(Event.EPOCH_END, state.epoch)
