"""Training loop. It owns the order of things and nothing else: no config, no files, no ranks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import InputError, PeerError
from assay.core.event_log import Warned
from assay.core.events import ALWAYS, Event, Every, Handler
from assay.core.ports import Bind, NullRecorder, Recorder
from assay.core.signals import NO_SIGNALS, Signals, obeyed, stopping
from assay.core.stop import Stop
from assay.engine.checkpoint.saver import Saver
from assay.engine.data.adopt import as_source
from assay.engine.data.ahead import ahead
from assay.engine.data.dead_worker import died
from assay.engine.data.loader import Loader
from assay.engine.data.source import Window, seeded
from assay.engine.loop.bounds import Bounds, is_done
from assay.engine.loop.bus import Bus, Listens, bind_by_name, event_named
from assay.engine.loop.by_hand import HandTrainer
from assay.engine.loop.engine_state import restore
from assay.engine.loop.failed_step import FailedStep, located
from assay.engine.loop.process import Process
from assay.engine.loop.state import State
from assay.engine.loop.step_results import StepResults
from assay.engine.loop.styles.adapt import as_process
from assay.engine.loop.windows import (
    MicroBatches,
    PipelineTrainer,
    SequentialTrainer,
    WindowTrainer,
)
from assay.engine.metrics.logged_means import LoggedMeans
from assay.engine.numerics.buffers import Buffers
from assay.engine.numerics.deferred import DeferredStep
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.numerics.seed import StepRandomness, checked_seed
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.losses import Losses
from assay.engine.parallel.pipeline import Pipeline

_LOGGER = logging.getLogger("assay")


class Engine:
    """Training loop: runs a process over training data until the first bound is reached.

    Either by `run()`, or by hand: `for batch in engine`. `process` may be written in any style that
    `as_process` knows. `train` is a `Loader` or any iterable of batches. Bounds: `epochs`, `steps`
    (optimizer updates), `samples`, `seconds`; without any, one epoch. Randomness of forward and
    backward is keyed by (seed, step, micro-step), so a resumed run draws what the uninterrupted one
    would have drawn. The seed is given once, here or to the loader: each takes that of the other.

    `deferred`, the default on all devices but the CPU: no step waits for the device. Loss, norm and
    logged values are fetched together after 64 steps or a second, and before a handler is called
    that is not called in every step. A non-finite update is left out on the device; once its
    numbers are fetched, the run goes back to it. An optimizer without a fused form cannot leave out
    an update, so each of its steps is waited for.

    `log_every`: record one step of so many, 0 for none; with its own numbers, no means over the
    others. `stop`: token that asks the run to end, of a caller who answers the signals of this OS
    process.
    """

    def __init__(
        self,
        process: Any,
        train: Iterable[Any],
        *,
        epochs: int | None = None,
        steps: int | None = None,
        samples: int | None = None,
        seconds: float | None = None,
        accumulate: int = 1,
        seed: int | None = None,
        device: str | torch.device = "cpu",
        recorder: Recorder | None = None,
        handlers: Iterable[Handler | Listens] = (),
        bind: Bind | None = None,
        deferred: bool | None = None,
        stop: Stop | None = None,
        log_every: int = 1,
    ) -> None:
        self.process: Process = as_process(process)
        data, seed = seeded(train, seed)
        self.source = as_source(data, accumulate=accumulate, seed=seed)
        self._owns_source = id(self.source) != id(
            train
        )  # then nobody else ends its worker processes
        self.seed = checked_seed(seed)
        self.device = torch.device(device)
        self.recorder: Recorder = recorder if recorder is not None else NullRecorder()
        self.state = State(dataloader=data, stop=stop if stop is not None else Stop())
        self._owns_signals = stop is None
        self.log_every = log_every
        self.logged = LoggedMeans()
        self.ranks = DataParallelGroup()
        self.pipeline: Pipeline | None = None
        self.seconds: dict[str, float] = {}
        self.is_loading = False
        """True while the engine waits for a batch: every handler has seen the last step."""
        self.is_between_steps = True
        """False while an update is made that other ranks do not have yet."""
        self._num_fired: Counter[Event] = Counter()
        self._moving = self._updating = 0.0
        self._can_repeat = False
        self._randomness = StepRandomness(self.seed)
        self._buffers: Buffers | None = None
        self._trainer: WindowTrainer
        self._micro_batches: MicroBatches
        self._failed: FailedStep
        self._by_hand: HandTrainer | None = None
        self._results: StepResults | None = None
        self.bounds = Bounds(epochs, steps, samples, seconds)
        self.bounds.apply(self.state, self.source)
        self.bus = Bus(bind or bind_by_name(self._roles()))
        self._defers = self.device.type != "cpu" if deferred is None else deferred
        if self._defers:
            for event in (Event.CHECKPOINT_BEGIN, Event.RUN_END, Event.EXCEPTION):
                fetch = Handler(event=event, fn=self._fetch, priority=-100, name="Engine.fetch")
                self.bus.add(fetch)
        self.bus.extend(handlers)
        self.bus.extend(self.bounds.handlers(self.state, self.finish))

    def run(self) -> State:
        """Train to the bound, or until something calls `stop`; return the state.

        Whatever is raised inside is raised here, after the handlers of `exception` were called.
        Without a `stop` of the caller, SIGINT and SIGTERM end the run after its step and its
        handlers of `run_end`, and are raised then, as KeyboardInterrupt and Terminated (a
        SystemExit). A second one is raised at once.
        """
        with self._signals() as signals:
            state = self._run()
        if signals.heard:
            raise obeyed(signals.heard[0])
        return state

    def _run(self) -> State:
        state = self.state
        self._can_repeat = True
        try:
            self._begin()
            while not self._is_done():
                for window in self._train_epoch():
                    self.train_step(window)
            state.stop.settle()
            self.fire(Event.RUN_END)
        except BaseException as error:
            clear = died(error) or self.ranks.as_peer_error(error)
            state.error = clear or error
            self.fire(Event.EXCEPTION)
            if clear is not None:
                raise clear from error
            raise
        finally:
            self._release()
        return state

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the whole run, with all that `run` does around the step.

        The body updates the weights with the optimizer of this engine, or calls `backward(loss)`:
        then the update is made here, at the end of the window. A loop that is left early ends the
        run as `stop` does: a step counts if its update was made. What the body raises looks the
        same from here, so it fires no `exception`. Signals end it as they end `run`.
        """
        if self.ranks.is_distributed:
            raise InputError(
                "A loop by hand runs in one process.", fix="Write a Process, which `run` trains."
            )
        with self._signals() as signals:
            is_left = yield from self._run_by_hand()
        if signals.heard and not is_left:
            raise obeyed(signals.heard[0])

    def _run_by_hand(self) -> Generator[Any, None, bool]:
        """Yield the batches, without answering signals; return whether the loop was left."""
        state, is_left = self.state, False
        try:
            self._begin()
            hand = self._by_hand = HandTrainer(self.process, self._micro_batches, self.logged)
            try:
                while not self._is_done() and not is_left:
                    for window in self._train_epoch():
                        before = self._begin_step(window)
                        for batch in hand.batches(window):
                            try:
                                yield batch
                            except GeneratorExit:
                                is_left = True
                                break
                        state.micro_step = before + len(window.batches)
                        if is_left:
                            self.stop("the loop was left", interrupts=True)
                            if not hand.updates.made:
                                state.micro_step = before
                                break
                        self._end_step_by_hand(hand, window)
            finally:
                hand.updates.stop()
            state.stop.settle()
            self.fire(Event.RUN_END)
        except BaseException as error:
            state.error = error
            self.fire(Event.EXCEPTION)
            raise
        finally:
            self._release()
        return is_left

    def resume(self, saver: Saver, name: str | int = "") -> int:
        """Restore the newest readable checkpoint of `saver`, or the one named; return its step.

        0 where `saver` has none: the run begins anew. Call it before `run`, and after everybody
        listens whose state a checkpoint keeps. The curves of the recorder go back to that step, and
        later checkpoints are set aside. CheckpointError for a name that is not there, or when none
        of those there can be read.
        """
        found, skipped = saver.complete()
        step = 0
        if name:
            step, parts = saver.find(name).step, saver.load(name)
            restore(self, parts)
        elif found:
            newest, parts, skipped = saver.newest()
            step = newest.step
            restore(self, parts)
        self.recorder.rewind(step)
        if saver.is_first:
            saver.set_aside(step)
        for each in skipped:
            message = f"{each.name} is no checkpoint: {each.why}. The run resumes from step {step}."
            self.recorder.tell(Warned(message=message, step=step))
        return step

    def backward(self, loss: Losses) -> None:
        """In a loop by hand: add the gradients of one micro-batch, weighted as its window needs."""
        if self._by_hand is not None:
            self._by_hand.backward(loss)

    def log(self, name: str, value: Tensor | float, weight: Tensor | float | None = None) -> None:
        """In a loop by hand: record the mean of `value` over the step, as `Process.log` does."""
        self.logged.add(name, value, weight)

    def __repr__(self) -> str:
        of = f" of {self.state.max_steps}" if self.state.max_steps is not None else ""
        model = type(self.process.model).__name__
        return f"<Engine {model} on {self.device}, step {self.state.step}{of}>"

    def stop(self, reason: str, *, interrupts: bool = False) -> None:
        """End the run after the current step, as if its bound had been reached.

        Handlers of `run_end` still run. `interrupts`: the run is to be resumed later. What can wait
        until then is left out: the end of the epoch, the last evaluation, the final checkpoint.
        With several ranks all of them end after the same step.
        """
        self.state.stop.ask(reason, interrupts=interrupts)

    def finish(self) -> None:
        """Make the current step the last one, as if it were the bound."""
        self.state.max_steps = self.state.step

    def on(
        self, event: str, *, every: int = 0, priority: int = 0
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Call a function at an event: `@engine.on("step_end", every=100)`.

        The function may ask for `state`, `model` and the other roles by name.
        """

        def add(fn: Callable[..., Any]) -> Callable[..., Any]:
            when = Every(every) if every else ALWAYS
            handler = Handler(event=event_named(event), fn=fn, when=when, priority=priority)
            self.bus.add(handler)
            return fn

        return add

    def fire(self, event: Event) -> None:
        """Fire `event`, counted by how often it was fired."""
        before = self._num_fired[event]
        self._num_fired[event] += 1
        self._fire_at(event, before if event.endswith("_begin") else before + 1)

    def add_seconds(self, name: str, seconds: float) -> None:
        """Add to the time that was spent on `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @property
    def lasting_flag(self) -> Tensor | None:
        """Device flag, set by the first non-finite step; None if every loss is read at once."""
        if self._results is None or self._results.deferred is None:
            return None
        lasts = self._results.is_deferring and self.process.backward.non_finite == "stop"
        return self._results.deferred.flag if lasts else None

    def train_step(self, window: Window) -> None:
        """Compute the gradients of each micro-batch, update the weights once, and count the step.

        A step that fails counts nothing, and its error says where it came from.
        """
        before = self._begin_step(window)
        try:
            self._trainer.train(window)
            self._updating = perf_counter()
            self._update()
            if self.ranks.is_distributed:
                self._end_step_of_ranks(before)
        except BaseException as error:
            self._fail_step(window, before, error)
            raise
        self.is_between_steps = True
        self.state.loss = self.process.backward.loss
        self._count_step(window)

    def _begin_step(self, window: Window) -> int:
        """Keep the buffers and tell the optimizer step its window; return the micro-step."""
        before = self.state.micro_step
        if self._buffers is not None:
            self._buffers.keep()
        self.ranks.begin_step(window, self.state.step)
        self.process.backward.begin(window.sizes)
        return before

    def _update(self) -> None:
        """Update the weights; a step that is left out leaves nothing behind."""
        is_taken = self.process.update(self.state.step) is not False
        if self._buffers is None:
            return
        if not is_taken:
            self._buffers.put_back()
        elif self._results is not None and self._results.deferred is not None:
            self._buffers.put_back_where(self._results.deferred.flag)

    def _end_step_of_ranks(self, before: int) -> None:
        """Give each rank the buffers of rank 0, and count the micro-steps of the longest rank."""
        self.is_between_steps = False
        self.logged.is_idle = False
        self.state.micro_step = before + self.ranks.micro_steps
        self.ranks.broadcast_(self.process.model.buffers())

    def _fail_step(self, window: Window, before: int, error: BaseException) -> None:
        """Take back what the step has counted; raise what says more than `error`, if found."""
        self.state.micro_step = before
        if isinstance(error, PeerError) and self.is_between_steps and self._buffers is not None:
            self._buffers.put_back()  # so that the last step can be saved: another rank failed
        self._failed.explain(window, error)

    def _count_step(self, window: Window) -> None:
        state = self.state
        state.step += 1
        state.epoch_step += 1
        state.samples += window.samples
        state.epoch_samples += window.samples

    def _end_step_by_hand(self, hand: HandTrainer, window: Window) -> None:
        """Make the update, unless the loop has made it; then count the step."""
        self._updating = perf_counter()
        is_deferred = self._results is not None and self._results.deferred is not None
        has_updated = hand.updates.made
        loss = hand.settle(window, is_deferred=is_deferred)
        if not has_updated:
            try:
                self._update()
            except NonFiniteError:
                self.state.micro_step -= len(window.batches)
                if self._buffers is not None:
                    self._buffers.put_back()
                raise
            hand.updates.made = 0
        self.state.loss = self.process.backward.loss if loss is None or is_deferred else loss
        self._count_step(window)

    def _train_epoch(self) -> Iterator[Window]:
        """Yield the windows of an epoch, or the rest of it; the caller makes a step of each.

        Ends early at a bound, or when a stop was asked for.
        """
        state, ranks, results = self.state, self.ranks, self._results
        step_begin, step_end = self.bus.points[Event.STEP_BEGIN], self.bus.points[Event.STEP_END]
        end_step = None if results is None or results.is_idle else results.end_step
        waiting = computing = updating = telling = 0.0
        moved, differentiated = self._moving, self.process.backward.seconds
        windows = self._windows()
        self._fire_at(Event.EPOCH_BEGIN, state.epoch)
        now = perf_counter()
        self.is_loading = True
        for window in windows:
            self.is_loading = False
            loaded = perf_counter()
            waiting += loaded - now
            if step_begin.due <= state.step:
                step_begin.fire(state.step)
            yield window
            computed = perf_counter()
            computing += self._updating - loaded
            updating += computed - self._updating
            if end_step is not None:
                end_step(window, computed)
            ranks.beats.between()
            if step_end.due <= state.step:
                step_end.fire(state.step)
            self._agree()
            ranks.beats.step(state.step)
            now = perf_counter()
            telling += now - computed
            if state.stop.reason or state.step == state.max_steps:
                break
            self.is_loading = True
        self.is_loading = False
        ranks.beats.between()
        moved = self._moving - moved
        differentiated = self.process.backward.seconds - differentiated
        self.add_seconds("data", waiting - moved)
        self.add_seconds("move", moved)
        self.add_seconds("forward", computing - differentiated)
        self.add_seconds("backward", differentiated)
        self.add_seconds("optimizer", updating)
        self.add_seconds("telling", telling)
        self._leave_epoch()

    def _leave_epoch(self) -> None:
        """Read what waits on the device, and end the epoch if it is complete."""
        state = self.state
        self._fetch()
        is_bounded = bool(state.stop.reason) or state.step == state.max_steps
        is_complete = state.epoch_step == state.epoch_length or not is_bounded
        if not is_complete or state.stop.interrupts:
            return
        if state.epoch_step == 0:
            raise _empty()
        state.epoch_length = state.epoch_step
        state.epoch += 1
        state.epoch_step = 0
        state.epoch_samples = 0
        self._fire_at(Event.EPOCH_END, state.epoch)

    def _windows(self) -> Iterator[Window]:
        """Return the rest of the epoch, on the device.

        Batches of a `Loader` are counted by samples: they may have other sizes than before.
        """
        state, source = self.state, self.source
        if state.epoch_samples and isinstance(source, Loader):
            windows = source.windows_after(state.epoch, state.epoch_samples)
        else:
            windows = source.windows(state.epoch, state.epoch_step)
        if state.epoch_step and "(replayed" in source.exactness(state.epoch):
            windows = _replayed(windows, state.epoch_step)
        if self.pipeline is not None:
            windows = self.pipeline.drop_unused_windows(windows)
        if self.device.type == "cpu":
            return windows

        def took(seconds: float) -> None:
            self._moving += seconds

        def is_last() -> bool:
            return bool(state.stop.reason) or state.step + 1 == state.max_steps

        return ahead(windows, self.device, is_last=is_last, took=took)

    def _begin(self) -> None:
        """Check and make everything that the steps need, then fire `run_begin`."""
        self._check()
        state, backward = self.state, self.process.backward
        state.stop.is_settled = False  # an engine may be run again, after its bound was moved
        self._randomness.draws = state.draws
        self.bounds.recount(state, self.source)
        self.logged = LoggedMeans(lambda: state.batch)
        self._results = StepResults(
            state,
            backward,
            self.recorder,
            self.logged,
            self.bus,
            log_every=self.log_every,
            ranks=self.ranks,
            defer_to=self.device if self._defers and not self.ranks.is_distributed else None,
            go_back=self._go_back,
        )
        if self._results.deferred is not None and not self._results.is_deferring:
            self._warn_waits()
        if isinstance(self.process, Process):
            self.process.attach(state, self.device, self.logged)
        backward.start(state.step, total=state.max_steps, epoch_length=state.epoch_length)
        model = getattr(self.process, "model", None)
        if isinstance(model, nn.Module) and backward.non_finite != "ignore":
            has_buffers = next(model.buffers(), None) is not None
            self._buffers = Buffers(model) if has_buffers else None
        self._make_trainer()
        self.process.train()
        for event, count in (
            (Event.STEP_BEGIN, state.step),
            (Event.STEP_END, state.step + 1),
            (Event.EPOCH_BEGIN, state.epoch),
            (Event.EPOCH_END, state.epoch + 1),
            (Event.BACKWARD_BEGIN, state.micro_step),
            (Event.BACKWARD_END, state.micro_step + 1),
        ):
            self.bus.points[event].start_at(count)
        self.fire(Event.RUN_BEGIN)

    def _make_trainer(self) -> None:
        """Make what trains a window, and what explains a step that fails."""
        loop = self._micro_batches = MicroBatches(
            self.state, self.bus, self._randomness, self.recorder, self.logged, self.ranks
        )
        if self.pipeline is None:
            self._trainer = SequentialTrainer(self.process, loop)
        else:
            self._trainer = PipelineTrainer(self.pipeline, loop)
        self._failed = FailedStep(
            self.process,
            self.source,
            self.state,
            self.device,
            buffers=self._buffers,
            ranks=self.ranks,
            is_pipelined=self.pipeline is not None,
            key_of=loop.key,
        )

    def _release(self) -> None:
        """End the workers of the data, and what still waits on the device."""
        if isinstance(self.source, Loader) and self._owns_source:
            self.source.close()
        if self._results is not None:
            self._results.close()

    def _fetch(self) -> None:
        """Fetch and record what waits on the device; NonFiniteError if a step was not finite.

        After another error nothing more is raised, and if that is one of the device, what waits is
        lost.
        """
        if self._results is None:
            return
        with suppress(RuntimeError) if self.state.error is not None else nullcontext():
            self._results.fetch()

    def _go_back(self, bad: DeferredStep, error: NonFiniteError) -> None:
        """Set the run back to before a non-finite step; later steps have changed no weight."""
        state, backward, results = self.state, self.process.backward, self._results
        for name, count in bad.before.items():
            setattr(state, name, count)
        if results is not None and results.deferred is not None:
            state.loss = results.deferred.loss
        backward.start(state.step, total=state.max_steps, epoch_length=state.epoch_length)
        if state.error is not None:
            state.error.add_note(f"before that: {error}")
            return
        where = ""
        if self._can_repeat and self.source.exactness(state.epoch).startswith("exact"):
            window = next(self._windows(), None)
            where = self._failed.origin(window) if window is not None else ""
        raise located(error, where)

    def _warn_waits(self) -> None:
        kinds = ", ".join(type(each).__name__ for each in self.process.backward.optimizers.values())
        message = (
            "Each step waits for the device, to see if it is finite:"
            f" {kinds} cannot leave out an update there."
        )
        self.recorder.tell(Warned(message=message, step=self.state.step))

    def _check(self) -> None:
        """Raise InputError for a process, data or device that cannot train."""
        if getattr(self.process, "backward", None) is None:
            raise InputError(
                f"{type(self.process).__name__} cannot train: it has no `backward`.",
                fix="Set process.backward = OptimizerStep(optimizer), or give Supervised an"
                " optimizer.",
            )
        if self.state.epoch_length == 0:
            raise _empty()
        model = getattr(self.process, "model", None)
        weights = model.parameters() if isinstance(model, nn.Module) else ()
        devices = {parameter.device for parameter in weights}
        if devices and self.device.type not in {device.type for device in devices}:
            there = ", ".join(sorted(map(str, devices)))
            raise InputError(
                f"The model is on {there}, the engine on {self.device}.",
                fix=f'Give Engine(..., device="{there}"), or move the model before its optimizer is'
                " made.",
            )

    def _roles(self) -> dict[str, Any]:
        """Return what handlers may ask for by the names of their parameters."""
        process = self.process
        return {
            "engine": self,
            "process": process,
            "model": getattr(process, "model", None),
            "state": self.state,
            "recorder": self.recorder,
            "backward": getattr(process, "backward", None),
        }

    def _signals(self) -> AbstractContextManager[Signals]:
        """Return the context in which signals end this run in order; none if a `stop` was given."""
        if not self._owns_signals:
            return nullcontext(NO_SIGNALS)
        return stopping(self.state.stop, say=_LOGGER.warning, polite=True)

    def _is_done(self) -> bool:
        self._agree()
        return is_done(self.state)

    def _agree(self) -> None:
        """Stop where one rank was asked to, and at the least bound that one has reached."""
        self.state.max_steps = self.ranks.agree(self.state.stop, self.state.max_steps)

    def _fire_at(self, event: Event, count: int) -> None:
        point = self.bus.points[event]
        if point.due <= count:
            point.fire(count)


def _replayed(windows: Iterator[Window], steps: int) -> Iterator[Window]:
    """Yield the rest of an epoch whose first steps are read again; say how long that took."""
    begun = perf_counter()
    first = next(windows, None)
    _LOGGER.warning(
        "data.train: the %d steps of this epoch before were gone through again, in %.1f s",
        steps,
        perf_counter() - begun,
    )
    if first is not None:
        yield first
        yield from windows


def _empty() -> InputError:
    return InputError(
        "The training data is empty: an epoch has no batch.",
        fix="Look at [data.train]; drop_last wants one full batch.",
    )
