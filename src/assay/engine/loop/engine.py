"""Engine: the training loop as users call it, and how a run begins and ends.

The step itself is in `step`. An engine knows no config and no files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.core.events import ALWAYS, Event, Every, Handler
from assay.core.facts import Warned
from assay.core.ports import Bind, NullRecorder, Recorder
from assay.core.signals import NO_SIGNALS, Signals, exception_for, stopping
from assay.core.stop import Stop
from assay.engine.checkpoint.saver import Saver
from assay.engine.data.adopt import as_source
from assay.engine.data.loader import Loader
from assay.engine.data.source import settle_seed
from assay.engine.data.worker_faults import find_death
from assay.engine.loop.bounds import Bounds
from assay.engine.loop.bus import Bus, Listens, bind_by_name, roles_of
from assay.engine.loop.by_hand import HandLoop
from assay.engine.loop.engine_state import as_stateful, find_modules, resume_engine
from assay.engine.loop.epoch import EpochTimes, no_batch
from assay.engine.loop.expected_length import ExpectedLength
from assay.engine.loop.process import Process
from assay.engine.loop.results import StepResults
from assay.engine.loop.state import State
from assay.engine.loop.step import TrainLoop
from assay.engine.loop.styles.adapt import as_process
from assay.engine.metrics.means import LoggedMeans
from assay.engine.numerics.buffers import Buffers
from assay.engine.numerics.seed import StepRandomness, checked_seed
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.losses import Losses
from assay.engine.optim.optimizer_step_base import OptimizerStepBase

Kept = TypeVar("Kept")
_LOGGER = logging.getLogger("assay")


class Engine(TrainLoop):
    """Training loop: runs a process over training data until the first bound is reached.

    Either by `run()`, or by hand: `for batch in engine`. `process` may be written in any style that
    `as_process` knows. `train` is a `Loader` or any iterable of batches. Bounds: `epochs`, `steps`
    (optimizer updates), `samples`, `seconds`; without any, one epoch. `max_steps` stops the run as
    well, but is no length for a schedule: resumed without it, the run continues on the same curve.
    Randomness of forward and backward is keyed by (seed, step, micro-step), so a resumed run draws
    what the uninterrupted one would have drawn. The seed is given once, here or to the loader: each
    takes that of the other.

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
        max_steps: int | None = None,
    ) -> None:
        self.process: Process = as_process(process)
        data, seed = settle_seed(train, seed)
        self.source = as_source(data, accumulate=accumulate, seed=seed)
        # Else somebody else ends its worker processes.
        self._owns_source = id(self.source) != id(train)
        self.seed = checked_seed(seed)
        self.device = torch.device(device)
        self.recorder: Recorder = recorder if recorder is not None else NullRecorder()
        self.state = State(dataloader=data, stop=stop if stop is not None else Stop())
        self._owns_signals = stop is None
        self.logged = LoggedMeans()
        self.ranks = DataParallelGroup()
        self.pipeline = None
        self.kept = []
        self.modules = {}
        self.buffers = Buffers()
        self.times = EpochTimes()
        self.seconds = self.times.totals
        self.randomness = StepRandomness(self.seed)
        self.length = ExpectedLength(self)
        self.results = StepResults(self, log_every=log_every, go_back=self.go_back)
        self._by_hand: HandLoop | None = None
        self.bounds = Bounds(epochs, steps, samples, seconds, max_steps)
        self.bounds.apply(self.state, self.source)
        self.bus = Bus(bind or bind_by_name(roles_of(self)), self.state.epoch_length)
        self._defers = self.device.type != "cpu" if deferred is None else deferred
        self._subscribe(handlers)

    def _subscribe(self, handlers: Iterable[Handler | Listens]) -> None:
        """Add the handlers of the engine, of the user and of the bounds to the bus."""
        if self._defers:
            for event in (Event.CHECKPOINT_BEGIN, Event.RUN_END, Event.EXCEPTION):
                fetch = Handler(
                    event=event, fn=self.results.fetch, priority=-100, name="Engine.fetch"
                )
                self.bus.add(fetch)
        self.bus.extend(handlers)
        self.bus.extend(self.bounds.handlers(self.state, self.finish))
        backward = getattr(self.process, "backward", None)
        if isinstance(backward, OptimizerStepBase):
            self.bus.extend(backward.handlers(self.state))

    def run(self) -> State:
        """Train to the bound, or until something calls `stop`; return the state.

        Whatever is raised inside is raised here, after the handlers of `exception` were called.
        Without a `stop` of the caller, SIGINT and SIGTERM end the run after its step and its
        handlers of `run_end`, and are raised then, as KeyboardInterrupt and Terminated (a
        SystemExit). A second one is raised at once.
        """
        with self._signals() as signals, self._begin_and_end():
            for window in self.windows():
                self.train_step(window)
        if signals.heard:
            raise exception_for(signals.heard[0])
        return self.state

    @contextmanager
    def _begin_and_end(self, *, can_repeat: bool = True) -> Iterator[None]:
        """Begin a run; then fire `run_end`, or `exception` with the error that ended it.

        `can_repeat`: a step that fails can be run once more.
        """
        state = self.state
        try:
            self.can_repeat = can_repeat
            self._begin()
            yield
            state.stop.settle()
            self._tell_left_out()
            self.fire(Event.RUN_END)
        except BaseException as error:
            clear = find_death(error) or self.ranks.as_peer_error(error)
            state.error = clear or error
            self.fire(Event.EXCEPTION)
            if clear is not None:
                raise clear from error
            raise
        finally:
            if self._owns_source and isinstance(self.source, Loader):
                self.source.close()
            self.results.close()

    def _tell_left_out(self) -> None:
        self.results.fetch()  # what waits on the device may have been left out
        if line := self.state.describe_left_out():
            why = "loss or gradients were not finite"
            if self.process.backward.num_empty:
                why += ", or no label counted"
            message = f"{line}: {why}."
            self.recorder.tell(Warned(message=message, step=self.state.step))

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
            raise exception_for(signals.heard[0])

    def _run_by_hand(self) -> Generator[Any, None, bool]:
        """Yield the batches, without answering signals; return whether the loop was left."""
        with self._begin_and_end(can_repeat=False):
            hand = self._by_hand = HandLoop(self)
            try:
                yield from hand.batches()
            except GeneratorExit:
                pass  # `hand` has ended the step in which the loop was left
            finally:
                hand.updates.stop()
        return hand.is_left

    def resume(self, saver: Saver, name: str | int = "") -> int:
        """Restore the newest readable checkpoint of `saver`, or the one named; return its step.

        0 where `saver` has none: the run begins anew. Call it before `run`, and after everybody
        listens whose state a checkpoint keeps. The curves of the recorder go back to that step, and
        later checkpoints are set aside. CheckpointError for a name that is not there, or when none
        of those there can be read.
        """
        return resume_engine(self, saver, name)

    def keep(self, thing: Kept) -> Kept:
        """Keep the state of an object in every checkpoint, and give it back in `resume`; return it.

        It has `state_dict` and `load_state_dict`; a dict is its own state. Handlers, process and
        data are kept without this. InputError for anything else.
        """
        self.kept.append(as_stateful(thing))
        return thing

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

    def end_epoch(self) -> None:
        """End the epoch after the current step; the next one begins at its own beginning.

        Handlers of `epoch_end` still run. The steps left out do not count: a run of so many epochs
        is that much shorter, one of so many steps is as long as before. With several ranks all of
        them end the epoch after the same step. Between two epochs this does nothing.
        """
        if self.is_in_epoch:
            self.state.ends_epoch = True

    def finish(self) -> None:
        """Make the current step the last one, as if it were the bound."""
        self.state.max_steps = self.state.step

    def on(
        self, event: str, *, every: int = 0, priority: int = 0
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Call a function at an event: `@engine.on("step_end", every=100)`.

        The function may ask for `state`, `model` and the other roles by name.
        """

        return self.bus.on(event, when=Every(every) if every else ALWAYS, priority=priority)

    def fire(self, event: Event) -> None:
        """Fire `event`, counted by how often it was fired."""
        self.bus.fire(event)

    def add_seconds(self, name: str, seconds: float) -> None:
        """Add to the time that was spent on `name`."""
        self.times.add(name, seconds)

    @property
    def is_cut_short(self) -> bool:
        """True where only this launch ends the run: `max_steps`, or a stop that interrupts it."""
        return self.state.stop.interrupts or self.bounds.cut(self.state)

    @property
    def lasting_flag(self) -> Tensor | None:
        """Device flag, set by the first non-finite step; None if every loss is read at once."""
        return self.results.lasting_flag

    @property
    def needs_output(self) -> bool:
        """True where somebody may read the output of a training step.

        On a CPU anybody may, once the run is over. An accelerator is short of memory, and there
        only handlers and steps of others may.
        """
        own = getattr(self.process, "training_step", None)
        is_own = getattr(own, "__module__", "").startswith("assay.")
        return self.device.type == "cpu" or not is_own or self.bus.has_others()

    def ensure_ready(self) -> None:
        """Raise InputError for what cannot train, or cannot be resumed in the order of now."""
        check_trainable(self.process, self.state, self.device)
        if self.state.epoch_samples and isinstance(self.source, Loader):
            self.source.check_order(self.state.epoch)

    def _begin(self) -> None:
        """Check and make everything that the steps need, then fire `run_begin`."""
        self.ensure_ready()
        state, backward = self.state, self.process.backward
        self.is_in_epoch = self.is_in_step = self.is_loading = False
        self.is_between_steps = True
        state.stop.is_settled = False  # an engine may be run again, after its bound was moved
        self.bounds.recount(state, self.source)
        self.logged = LoggedMeans(lambda: state.batch)
        self.modules = find_modules(self.process)
        self.buffers = Buffers(*(self.modules.values() if backward.non_finite != "ignore" else ()))
        self.results.begin(defer_to=self.device if self._defers else None)
        if isinstance(self.process, Process):
            self.process.attach(state, self.device, self.logged)
            self.process.keeps_output = self.needs_output
        self.length.begin_run()
        self.process.train()
        self.bus.start_at(state.event_counts())
        self.fire(Event.RUN_BEGIN)

    def _signals(self) -> AbstractContextManager[Signals]:
        """Return the context in which signals end this run in order; none if a `stop` was given."""
        if not self._owns_signals:
            return nullcontext(NO_SIGNALS)
        return stopping(self.state.stop, say=_LOGGER.warning, polite=True)


def check_trainable(process: Any, state: State, device: torch.device) -> None:
    """Raise InputError for a process, data or device that cannot train."""
    if getattr(process, "backward", None) is None:
        raise InputError(
            f"{type(process).__name__} cannot train: it has no `backward`.",
            fix="Set process.backward = OptimizerStep(optimizer), or give Supervised an optimizer.",
        )
    if state.epoch_length == 0:
        raise no_batch()
    model = getattr(process, "model", None)
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    devices = {parameter.device for parameter in weights}
    if devices and device.type not in {each.type for each in devices}:
        there = ", ".join(sorted(map(str, devices)))
        raise InputError(
            f"The model is on {there}, the engine on {device}.",
            fix=f'Give Engine(..., device="{there}"), or move the model before its optimizer is'
            " made.",
        )
