"""Time and memory that a run takes, and a profile of its steps."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from assay.core.errors import InputError
from assay.core.events import NEVER, At, Event, Handler
from assay.engine.loop.bus import every as each
from assay.engine.loop.engine import Engine
from assay.engine.metrics.outputs import try_keep_artifact
from assay.engine.numerics import private_torch
from assay.engine.numerics.sparse import components
from assay.engine.numerics.structures import tensors_in

_OUTSIDE = ("evaluation", "checkpoint")
_STEP = ("data", "move", "forward", "backward", "optimizer")


if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

PEAKS = {
    "B200": 2250,
    "H200": 989,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A10": 125,
    "V100": 125,
    "T4": 65,
}
"""TFLOP/s in 16 bits without sparsity, by a word in the name of a GPU; from the data sheets of
NVIDIA."""


def peak_tflops(device: torch.device) -> float | None:
    """Return the peak of the device in TFLOP/s; None for one that is not in the list."""
    if device.type != "cuda":
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    return next((float(peak) for name, peak in PEAKS.items() if name in words), None)


class Throughput:
    """Callback that records throughput, and the seconds of each epoch by activity.

    `speed/steps_per_s` and `speed/samples_per_s`; `speed/eta_s`, the seconds left until the last
    step at this speed, where that step is known.

    `time/data_s`: waiting for batches; `time/move_s`: of batches to the device; `time/forward_s`,
    `time/backward_s`, `time/optimizer_s`; `time/evaluation_s`; `time/checkpoint_s`; `time/trace_s`:
    the fingerprints of [trace]; `time/logging_s`: the recorder and what else listens to steps;
    `time/other_s`: the rest. They sum up to the time since the epoch before. What is left of a run
    that ends within an epoch counts as one. It is the time of the host: a GPU works on behind it,
    and is waited for where a number is read.

    `flops`: the operations of the first step are counted, which takes it a little longer and
    changes nothing, and `speed/tflops` is recorded; None: on a GPU only. `speed/mfu` is their share
    of what the GPU could do, where that is known (Chowdhery et al., arXiv 2204.02311, of the
    operations that were done, what was computed twice included).
    """

    def __init__(self, *, flops: bool | None = None, peak_tflops: float | None = None) -> None:
        self.flops = flops
        self.peak_tflops = peak_tflops
        self.per_sample: float | None = None
        self._counter: FlopCounterMode | None = None
        self._samples = 0
        self._since = 0.0
        self._counts = (0, 0)
        self._before: dict[str, float] = {}
        # Seconds of evaluating and saving inside the span of steps: both count them.
        self._inside = 0.0
        self._outside = 0.0  # of the same: all before the first step of this epoch

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.begin, priority=100),
            Handler(event=Event.EPOCH_BEGIN, fn=self.begin_epoch, priority=1000),
            Handler(event=Event.EPOCH_END, fn=self.look, priority=-1000),
            Handler(event=Event.EPOCH_END, fn=self.record, priority=90),
            Handler(event=Event.RUN_END, fn=self.look, priority=-1000),
            Handler(event=Event.RUN_END, fn=self.record, priority=90),
        ]

    def begin(self, engine: Engine) -> None:
        if self.flops is None:
            self.flops = engine.device.type == "cuda"
        if self.flops:
            engine.bus.add(Handler(event=Event.STEP_BEGIN, fn=self.count, when=self, priority=1000))
            engine.bus.add(
                Handler(event=Event.STEP_END, fn=self.end_count, when=self, priority=-1000)
            )
            engine.bus.add(Handler(event=Event.EXCEPTION, fn=self.leave, priority=-1000))
        self._since = perf_counter()
        self._counts = (engine.state.step, engine.state.samples)
        self._before = dict(engine.seconds)

    def next(self, count: int) -> int:
        """When a step is to be counted: the first, once."""
        return NEVER if self.flops is False or self.per_sample is not None else count

    def count(self, engine: Engine) -> None:
        """The operations of this step, if anybody wants to know."""
        if self.flops and any(
            private_torch.compiled_call(module) is not None
            for module in engine.process.model.modules()
        ):
            self.flops = False  # what was compiled into one kernel cannot be counted
        if not self.flops or self.per_sample is not None:
            return
        from torch.utils.flop_counter import FlopCounterMode  # a third of a second to load

        from assay.engine.numerics.flops import count_attention_on_cpu

        count_attention_on_cpu()
        self._counter = FlopCounterMode(display=False)
        self._samples = engine.state.samples
        self._counter.__enter__()  # type: ignore[no-untyped-call]

    def end_count(self, engine: Engine) -> None:
        counter = self._counter
        self.leave()
        if counter is not None:
            self.per_sample = counter.get_total_flops() / max(
                engine.state.samples - self._samples, 1
            )

    def leave(self) -> None:
        if self._counter is not None:
            self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._counter = None

    def begin_epoch(self, engine: Engine) -> None:
        self._outside = _outside_of(engine)

    def look(self, engine: Engine) -> None:
        """Note the seconds of evaluation and saving that fell between this epoch's steps.

        Called before any other listener hears of the epoch's end.
        """
        self._inside = _outside_of(engine) - self._outside

    def record(self, engine: Engine) -> None:
        state = engine.state
        now = perf_counter()
        steps = state.step - self._counts[0]
        samples = state.samples - self._counts[1]
        if not steps:
            return
        wall = max(now - self._since, 1e-9)
        spent = {name: self._seconds_since(engine, name) for name in (*_STEP, *_OUTSIDE)}
        within = self._seconds_since(engine, "trace.within")
        after = self._seconds_since(engine, "trace.after")
        spent["trace"] = within + after
        spent["forward"] = max(0.0, spent["forward"] - within)
        spent["logging"] = max(0.0, self._seconds_since(engine, "telling") - self._inside - after)
        spent["other"] = max(0.0, wall - sum(spent.values()))
        values = {
            "speed/steps_per_s": steps / wall,
            **{f"time/{name}_s": value for name, value in spent.items()},
        }
        if state.max_steps is not None:
            values["speed/eta_s"] = max(0, state.max_steps - state.step) * wall / steps
        if samples:
            values["speed/samples_per_s"] = samples / wall
        if samples and self.per_sample is not None:
            inside = sum(spent[name] for name in _STEP) or wall
            values["speed/tflops"] = self.per_sample * samples / inside / 1e12
            peak = self.peak_tflops or peak_tflops(engine.device)
            if peak is not None:
                values["speed/mfu"] = values["speed/tflops"] / peak
        engine.recorder.log(values, state.step)
        self._since = now
        self._counts = (state.step, state.samples)
        self._before = dict(engine.seconds)

    def _seconds_since(self, engine: Engine, name: str) -> float:
        return engine.seconds.get(name, 0.0) - self._before.get(name, 0.0)


def _outside_of(engine: Engine) -> float:
    """Return the seconds of evaluating and saving so far."""
    return sum(engine.seconds.get(name, 0.0) for name in _OUTSIDE)


_MIB = 2**20


class Memory:
    """Callback that records memory in MiB.

    These are `memory/weights_mib`, `buffers`, `optimizer` (its state), `process` (where the system
    tells), and on a GPU `device` and `device_peak`.
    """

    def __init__(self, every: str = "1 epoch") -> None:
        self.every = every

    def handlers(self) -> list[Handler]:
        periodic = each(self.every, self.record, priority=80, name="Memory")
        return [periodic] if periodic is not None else []

    def record(self, engine: Engine) -> None:
        values = {f"memory/{name}_mib": size / _MIB for name, size in sizes_bytes(engine).items()}
        engine.recorder.log(values, engine.state.step)


def sizes_bytes(engine: Engine) -> dict[str, int]:
    """Return the bytes in use, by purpose."""
    model = engine.process.model
    optimizers = engine.process.backward.optimizers.values()
    gathered = [tensor for optimizer in optimizers for tensor in tensors_in(optimizer.state)]
    sizes = {
        "weights": _bytes_of(model.parameters()),
        "buffers": _bytes_of(model.buffers()),
        "optimizer": _bytes_of(gathered),
    }
    process = _process_bytes()
    if process is not None:
        sizes["process"] = process
    if engine.device.type == "cuda":
        sizes["device"] = torch.cuda.memory_allocated(engine.device)
        sizes["device_peak"] = torch.cuda.max_memory_allocated(engine.device)
    return sizes


def _process_bytes() -> int | None:
    """The memory that this process has in use; None where the system does not say it in a file."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except OSError:
        return None


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all tensors, each counted once."""
    dense = {id(tensor): components(tensor) for tensor in tensors}
    return sum(part.numel() * part.element_size() for parts in dense.values() for part in parts)


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
            activities=activities,
            record_shapes=self.shapes,
            with_stack=self.stack,
            acc_events=True,  # else torch 2.11 warns that events of an earlier cycle would be lost
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
        try_keep_artifact(engine.recorder, packed, f"{name}.json.gz", step=step)
        by = "self_cuda_time_total" if engine.device.type == "cuda" else "self_cpu_time_total"
        table = done.key_averages().table(sort_by=by, row_limit=50)
        try_keep_artifact(engine.recorder, table.encode(), f"{name}.txt", step=step)

    def leave(self) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
