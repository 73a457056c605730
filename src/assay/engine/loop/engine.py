"""The training loop. It owns the order of things and nothing else: no config, no files, no
ranks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay.core.errors import InputError, PeerError
from assay.core.event_log import Warned
from assay.core.events import Event, Every, Handler
from assay.core.ports import Bind, NullRecorder, Recorder
from assay.core.signals import NO_SIGNALS, Signals, obeyed, stopping
from assay.core.stop import Stop
from assay.engine.data.adopt import as_source
from assay.engine.data.ahead import ahead
from assay.engine.data.batches import blame_device, to_device
from assay.engine.data.dead_worker import died
from assay.engine.data.loader import Loader
from assay.engine.data.source import Window, seeded
from assay.engine.loop.bus import Bus, Listens, bind_by_name, event_named
from assay.engine.loop.engine_state import restore
from assay.engine.loop.process import Process
from assay.engine.loop.state import State
from assay.engine.loop.styles.adapt import as_process
from assay.engine.loop.styles.own_updates import OwnUpdates
from assay.engine.metrics.logged_means import LoggedMeans
from assay.engine.numerics.buffers import Buffers
from assay.engine.numerics.deferred import DeferredStep, DeferredSteps, DeferredUpdate
from assay.engine.numerics.nan_debug import (
    DATA,
    MEND,
    NOWHERE,
    NonFiniteError,
    first_non_finite,
    in_the_data,
)
from assay.engine.numerics.seed import (
    STEP,
    WATCHED_STEPS,
    StepRandomness,
    checked_seed,
    key,
    seed_all,
)
from assay.engine.optim.criterion_misfit import CriterionError, blame_dtype, samples_line
from assay.engine.optim.losses import Losses
from assay.engine.optim.optimizer_step_base import OptimizerStepBase
from assay.engine.optim.out_of_memory import is_out_of_memory, out_of_memory
from assay.engine.parallel.data_parallel_group import as_peer_error

if TYPE_CHECKING:
    from assay.engine.checkpoint.saver import Saver
    from assay.engine.parallel.data_parallel_group import DataParallelGroup
    from assay.engine.parallel.pipeline import Pipeline

KEYS_AHEAD = 64
_LOGGER = logging.getLogger("assay")
_MIXED = "got mixed torch.Tensor and DTensor"


class Engine:
    """Runs a process over training data until the first bound is reached: by `run()`, or by hand
    `for batch in engine`.

    `process` may be written in any style that `as_process` knows. `train` is a `Loader` or any
    iterable of batches. Bounds: `epochs`, `steps` (optimizer updates), `samples`, `seconds`;
    without any, one epoch. Randomness of forward and backward is keyed by (seed, step, micro-step),
    so a run that goes on from a checkpoint draws what the uninterrupted one would have drawn. The
    seed is given once, here or to the loader: each takes that of the other.

    `deferred`, the default on all devices but the CPU: no step waits for the device. Loss, norm and
    what is logged are fetched together after 64 steps or a second, and before anybody is called who
    is not called in every step. An update that is not finite is left out on the device, and is
    known when its numbers are fetched: the run then goes back to it. An optimizer without a fused
    form cannot leave out an update so, and is waited for.

    `log_every`: of so many steps one is recorded, 0 for none; with its own numbers, no means over
    the others.

    `stop`: the token that asks the run to end, of a caller who answers the signals of this OS
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
        self.is_between_steps = True
        """False while an update is made that other ranks do not have yet."""
        self.ranks: DataParallelGroup | None = None
        self.pipeline: Pipeline | None = None
        self.seconds: dict[str, float] = {}
        self._happened: Counter[Event] = Counter()
        self._begun = self._moving = self._updating = 0.0
        self._keys: dict[int, int] = {}
        self.max_samples, self.max_seconds = samples, seconds
        self._given = 0
        self._buffers: Buffers | None = None
        self._bound(epochs, steps)
        process = self.process
        roles = {
            "engine": self,
            "process": process,
            "model": getattr(process, "model", None),
            "state": self.state,
        }
        roles |= {"recorder": self.recorder, "backward": getattr(process, "backward", None)}
        self.bus = Bus(bind or bind_by_name(roles))
        # Looked up once: in every step it would be a seventh of all that the engine adds to one.
        self._backward_begin = self.bus.points[Event.BACKWARD_BEGIN]
        self._backward_end = self.bus.points[Event.BACKWARD_END]
        self._is_elsewhere = self.device.type != "cpu"
        self.is_loading = False
        """Set while the engine waits for a batch: no step is under way, and every handler has seen the last one."""
        self._randomness = StepRandomness()
        self._defers = self._is_elsewhere if deferred is None else deferred
        self._deferred: DeferredSteps | None = None
        self._can_repeat = self._leaves_out = False
        if self._defers:
            for event in (Event.CHECKPOINT_BEGIN, Event.RUN_END, Event.EXCEPTION):
                self.bus.add(
                    Handler(event=event, fn=self._fetch, priority=-100, name="Engine.fetch")
                )
        self.bus.extend(handlers)
        self._bound_by_use(samples, seconds)
        if epochs is None and steps is None and samples is None and seconds is None:
            self._bound(1, None)

    def run(self) -> State:
        """Train to the bound, or until something calls `stop`; returns the state.

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
                    self._train_window(window)
            state.stop.settle()
            self.fire(Event.RUN_END)
        except BaseException as error:
            clear = died(error) or (as_peer_error(error) if self.ranks is not None else None)
            state.error = clear or error
            self.fire(Event.EXCEPTION)
            if clear is not None:
                raise clear from error
            raise
        finally:
            self._release()
        return state

    def __iter__(self) -> Iterator[Any]:
        """The loop by hand: the batches of the whole run, with everything that `run` does around
        the step.

        The body updates the weights with the optimizer of this engine, or calls `backward(loss)`:
        then the update is made here, at the end of the window. A loop that is left early ends the
        run as `stop` does: a step counts if its update was made. What the body raises looks the
        same from here, so it is not told as an `exception`. Signals end it as they end `run`.
        """
        if self.ranks is not None:
            raise InputError(
                "A loop by hand runs in one process.", fix="Write a Process, which `run` trains."
            )
        with self._signals() as signals:
            is_left = yield from self._by_hand()
        if signals.heard and not is_left:
            raise obeyed(signals.heard[0])

    def _by_hand(self) -> Generator[Any, None, bool]:
        """Give the batches, without answering signals; return whether the loop was left."""
        state, is_left = self.state, False
        try:
            self._begin()
            updates = OwnUpdates(self.process.backward, "the loop")
            try:
                while not self._is_done() and not is_left:
                    for window in self._train_epoch():
                        before = state.micro_step
                        self._begin_by_hand(window)
                        for batch in self._batches(window):
                            try:
                                yield batch
                            except GeneratorExit:
                                is_left = True
                                break
                        state.micro_step = before + len(window.batches)
                        if is_left:
                            self.stop("the loop was left", interrupts=True)
                            if not updates.made:
                                state.micro_step = before
                                break
                        self._end_by_hand(window, updates)
            finally:
                updates.stop()
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
        """Restore the newest checkpoint of `saver` that can be read, or the one of that name;
        return its step.

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

    def _signals(self) -> AbstractContextManager[Signals]:
        """Signals inside of which this run ends in order; those of somebody else where a `stop` was
        given."""
        if not self._owns_signals:
            return nullcontext(NO_SIGNALS)
        return stopping(self.state.stop, say=_LOGGER.warning, polite=True)

    def backward(self, loss: Losses) -> None:
        """In a loop by hand: the gradients of one micro-batch, weighted as its window needs it."""
        self._given += 1
        self.process.backward(loss)

    def log(self, name: str, value: Tensor | float, weight: Tensor | float | None = None) -> None:
        """In a loop by hand: record the mean of `value` over the step as `train/NAME`; see
        `Process.log`."""
        self.logged.add(name, value, weight)

    def _train_epoch(self) -> Iterator[Window]:
        """One pass over the data, or what is left of it; ends early at a bound or when asked to
        stop.

        Who iterates makes a step of each window.
        """
        state, recorder, process = self.state, self.recorder, self.process
        step_begin, step_end = self.bus.points[Event.STEP_BEGIN], self.bus.points[Event.STEP_END]
        log = None if isinstance(recorder, NullRecorder) and self.ranks is None else recorder.log
        waiting = computing = updating = telling = 0.0
        moved, differentiated = self._moving, process.backward.seconds
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
            if self._deferred is not None:
                self._defer(self._deferred, window, computed)
            elif log is not None:
                if self.log_every == 1 or self._is_logged(state.step):
                    log(self._results(), state.step)
                else:
                    self._leave_out()
            if self.ranks is not None:
                self.ranks.beats.between()
            if step_end.due <= state.step:
                step_end.fire(state.step)
            if self.ranks is not None:
                self._agree(self.ranks)
                self.ranks.beats.step(state.step)
            now = perf_counter()
            telling += now - computed
            if state.stop.reason or state.step == state.max_steps:
                break
            self.is_loading = True
        self.is_loading = False
        if self.ranks is not None:
            self.ranks.beats.between()
        moved, differentiated = self._moving - moved, process.backward.seconds - differentiated
        spent = {"data": waiting - moved, "move": moved, "forward": computing - differentiated}
        spent |= {"backward": differentiated, "optimizer": updating, "telling": telling}
        self._leave_epoch(spent)

    def _leave_epoch(self, seconds: Mapping[str, float]) -> None:
        """Count the seconds of a pass over the data, and end the epoch if it is complete."""
        state = self.state
        for name, spent in seconds.items():
            self.add_seconds(name, spent)
        if self._deferred is not None:
            self._fetch()
        is_bounded = bool(state.stop.reason) or state.step == state.max_steps
        is_complete = state.epoch_step == state.epoch_length or not is_bounded
        if is_complete and not state.stop.interrupts:
            self._end_epoch()

    def _train_window(self, window: Window) -> None:
        """One optimizer step: forward and backward of each micro-batch, then one update. If it
        fails nothing counts."""
        state, process = self.state, self.process
        before, ranks = state.micro_step, self.ranks
        if self._buffers is not None:
            self._buffers.keep()
        try:
            if ranks is not None:
                ranks.begin(window, state.step)
            process.backward.begin(window.sizes)
            if self.pipeline is None:
                self._train_batches(window)
            else:
                self._train_through(self.pipeline, window)
            self._updating = perf_counter()
            self._update()
            self.is_between_steps = False
            if ranks is not None:
                self.logged.is_idle = False
                state.micro_step = before + ranks.micro_steps
                ranks.broadcast_(process.model.buffers())
        except BaseException as error:
            state.micro_step = before
            if isinstance(error, PeerError) and self.is_between_steps and self._buffers is not None:
                self._buffers.put_back()  # so that the last step can be saved: another rank failed
            self._blame(window, error)
            raise
        self.is_between_steps = True
        state.loss = process.backward.loss
        state.step += 1
        state.epoch_step += 1
        state.samples += window.samples
        state.epoch_samples += window.samples

    def _train_batches(self, window: Window) -> None:
        """The micro-batches of a window, one after another."""
        state, process = self.state, self.process
        begin, end = self._backward_begin, self._backward_end
        for i, batch in enumerate(window.batches):
            self._randomness.begin(self._micro_key(i), state.step)
            state.batch = batch
            if self.ranks is not None:
                self.ranks.beats.beat()
                if window.sizes is not None:
                    self.logged.is_idle = self.ranks.is_idle = not window.sizes[i]
            if begin.due <= state.micro_step:
                begin.fire(state.micro_step)
            state.output = (
                None  # what it holds is used again by the forward pass: a new place would cost more
            )
            state.output = process.training_step(batch)
            if self._randomness.end():
                self._draws()
            state.micro_step += 1
            if end.due <= state.micro_step:
                end.fire(state.micro_step)

    def _train_through(self, pipeline: Pipeline, window: Window) -> None:
        """The micro-batches of a window where the model is split into stages: several are on their
        way at once."""
        state, begin, end = self.state, self._backward_begin, self._backward_end
        first = state.micro_step

        def before(i: int, stage: int) -> None:
            state.batch = window.batches[i]
            self._randomness.begin(self._micro_key(i, stage), state.step)

        for i in range(len(window.batches)):
            if begin.due <= first + i:
                begin.fire(first + i)
        state.output = pipeline.train(window.batches, before)
        if self._randomness.end():
            self._draws()
        for _ in window.batches:
            state.micro_step += 1
            if end.due <= state.micro_step:
                end.fire(state.micro_step)

    def _update(self) -> None:
        """One update; a step that is left out leaves nothing behind."""
        is_taken = self.process.update(self.state.step) is not False
        if self._buffers is None:
            return
        if not is_taken:
            self._buffers.put_back()
        elif self._deferred is not None:
            self._buffers.put_back_where(self._deferred.flag)

    def _warn_waits(self) -> None:
        kinds = ", ".join(type(each).__name__ for each in self.process.backward.optimizers.values())
        message = f"Each step waits for the device, to see if it is finite: {kinds} cannot leave out an update there."
        self.recorder.tell(Warned(message=message, step=self.state.step))

    def _draws(self) -> None:
        """Training was seen to draw from numpy or `random`: they are keyed from here on, on resume
        too."""
        self.state.draws = True
        if self.state.step >= WATCHED_STEPS:
            message = (
                "Training has begun to draw from numpy or random since it was last looked at"
                f" (every {WATCHED_STEPS} steps): between, a run that goes on may draw other numbers."
            )
            self.recorder.tell(Warned(message=message, step=self.state.step))

    def _begin_by_hand(self, window: Window) -> None:
        self._given = 0
        if self._buffers is not None:
            self._buffers.keep()
        self.process.backward.begin(window.sizes)

    def _batches(self, window: Window) -> Iterator[Any]:
        """The micro-batches of one window, each with what belongs before and after it."""
        state, begin, end = self.state, self._backward_begin, self._backward_end
        for i, batch in enumerate(window.batches):
            state.batch = batch
            self._randomness.begin(self._micro_key(i), state.step)
            if begin.due <= state.micro_step:
                begin.fire(state.micro_step)
            yield state.batch
            if self._randomness.end():
                self._draws()
            state.micro_step += 1
            if end.due <= state.micro_step:
                end.fire(state.micro_step)

    def _end_by_hand(self, window: Window, updates: OwnUpdates) -> None:
        """The update, unless the body has made it; then the step counts."""
        self._updating = perf_counter()
        state, backward = self.state, self.process.backward
        told = self.logged.means.pop("loss", None)
        loss: Any = (
            None
            if told is None
            else told.value()
            if self._deferred is None
            else (told.total, told.weight)
        )
        if updates.made:
            updates.settle(state.step, len(window.batches), loss)
        else:
            updates.check_given(self._given, len(window.batches))
            try:
                self._update()
            except NonFiniteError:
                state.micro_step -= len(window.batches)
                if self._buffers is not None:
                    self._buffers.put_back()
                raise
            updates.made = 0
        state.loss = backward.loss if loss is None or self._deferred is not None else loss
        state.step += 1
        state.epoch_step += 1
        state.samples += window.samples
        state.epoch_samples += window.samples

    def _windows(self) -> Iterator[Window]:
        """What is left of the epoch, on the device. Batches of a `Loader` are counted by samples:
        they may have other sizes than before.
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
        if not self._is_elsewhere:
            return windows

        def took(seconds: float) -> None:
            self._moving += seconds

        def is_last() -> bool:
            return bool(state.stop.reason) or state.step + 1 == state.max_steps

        return ahead(windows, self.device, is_last=is_last, took=took)

    def _micro_key(self, i: int, stage: int = 0) -> int:
        """The key of what micro-batch `i` of this step draws: dealt out to several ranks, each
        keeps its number."""
        if self.ranks is not None:
            i = i * self.ranks.size + self.ranks.rank
        if stage:
            return key(self.seed, STEP, self.state.step, i, stage)
        return key(self.seed, STEP, self.state.step, i) if i else self._key_of(self.state.step)

    def _key_of(self, step: int) -> int:
        """The key of the first micro-batch of a step. Made one by one they would take several times
        as long."""
        if step not in self._keys:
            self._keys = {
                each: key(self.seed, STEP, each, 0) for each in range(step, step + KEYS_AHEAD)
            }
        return self._keys[step]

    def _results(self) -> dict[str, float]:
        """What is recorded of every step."""
        backward = self.process.backward
        points = backward.points()
        if self.state.loss != self.state.loss and backward.non_finite == "stop":
            points.pop(
                "train/loss", None
            )  # a real nan would have been raised: nobody told this one
        if self.ranks is not None:
            points = self.logged.take_means("train", self.ranks) | points
        elif self._deferred is None and self.logged.means:
            points = self.logged.take_means("train") | points
        if self.state.epoch_step == 1:
            points = {**points, "epoch": float(self.state.epoch)}  # so is every step from here on
        return points

    def _blame(self, window: Window, error: BaseException) -> None:
        """Raise what tells more than `error` about why the step failed, if there is something."""
        if isinstance(error, NonFiniteError):
            if self._buffers is not None:
                self._buffers.put_back()
            raise self._told(error, self._origin(window)) from None
        backward = self.process.backward
        if is_out_of_memory(error):
            raise out_of_memory(
                self.process.model,
                backward.optimizers.values(),
                window.batches,
                self.state.step,
                error,
            ) from error
        if self.ranks is not None and self.ranks.sharding is not None and _MIXED in str(error):
            raise InputError(
                "The weights of a module were used while they were in parts ([parallel] shard): it was not called.",
                where=str(error).partition(",")[0],
                fix="Call the model (or a block of it): model(x), not a method of your own, nor its weights by name.",
            ) from error
        if isinstance(error, CriterionError) and error.rows:
            error.add_note(f"It is about {samples_line(error.rows, self._samples_now(window))}.")
        blame_dtype(self.state.batch, error)
        blame_device(self.state.batch, self.device, error)

    def _samples_now(self, window: Window) -> list[int]:
        """Return which samples of the data set the newest micro-batch is made of; none where nobody
        knows."""
        source, state = self.source, self.state
        number = next((i for i, batch in enumerate(window.batches) if batch is state.batch), None)
        if (
            number is None
            or not isinstance(source, Loader)
            or getattr(self.process, "batch_hook", None) is not None
        ):
            return []
        return source.indices(state.epoch, state.epoch_samples, number)

    def _origin(self, window: Window) -> str:
        """Where the first value of the step is that is not finite: it is done again, from the same
        batch and seed."""
        state, source, ranks = self.state, self.source, self.ranks

        def samples_of(number: int) -> list[int]:
            return (
                source.indices(state.epoch, state.epoch_samples, number)
                if isinstance(source, Loader)
                else []
            )

        where = in_the_data(window.batches, samples_of)
        # Done again a step that makes its updates itself would make them again; and where processes
        # compute together,
        # all would have to look at the same places.
        can_repeat = not getattr(self.process, "has_updated", False) and self.pipeline is None
        if not where and can_repeat and (ranks is None or ranks.sharding is None):
            where = self._origin_inside(window)
        if ranks is None:
            return where
        return ranks.first_report(where, unless=NOWHERE)

    def _origin_inside(self, window: Window) -> str:
        """The same of what is computed: the step is done again."""

        def again() -> None:
            self.process.backward.begin(window.sizes)
            for i, batch in enumerate(window.batches):
                seed_all(self._micro_key(i))
                self.process.training_step(
                    to_device(batch, self.device) if self._is_elsewhere else batch
                )

        try:
            return first_non_finite(self.process, again)
        finally:
            if self._buffers is not None:
                self._buffers.put_back()
            self.process.model.zero_grad(set_to_none=True)

    @staticmethod
    def _told(error: NonFiniteError, where: str) -> NonFiniteError:
        return NonFiniteError(
            error.what, where=where or error.where, fix=MEND if DATA in where else error.fix
        )

    def _defer(self, steps: DeferredSteps, window: Window, now: float) -> None:
        """Let the numbers of the step wait on the device; fetch all when that is due."""
        state, update = self.state, self.process.backward.deferred
        if update is None:
            steps.loss = state.loss
            self._record(self._results(), state.step)
        else:
            state.loss = partial(_loss_of, self.process.backward, update)
        logged = self.logged.take()
        if update is not None or logged:
            before = {
                "epoch": state.epoch,
                "epoch_step": state.epoch_step - 1,
                "step": state.step - 1,
                "micro_step": state.micro_step - len(window.batches),
                "samples": state.samples - window.samples,
                "epoch_samples": state.epoch_samples - window.samples,
            }
            epoch = state.epoch if state.epoch_step == 1 else None
            steps.waiting.append(DeferredStep(state.step, update, logged, before, epoch))
        if steps.is_due(now) or self.bus.points[Event.STEP_END].is_due_for_few(state.step):
            self._fetch()

    def _fetch(self) -> None:
        """Fetch and record what waits on the device; NonFiniteError if one of the steps was not
        finite.

        After another error nothing more is raised, and if that is one of the device, what waits is
        lost.
        """
        steps, state, backward = self._deferred, self.state, self.process.backward
        if steps is None:
            return
        with suppress(RuntimeError) if state.error is not None else nullcontext():
            for step, values, means in steps.fetch():
                points = {f"train/{name}": value for name, value in means.items()}
                if step.update is not None:
                    step.update.recall(values)
                    error = step.update.judge(values, step.step)
                    if error is not None:
                        self._go_back(step, error)
                        return
                    steps.loss = state.loss = backward.loss
                    points |= backward.points()
                    if step.epoch is not None:
                        points["epoch"] = float(step.epoch)
                self._record(points, step.step)

    def _go_back(self, bad: DeferredStep, error: NonFiniteError) -> None:
        """The run is where it was before a step that is known only now: what came after it changed
        no weight."""
        state, backward = self.state, self.process.backward
        for name, count in bad.before.items():
            setattr(state, name, count)
        if self._deferred is not None:
            state.loss = self._deferred.loss
        backward.start(state.step, total=state.max_steps, epoch_length=state.epoch_length)
        if state.error is not None:
            state.error.add_note(f"before that: {error}")
            return
        where = ""
        if self._can_repeat and self.source.exactness(state.epoch).startswith("exact"):
            window = next(self._windows(), None)
            where = self._origin(window) if window is not None else ""
        raise self._told(error, where)

    def _release(self) -> None:
        if isinstance(self.source, Loader) and self._owns_source:
            self.source.close()
        if self._deferred is not None:
            self._deferred = None
            self.process.backward.defer(None)

    @property
    def lasting_flag(self) -> Tensor | None:
        """A 1 on the device once a step was not finite, which is known only later and ends the run;
        else None."""
        has = (
            self._deferred is not None
            and self._leaves_out
            and self.process.backward.non_finite == "stop"
        )
        return self._deferred.flag if has and self._deferred is not None else None

    def _is_logged(self, step: int) -> bool:
        """Return whether the numbers of a step are recorded."""
        return self.log_every > 0 and not step % self.log_every

    def _leave_out(self) -> None:
        """Forget the numbers of a step that is not recorded. The first of an epoch says so all the
        same."""
        self.logged.means.clear()
        if self.state.epoch_step == 1:
            self.recorder.log({"epoch": float(self.state.epoch)}, self.state.step)

    def _record(self, points: Mapping[str, float], step: int) -> None:
        if not self._is_logged(step):
            points = {name: value for name, value in points.items() if name == "epoch"}
        if points:
            self.recorder.log(points, step)

    def _end_epoch(self) -> None:
        state = self.state
        if state.epoch_step == 0:
            raise _empty()
        state.epoch_length = state.epoch_step
        state.epoch += 1
        state.epoch_step = 0
        state.epoch_samples = 0
        self._fire_at(Event.EPOCH_END, state.epoch)

    def _begin(self) -> None:
        self._check()
        self._begun = perf_counter()
        state, backward = self.state, self.process.backward
        state.stop.is_settled = False  # an engine may be run again, after its bound was moved
        self._randomness.draws = state.draws
        self._count_on()
        self._deferred = DeferredSteps(self.device) if self._defers and self.ranks is None else None
        self.logged = LoggedMeans(lambda: state.batch)
        self._leaves_out = self._deferred is not None and backward.defer(self._deferred.flag)
        if self._deferred is not None and not self._leaves_out:
            self._warn_waits()
        if isinstance(self.process, Process):
            self.process.attach(state, self.device, self.logged)
        backward.start(state.step, total=state.max_steps, epoch_length=state.epoch_length)
        model = getattr(self.process, "model", None)
        if isinstance(model, nn.Module) and backward.non_finite != "ignore":
            self._buffers = Buffers(model) if any(True for _ in model.buffers()) else None
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

    def _count_on(self) -> None:
        """Count the rest in batches of the size of now, if those before were of another."""
        state, source, steps = self.state, self.source, self._steps
        seen = state.epoch_samples
        if (
            not isinstance(source, Loader)
            or not seen
            or seen == state.epoch_step * source.batch_size
        ):
            return
        left = source.steps_after(seen)
        state.epoch_step = len(source) - left
        if state.max_epochs is not None:
            left += (state.max_epochs - state.epoch - 1) * len(source)
            state.max_steps = min(
                state.step + left, steps if steps is not None else state.step + left
            )

    def _check(self) -> None:
        """InputError for what cannot train."""
        if getattr(self.process, "backward", None) is None:
            raise InputError(
                f"{type(self.process).__name__} cannot train: it has no `backward`.",
                fix="Set process.backward = OptimizerStep(optimizer), or give Supervised an optimizer.",
            )
        if self.state.epoch_length == 0:
            raise _empty()
        model = getattr(self.process, "model", None)
        homes = (
            {parameter.device for parameter in model.parameters()}
            if isinstance(model, nn.Module)
            else set()
        )
        if homes and self.device.type not in {home.type for home in homes}:
            there = ", ".join(sorted(map(str, homes)))
            raise InputError(
                f"The model is on {there}, the engine on {self.device}.",
                fix=f'Give Engine(..., device="{there}"), or move the model before its optimizer is made.',
            )

    def _agree(self, ranks: DataParallelGroup) -> None:
        """Stop where one of the ranks was asked to, and at the least bound that one of them has
        reached."""
        state = self.state
        state.max_steps = ranks.agree(state.stop, state.max_steps)

    def _is_done(self) -> bool:
        state = self.state
        if self.ranks is not None:
            self._agree(self.ranks)
        if state.epoch_step and state.epoch_step == state.epoch_length and not state.stop.reason:
            return False  # it goes on from between the last step of an epoch and its end
        return bool(
            state.stop.reason
            or (state.max_epochs is not None and state.epoch >= state.max_epochs)
            or (state.max_steps is not None and state.step >= state.max_steps)
        )

    def stop(self, reason: str, *, interrupts: bool = False) -> None:
        """End the run after the current step, as if its bound had been reached; handlers of
        `run_end` still run.

        `interrupts`: the run is to be resumed later. What can wait until then is left out: the end
        of the epoch, the last evaluation, the final checkpoint. With several ranks all of them end
        after the same step.
        """
        self.state.stop.ask(reason, interrupts=interrupts)

    def on(
        self, event: str, *, every: int = 0, priority: int = 0
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Call a function at an event: `@engine.on("step_end", every=100)`. It may ask for `state`,
        `model`, ..."""

        def add(fn: Callable[..., Any]) -> Callable[..., Any]:
            kind = event_named(event)
            handler = Handler(event=kind, fn=fn, priority=priority)
            self.bus.add(
                handler
                if not every
                else Handler(event=kind, fn=fn, priority=priority, when=Every(every))
            )
            return fn

        return add

    def fire(self, event: Event) -> None:
        """Let `event` happen, which is counted by how often it did."""
        before = self._happened[event]
        self._happened[event] += 1
        self._fire_at(event, before if event.endswith("_begin") else before + 1)

    def _fire_at(self, event: Event, count: int) -> None:
        point = self.bus.points[event]
        if point.due <= count:
            point.fire(count)

    def add_seconds(self, name: str, seconds: float) -> None:
        """Count time by what it was spent on."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def finish(self) -> None:
        """The bound is reached with the current step."""
        self.state.max_steps = self.state.step

    def _bound(self, epochs: int | None, steps: int | None) -> None:
        for name, bound in {"epochs": epochs, "steps": steps}.items():
            if bound is not None and bound <= 0:
                raise InputError(f"{name} is {bound}; it must be greater than 0.")
        state = self.state
        self._steps = steps
        state.epoch_length = self.source.steps_per_epoch
        state.max_epochs = epochs
        known = [steps] if steps is not None else []
        if epochs is not None and state.epoch_length is not None:
            known.append(epochs * state.epoch_length)
        state.max_steps = min(known) if known else None

    def _bound_by_use(self, samples: int | None, seconds: float | None) -> None:
        state = self.state
        if samples is not None:
            if samples <= 0:
                raise InputError(f"samples is {samples}; it must be greater than 0.")

            def enough_samples() -> None:
                if state.step and not state.samples:
                    raise InputError(
                        f"The run is bounded by samples, but how many a {type(state.batch).__name__} holds is unknown.",
                        fix="Give batches of tensors, or bound the run by steps.",
                    )
                if state.samples >= samples:
                    self.finish()

            for event in (
                Event.RUN_BEGIN,
                Event.STEP_END,
            ):  # a run that goes on may have had enough
                self.bus.add(Handler(event=event, fn=enough_samples, priority=-100))
        if seconds is not None:
            if seconds <= 0:
                raise InputError(f"seconds is {seconds}; it must be greater than 0.")

            def enough_time() -> None:
                if perf_counter() - self._begun >= seconds:
                    self.finish()

            self.bus.add(Handler(event=Event.STEP_END, fn=enough_time, priority=-100))


def _replayed(windows: Iterator[Window], steps: int) -> Iterator[Window]:
    """What is left of an epoch of which so many steps are gone through again; how long that took is
    told."""
    begun = perf_counter()
    first = next(windows, None)
    took = perf_counter() - begun
    _LOGGER.warning(
        "data.train: the %d steps of this epoch before were gone through again, in %.1f s",
        steps,
        took,
    )
    if first is not None:
        yield first
        yield from windows


def _loss_of(backward: OptimizerStepBase, update: DeferredUpdate) -> float:
    update.recall(update.numbers.tolist())
    return backward.loss


def _empty() -> InputError:
    return InputError(
        "The training data is empty: an epoch has no batch.",
        fix="Look at [data.train]; drop_last wants one full batch.",
    )
