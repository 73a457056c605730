"""Callbacks of a run: evaluation, checkpoints, display, trace, signs of life, debugging."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.launch import Launch
from assay.compose.loaders import splits_of
from assay.compose.prepared_run import PreparedRun, evaluation_plan
from assay.compose.run_scope import RunScope, evaluation_of
from assay.config import plain
from assay.core.event_log import Warned
from assay.core.events import At, Event, Handler
from assay.core.heartbeats import FileHeartbeats, NoHeartbeats
from assay.core.ports import NullRecorder
from assay.core.run_file import Best
from assay.core.schema import parse_period
from assay.core.stacks import offering_stacks
from assay.core.trace_file import Level
from assay.record.recorder import RunRecorder
from assay.record.trace_writer import TraceWriter
from assay.store.layout import Project, RunFolder
from assay.store.mounts import is_network

if TYPE_CHECKING:
    from assay.engine import Display, Engine, Evaluate, Save
    from assay.engine.callbacks.code_state import CodeState


AnyRecorder = RunRecorder | NullRecorder


def add_callbacks(
    prepared: PreparedRun, recorder: AnyRecorder, launch: Launch, *, saving: bool
) -> None:
    """Put the handlers of all callbacks on the event bus of a run.

    Handlers of one priority are called in the order in which they are added here.
    """
    from assay.engine import Memory, Throughput
    from assay.engine.callbacks.compile_report import CompileReport

    scope, bus = prepared.scope, prepared.engine.bus
    logger: Any = logging.getLogger("assay")
    if isinstance(recorder, RunRecorder):
        logger = recorder.logger
    prepared.evaluate = _add_evaluation(prepared)
    if saving and scope.sections.checkpoint.enabled:
        prepared.save = _make_save(prepared, recorder)
        bus.extend(prepared.save.handlers())
    else:
        bus.extend(_code_state(prepared, recorder).handlers())
    bus.extend(Throughput().handlers())
    if not any(isinstance(plugin.thing, Memory) for plugin in scope.plugins):
        bus.extend(Memory().handlers())
    if scope.sections.train.compile:
        bus.extend(CompileReport(say=logger.info).handlers())
    display = _make_display(prepared, launch, logger)
    prepared.say = display.say
    bus.extend(display.handlers())
    if launch.debug:
        bus.extend(debug_handlers(logger, splits_of(scope.root)))
    if launch.stop_at is not None:
        bus.add(_stop_handler(prepared.engine, launch))
    bus.add(_opening_handler(prepared, recorder, display))
    if isinstance(recorder, RunRecorder):
        _look_for_inputs(prepared, recorder)


def _look_for_inputs(prepared: PreparedRun, recorder: RunRecorder) -> None:
    """Let the recorder's thread look once for what the code reads, and again at the end."""
    from assay.record.outside_inputs import OutsideInputs, texts_of

    project = Project(Path(recorder.run.project))
    inputs = OutsideInputs(
        project.root,
        prepared.scope.config.user_dirs,
        texts_of(plain(prepared.scope.root)),
        written=project.runs_dir,
        since_ns=recorder.run.newest.started_ns,
    )
    looked: list[bool] = []

    def look_once() -> None:
        if not looked:
            looked.append(True)
            look()

    def look() -> None:
        recorder.set_inputs(inputs.find())

    recorder.each_second(look_once, at_end=look)


def _add_evaluation(prepared: PreparedRun) -> Evaluate:
    from assay.engine import Evaluate

    scope = prepared.scope
    pipes, metrics = evaluation_of(scope)
    every, _ = evaluation_plan(scope)
    evaluate = Evaluate(
        prepared.loaders,
        every=every,
        limit=scope.sections.evaluate.limit,
        seed=scope.seed,
        pipes=pipes,
        metrics=metrics,
    )
    prepared.engine.bus.extend(evaluate.handlers())
    if every != "never" and prepared.loaders:
        # Not before the first step, whose own errors say more: they name the samples.
        first = At(frozenset({1}))
        prepared.engine.bus.add(
            Handler(
                event=Event.STEP_END, fn=evaluate.rehearse, when=first, name="Evaluate.rehearse"
            )
        )
    return evaluate


def _make_save(prepared: PreparedRun, recorder: AnyRecorder) -> Save:
    from assay.engine import Save

    def set_best(metric: str, mode: Any, value: float, step: int, checkpoint: str) -> None:
        assert isinstance(recorder, RunRecorder)  # rank 0 calls it, which records
        recorder.set_best(
            Best(metric=metric, mode=mode, value=value, step=step, checkpoint=checkpoint)
        )

    sections = prepared.scope.sections
    section = sections.checkpoint
    best = section.best if sections.evaluate.enabled else None
    return Save(
        prepared.saver(),
        every=section.every,
        best=(best.metric, best.mode) if best is not None else None,
        on_best=set_best,
        background=section.background,
        code_state=_code_state(prepared, recorder),
    )


def _make_display(prepared: PreparedRun, launch: Launch, logger: Any) -> Display:
    from assay.engine import Display
    from assay.engine.callbacks.evaluate import length_of

    scope = prepared.scope
    section = scope.sections.display
    limit = scope.sections.evaluate.limit
    return Display(
        logger=logger,
        quiet=launch.quiet or not scope.is_first or section.quiet or not section.enabled,
        every=section.every,
        lengths={split: length_of(loader, limit) for split, loader in prepared.loaders.items()},
    )


def _stop_handler(engine: Engine, launch: Launch) -> Handler:
    """Return the handler that stops the run at the step that the launch names."""

    def stop() -> None:
        if engine.state.step == launch.stop_at:
            engine.stop(f"left at step {launch.stop_at}", interrupts=launch.is_interrupted)

    return Handler(event=Event.STEP_END, fn=stop, name="stop_at")


def _opening_handler(prepared: PreparedRun, recorder: AnyRecorder, display: Display) -> Handler:
    """Return the handler that prints what is run, and how exactly it can be resumed."""
    from assay.engine import Loader

    engine, loaders = prepared.engine, prepared.loaders
    warn = partial(_warn, prepared, recorder)

    def open_run() -> None:
        is_evaluated = bool(loaders) or evaluation_plan(prepared.scope)[0] == "never"
        for line in [*prepared.notes, *_describe_run(engine, is_evaluated=is_evaluated)]:
            display.say(line)
        # Asked for now: the record has everything that the run prints.
        exactness = engine.source.exactness(engine.state.epoch)
        if not exactness.startswith("exact"):
            sees = "sees" if exactness.startswith("not exact") else "may see"
            warn(f"data.train is {exactness}. A run resumed from a checkpoint {sees} other data.")
        elif not isinstance(engine.source, Loader) or engine.source is not engine.state.dataloader:
            display.say(f"data.train: {exactness}")
        if isinstance(recorder, RunRecorder):
            recorder.set_exactness(exactness)

    for loader in (engine.source, *loaders.values()):
        if isinstance(loader, Loader):
            loader.warn = warn
    return Handler(event=Event.RUN_BEGIN, fn=open_run, priority=100, name="Display.opening")


def _warn(prepared: PreparedRun, recorder: AnyRecorder, message: str) -> None:
    if isinstance(recorder, NullRecorder):
        prepared.say(message)
    recorder.tell(Warned(message=message, step=prepared.engine.state.step))


def _code_state(prepared: PreparedRun, recorder: AnyRecorder) -> CodeState:
    """Return the callback that says which state of the user's code no checkpoint keeps."""
    from assay.engine.callbacks.code_state import MOST_NAMED, CodeState

    def report(finding: str, warnings: list[str]) -> None:
        if prepared.scope.is_first:
            for message in warnings[:MOST_NAMED]:
                _warn(prepared, recorder, message)
        if isinstance(recorder, RunRecorder):
            recorder.set_code_state(finding)

    return CodeState(report)


def _describe_run(engine: Engine, *, is_evaluated: bool) -> list[str]:
    """Return lines on the length of the run, and on parameter groups where there are several."""
    from assay.engine import Loader
    from assay.engine.loop.run_length import arithmetic
    from assay.engine.optim.groups import described

    state, source, lines = engine.state, engine.source, []
    if isinstance(source, Loader):
        lines += arithmetic(source, epochs=state.max_epochs, total=state.max_steps)
    if not is_evaluated:
        lines.append("nothing is evaluated: there is no data.valid")
    groups = described(engine.process.backward.optimizers, engine.process.model)
    return lines + (groups if groups[1:] else [])


@contextmanager
def signs_of_life(prepared: PreparedRun, recorder: AnyRecorder) -> Iterator[None]:
    """Inside, write heartbeats into the run's folder, and the stacks of all threads on request.

    Ranks do so in the folder of their launcher. On a disk of the network other machines could not
    read the beats, and a memory map may end the process: there is none.
    """
    ranks = prepared.engine.ranks
    is_lone = isinstance(ranks.beats, NoHeartbeats)
    if not (is_lone and isinstance(recorder, RunRecorder)) or is_network(recorder.folder.path):
        yield
        return
    folder = recorder.folder
    with ExitStack() as stack:
        try:
            ranks.beats = FileHeartbeats(folder.heartbeat)
            stack.callback(_stop_beating, prepared, folder.heartbeat)
            stack.enter_context(offering_stacks(folder.stacks))
        except OSError:  # the disk is full: the run does without
            ranks.beats = NoHeartbeats()
        yield


def _stop_beating(prepared: PreparedRun, file: Path) -> None:
    prepared.engine.ranks.beats = NoHeartbeats()
    file.unlink(missing_ok=True)


@contextmanager
def trace_run(
    prepared: PreparedRun, recorder: RunRecorder | NullRecorder, launch: Launch
) -> Iterator[None]:
    """Trace the run within, if it is recorded: each rank writes a file of its own. Collective."""
    from assay.engine.parallel.process_group import world

    engine = prepared.engine
    place = _record_place(prepared.scope, recorder)
    if place is None or not _trace_period(prepared, launch)[0]:
        yield
        return
    folder, attempt = place
    rank = world().rank

    def warn(message: str) -> None:
        recorder.tell(Warned(message=message, step=engine.state.step))

    writer = TraceWriter(folder.trace_file(attempt, rank), attempt, on_problem=warn)
    engine.bus.extend(tracing_handlers(prepared, launch, writer.write, rank=rank))
    try:
        yield
    finally:
        writer.close()


def tracing_handlers(
    prepared: PreparedRun, launch: Launch, write: Callable[[bytes], None], *, rank: int = 0
) -> list[Handler]:
    """Return what listens to a run to trace it as its config says; none when it is off."""
    from assay.engine.trace.tracer import Tracer

    every, level = _trace_period(prepared, launch)
    if not every:
        return []
    return Tracer(
        write, every=every, level=level, first=launch.traced_from or 0, rank=rank
    ).handlers()


def _trace_period(prepared: PreparedRun, launch: Launch) -> tuple[int, Level]:
    """Return the steps between two that are traced, 0 for none, and the level."""
    if launch.traced_from is not None:
        return 1, "full"
    settings = prepared.scope.sections.trace
    if not settings.enabled:
        return 0, "default"
    period = parse_period(settings.every)
    length = 1 if period.unit == "step" else prepared.engine.state.epoch_length or 0
    return period.count * length, settings.level


def _record_place(
    scope: RunScope, recorder: RunRecorder | NullRecorder
) -> tuple[RunFolder, int] | None:
    """Return the folder of the record and the number of its attempt, the same on all ranks."""
    place = ["", 0]
    if isinstance(recorder, RunRecorder):
        place = [str(recorder.folder.path), recorder.run.newest.number]
    text = json.dumps(place)
    if scope.mesh is not None and scope.mesh.writers is not None:
        text = scope.mesh.writers.gather(text)[0]
    elif scope.ranks is not None:
        text = scope.ranks.all_gather_world(text)[0]
    path, attempt = json.loads(text)
    return (RunFolder(Path(path)), attempt) if path else None


def debug_handlers(
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger], splits: Iterable[str]
) -> list[Handler]:
    """Return handlers that log the model, the generators with their seeds, and each step."""
    from assay.engine.numerics.seed import streams

    since = [0.0]

    def begin(engine: Engine) -> None:
        model = engine.process.model
        count = sum(parameter.numel() for parameter in model.parameters())
        logger.debug(
            "%s with %s parameters on %s, seed %d",
            type(model).__name__,
            f"{count:,}",
            engine.device,
            engine.seed,
        )
        for purpose, seed in streams(engine.seed, splits).items():
            logger.debug("generator for %s: seed %d", purpose, seed)
        since[0] = time.perf_counter()

    def step(engine: Engine) -> None:
        state = engine.state
        now = time.perf_counter()
        spent, since[0] = now - since[0], now
        logger.debug(
            "step %d: loss %.6g, %s, %.1f ms",
            state.step,
            state.loss,
            _describe_batch(state.batch),
            1000 * spent,
        )

    return [
        Handler(event=Event.RUN_BEGIN, fn=begin, priority=-90, name="Debug"),
        Handler(event=Event.STEP_END, fn=step, priority=-90, name="Debug"),
    ]


def _describe_batch(batch: Any) -> str:
    """Return types and shapes of the tensors of a batch: `float32 (8, 4) and int64 (8,)`."""
    items = (
        batch.values()
        if isinstance(batch, dict)
        else batch
        if isinstance(batch, list | tuple)
        else [batch]
    )
    shown = [
        f"{str(item.dtype).removeprefix('torch.')} {tuple(item.shape)}"
        for item in items
        if hasattr(item, "shape")
    ]
    return " and ".join(shown) or f"a {type(batch).__name__}"
