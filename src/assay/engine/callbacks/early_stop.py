"""Early stop: the run ends when a metric has not improved for so many evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from assay.core.errors import InputError, did_you_mean
from assay.core.events import Event, Handler
from assay.core.facts import Warned
from assay.engine.loop.engine import Engine


class EarlyStop:
    """Callback that stops the run when `metric` no longer improves.

    The run stops after `patience` evaluations without an improvement by more than `min_delta`; nan
    is never better. Checkpoints hold what the callback has seen: a resumed run stops where an
    uninterrupted one would have stopped.
    """

    changes: ClassVar[str] = "how long the run is"

    def __init__(
        self, metric: str, mode: Literal["min", "max"], *, patience: int = 3, min_delta: float = 0.0
    ) -> None:
        if patience < 1:
            raise InputError(f"patience is {patience}; it counts evaluations, from 1 on.")
        if not min_delta >= 0:
            raise InputError(
                f"min_delta is {min_delta}; it is how much better counts as better, from 0 on."
            )
        if mode not in ("min", "max"):
            raise InputError(f"mode is {mode!r}; it says what is better: min or max.")
        self.metric = metric
        self.mode = mode
        self.patience = patience
        self.min_delta = min_delta
        self.best: float | None = None
        self.best_step = 0
        self.waited = 0
        self.judged_at = -1
        self._engine: Engine | None = None

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.begin),
            Handler(event=Event.EVAL_END, fn=self.judge),
            Handler(event=Event.RUN_END, fn=self.end),
        ]

    def begin(self, engine: Engine) -> None:
        self._engine = engine
        self._stop_if_over(engine)  # its last evaluation was saved, its end was not

    def judge(self) -> None:
        """Look at the split that was just evaluated, if the metric is of that split."""
        engine = self._engine
        # A test has no engine: it does not train.
        if engine is None or not self.metric.startswith(f"{engine.state.split}/"):
            return
        state = engine.state
        if state.step == self.judged_at:  # evaluated again, by a run that goes on from here
            return
        self.judged_at = state.step
        if self.metric not in state.metrics:
            fix = (
                did_you_mean(self.metric, state.metrics) or f"there are: {', '.join(state.metrics)}"
            )
            raise InputError(
                f"EarlyStop watches {self.metric!r}, which the evaluation does not give.", fix=fix
            )
        if self._is_better(state.metrics[self.metric]):
            self.best = state.metrics[self.metric]
            self.best_step = state.step
            self.waited = 0
            return
        self.waited += 1
        self._stop_if_over(engine)

    def end(self, engine: Engine) -> None:
        if self.judged_at < 0 and not engine.state.stop.interrupts:
            message = f"EarlyStop watches {self.metric!r}, and no split of that name was evaluated."
            engine.recorder.tell(Warned(message=message, step=engine.state.step))

    def state_dict(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "mode": self.mode,
            "best": self.best,
            "best_step": self.best_step,
            "waited": self.waited,
            "judged_at": self.judged_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, unless what was watched is something else by now."""
        if (state["metric"], state["mode"]) != (self.metric, self.mode):
            return
        self.best = state["best"]
        self.best_step = state["best_step"]
        self.waited = state["waited"]
        self.judged_at = state["judged_at"]

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        return (
            value < self.best - self.min_delta
            if self.mode == "min"
            else value > self.best + self.min_delta
        )

    def _stop_if_over(self, engine: Engine) -> None:
        if self.waited < self.patience:
            return
        known = (
            f"better than {self.best:.6g} (step {self.best_step})"
            if self.best is not None
            else "a number"
        )
        times = f"{self.waited} evaluations" if self.waited > 1 else "1 evaluation"
        reason = f"early stop: {self.metric} was not {known} in {times}"
        engine.stop(f"{reason} (patience {self.patience})")
