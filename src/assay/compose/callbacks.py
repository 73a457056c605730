"""Callbacks of a run: evaluation, checkpoints, display, trace, signs of life, debugging."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.launch import Launch
from assay.compose.loaders import splits_of
from assay.compose.prepared_run import PreparedRun, evaluation_plan
from assay.compose.resume_verdict import describe_resume
from assay.compose.run_scope import RunScope, evaluation_of
from assay.config import plain
from assay.core.events import At, Event, Handler
from assay.core.facts import Warned
from assay.core.ports import NullRecorder
from assay.core.schema import parse_period
from assay.formats.run_file import Best
from assay.formats.trace_file import Level
from assay.record.outside_inputs import look_for_inputs
from assay.record.recorder import RunRecorder
from assay.record.trace_writer import TraceWriter
from assay.store.layout import RunFolder

if TYPE_CHECKING:
    from assay.engine import Display, Engine, Evaluate, Save

AnyRecorder = RunRecorder | NullRecorder


def add_callbacks(
    prepared: PreparedRun, recorder: AnyRecorder, launch: Launch, *, saving: bool
) -> None:
    """Put the handlers of all callbacks on the event bus of a run.

    Handlers of one priority are called in the order in which they are added here.
    """
    from assay.engine import Memory, Throughput
    from assay.engine.callbacks.debug_lines import CompileReport

    scope, bus = prepared.scope, prepared.engine.bus
    logger: Any = logging.getLogger("assay")
    if isinstance(recorder, RunRecorder):
        logger = recorder.logger
    prepared.evaluate = _add_evaluation(prepared)
    if saving and scope.sections.checkpoint.enabled:
        prepared.save = _make_save(prepared, recorder)
        bus.extend(prepared.save.handlers())
    bus.extend(Throughput().handlers())
    if not any(isinstance(plugin.thing, Memory) for plugin in scope.plugins):
        bus.extend(Memory().handlers())
    if scope.sections.train.compile:
        bus.extend(CompileReport(say=logger.info).handlers())
    display = _make_display(prepared, launch, logger)
    prepared.say = display.say
    bus.extend(display.handlers())
    if launch.debug:
        from assay.engine.callbacks.debug_lines import debug_handlers

        bus.extend(debug_handlers(logger, splits_of(scope.root)))
    if launch.stop_at is not None:
        bus.add(_stop_handler(prepared.engine, launch))
    bus.add(_opening_handler(prepared, recorder, display))
    if isinstance(recorder, RunRecorder):
        look_for_inputs(recorder, scope.config.user_dirs, plain(scope.root))


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
    scope.context.set("evaluation", evaluate)
    prepared.engine.kept.append(evaluate)  # a handler may run it where no period does
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
    )


def _make_display(prepared: PreparedRun, launch: Launch, logger: Any) -> Display:
    from assay.engine import Display
    from assay.engine.data.batches import length_of

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
    from assay.engine.callbacks.display import describe_run

    engine, loaders = prepared.engine, prepared.loaders
    warn = partial(_warn, prepared, recorder)

    def open_run() -> None:
        why = ""
        if not loaders and evaluation_plan(prepared.scope)[0] != "never":
            named = prepared.scope.sections.evaluate.splits
            why = "there is no data.valid" if named is None else "evaluate.splits names no split"
        for line in [*prepared.notes, *describe_run(engine, why_unevaluated=why)]:
            display.say(line)
        # Asked for now: the record has everything that the run prints.
        exactness = engine.source.exactness()
        if exactness.startswith("not exact"):
            warn(f"data.train is {exactness}. A run resumed from a checkpoint sees other data.")
        elif not isinstance(engine.source, Loader) or engine.source is not engine.state.dataloader:
            display.say(f"data.train: {exactness}")
        own = recorder if isinstance(recorder, RunRecorder) else None
        resume = describe_resume(engine, own, prepared.scope.config)
        display.say(f"resume: {resume}")
        if own is not None:
            own.set_exactness(exactness, resume)

    for loader in (engine.source, *loaders.values()):
        if isinstance(loader, Loader):
            loader.warn = warn
    return Handler(event=Event.RUN_BEGIN, fn=open_run, priority=100, name="Display.opening")


def _warn(prepared: PreparedRun, recorder: AnyRecorder, message: str) -> None:
    if isinstance(recorder, NullRecorder):
        prepared.say(message)
    recorder.tell(Warned(message=message, step=prepared.engine.state.step))


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

    writer = TraceWriter(folder.trace_file(attempt, rank), on_problem=warn)
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
    return math.ceil(period.count * length), settings.level


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
