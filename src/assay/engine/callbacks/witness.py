"""Callback of a resume test: it stops a run at a step, and shows plain attributes of user code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.core.events import Event, Handler
from assay.engine.checkpoint.codec import digest_state
from assay.engine.loop.engine import Engine
from assay.engine.loop.engine_state import unkept_attributes


class ResumeWitness:
    """Callback whose state has a digest of each plain attribute that no checkpoint keeps.

    Nothing is restored from it: two runs are compared by it. `stop_at`: interrupt the run there.
    """

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at = stop_at
        self._engine: Engine | None = None

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.begin),
            Handler(event=Event.STEP_END, fn=self.stop),
        ]

    def begin(self, engine: Engine) -> None:
        self._engine = engine

    def stop(self, engine: Engine) -> None:
        if engine.state.step == self.stop_at:
            engine.stop(f"left at step {self.stop_at}", interrupts=True)

    def state_dict(self) -> dict[str, Any]:
        if self._engine is None:
            return {}
        found = unkept_attributes(self._engine)
        return {path: digest_state(value) for path, value in found.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
