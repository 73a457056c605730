"""Callbacks of a run: evaluation, checkpoints, display and what the launch asks for besides."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.debug import debug_handlers
from assay.compose.launch_settings import Launch
from assay.compose.make_engine import PreparedRun, evaluation_plan
from assay.compose.make_loaders import splits_of
from assay.compose.tasks import evaluation_of
from assay.config import plain
from assay.core.event_log import Warned
from assay.core.events import At, Event, Handler
from assay.core.ports import NullRecorder
from assay.core.run_file import Best
from assay.record.recorder import RunRecorder
from assay.store.layout import Project

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
    bus.extend(_code_state(prepared, recorder).handlers())
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
