"""A profile of a few steps, written into the record."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from assay.core.errors import InputError
from assay.core.events import At, Event, Handler
from assay.engine.loop.engine import Engine
from assay.engine.metrics.outputs import keep_artifact


class Profile:
    """Callback that profiles `steps` steps, after `start` steps.

    Makes two artifacts: `profile/steps-11-15.json.gz`, to be opened in ui.perfetto.dev or
    chrome://tracing, and `profile/steps-11-15.txt`, the operators that took longest. These steps
    are slower than the others.
    """

    def __init__(
        self, start: int = 10, steps: int = 5, *, shapes: bool = False, stack: bool = False
    ) -> None:
        if start < 0 or steps < 1:
            raise InputError(
                f"Profile: start is {start} and steps {steps}; they are at least 0 and 1."
            )
        self.start = start
        self.steps = steps
        self.shapes = shapes
        self.stack = stack
        self._profile: profile | None = None

    def handlers(self) -> list[Handler]:
        return [
            Handler(
                event=Event.STEP_BEGIN,
                fn=self.begin,
                when=At(frozenset({self.start})),
                priority=1000,
            ),
            Handler(
                event=Event.STEP_END,
                fn=self.end,
                when=At(frozenset({self.start + self.steps})),
                priority=-1000,
            ),
            Handler(event=Event.RUN_END, fn=self.end, priority=-1000),
            Handler(event=Event.EXCEPTION, fn=self.leave, priority=-1000),
        ]

    def begin(self, engine: Engine) -> None:
        activities = [
            ProfilerActivity.CPU,
            *([ProfilerActivity.CUDA] if engine.device.type == "cuda" else []),
        ]
        self._profile = profile(
            activities=activities, record_shapes=self.shapes, with_stack=self.stack
        )
        self._profile.start()

    def end(self, engine: Engine) -> None:
        """Keep what was profiled, if it still goes on."""
        done = self._profile
        if done is None:
            return
        if engine.device.type == "cuda":
            torch.cuda.synchronize(engine.device)  # what was started belongs to these steps
        self.leave()
        name = f"profile/steps-{self.start + 1}-{engine.state.step}"
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            done.export_chrome_trace(str(trace))
            packed = gzip.compress(trace.read_bytes(), mtime=0)
        step = engine.state.step
        keep_artifact(engine.recorder, packed, f"{name}.json.gz", step=step)
        by = "self_cuda_time_total" if engine.device.type == "cuda" else "self_cpu_time_total"
        table = done.key_averages().table(sort_by=by, row_limit=50)
        keep_artifact(engine.recorder, table.encode(), f"{name}.txt", step=step)

    def leave(self) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
