"""Saving: what a run needs to go on exactly, at a period, at the best evaluation and at the end."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError, InputError, did_you_mean
from assay.core.events import Event, Handler
from assay.core.facts import Saved, Warned
from assay.core.manifest import Kind, Manifest
from assay.engine.backward import NonFiniteError, Stateful
from assay.engine.checkpoint.codec import decode, encode
from assay.engine.checkpoint.saver import Saver, Where
from assay.engine.engine import Engine
from assay.engine.when import every as each

Mode = Literal["min", "max"]
PARTS = ("model", "optimizer", "scaler", "backward", "state")
"""What an engine itself consists of; of several optimizers each has a part of its own, as `optimizer.critic`."""


class Save:
    """Writes checkpoints. A save that fails is reported and never ends the training.

    `best`: the metric and mode that decide which evaluation was best; `evaluate_every` is when it can change.
    `on_best` hears (metric, mode, value, step, checkpoint).
    """

    def __init__(
        self,
        saver: Saver,
        *,
        every: str = "1 epoch",
        best: tuple[str, Mode] | None = None,
        evaluate_every: str = "never",
        on_best: Callable[[str, Mode, float, int, str], None] | None = None,
    ) -> None:
        self.saver = saver
        self.every = every
        self.best = best
        self.evaluate_every = evaluate_every
        self.on_best = on_best
        self.last_step: int | None = None
        self._improved = False

    def handlers(self) -> list[Handler]:
        out = [
            each(self.every, self.save, priority=10, name="Save"),
            Handler(event=Event.RUN_BEGIN, fn=self.rehearse, name="Save.rehearse"),
        ]
        if self.every != "never":
            out.append(Handler(event=Event.RUN_END, fn=self.save, priority=10, name="Save"))
            out.append(Handler(event=Event.EXCEPTION, fn=self.rescue, priority=10, name="Save.rescue"))
        if self.best is not None:
            out.append(Handler(event=Event.EVAL_END, fn=self.judge, priority=10, name="Save.judge"))
            out.append(each(self.evaluate_every, self.save_best, priority=11, name="Save.best"))
            out.append(Handler(event=Event.RUN_END, fn=self.save_best, priority=11, name="Save.best"))
        return [handler for handler in out if handler is not None]

    def rehearse(self, engine: Engine) -> None:
        """Encode and decode the whole state in memory, so that what cannot be kept is known before the first step."""
        for state in capture(engine).values():
            encoded = encode(state)
            decode(encoded.tree, encoded.tensors)

    def save(self, engine: Engine) -> None:
        """A checkpoint of this step."""
        self._write(engine, "checkpoint")

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
            fix = did_you_mean(metric, metrics) or f"there are: {', '.join(metrics)}"
            raise InputError(f"[checkpoint] best names {metric!r}, which the evaluation does not give.", fix=fix)
        if not self._improved or best is None:
            return
        self._improved = False
        manifest = self._write(engine, "best")
        if manifest is None:
            return
        try:
            self.saver.set_best(manifest.name, metric=best["metric"], mode=best["mode"], value=best["value"])
        except OSError as error:
            engine.recorder.tell(
                Warned(message=f"{manifest.name} was not marked as the best: {error}.", step=best["step"])
            )
            return
        if self.on_best is not None:
            self.on_best(best["metric"], best["mode"], best["value"], best["step"], manifest.name)

    def keypoint(self, engine: Engine) -> None:
        """A checkpoint that rotation never deletes."""
        self._write(engine, "keypoint")

    def rescue(self, engine: Engine) -> None:
        """After a step that was not finite, a keypoint of the state before it: there the run can go on."""
        if not isinstance(engine.state.error, NonFiniteError):
            return
        spoilt = _spoilt(engine.process.model)
        if spoilt:
            message = f"No checkpoint of step {engine.state.step} was written: {spoilt[0]} is not finite."
            engine.recorder.tell(Warned(message=message, step=engine.state.step))
        else:
            self.keypoint(engine)

    def _write(self, engine: Engine, kind: Kind) -> Manifest | None:
        state, begun = engine.state, perf_counter()
        known = self.last_step == state.step
        try:
            if not known:
                engine.fire(Event.CHECKPOINT_BEGIN)
            where = Where(step=state.step, epoch=state.epoch, samples=state.samples)
            manifest = self.saver.save(capture(engine), where, kind=kind, info=dict(state.metrics))
            if not known:
                engine.fire(Event.CHECKPOINT_END)
        except CheckpointError as error:
            engine.recorder.tell(Warned(message=str(error), step=state.step))
            return None
        self.last_step = state.step
        seconds = perf_counter() - begun
        if not known:
            size = sum(file.size_bytes for file in manifest.files)
            best = state.best is not None and state.best["step"] == state.step
            engine.recorder.tell(
                Saved(name=manifest.name, kind=kind, step=state.step, size_bytes=size, seconds=seconds, best=best)
            )
        engine.add_seconds("checkpoint", seconds)
        return manifest


def _spoilt(model: nn.Module) -> list[str]:
    """Names of weights and running statistics from which training cannot go on; a buffer may well be infinite."""
    weights = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    return weights + [name for name, buffer in model.named_buffers() if buffer.isnan().any()]


def capture(engine: Engine) -> dict[str, Any]:
    """Everything a checkpoint keeps, by part; each listener with a state is a part of its own."""
    model, backward = engine.process.model, engine.process.backward
    parts = {"model": model.state_dict(), "state": engine.state.state_dict()}
    parts |= {name: part.state_dict() for name, part in backward.parts(model).items()}
    return parts | {name: listener.state_dict() for name, listener in stateful(engine).items()}


def restore(engine: Engine, parts: Mapping[str, Any]) -> None:
    """Put a loaded checkpoint into an engine that has not run yet, and into those that listen to it by now."""
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
    engine.state.load_state_dict(parts["state"])
    restore_listeners(engine, parts)


def is_of_engine(part: str) -> bool:
    """Whether a part of a checkpoint belongs to the engine itself, and not to somebody who listens."""
    return part.partition(".")[0] in PARTS


def _is_of_optimizer(part: str) -> bool:
    return part.partition(".")[0] == "optimizer"


def restore_listeners(engine: Engine, parts: Mapping[str, Any]) -> None:
    """Give those that listen to an engine their states of a checkpoint. A state too many or too few is a warning."""
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
            found[next(name for name in names if name not in found and name not in PARTS)] = owner
    return found


def load_model_state(model: Any, state: Mapping[str, Any]) -> None:
    """Load weights strictly; CheckpointError names what does not fit."""
    try:
        model.load_state_dict(state)
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(f"The checkpoint does not fit the model: {error}") from error
