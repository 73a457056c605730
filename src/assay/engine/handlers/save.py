"""Saving: what a run needs to go on exactly, at a period, at the best evaluation and at the end."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError, InputError, did_you_mean
from assay.core.events import Event, Handler
from assay.core.facts import Saved, Warned
from assay.core.manifest import Kind, Manifest, folder_of_step
from assay.core.ports import NullRecorder, Recorder
from assay.engine.backward_part import NonFiniteError, Stateful
from assay.engine.checkpoint.background import Background
from assay.engine.checkpoint.codec import decode, digest, encode
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.tensor_file import Staging
from assay.engine.checkpoint.weights import load_model_state as load_model_state
from assay.engine.criterion import criterion_state, load_criterion_state
from assay.engine.data.patience import WorkerError
from assay.engine.divided import as_held, own
from assay.engine.engine import Engine
from assay.engine.sparse import entries
from assay.engine.when import every as each

Mode = Literal["min", "max"]
PARTS = ("model", "optimizer", "scaler", "backward", "criterion", "state")
"""What an engine itself consists of; of several optimizers each has a part of its own, as `optimizer.critic`."""

_LAST = 1000
_LOGGER = logging.getLogger("assay.checkpoint")


class Save:
    """Writes checkpoints. A save that fails is reported and never ends the training.

    `best`: the metric and mode that decide which evaluation was best; `evaluate_every` is when it can change.
    `on_best` hears (metric, mode, value, step, checkpoint). In the `background` the training waits only until the
    state is copied to host memory, and for the save before if that is still being written; the run ends when the last
    one is on disk.
    """

    def __init__(
        self,
        saver: Saver,
        *,
        every: str = "1 epoch",
        best: tuple[str, Mode] | None = None,
        evaluate_every: str = "never",
        on_best: Callable[[str, Mode, float, int, str], None] | None = None,
        background: bool = True,
    ) -> None:
        self.saver = saver
        self.every = every
        self.best = best
        self.evaluate_every = evaluate_every
        self.on_best = on_best
        self.last_step: int | None = None
        self._improved = False
        self._failed_step: int | None = None
        self._background = Background("assay-save") if background else None
        self._staging = Staging() if background else None

    def handlers(self) -> list[Handler]:
        out = [
            each(self.every, self.save, priority=10, name="Save"),
            Handler(event=Event.RUN_BEGIN, fn=self.rehearse, name="Save.rehearse"),
        ]
        if self.every != "never":
            out.append(Handler(event=Event.RUN_END, fn=self.save_end, priority=10, name="Save"))
            out.append(Handler(event=Event.EXCEPTION, fn=self.rescue, priority=10, name="Save.rescue"))
        if self.best is not None:
            out.append(Handler(event=Event.EVAL_END, fn=self.judge, priority=10, name="Save.judge"))
            out.append(each(self.evaluate_every, self.save_best, priority=11, name="Save.best"))
            out.append(Handler(event=Event.RUN_END, fn=self.save_best, priority=11, name="Save.best"))
        for event in (Event.RUN_END, Event.EXCEPTION):
            out.append(Handler(event=event, fn=self.wait, priority=_LAST, name="Save.wait"))
        return [handler for handler in out if handler is not None]

    def rehearse(self, engine: Engine) -> None:
        """Encode and decode the whole state in memory, so that what cannot be kept is known before the first step."""
        for part, state in capture(engine).items():
            encoded = encode(state, path=part)
            decode(encoded.tree, encoded.tensors)

    def save(self, engine: Engine) -> None:
        """A checkpoint of this step; if it is the last one, the final one."""
        self._write(engine, "checkpoint", final=engine.state.step == engine.state.max_steps)

    def save_end(self, engine: Engine) -> None:
        """A checkpoint of the end, which is the final one unless the run was only interrupted."""
        self._write(engine, "checkpoint", final=not engine.state.hurry)

    def judge(self, engine: Engine) -> None:
        """Remember whether the newest evaluation is the best so far; nan never is."""
        assert self.best is not None
        metric, mode = self.best
        state = engine.state
        value = state.metrics.get(metric, math.nan)  # nan: its split comes later, or the name is wrong
        known = math.inf if mode == "min" else -math.inf
        if state.best is not None and (state.best["metric"], state.best["mode"]) == self.best:
            known = state.best["value"]
        if (value < known) if mode == "min" else (value > known):
            state.best = {"metric": metric, "mode": mode, "value": value, "step": state.step}
            self._improved = True

    def save_best(self, engine: Engine) -> None:
        """Keep the checkpoint of this step as the best one, if it just became that.

        InputError when all was evaluated, and the metric that decides is not there.
        """
        assert self.best is not None
        metric, metrics, best = self.best[0], engine.state.metrics, engine.state.best
        if metrics and metric not in metrics:
            fix = " ".join(filter(None, [did_you_mean(metric, metrics), f"there are: {', '.join(metrics)}"]))
            raise InputError(f"[checkpoint] best names {metric!r}, which the evaluation does not give.", fix=fix)
        if not self._improved or best is None:
            return
        self._improved = False
        self._write(engine, "best", best=dict(best))

    def keypoint(self, engine: Engine) -> None:
        """A checkpoint that rotation never deletes."""
        self._write(engine, "keypoint")

    def rescue(self, engine: Engine) -> None:
        """Write the state of the last step, if the failure has left it whole.

        After a step that was not finite this is a keypoint. A failure to load, of training or of evaluation, leaves a
        checkpoint, unless the ranks have to write it together: the others wait elsewhere.
        """
        error = engine.state.error
        is_of_data = isinstance(error, WorkerError) or (engine.is_loading and isinstance(error, Exception))
        if is_of_data and self.saver.writers is None:
            if engine.state.step and engine.state.step != self.last_step:
                self._write(engine, "checkpoint")
            return
        if not isinstance(error, NonFiniteError):
            return
        spoilt = _spoilt(engine.process.model)
        if self.saver.writers is not None and engine.ranks is not None and not engine.ranks.all_agree(not spoilt):
            spoilt = spoilt or ["a weight that another process has"]
        if spoilt:
            message = f"No checkpoint of step {engine.state.step} was written: {spoilt[0]} is not finite."
            engine.recorder.tell(Warned(message=message, step=engine.state.step))
        else:
            self.keypoint(engine)

    def wait(self) -> None:
        """Return when everything is on disk."""
        if self._background is not None:
            self._background.wait()

    def _write(self, engine: Engine, kind: Kind, *, final: bool = False, best: Mapping[str, Any] | None = None) -> None:
        """Have the state of this step written, or what is written of it made what it is to be from now on."""
        state, recorder, begun = engine.state, engine.recorder, perf_counter()
        step, name, write = state.step, folder_of_step(state.step), None
        is_best = best is not None or (state.best is not None and state.best["step"] == step)
        if self.last_step != step:
            self.wait()  # what was copied last is being written from where the next copy goes
            engine.fire(Event.CHECKPOINT_BEGIN)
            where = Where(step=step, epoch=state.epoch, samples=state.samples)
            measured = {  # not those of other weights
                name: value
                for name, value in state.metrics.items()
                if state.evaluated.get(name.partition("/")[0]) == step
            }
            info = {**measured, "train/loss": state.loss}
            try:
                write = self.saver.prepared(
                    capture(engine), where, kind=kind, info=info, final=final, staging=self._staging
                )
            except CheckpointError as error:
                _tell_failure(recorder, str(error), step)
                return
            finally:
                engine.fire(Event.CHECKPOINT_END)
        self.last_step = step

        def job() -> None:
            if write is None and self._failed_step == step:
                return  # it was said already
            self._failed_step = step
            with _reported(recorder, step):
                if write is None:
                    if self.saver.is_first:
                        self.saver.promote(name, kind, final=final)
                else:
                    _tell_saved(recorder, write(), seconds=perf_counter() - begun, is_best=is_best)
                self._failed_step = None
                if best is not None and self.saver.is_first:
                    self._mark(name, best)

        if self._background is not None:
            self._background.submit(job)
        else:
            job()
        engine.add_seconds("checkpoint", perf_counter() - begun)

    def _mark(self, name: str, best: Mapping[str, Any]) -> None:
        try:
            self.saver.set_best(name, metric=best["metric"], mode=best["mode"], value=best["value"])
        except OSError as error:
            raise CheckpointError(f"{name} was not marked as the best: {error}.") from error
        if self.on_best is not None:
            self.on_best(best["metric"], best["mode"], best["value"], best["step"], name)


@contextmanager
def _reported(recorder: Recorder, step: int) -> Iterator[None]:
    """What goes wrong is told and ends nothing."""
    try:
        yield
    except CheckpointError as error:
        _tell_failure(recorder, str(error), step)
    except Exception as error:  # a thread has nobody above it, and the training is worth more than one checkpoint
        _tell_failure(recorder, f"The checkpoint of step {step} was not written: {error!r}.", step)


def _tell_saved(recorder: Recorder, manifest: Manifest, *, seconds: float, is_best: bool) -> None:
    size = sum(file.size_bytes for file in manifest.files)
    name, kind, step = manifest.name, manifest.kind, manifest.step
    recorder.tell(Saved(name=name, kind=kind, step=step, size_bytes=size, seconds=seconds, best=is_best))


def _tell_failure(recorder: Recorder, message: str, step: int) -> None:
    if isinstance(recorder, NullRecorder):  # which tells nobody
        _LOGGER.warning(message)
    recorder.tell(Warned(message=message, step=step))


def _spoilt(model: nn.Module) -> list[str]:
    """Names of weights and running statistics from which training cannot go on; a buffer may well be infinite."""
    weights = [name for name, weight in model.named_parameters() if not entries(own(weight)).isfinite().all()]
    return weights + [name for name, buffer in model.named_buffers() if entries(buffer).isnan().any()]


def capture(engine: Engine) -> dict[str, Any]:
    """Everything a checkpoint keeps, by part; each listener with a state is a part of its own."""
    parts = _own(engine)
    return parts if engine.pipeline is None else engine.pipeline.whole(parts)


def _own(engine: Engine) -> dict[str, Any]:
    """The same of what this process has of the model."""
    model, backward = engine.process.model, engine.process.backward
    parts = {"model": model.state_dict(), "state": engine.state.state_dict()}
    parts |= {name: part.state_dict() for name, part in backward.parts(model).items()}
    parts |= criterion_state(engine.process)
    return parts | {name: listener.state_dict() for name, listener in stateful(engine).items()}


def restore(engine: Engine, parts: Mapping[str, Any]) -> None:
    """Put a loaded checkpoint into an engine that has not run yet, and into those that listen to it by now."""
    if engine.pipeline is not None:
        parts = engine.pipeline.own(parts)
    load_model_state(engine.process.model, parts["model"])
    backward = engine.process.backward
    holders = backward.parts(engine.process.model)
    odd = {name for name in parts if _is_of_optimizer(name)} ^ {name for name in holders if _is_of_optimizer(name)}
    if odd:
        there = "is in the checkpoint, and not in this run" if odd <= parts.keys() else "is not in the checkpoint"
        raise CheckpointError(f"{', '.join(sorted(odd))} {there}: it was made with other optimizers.")
    for name, holder in holders.items():
        if name in parts:
            holder.load_state_dict(parts[name])
    load_criterion_state(engine.process, parts)
    engine.state.load_state_dict(parts["state"])
    restore_listeners(engine, parts)


def unlike(engine: Engine, parts: Mapping[str, Any]) -> list[str]:
    """The parts of a loaded checkpoint that, asked for their state now, do not give what it holds of them."""
    now = _own(engine)
    if engine.pipeline is not None:
        parts = engine.pipeline.own(parts)
    return [
        name for name, state in parts.items() if name in now and digest(now[name]) != digest(as_held(now[name], state))
    ]


def is_of_engine(part: str) -> bool:
    """Whether a part of a checkpoint belongs to the engine itself, and not to somebody who listens."""
    return part.partition(".")[0] in PARTS


def _is_of_optimizer(part: str) -> bool:
    return part.partition(".")[0] == "optimizer"


def restore_listeners(engine: Engine, parts: Mapping[str, Any]) -> None:
    """Give those that listen to an engine their states of a checkpoint. A state too many or too few is a warning."""
    if engine.pipeline is not None:
        parts = engine.pipeline.own(parts)
    listeners = stateful(engine)
    for name, listener in listeners.items():
        if name in parts:
            listener.load_state_dict(parts[name])
        else:
            message = f"The checkpoint holds no state of {name}, which begins anew."
            engine.recorder.tell(Warned(message=message, step=engine.state.step))
    others = {name for name in parts if is_of_engine(name)}
    for name in parts.keys() - listeners.keys() - others:
        message = f"The checkpoint holds a state of {name}, which listens no more: it is lost."
        engine.recorder.tell(Warned(message=message, step=engine.state.step))


def stateful(engine: Engine) -> dict[str, Stateful]:
    """The data, if they have a state, and the listeners that have one, by the name of their part.

    That of a listener is the name of its class, numbered from the second on.
    """
    found: dict[str, Stateful] = {}
    data: Any = engine.source
    if callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None)):
        found["data"] = data
    for handler in engine.bus.order():
        owner: Any = getattr(handler.fn, "__self__", None)
        if isinstance(owner, nn.Module | Optimizer) or any(owner is each for each in found.values()):
            continue  # those of the first kinds are parts already
        if callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None)):
            kind = re.sub(r"[^A-Za-z0-9_]", "_", type(owner).__name__)
            names = [kind, *(f"{kind}.{number}" for number in range(2, len(found) + 3))]
            found[next(name for name in names if name not in found and not is_of_engine(name))] = owner
    return found
