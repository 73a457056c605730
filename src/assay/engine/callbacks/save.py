"""Saving: what a run needs to go on exactly, at a period, at the best evaluation and at the end."""

from __future__ import annotations

import errno
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Literal

from torch import nn

from assay.core.errors import CheckpointError, InputError, PeerError, did_you_mean
from assay.core.events import Event, Handler
from assay.core.facts import Saved, Warned
from assay.core.ports import NullRecorder, Recorder
from assay.engine.callbacks.evaluate import evaluated_splits
from assay.engine.checkpoint.codec import decode, encode
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.saver import Existing, Saver
from assay.engine.checkpoint.tensor_file import Staging
from assay.engine.loop.bus import Stage
from assay.engine.loop.bus import every as each
from assay.engine.loop.engine import Engine
from assay.engine.loop.engine_state import capture_state, own_parts
from assay.engine.loop.state import State
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.numerics.sparse import entries
from assay.formats.manifest import Kind, Manifest, checkpoint_in, folder_of_step, pointed_name

Mode = Literal["min", "max"]
_LAST = 1000
Moment = tuple[int, int, dict[str, int]]
_KINDS: tuple[Kind, ...] = ("keypoint", "model", "checkpoint", "best")
"""Kinds of checkpoints, that first which rotation spares longest."""
_LOGGER = logging.getLogger("assay.checkpoint")


class Save:
    """Callback that writes checkpoints. A failed save is reported and does not end the training.

    `failure` is why the newest one was not written, None if it was. The same failure again is told
    once more only for the final one.

    A checkpoint is written after all handlers of the event in which it is due. After a handler
    that failed none is: the run resumes from the one before, and does again what that one missed.
    A run that is cut short (`Engine.is_cut_short`) is saved before the handlers of `run_end`: what
    they do, the last evaluation for one, changes nothing of a run that is resumed.

    `best`: the metric and mode that decide which evaluation was best. It has to be made between two
    steps.
    `on_best` hears (metric, mode, value, step, checkpoint). In the `background` the training waits
    only until the state is copied to host memory, and for the save before if that is still being
    written; the run ends when the last one is on disk.
    """

    def __init__(
        self,
        saver: Saver,
        *,
        every: str = "1 epoch",
        best: tuple[str, Mode] | None = None,
        on_best: Callable[[str, Mode, float, int, str], None] | None = None,
        background: bool = True,
    ) -> None:
        self.saver = saver
        self.every = every
        self.best = best
        self.on_best = on_best
        self.last_step: int | None = None
        self.failure: CheckpointError | None = None
        self._marked_step: int | None = None
        self._moment: Moment | None = None
        """Step, epoch and evaluations of the newest: of one step it may be of before its end."""
        self._kind: Kind = "best"
        self._failed_step: int | None = None
        self._final_told: int | None = None
        self._background = Background("assay-save") if background else None
        self._staging = Staging() if background else None

    def handlers(self) -> list[Handler]:
        out = [
            each(self.every, self.save, priority=10, name="Save"),
            Handler(event=Event.RUN_BEGIN, fn=self.rehearse, name="Save.rehearse"),
        ]
        if self.every != "never":
            out += [
                Handler(event=Event.RUN_END, fn=self.save_cut, priority=-_LAST, name="Save.cut"),
                Handler(event=Event.RUN_END, fn=self.save_end, priority=10, name="Save"),
                Handler(event=Event.EXCEPTION, fn=self.rescue, priority=10, name="Save.rescue"),
            ]
        if self.best is not None:
            out += [
                Handler(event=Event.RUN_BEGIN, fn=self.mark_best, priority=11, name="Save.best"),
                Handler(event=Event.EVAL_END, fn=self.judge, priority=10, name="Save.judge"),
            ]
        out += [
            Handler(event=Event.RUN_END, fn=self.wait_last, priority=_LAST, name="Save.wait"),
            Handler(event=Event.EXCEPTION, fn=self.wait, priority=_LAST, name="Save.wait"),
        ]
        return [handler for handler in out if handler is not None]

    def why_unsaved(self, step: int) -> str:
        """Return why the due final checkpoint of this step is missing; "" if it is not."""
        if self.every == "never" or pointed_name(self.saver.folder, "final") == folder_of_step(
            step
        ):
            return ""
        return cause_of(self.failure) if self.failure is not None else "nothing was written"

    def rehearse(self, engine: Engine) -> None:
        """Encode and decode the state in memory, to fail before the first step if it must."""
        for part, state in own_parts(engine).items():
            encoded = encode(state, path=part)
            decode(encoded.tree, encoded.tensors)
        step = engine.state.step
        there = checkpoint_in(self.saver.folder / folder_of_step(step))
        if step and there.manifest is not None and not there.why and self.last_step is None:
            self.last_step, self._moment = step, _moment(engine.state)
            self._kind = there.manifest.kind

    def save(self, engine: Engine) -> None:
        """A checkpoint of this step; if it is the last one, the final one."""
        final = engine.state.step == engine.state.max_steps
        engine.bus.stage.ask(lambda: self._write(engine, "checkpoint", final=final))

    def save_cut(self, engine: Engine) -> None:
        """A checkpoint of a run that is cut short, before other handlers see its end."""
        if engine.is_cut_short:
            self._write(engine, "checkpoint", final=not engine.state.stop.interrupts)

    def save_end(self, engine: Engine) -> None:
        """The final checkpoint; with what was evaluated since one of this step was written."""
        if not engine.is_cut_short:
            engine.bus.stage.ask(lambda: self._write(engine, "checkpoint", final=True))

    def judge(self, engine: Engine) -> None:
        """Remember whether the newest evaluation is the best so far; nan never is.

        One that is made as the run is cut short is so only where no other was made: a resumed run
        knows nothing of it.
        InputError within a step: no checkpoint keeps the weights that were measured.
        """
        assert self.best is not None
        metric, mode = self.best
        state = engine.state
        # It is nan if its split comes later, or if the name is wrong.
        value = state.metrics.get(metric, math.nan)
        known = math.inf if mode == "min" else -math.inf
        if state.best is not None and (state.best["metric"], state.best["mode"]) == self.best:
            known = state.best["value"]
        if (value < known) if mode == "min" else (value > known):
            if engine.is_in_step:
                raise InputError(
                    f"The best weights by {metric} would be those of an unfinished step: it was"
                    " evaluated within one.",
                    fix='Evaluate between steps, as by Evaluate(..., every="100 steps") or'
                    ' engine.on("step_end", every=100)(evaluate.run).',
                )
            best = {"metric": metric, "mode": mode, "value": value, "step": state.step}
            if state.stop.is_settled and engine.is_cut_short:
                if state.best is None and self.last_step == state.step and self.saver.is_first:
                    self._submit(partial(self._mark_reported, engine.recorder, best))
                return
            state.best = best
        # After the periodic one of this event: rotation spares that longer than a former best.
        stage = engine.bus.stage
        stage.ask(lambda: stage.ask(lambda: self.save_best(engine)))

    def mark_best(self, engine: Engine) -> None:
        """Mark the checkpoint that the run resumes from, if it is the best and nobody did."""
        marked, writers = self.saver.best(), self.saver.writers
        if writers is not None:
            marked = writers.gather(marked)[0]
        if engine.state.step and marked != folder_of_step(engine.state.step):
            self._save_best(engine)

    def save_best(self, engine: Engine) -> None:
        """Keep the checkpoint of this step as the best one, if it just became that.

        InputError when all was evaluated, and the metric that decides is not there.
        """
        assert self.best is not None
        metric = self.best[0]
        metrics = engine.state.metrics
        split = metric.partition("/")[0]
        if metric not in metrics and (
            split in engine.state.evaluated or split not in evaluated_splits(engine)
        ):
            known = f"there are: {', '.join(metrics)}; say which by checkpoint.best.metric=NAME"
            fix = " ".join(filter(None, [did_you_mean(metric, metrics), known]))
            raise InputError(
                f"[checkpoint] best names {metric!r}, which the evaluation does not give.", fix=fix
            )
        self._save_best(engine)

    def _save_best(self, engine: Engine) -> None:
        best, step = engine.state.best, engine.state.step
        if best is None or (best["metric"], best["mode"]) != self.best:
            return
        if best["step"] == step != self._marked_step:
            self._marked_step = step
            self._write(engine, "best", best=dict(best))

    def keypoint(self, engine: Engine) -> None:
        """A checkpoint that rotation never deletes."""
        engine.bus.stage.ask(lambda: self._write(engine, "keypoint"))

    def rescue(self, engine: Engine) -> None:
        """Write the state of the last step, if the failure has left it whole.

        After a step that was not finite this is a keypoint. A failure between two steps, as of
        loading, leaves a checkpoint, here or on another rank: a rank that finds a peer gone before
        its own update still has the weights of the last step. One of a handler leaves none.
        Where ranks write a checkpoint together there is none, as the failed one cannot take part.
        """
        error = engine.state.error
        if not isinstance(error, NonFiniteError):
            is_whole = not engine.is_in_step or (
                isinstance(error, PeerError) and engine.is_between_steps
            )
            is_whole = is_whole and not engine.bus.stage.has_failed
            if is_whole and isinstance(error, Exception) and self.saver.writers is None:
                if engine.state.step and engine.state.step != self.last_step:
                    self._write(engine, "checkpoint")
                if self.best is not None:
                    self._save_best(engine)
            return
        spoilt = _spoilt(engine.process.model)
        if self.saver.writers is not None and not engine.ranks.all_true(not spoilt):
            spoilt = spoilt or ["a weight that another process has"]
        if spoilt:
            message = (
                f"No checkpoint of step {engine.state.step} was written: {spoilt[0]} is not finite."
            )
            engine.recorder.tell(Warned(message=message, step=engine.state.step))
        else:
            self._write(engine, "keypoint")

    def wait_last(self, engine: Engine) -> None:
        """Return when everything is on disk, also what later handlers ask to save."""
        self.wait()
        engine.bus.stage.ask(lambda: self._wait_behind(engine.bus.stage))

    def _wait_behind(self, stage: Stage) -> None:
        """Wait once nothing else was asked of the stage."""
        if stage.waiting:
            stage.ask(lambda: self._wait_behind(stage))
        else:
            self.wait()

    def wait(self) -> None:
        """Return when everything is on disk."""
        if self._background is not None:
            self._background.wait()

    def _write(
        self,
        engine: Engine,
        kind: Kind,
        *,
        final: bool = False,
        best: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the state of this step, or give its existing checkpoint its new kind."""
        begun = perf_counter()
        recorder = engine.recorder
        step = engine.state.step
        is_best = best is not None or _is_best(engine.state)
        write: Callable[[], Manifest] | None = None
        moment = _moment(engine.state)
        if self._moment != moment:
            self.wait()  # what was copied last is being written from where the next copy goes
            with _checkpoint_events(engine):
                try:
                    existing: Existing = "keep"
                    if self.last_step == step:
                        existing, kind = "replace", min(kind, self._kind, key=_KINDS.index)
                    write = self._prepare(engine, kind, final=final, existing=existing)
                except CheckpointError as error:
                    self._tell_failure(recorder, error, step, final=final)
                    return
        if write is not None:
            self.last_step, self._moment, self._kind = step, moment, kind

        def job() -> None:
            if write is None and self._failed_step == step:
                return  # it was said already
            self._failed_step = step
            with self._report_failure(recorder, step, final=final):
                if write is not None:
                    manifest = write()
                    _tell_saved(recorder, manifest, seconds=perf_counter() - begun, is_best=is_best)
                elif self.saver.is_first:
                    self.saver.promote(folder_of_step(step), kind, final=final)
                self._failed_step = self.failure = None
                if best is not None and self.saver.is_first:
                    self._mark(folder_of_step(step), best)

        self._submit(job)
        engine.add_seconds("checkpoint", perf_counter() - begun)

    def _submit(self, job: Callable[[], None]) -> None:
        """Run a job in the background if there is one, else now."""
        if self._background is not None:
            self._background.submit(job)
        else:
            job()

    def _prepare(
        self, engine: Engine, kind: Kind, *, final: bool, existing: Existing
    ) -> Callable[[], Manifest]:
        """Encode the state of the engine now; return the function that writes it."""
        state = engine.state
        info = {
            name: value
            for name, value in state.metrics.items()
            if state.evaluated.get(name.partition("/")[0]) == state.step  # not of other weights
        }
        info["train/loss"] = state.loss
        return self.saver.prepare(
            capture_state(engine),
            Where(step=state.step, epoch=state.epoch, samples=state.samples),
            kind=kind,
            info=info,
            final=final,
            existing=existing,
            staging=self._staging,
        )

    @contextmanager
    def _report_failure(self, recorder: Recorder, step: int, *, final: bool) -> Iterator[None]:
        """Tell what goes wrong inside; it ends nothing."""
        try:
            yield
        except CheckpointError as error:
            self._tell_failure(recorder, error, step, final=final)
        # a thread has nobody above it, and the training is worth more than one checkpoint
        except Exception as error:
            failure = CheckpointError(f"The checkpoint of step {step} was not written: {error!r}.")
            self._tell_failure(recorder, failure, step, final=final)

    def _tell_failure(
        self, recorder: Recorder, error: CheckpointError, step: int, *, final: bool
    ) -> None:
        before, self.failure = self.failure, error
        is_known = before is not None and cause_of(before) == cause_of(error)
        if is_known and (not final or self._final_told == step):
            return
        if final:
            self._final_told = step
        if isinstance(recorder, NullRecorder):  # which tells nobody
            _LOGGER.warning(str(error))
        recorder.tell(Warned(message=str(error), step=step))

    def _mark_reported(self, recorder: Recorder, best: Mapping[str, Any]) -> None:
        with self._report_failure(recorder, best["step"], final=False):
            self._mark(folder_of_step(best["step"]), best)

    def _mark(self, name: str, best: Mapping[str, Any]) -> None:
        try:
            self.saver.set_best(name, metric=best["metric"], mode=best["mode"], value=best["value"])
        except OSError as error:
            raise CheckpointError(f"{name} was not marked as the best: {error}.") from error
        if self.on_best is not None:
            self.on_best(best["metric"], best["mode"], best["value"], best["step"], name)


@contextmanager
def _checkpoint_events(engine: Engine) -> Iterator[None]:
    engine.fire(Event.CHECKPOINT_BEGIN)
    try:
        yield
    finally:
        engine.fire(Event.CHECKPOINT_END)


def _moment(state: State) -> Moment:
    return state.step, state.epoch, dict(state.evaluated)


def _is_best(state: State) -> bool:
    """Return True if the best evaluation was at this step."""
    return state.best is not None and state.best["step"] == state.step


def _tell_saved(recorder: Recorder, manifest: Manifest, *, seconds: float, is_best: bool) -> None:
    size = sum(file.size_bytes for file in manifest.files)
    name, kind, step = manifest.name, manifest.kind, manifest.step
    recorder.tell(
        Saved(name=name, kind=kind, step=step, size_bytes=size, seconds=seconds, best=is_best)
    )


def cause_of(failure: CheckpointError) -> str:
    """Return in a few words why a checkpoint was not written."""
    error: BaseException | None = failure
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    if error is None:
        return failure.what.partition(" was not written: ")[2].rstrip(".") or failure.what
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk full"
    return (error.strerror or str(error)).lower()


def _spoilt(model: nn.Module) -> list[str]:
    """Return the weights and running statistics that training cannot resume from.

    These are weights with a value that is not finite and buffers with nan; a buffer may well be
    infinite.
    """
    weights = [
        name
        for name, weight in model.named_parameters()
        if not entries(local_tensor(weight)).isfinite().all()
    ]
    return weights + [
        name for name, buffer in model.named_buffers() if entries(buffer).isnan().any()
    ]


_SECONDS_TO_BEGIN = 5.0


class Background:
    """Does one job after another, in order, in a thread that lives as long as there are any.

    It is no daemon: Python waits for it before it ends. A job has to answer for its own errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Let a job be done after those that were submitted before."""
        with self._lock:
            self._jobs.append(job)
            if self._thread is None:
                self._begin()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None

    def wait(self) -> None:
        """Return when nothing is left to do."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _begin(self) -> None:
        has_begun = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(has_begun,), name=self.name)
        try:
            self._thread.start()
        except BaseException:
            # Most likely Ctrl-C while it waited for the thread, which begins all the same.
            if not has_begun.wait(_SECONDS_TO_BEGIN):
                self._thread = None
                self._jobs.pop()
            raise

    def _work(self, has_begun: threading.Event) -> None:
        has_begun.set()
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            try:
                job()
            finally:
                del job  # what it holds may be large
