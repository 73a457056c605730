"""An engine put together from its parts, and all that listens to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.debug import debug_handlers
from assay.compose.launch_settings import Launch
from assay.compose.make_parts import make_loader, make_process, splits_of
from assay.compose.run_scope import RunScope
from assay.compose.tasks import evaluation_of
from assay.core.event_log import Warned
from assay.core.events import Event, Handler
from assay.core.ports import Bind, NullRecorder
from assay.core.run_file import Best
from assay.core.schema import is_evaluated, parse_duration_s, parse_steps
from assay.core.stop import Stop
from assay.core.terminal import for_terminal
from assay.record.recorder import RunRecorder

if TYPE_CHECKING:
    from assay.engine import Engine, Save


def _say(line: str) -> None:
    print(for_terminal(line, color=False), file=sys.stderr, flush=True)


@dataclass(slots=True)
class PreparedRun:
    """An engine with all that listens to it, ready to run once it has a recorder."""

    scope: RunScope
    engine: Engine
    saver_folder: Path | None = None
    attempt: int = 1
    loaded: Mapping[str, Any] | None = None  # parts of a checkpoint for who is not there yet
    expected: Mapping[str, Any] | None = (
        None  # a whole checkpoint, to compare with what was made of it
    )
    loaders: Mapping[str, Iterable[Any]] = field(
        default_factory=dict
    )  # of the splits that are evaluated
    notes: list[str] = field(default_factory=list)  # to say at the start
    say: Callable[[str], None] = _say  # to the person who looks on
    save: Save | None = None  # of a process that writes checkpoints

    def saver(self, *, attempt: int | None = None) -> Any:
        from assay.engine import Saver

        assert self.saver_folder is not None
        self.attempt = attempt or self.attempt
        keep = self.scope.values("checkpoint").get("keep", 3)
        writers = self.scope.mesh.writers if self.scope.mesh is not None else None
        return Saver(self.saver_folder, keep=keep, attempt=self.attempt, writers=writers)


def make_engine(
    scope: RunScope, launch: Launch, *, saver_folder: Path | None = None, bind: Bind | None = None
) -> PreparedRun:
    from assay.engine import Engine, Loader
    from assay.engine.data.adopt import as_source
    from assay.engine.data.source import Source
    from assay.engine.loop.device import threads_in_use
    from assay.engine.loop.run_length import larger
    from assay.engine.numerics.deterministic import limits

    process = make_process(scope, training=True)
    settings = scope.values("train")
    train = make_loader(scope, "train")
    accumulate = 1 if isinstance(train, Source) else settings.get("accumulate", 1)
    epochs, steps, length = settings.get("epochs"), settings.get("steps"), ""
    if settings.get("until") == "last" and epochs is not None and steps is not None:
        epochs, steps, length = larger(
            as_source(train, accumulate=accumulate), epochs=epochs, steps=steps
        )
    if launch.max_steps is not None:
        steps = launch.max_steps if steps is None else min(steps, launch.max_steps)
    engine = Engine(
        process,
        train,
        epochs=epochs,
        steps=steps,
        samples=settings.get("samples"),
        seconds=parse_duration_s(settings["time"]) if "time" in settings else None,
        accumulate=accumulate,
        seed=scope.seed,
        device=scope.device,
        bind=bind or scope.context.bind,
        stop=Stop(),
        log_every=parse_steps(scope.values("log").get("every", "1 step")),
    )
    backward = getattr(process, "backward", None)
    if backward is not None:  # without one the engine says so
        backward.start(0, total=engine.state.max_steps, epoch_length=engine.state.epoch_length)
    if scope.ranks is not None:
        from assay.engine.parallel.data import join_data_parallel

        join_data_parallel(engine, scope.ranks)
    pipeline = _join_pipeline(scope, engine)
    if isinstance(engine.source, Loader):
        scope.closing.callback(engine.source.close)  # one that was made of a DataLoader
    scope.context.set("state", engine.state)
    scope.context.set("engine", engine)
    divided = ""
    if scope.mesh is not None and scope.mesh.layout.tensor > 1:
        from assay.engine.parallel.gradient_agreement import GradientAgreement
        from assay.engine.parallel.tensor_parallel import describe_tensor_plan

        divided = describe_tensor_plan(process.model)
        engine.bus.extend(GradientAgreement(scope.mesh.devices["tensor"]).handlers())
    limit = limits(
        scope.device,
        deterministic=bool(settings.get("deterministic", False)),
        seeded=bool(scope.seed),
        threads=threads_in_use(),
    )
    spread = "" if scope.mesh is None else f"mesh: {scope.mesh.layout}"
    notes = [
        line
        for line in (launch.after, length, limit, spread, _zero(scope), divided, *pipeline)
        if line
    ]
    loaders = {split: make_loader(scope, split) for split in evaluation_plan(scope)[1]}
    return PreparedRun(scope, engine, saver_folder, loaders=loaders, notes=notes)


def _join_pipeline(scope: RunScope, engine: Engine) -> list[str]:
    """Where the model was split into stages, let the engine train through them; what there is to
    say of it."""
    if scope.mesh is None or scope.mesh.pipeline is None:
        return []
    from assay.engine.numerics.precision import in_precision

    precision = scope.values("train").get("precision", "fp32")
    evaluate = scope.values("evaluate").get("precision", "fp32")
    scope.mesh.pipeline.join(
        engine, lambda run: in_precision(precision, scope.device, run, evaluate=evaluate)
    )
    return scope.mesh.pipeline.lines


def listen(
    prepared: PreparedRun, recorder: RunRecorder | NullRecorder, launch: Launch, *, saving: bool
) -> None:
    """Everything that listens to a run, in the order of their priorities."""
    import logging

    from assay.engine import Display, Evaluate, Loader, Memory, Save, Throughput
    from assay.engine.callbacks.compile_report import CompileReport
    from assay.engine.callbacks.evaluate import length_of

    scope, engine = prepared.scope, prepared.engine
    period, _ = evaluation_plan(scope)
    loaders = prepared.loaders
    limit = scope.values("evaluate").get("limit")
    pipes, metrics = evaluation_of(scope)
    evaluate = Evaluate(
        loaders, every=period, limit=limit, seed=scope.seed, pipes=pipes, metrics=metrics
    )
    engine.bus.extend(evaluate.handlers())
    if saving and scope.is_on("checkpoint"):
        settings = scope.values("checkpoint")

        def remember(metric: str, mode: Any, value: float, step: int, checkpoint: str) -> None:
            assert isinstance(recorder, RunRecorder)  # it is the first one that tells
            recorder.set_best(
                Best(metric=metric, mode=mode, value=value, step=step, checkpoint=checkpoint)
            )

        best = settings.get("best") if scope.is_on("evaluate") else None
        prepared.save = Save(
            prepared.saver(),
            every=settings.get("every", "1 epoch"),
            best=(best["metric"], best["mode"]) if best else None,
            evaluate_every=period,
            on_best=remember,
            background=settings.get("background", True),
        )
        engine.bus.extend(prepared.save.handlers())
    shown = scope.values("display")
    quiet = (
        launch.quiet
        or not scope.is_first
        or bool(shown.get("quiet", False))
        or not scope.is_on("display")
    )
    logger = recorder.logger if isinstance(recorder, RunRecorder) else logging.getLogger("assay")
    engine.bus.extend(Throughput().handlers())
    if not any(isinstance(plugin.thing, Memory) for plugin in scope.plugins):
        engine.bus.extend(Memory().handlers())
    if scope.values("train").get("compile", False):
        engine.bus.extend(CompileReport(say=logger.info).handlers())
    lengths = {split: length_of(loader, limit) for split, loader in loaders.items()}
    display = Display(
        logger=logger, quiet=quiet, every=shown.get("every", "1 epoch"), lengths=lengths
    )
    prepared.say = display.say
    engine.bus.extend(display.handlers())
    if launch.debug:
        engine.bus.extend(debug_handlers(logger, splits_of(scope.root)))

    if launch.stop_at is not None:

        def leave() -> None:
            if engine.state.step == launch.stop_at:
                engine.stop(f"left at step {launch.stop_at}", interrupts=launch.is_interrupted)

        engine.bus.add(Handler(event=Event.STEP_END, fn=leave, name="stop_at"))

    def warn(message: str) -> None:
        if isinstance(recorder, NullRecorder):
            display.say(message)
        recorder.tell(Warned(message=message, step=engine.state.step))

    def say_what_is_run() -> None:
        is_evaluated = bool(loaders) or period == "never"
        for line in [*prepared.notes, *_opening(engine, is_evaluated=is_evaluated)]:
            display.say(line)
        exactness = engine.source.exactness(
            engine.state.epoch
        )  # now: the record of the run has all that it prints
        if not exactness.startswith("exact"):
            warn(
                f"data.train is {exactness}. A run that goes on from a checkpoint sees other data."
            )
        elif not isinstance(engine.source, Loader) or engine.source is not engine.state.dataloader:
            display.say(f"data.train: {exactness}")
        if isinstance(recorder, RunRecorder):
            recorder.set_exactness(exactness)

    for loader in (engine.source, *loaders.values()):
        if isinstance(loader, Loader):
            loader.warn = warn

    engine.bus.add(
        Handler(event=Event.RUN_BEGIN, fn=say_what_is_run, priority=100, name="Display.opening")
    )


def _zero(scope: RunScope) -> str:
    """What [parallel.zero] comes to."""
    settings = scope.values("parallel")
    zero = settings.get("zero", {})
    if not zero or not zero.get("enabled", True):
        return ""
    if scope.mesh is None:
        return "ZeRO: one process has everything, there is nothing to share out"
    layout, asked = scope.mesh.layout, int(settings.get("shard", 1))
    sizes = f"data {layout.shard} is shard {layout.shard}, " if asked == 1 else ""
    kept = {
        1: "weights and gradients stay whole in a step",
        2: "weights stay whole in a step",
        3: "all is shared out",
    }
    return f"ZeRO stage {layout.stage}: {sizes}{kept[layout.stage]}"


def evaluation_plan(scope: RunScope) -> tuple[str, list[str]]:
    """Return how often splits are evaluated, and which."""
    settings = scope.values("evaluate")
    period = settings.get("every", "1 epoch") if scope.is_on("evaluate") else "never"
    looked_at = [name for name in splits_of(scope.root) if is_evaluated(name)]
    return period, settings.get("splits", looked_at)


def _opening(engine: Engine, *, is_evaluated: bool) -> list[str]:
    """Return lines on how long the run is and why, and on what the optimizer trains how, if not all
    alike."""
    from assay.engine import Loader
    from assay.engine.loop.run_length import arithmetic
    from assay.engine.optim.groups import described

    state, source = engine.state, engine.source
    lines = (
        arithmetic(source, epochs=state.max_epochs, total=state.max_steps)
        if isinstance(source, Loader)
        else []
    )
    if not is_evaluated:
        lines.append("nothing is evaluated: there is no data.valid")
    groups = described(engine.process.backward.optimizers, engine.process.model)
    return lines + (groups if groups[1:] else [])
