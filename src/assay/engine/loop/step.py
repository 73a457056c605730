"""The training loop: one optimizer step for each window of micro-batches.

`TrainLoop.train_step` is the step. `TrainLoop.windows` fetches the windows, and reports each step
once it was made. What both call stands below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from assay.core.errors import PeerError
from assay.core.events import Event
from assay.core.facts import Warned
from assay.core.formatting import name_some
from assay.engine.data.ahead import ahead
from assay.engine.data.source import Window
from assay.engine.loop.bounds import is_done
from assay.engine.loop.epoch import end_epoch, rest_of_epoch
from assay.engine.loop.expected_length import ExpectedLength
from assay.engine.loop.failed_step import explain_failure, find_origin, locate_error
from assay.engine.loop.results import StepResults
from assay.engine.loop.run_parts import RunParts
from assay.engine.numerics.deferred import DeferredStep
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.parallel.pipeline import Pipeline


class TrainLoop(RunParts):
    """Loop over the windows of a run; `Engine` gives it its parts, begins the run and ends it.

    `is_loading`: the loop waits for a batch, so every handler has seen the last step. `is_in_step`:
    a step has begun and is not counted, so the state is none to resume from. `is_between_steps` is
    False while an update is made that other ranks do not have yet. `can_repeat`: a step whose
    numbers were read later can be run again; in a loop by hand it is unknown what computes the
    gradients.
    """

    length: ExpectedLength
    results: StepResults
    can_repeat = True
    is_loading = False
    is_in_epoch = False
    is_in_step = False
    is_between_steps = True
    _micro_steps_before = 0

    def train_step(self, window: Window) -> None:
        """Compute the gradients of each micro-batch, update the weights once, and count the step.

        A step that fails counts nothing, and its error says where it came from.
        """
        self.begin_step(window)
        try:
            if self.pipeline is None:
                for batch in self.micro_batches(window):
                    # Its memory is used again by the forward pass; new memory would cost more.
                    self.state.output = None
                    self.state.output = self.process.training_step(batch)
            else:
                self._train_stages(self.pipeline, window)
            self.times.update_began = perf_counter()
            self.update()
        except BaseException as error:
            self._fail_step(window, error)
            raise
        self.count_step(window)

    def windows(self) -> Iterator[Window]:
        """Yield the windows of one epoch after another; the caller makes a step of each.

        Ends at a bound, or when a stop was asked for.
        """
        while True:
            self._agree()
            if is_done(self.state):
                return
            yield from self.windows_of_epoch()

    def windows_of_epoch(self) -> Iterator[Window]:
        """Yield the windows of an epoch, or the rest of it, and report each step that was made.

        Ends early at a bound, or when a stop or the end of the epoch was asked for.
        """
        state, bus, times = self.state, self.bus, self.times
        self.length.begin_epoch()
        windows = self._rest_of_epoch()
        self._begin_epoch()
        reported = perf_counter()
        self.is_loading = True
        for window in windows:
            self.is_loading = False
            loaded = perf_counter()
            times.waiting += loaded - reported
            if state.epoch_step == state.epoch_length:
                self.length.extend_epoch()
            self._fire_between(Event.STEP_BEGIN, state.step)
            yield window
            computed = perf_counter()
            times.end_step(loaded, computed)
            self.results.end_step(window, computed)
            self.ranks.beats.between()
            bus.fire_at(Event.STEP_END, state.step)
            self._agree()
            self.ranks.beats.step(state.step)
            reported = perf_counter()
            times.telling += reported - computed
            if state.stop.reason or state.step == state.step_bound or state.ends_epoch:
                self._check_end(windows)
                break
            self.is_loading = True
        self.is_loading = False
        del windows  # workers that load the rest of this epoch are free for the next one
        self._end_epoch()

    # ------------------------------------------------------------------------- parts of a step

    def begin_step(self, window: Window) -> None:
        """Keep the buffers, and tell the optimizer step its window."""
        self.is_in_step = True
        self._micro_steps_before = self.state.micro_step
        self.buffers.keep()
        self.ranks.begin_step(window, self.state.step)
        self.process.backward.begin(window.sizes)

    def micro_batches(self, window: Window) -> Iterator[object]:
        """Yield each micro-batch; what the caller does with it is its forward and backward pass.

        Keys the randomness, fires the backward events and counts.
        """
        state, bus, ranks = self.state, self.bus, self.ranks
        for i, batch in enumerate(window.batches):
            self.randomness.begin(state.step, ranks.micro_batch_number(i))
            state.batch = batch
            ranks.beats.beat()
            self._note_idle(window, i)
            bus.fire_at(Event.BACKWARD_BEGIN, state.micro_step)
            yield batch
            state.micro_step += 1
            bus.fire_at(Event.BACKWARD_END, state.micro_step)

    def update(self) -> None:
        """Update the weights; an update that is left out leaves nothing behind."""
        self.ranks.step.has_logged = bool(self.logged.means)
        self.results.is_left_out = self.process.update(self.state.step) is False
        if self.results.is_left_out:
            self.results.count_left_out()
            self.buffers.put_back()
        elif self.results.deferred is not None:
            self.buffers.put_back_where(self.results.deferred.flag)
        if self.ranks.is_distributed:
            self._share_step()

    def count_step(self, window: Window) -> None:
        """Count a step whose update was made."""
        self.is_in_step = False
        self.is_between_steps = True
        self.state.loss = self.process.backward.loss
        self.state.count_step(window.samples)
        if self.state.step == 1:
            self._tell_untrained()

    def take_back(self) -> None:
        """Uncount the micro-steps of a step that was not completed."""
        self.state.micro_step = self._micro_steps_before

    def _train_stages(self, pipeline: Pipeline, window: Window) -> None:
        """Train a window through the stages of a pipeline, several micro-batches at a time."""
        state, bus = self.state, self.bus
        first = state.micro_step

        def begin(i: int, stage: int) -> None:
            state.batch = window.batches[i]
            self._note_idle(window, i)
            self.randomness.begin(state.step, self.ranks.micro_batch_number(i), stage)

        for i in range(len(window.batches)):
            bus.fire_at(Event.BACKWARD_BEGIN, first + i)
        state.output = pipeline.train(window.batches, begin)
        for _ in window.batches:
            state.micro_step += 1
            bus.fire_at(Event.BACKWARD_END, state.micro_step)

    def _note_idle(self, window: Window, i: int) -> None:
        """Note whether micro-batch `i` counts for nothing on this rank."""
        if self.ranks.is_distributed and window.sizes is not None:
            self.logged.is_idle = self.ranks.step.is_idle = not window.sizes[i]

    def _tell_untrained(self) -> None:
        """Say which parameters get gradients that no optimizer takes: they never change."""
        optimizers = self.process.backward.optimizers.values()
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        taken = {id(parameter) for group in groups for parameter in group["params"]}
        left = [
            f"{of}.{name}"
            for of, module in self.modules.items()
            for name, parameter in module.named_parameters()
            if parameter.grad is not None and id(parameter) not in taken
        ]
        if taken and left:
            message = (
                f"No optimizer has {name_some(left)}, though the loss gives gradients: not trained."
                " Give it to the optimizer (a config gives it all parameters of the model: let that"
                " hold the criterion), or freeze it: requires_grad_(False)."
            )
            self.recorder.tell(Warned(message=message, step=self.state.step))

    def _share_step(self) -> None:
        """Give each rank the buffers of rank 0, and count the micro-steps of the longest rank."""
        self.is_between_steps = False
        self.logged.is_idle = False
        step = self.ranks.step
        if step.is_open:  # no optimizer was due, and nothing was agreed on with its losses
            (num_logging,) = self.ranks.all_reduce_values([step.has_logged])
            step.has_logged = num_logging > 0
        self.state.micro_step = self._micro_steps_before + step.micro_steps
        self.ranks.broadcast_(
            buffer for module in self.modules.values() for buffer in module.buffers()
        )

    # ------------------------------------------------------------------------- when it fails

    def _fail_step(self, window: Window, error: BaseException) -> None:
        """Take back what the step has counted; raise what says more than `error`, if found."""
        self.take_back()
        if isinstance(error, PeerError) and self.is_between_steps:
            self.buffers.put_back()  # so that the last step can be saved: another rank failed
        explain_failure(self, window, error)

    def go_back(self, bad: DeferredStep, error: NonFiniteError) -> None:
        """Set the run back to before a non-finite step, and raise its error.

        Later steps have changed no weight. After another error, that gains a note instead.
        """
        state = self.state
        for name, count in bad.before.items():
            setattr(state, name, count)
        self.length.refit()
        if state.error is not None:
            state.error.add_note(f"before that: {error}")
            return
        can_read = self.can_repeat and not self.source.exactness().startswith("not exact")
        window = next(self._rest_of_epoch(), None) if can_read else None
        raise locate_error(error, "" if window is None else find_origin(self, window))

    # ------------------------------------------------------------------------- around an epoch

    def _rest_of_epoch(self) -> Iterator[Window]:
        """Return the windows of the epoch from where it is; an accelerator gets one ahead."""
        windows = rest_of_epoch(self.source, self.state)
        if self.pipeline is not None:
            windows = self.pipeline.drop_unused_windows(windows)
        if self.device.type == "cpu":
            return windows
        state = self.state

        def is_last() -> bool:
            return bool(state.stop.reason) or state.step + 1 == state.step_bound

        return ahead(windows, self.device, is_last=is_last, took=self.times.add_moved)

    def _begin_epoch(self) -> None:
        self.is_in_epoch = True
        self.times.begin(differentiated=self.process.backward.seconds)
        self._fire_between(Event.EPOCH_BEGIN, self.state.epoch)

    def _check_end(self, windows: Iterator[Window]) -> None:
        """Look whether an epoch that the run leaves at its expected end has ended."""
        state = self.state
        is_expected = state.epoch_step == state.epoch_length
        if is_expected and not (state.ends_epoch or state.stop.interrupts) and any(windows):
            self.length.extend_epoch()

    def _end_epoch(self) -> None:
        """Fetch what the steps left on the device; count the epoch, unless it is to be resumed."""
        self.ranks.beats.between()
        self.times.end(differentiated=self.process.backward.seconds)
        self.results.fetch()
        self.is_in_epoch = False
        if end_epoch(self.state):
            self._fire_between(Event.EPOCH_END, self.state.epoch)

    def _fire_between(self, event: Event, count: int) -> None:
        """Call the handlers that are due between two steps. They are keyed, as a step is.

        An epoch keys its events without any handler too, so that who listens changes nothing later.
        """
        is_due = self.bus.points[event].due <= count
        if is_due or event is not Event.STEP_BEGIN:
            self.randomness.begin_event(event, count)
        if is_due:
            self.bus.fire_at(event, count)

    def _agree(self) -> None:
        """Put in force what any rank was asked for: to stop, to end the epoch, the least bound.

        All ranks fetch what waits on their devices after the same step, so that one that was not
        finite ends them there.
        """
        state, results = self.state, self.results
        state.step_bound, state.ends_epoch, fetches = self.ranks.agree(
            state.stop, state.step_bound, ends_epoch=state.ends_epoch, fetches=results.is_late()
        )
        if fetches and self.ranks.is_distributed:
            results.fetch()
