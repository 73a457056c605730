"""How fast a run is and where its time goes, once an epoch."""

from __future__ import annotations

from time import perf_counter

from assay.core.events import Event, Handler
from assay.engine.engine import Engine

_OUTSIDE = ("evaluation", "checkpoint")


class Throughput:
    """Records `speed/steps_per_s`, `speed/samples_per_s` and the seconds of an epoch by what they were spent on.

    `speed/eta_s` is what is left until the last step, at this speed, where that step is known.

    `time/data_s`: waiting for batches; `time/compute_s`: forward, backward and update; `time/evaluation_s`;
    `time/checkpoint_s`; `time/logging_s`: the recorder and what else listens to steps; `time/other_s`: the rest.
    They sum up to the time since the epoch before. What is left of a run that ends within an epoch counts as one.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._counts = (0, 0)
        self._before: dict[str, float] = {}
        self._inside = 0.0  # evaluating and saving while steps are told of: it is in the time of both

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.begin, priority=100),
            Handler(event=Event.EPOCH_END, fn=self.look, priority=-1000),
            Handler(event=Event.EPOCH_END, fn=self.record, priority=90),
            Handler(event=Event.RUN_END, fn=self.look, priority=-1000),
            Handler(event=Event.RUN_END, fn=self.record, priority=90),
        ]

    def begin(self, engine: Engine) -> None:
        self._since = perf_counter()
        self._counts = (engine.state.step, engine.state.samples)
        self._before = dict(engine.seconds)

    def look(self, engine: Engine) -> None:
        """Before anybody else hears that the epoch is over: what was evaluated and saved up to here was amid steps."""
        self._inside = sum(self._spent(engine, name) for name in _OUTSIDE)

    def record(self, engine: Engine) -> None:
        state, now = engine.state, perf_counter()
        steps, samples = state.step - self._counts[0], state.samples - self._counts[1]
        if not steps:
            return
        wall = max(now - self._since, 1e-9)
        spent = {name: self._spent(engine, name) for name in ("data", "compute", *_OUTSIDE)}
        spent["logging"] = max(0.0, self._spent(engine, "telling") - self._inside)
        spent["other"] = max(0.0, wall - sum(spent.values()))
        values = {"speed/steps_per_s": steps / wall, **{f"time/{name}_s": value for name, value in spent.items()}}
        if state.max_steps is not None:
            values["speed/eta_s"] = max(0, state.max_steps - state.step) * wall / steps
        if samples:
            values["speed/samples_per_s"] = samples / wall
        engine.recorder.log(values, state.step)
        self._since, self._counts, self._before = now, (state.step, state.samples), dict(engine.seconds)

    def _spent(self, engine: Engine, name: str) -> float:
        return engine.seconds.get(name, 0.0) - self._before.get(name, 0.0)
