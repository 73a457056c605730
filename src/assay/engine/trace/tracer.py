"""Tracer of a run: fingerprints of what goes into a step and of what comes out of it."""

from __future__ import annotations

import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from hashlib import blake2b
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError
from assay.core.events import ALWAYS, At, Event, Every, Handler, When
from assay.engine.callbacks.ema import EMA
from assay.engine.checkpoint.codec import digest_state
from assay.engine.data.loader import planned_indices
from assay.engine.loop.engine import Engine
from assay.engine.numerics import private_torch
from assay.engine.numerics.private_torch import DispatchMode
from assay.engine.numerics.structures import tensors_by_path, tensors_in
from assay.engine.rehearse.fake import is_foreign
from assay.engine.rehearse.module_stack import ModuleStack
from assay.engine.trace.fingerprint import algorithm_of, fingerprint, read_fingerprints
from assay.formats.trace_file import (
    PHASES,
    SAMPLE_INDICES,
    Head,
    Level,
    Phase,
    SiteKind,
    TraceSite,
    pack_digests,
    pack_head,
    pack_site,
)

_NUMBER = struct.Struct("<d")
_FIRST = -1000
"""Priority of a handler that sees a step before any other handler may change something."""
_AFTER_AVERAGING = -49
"""Priority of a handler that sees the averages of a step before anything is evaluated."""


class Tracer:
    """Writer of fingerprints of step 1 and every `every`-th, which show where two runs part.

    Of such a step: the indices of the samples and the tensors of each batch, the state of the
    generator, the loss, the norm and each gradient, each parameter and buffer after the update.
    Parameters are there also when the run begins and at every checkpoint, averaged weights after
    the update of a traced step, and buffers that an evaluation has written. The `full` level adds
    each operation, forward, backward and in the optimizer, from the step `first` on; a step takes a
    few times as long.

    `write` gets the frames of a step at once. Nothing is drawn from a generator, and no bit of the
    run changes.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        *,
        every: int = 100,
        level: Level = "default",
        first: int = 0,
        rank: int = 0,
    ) -> None:
        self.write = write
        self.every = every
        self.level: Level = level
        self.first = first
        self.rank = rank
        self._sites: dict[tuple[Any, ...], TraceSite] = {}
        self._new: list[TraceSite] = []
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._entries: list[tuple[TraceSite, int, int | Tensor]] = []
        self._within: list[tuple[Handler, Callable[[], None]]] = []
        self._is_within = False
        self._micro = 0
        self._parameters_of = -1
        self._evaluated: list[int] = []
        self._averages: list[EMA] = []
        self._operations: Operations | None = None
        self._opened = ExitStack()

    def handlers(self) -> list[Handler]:
        steps: list[When] = [ALWAYS]
        if self.every > 1:
            steps = [At(frozenset({0})), Every(self.every, start=self.every - 1)]
        opening = [
            Handler(event=Event.STEP_BEGIN, fn=self.open_step, when=when, priority=-_FIRST)
            for when in steps
        ]
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.begin, priority=-_FIRST),
            *opening,
            Handler(event=Event.EVAL_BEGIN, fn=self.open_evaluation, priority=_FIRST),
            Handler(event=Event.EVAL_END, fn=self.close_evaluation, priority=-_FIRST),
            Handler(event=Event.CHECKPOINT_BEGIN, fn=self.checkpoint, priority=_FIRST),
            Handler(event=Event.EXCEPTION, fn=self.leave, priority=_FIRST + 1),
            Handler(event=Event.RUN_END, fn=self.leave, priority=_FIRST + 1),
        ]

    def begin(self, engine: Engine) -> None:
        """Write how this trace is made, and the weights that the run begins with."""
        within = {
            Event.BACKWARD_BEGIN: (self.see_batch, -_FIRST),
            Event.BACKWARD_END: (self.see_gradients, _FIRST),
            Event.STEP_END: (self.close_step, _FIRST),
        }
        self._within = [
            (Handler(event=event, fn=fn, priority=priority), partial(fn, engine))
            for event, (fn, priority) in within.items()
        ]
        algorithm = algorithm_of(engine.device)
        self.write(
            pack_head(Head(algorithm=algorithm, level=self.level, every=self.every, rank=self.rank))
        )
        self._see_weights(engine, "init", "init")
        self._flush(engine.state.step)
        if not self._averages:
            self._listen_to_averages(engine)

    def _listen_to_averages(self, engine: Engine) -> None:
        self._averages = engine.bus.owners(EMA)
        traced: list[When] = [At(frozenset({1})), Every(self.every)] if self.every > 1 else [ALWAYS]
        for when in traced if self._averages else ():
            engine.bus.add(
                Handler(
                    event=Event.STEP_END,
                    fn=self.see_averages,
                    when=when,
                    priority=_AFTER_AVERAGING,
                )
            )

    def open_step(self, engine: Engine) -> None:
        """Listen to the step that begins."""
        begun = perf_counter()
        if engine.state.step + 1 < self.first:
            return
        self.leave(engine)
        self._micro = 0
        for (
            handler,
            call,
        ) in self._within:  # bound once: to look at a signature takes longer than a fingerprint
            engine.bus.points[handler.event].add(handler, call)
        self._is_within = True
        if self.level == "full":
            self._watch_operations(engine)
        engine.add_seconds("trace.within", perf_counter() - begun)

    def see_batch(self, engine: Engine) -> None:
        """Record the samples of a micro-batch and the generator state of its step."""
        begun = perf_counter()
        self._pause(is_paused=True)
        state = engine.state
        indices = planned_indices(engine.source, state.epoch, state.epoch_samples, self._micro)
        if indices is not None:
            self._see("data", "", SAMPLE_INDICES, torch.tensor(indices, dtype=torch.int64))
        self._micro += 1
        if engine.pipeline is None:  # a pipeline takes its micro-batches up later
            self._see_tensors(state.batch)
        self._see("randomness", "", "generator", _generator_state(engine.device))
        self._pause(is_paused=False)
        engine.add_seconds("trace.within", perf_counter() - begun)

    def _see_tensors(self, batch: Any) -> None:
        tensors = list(tensors_by_path(batch, ("batch",), in_objects=True))
        for path, tensor in tensors:
            self._see("data", "", ".".join(map(str, path)), tensor)
        if not tensors:
            self._add("data", "", "batch", "", (), _digest(batch))

    def see_gradients(self, engine: Engine) -> None:
        """Record the gradients after a micro-batch, before averaging, clipping and the update."""
        begun = perf_counter()
        self._pause(is_paused=True)
        for module, name, parameter in _weights(engine, parameters=True):
            if parameter.grad is not None:
                self._see("backward", module, f"{name}.grad", parameter.grad)
        self._pause(is_paused=False, is_updating=True)
        engine.add_seconds("trace.within", perf_counter() - begun)

    def close_step(self, engine: Engine) -> None:
        """Write what was seen of the step, and the weights that came of it."""
        begun = perf_counter()
        step, loss = engine.state.step, engine.state.loss
        self.leave(engine)
        self._add("loss", "", "loss", "float64", (), _bits(loss))
        # An optimizer step of the user's own need not have one.
        norm = getattr(engine.process.backward, "grad_norm", None)
        if norm is not None:
            self._add("backward", "", "gradient norm", "float64", (), _bits(norm))
        self._see_weights(engine, "optimizer", "state")
        self._flush(step)
        engine.add_seconds("trace.after", perf_counter() - begun)

    def see_averages(self, engine: Engine) -> None:
        """Write the averaged weights of a step, which are there once its handlers averaged them."""
        if engine.state.step < self.first:
            return
        begun = perf_counter()
        for average in self._averages:
            for path, tensor in average.weights.items():
                module, _, name = f"{type(average).__name__}.{path}".rpartition(".")
                self._see("average", module, name, tensor)
        self._flush(engine.state.step)
        engine.add_seconds("trace.after", perf_counter() - begun)

    def checkpoint(self, engine: Engine) -> None:
        """Write the weights of a checkpoint, unless those of this step are written already."""
        if self._parameters_of != engine.state.step:
            self._see_weights(engine, "optimizer", "state")
            self._flush(engine.state.step)

    def open_evaluation(self, engine: Engine) -> None:
        """Remember the buffers before an evaluation, which should not write any."""
        self._evaluated = read_fingerprints(
            [fingerprint(each) for *_, each in _weights(engine, parameters=False)]
        )

    def close_evaluation(self, engine: Engine) -> None:
        """Write the buffers that an evaluation has written."""
        buffers = list(_weights(engine, parameters=False))
        marks = read_fingerprints([fingerprint(each) for *_, each in buffers])
        written = [
            buffer
            for buffer, mark, before in zip(buffers, marks, self._evaluated, strict=False)
            if mark != before
        ]
        for module, name, buffer in written:
            self._see("evaluation", module, name, buffer)
        if written:
            self._flush(engine.state.step)

    def leave(self, engine: Engine) -> None:
        """Listen to the step no longer."""
        if self._is_within:
            for handler, _ in self._within:
                engine.bus.remove(handler)
        self._is_within = False
        self._operations = None
        self._opened.close()

    def _pause(self, *, is_paused: bool, is_updating: bool = False) -> None:
        """Let operations pass unseen while the tracer takes fingerprints itself."""
        if self._operations is not None:
            self._operations.is_paused = is_paused
            self._operations.is_updating = is_updating

    def _watch_operations(self, engine: Engine) -> None:
        model = engine.process.model
        if any(private_torch.compiled_call(module) is not None for module in model.modules()):
            # a compiled kernel is one operation of its own; gradients and weights are there all the
            # same
            return
        parts = vars(engine.process).items()
        roots = {
            f"process.{name}": part
            for name, part in parts
            if isinstance(part, nn.Module) and name != "model"
        }
        self._operations = Operations({"model": model, **roots}, self._see)
        self._opened.enter_context(self._operations.watch())

    def _see_weights(self, engine: Engine, phase: Phase, of_buffers: Phase) -> None:
        for module, name, parameter in _weights(engine, parameters=True):
            self._see(phase, module, name, parameter)
        for module, name, buffer in _weights(engine, parameters=False):
            self._see(of_buffers, module, name, buffer)
        self._parameters_of = engine.state.step

    def _see(
        self,
        phase: Phase,
        module: str,
        name: str,
        tensor: Tensor,
        kind: SiteKind = "tensor",
        arguments: str = "",
    ) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        self._add(phase, module, name, dtype, shape, fingerprint(tensor), kind, arguments)

    def _add(
        self,
        phase: Phase,
        module: str,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        mark: int | Tensor,
        kind: SiteKind = "tensor",
        arguments: str = "",
    ) -> None:
        key = (phase, module, name, dtype, shape, arguments)
        site = self._sites.get(key)
        if site is None:
            number = len(self._sites)
            site = TraceSite(
                id=number,
                phase=phase,
                module=module,
                name=name,
                dtype=dtype,
                shape=shape,
                kind=kind,
                arguments=arguments,
            )
            self._sites[key] = site
            self._new.append(site)
        self._entries.append((site, self._seen[phase, module, name], mark))
        self._seen[phase, module, name] += 1

    def _flush(self, step: int) -> None:
        """Write the records phase by phase, in an order that micro-batches do not change."""
        self._entries.sort(key=lambda entry: PHASES.index(entry[0].phase))
        marks = read_fingerprints([mark for _, _, mark in self._entries])
        entries = [
            (site.id, occurrence, mark)
            for (site, occurrence, _), mark in zip(self._entries, marks, strict=True)
        ]
        self.write(b"".join(map(pack_site, self._new)) + pack_digests(step, entries))
        self._new.clear()
        self._entries.clear()
        self._seen.clear()


def _weights(engine: Engine, *, parameters: bool) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (module path, name, tensor) of every parameter, or of every buffer."""
    model: object = getattr(engine.process, "model", None)
    if not isinstance(model, nn.Module):
        return
    for path, tensor in model.named_parameters() if parameters else model.named_buffers():
        module, _, name = f"model.{path}".rpartition(".")
        yield module, name, tensor


def _digest(batch: Any) -> int:
    """Return 64 bits of what a batch without tensors holds; 0 for what cannot be told."""
    try:
        found = digest_state(batch)
    except CheckpointError:
        return 0
    return int.from_bytes(blake2b(found.encode(), digest_size=8).digest(), "little")


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _bits(number: float) -> int:
    return int.from_bytes(_NUMBER.pack(number), "little")


See = Callable[[Phase, str, str, Tensor, SiteKind, str], None]
"""Hears phase, module, operation, result, kind, and the arguments of a random operation."""

_NUMBERS = (bool, int, float, list, tuple)
"""Types of arguments that say how random numbers are drawn, as a probability."""

_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_WRAPPERS = (f"torch{os.sep}_dynamo", f"torch{os.sep}_compile")
"""Files of torch between a call of an operation and its dispatch (torch 2.13)."""

_UNFILLED = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
)
"""Operations whose result is whatever lay in memory."""

_SCRATCH: Mapping[str, int] = {"mkldnn_rnn_layer": 3, "_cudnn_rnn": 3, "_thnn_fused_lstm_cell": 2}
"""Number of results that count; those behind them are working memory of the backward pass."""


class Operations(DispatchMode):  # type: ignore[no-untyped-call]
    """Tells `see` of every operation that computes something, while in `watch`."""

    def __init__(self, roots: Mapping[str, nn.Module], see: See) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_updating = False
        """True once the gradients are complete: what comes then belongs to the update."""
        self.is_paused = False
        self._see = see
        self._module = ""
        self._stack = ModuleStack(roots, flops=lambda: 0, at=self._enter)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch modules and operations within."""
        with self._stack.watch(), self:
            yield

    def _enter(self, place: str) -> None:
        module, _, _ = place.rpartition(", ")
        self._module = module.partition(" ")[0]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):  # a DTensor first becomes operations on its local tensors
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        kind, count = _traits(func)
        if kind is None or self.is_paused:
            return out
        if func.namespace == "c10d":
            _wait_for_others(out)
        phase: Phase = "forward"
        if self.is_updating:
            phase, self._module = "optimizer", ""
        elif private_torch.current_backward() != -1:
            phase = "backward"
        if not self._module and _is_ours():
            return out
        arguments = ""
        if kind == "random operation":
            given = (*args, *(kwargs or {}).values())
            arguments = ", ".join(
                str(each)
                for each in given
                if isinstance(each, _NUMBERS) and not [*tensors_in(each)]
            )
        found = list(tensors_in(out)) or [
            each for i in _places_written(func) for each in tensors_in(args[i : i + 1])
        ]
        name = str(private_torch.overload_packet(func))
        for tensor in found[:count]:
            self._see(phase, self._module, name, tensor, kind, arguments)
        return out


def _wait_for_others(out: Any) -> None:
    """Wait for what a collective writes: it is made in the background."""
    for part in out if isinstance(out, tuple) else (out,):
        if isinstance(part, torch.ScriptObject):  # c10d.Work
            part.wait()  # type: ignore[attr-defined]


def _is_ours() -> bool:
    """Return True for an operation that the engine itself calls, as to keep a copy of buffers."""
    frame = sys._getframe(2)
    while frame.f_back is not None and any(each in _file(frame) for each in _WRAPPERS):
        frame = frame.f_back
    return _file(frame).startswith(_ENGINE)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


@cache
def _traits(func: Any) -> tuple[SiteKind | None, int | None]:
    """Return (kind of an operation or None, number of results that count)."""
    name = private_torch.operation_name(func)
    returned = [each.alias_info for each in private_torch.schema_of(func).returns]
    is_view = bool(returned) and all(each is not None and not each.is_write for each in returned)
    if name in _UNFILLED or is_view:
        return None, None
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return "random operation" if is_random else "operation", _SCRATCH.get(name)


@cache
def _places_written(func: Any) -> tuple[int, ...]:
    """Return the places of the arguments that an operation writes into."""
    arguments = enumerate(private_torch.schema_of(func).arguments)
    return tuple(
        i for i, each in arguments if each.alias_info is not None and each.alias_info.is_write
    )
