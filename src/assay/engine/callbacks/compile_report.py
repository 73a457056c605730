"""Report of what torch.compile made of a model: graphs, and where it had to leave one and why."""

from __future__ import annotations

from collections.abc import Callable

from assay.core.events import Event, Handler
from assay.engine.loop.engine import Engine
from assay.engine.numerics import private_torch


class CompileReport:
    """Callback that reports, at the run's end, compiled graphs and reasons of graph breaks."""

    def __init__(self, say: Callable[[str], object] = print) -> None:
        self.say = say
        self._before: tuple[int, dict[str, int]] = (0, {})

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.begin),
            Handler(event=Event.RUN_END, fn=self.tell, priority=95),
        ]

    def begin(self) -> None:
        self._before = private_torch.compiler_counts()

    def tell(self, engine: Engine) -> None:
        graphs, breaks = private_torch.compiler_counts()
        known = self._before[1]
        reasons = {
            why: count - known.get(why, 0)
            for why, count in breaks.items()
            if count > known.get(why, 0)
        }
        values = {
            "compile/graphs": graphs - self._before[0],
            "compile/graph_breaks": sum(reasons.values()),
        }
        self.say(
            f"compiled graphs: {values['compile/graphs']}, graph breaks:"
            f" {values['compile/graph_breaks']}"
        )
        for why, count in reasons.items():
            self.say(f"graph break ({count}): {why.splitlines()[0]}")
        engine.recorder.log(values, engine.state.step)
