"""Engine of a run, made from its parts, and the notes that are printed before its first step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.launch_settings import Launch
from assay.compose.make_loaders import make_loader, splits_of
from assay.compose.make_parts import make_process
from assay.compose.run_scope import RunScope
from assay.core.ports import Bind
from assay.core.schema import is_evaluated, parse_duration_s, parse_steps
from assay.core.stop import Stop
from assay.core.terminal import for_terminal

if TYPE_CHECKING:
    from assay.engine import Engine, Evaluate, Process, Save


def _print_line(line: str) -> None:
    print(for_terminal(line, color=False), file=sys.stderr, flush=True)


@dataclass(slots=True)
class PreparedRun:
    """Engine that is ready to run once it has a recorder and its callbacks."""

    scope: RunScope
    engine: Engine
    saver_folder: Path | None = None
    attempt: int = 1
    loaded: Mapping[str, Any] | None = None
    """Parts of a checkpoint for callbacks, which are not made yet."""
    expected: Mapping[str, Any] | None = None
    """A whole checkpoint, to compare with the state that it was restored to."""
    loaders: Mapping[str, Iterable[Any]] = field(default_factory=dict)
    """Loaders of the splits that are evaluated."""
    notes: list[str] = field(default_factory=list)
    """Lines to print at the start."""
    say: Callable[[str], None] = _print_line
    """Prints a line to the person at the terminal."""
    evaluate: Evaluate | None = None
    """Callback that evaluates."""
    save: Save | None = None
    """Callback that saves checkpoints, on a rank that writes them."""

    def saver(self, *, attempt: int | None = None) -> Any:
        """Return a saver for the checkpoints of an attempt."""
        from assay.engine import Saver

        assert self.saver_folder is not None
        self.attempt = attempt or self.attempt
        keep = self.scope.sections.checkpoint.keep
        writers = self.scope.mesh.writers if self.scope.mesh is not None else None
        return Saver(self.saver_folder, keep=keep, attempt=self.attempt, writers=writers)


def make_engine(
    scope: RunScope, launch: Launch, *, saver_folder: Path | None = None, bind: Bind | None = None
) -> PreparedRun:
    """Build everything that trains: process, loaders and engine, joined with the other ranks."""
    from assay.engine import Loader

    process = make_process(scope, training=True)
    train = make_loader(scope, "train")
    engine, length = build_engine(scope, launch, process, train, bind or scope.context.bind)
    backward = getattr(process, "backward", None)
    if backward is not None:  # without one the engine says so
        engine.bounds.start_schedule(engine.state, backward)
    parallel = _join_ranks(scope, engine)
    if isinstance(engine.source, Loader):
        scope.closing.callback(engine.source.close)  # may be made of the user's DataLoader
    scope.context.set("state", engine.state)
    scope.context.set("engine", engine)
    mesh = "" if scope.mesh is None else f"mesh: {scope.mesh.layout}"
    notes = [launch.after, length, _describe_limits(scope), mesh, _describe_zero(scope), *parallel]
    loaders = {split: make_loader(scope, split) for split in evaluation_plan(scope)[1]}
    return PreparedRun(
        scope, engine, saver_folder, loaders=loaders, notes=[line for line in notes if line]
    )


def build_engine(
    scope: RunScope, launch: Launch, process: Process, train: Iterable[Any], bind: Bind
) -> tuple[Engine, str]:
    """Return the engine, and the arithmetic of its length where [train] until asks for it."""
    from assay.engine import Engine
    from assay.engine.data.adopt import as_source
    from assay.engine.data.source import Source
    from assay.engine.loop.run_length import larger

    section = scope.sections.train
    accumulate = 1 if isinstance(train, Source) else section.accumulate or 1
    epochs, steps, length = section.epochs, section.steps, ""
    if section.until == "last" and epochs is not None and steps is not None:
        source = as_source(train, accumulate=accumulate)
        epochs, steps, length = larger(source, epochs=epochs, steps=steps)
    engine = Engine(
        process,
        train,
        epochs=epochs,
        steps=steps,
        samples=section.samples,
        seconds=parse_duration_s(section.time) if section.time is not None else None,
        accumulate=accumulate,
        seed=scope.seed,
        device=scope.device,
        bind=bind,
        stop=Stop(),
        log_every=parse_steps(scope.sections.log.every),
        max_steps=launch.max_steps,
    )
    return engine, length


def _join_ranks(scope: RunScope, engine: Engine) -> list[str]:
    """Let the engine train together with the other ranks; return lines that describe how."""
    if scope.ranks is not None:
        from assay.engine.parallel.data import join_data_parallel

        join_data_parallel(engine, scope.ranks)
    pipeline = join_pipeline(scope, engine)
    if scope.mesh is None or scope.mesh.layout.tensor == 1:
        return pipeline
    from assay.engine.parallel.gradient_agreement import GradientAgreement
    from assay.engine.parallel.tensor_parallel import describe_tensor_plan

    engine.bus.extend(GradientAgreement(scope.mesh.devices["tensor"]).handlers())
    return [describe_tensor_plan(engine.process.model), *pipeline]


def join_pipeline(scope: RunScope, engine: Engine) -> list[str]:
    """Let the engine train through the stages of the model; return lines that describe them."""
    if scope.mesh is None or scope.mesh.pipeline is None:
        return []
    from assay.engine.numerics.precision import in_precision

    train = scope.sections.train.precision
    evaluate = scope.sections.evaluate.precision
    scope.mesh.pipeline.join(
        engine, lambda run: in_precision(train, scope.device, run, evaluate=evaluate)
    )
    return scope.mesh.pipeline.lines


def _describe_limits(scope: RunScope) -> str:
    from assay.engine.loop.device import threads_in_use
    from assay.engine.numerics.deterministic import limits

    return limits(
        scope.device,
        deterministic=scope.sections.train.deterministic,
        seeded=bool(scope.seed),
        threads=threads_in_use(),
    )


def _describe_zero(scope: RunScope) -> str:
    """Describe the stage of ZeRO, "" where it is off."""
    parallel = scope.sections.parallel
    if parallel.zero is None or not parallel.zero.enabled:
        return ""
    if scope.mesh is None:
        return "ZeRO: one process has everything, there is nothing to share out"
    layout = scope.mesh.layout
    sizes = f"data {layout.shard} is shard {layout.shard}, " if parallel.shard in (None, 1) else ""
    kept = {
        1: "weights and gradients stay whole in a step",
        2: "weights stay whole in a step",
        3: "all is shared out",
    }
    return f"ZeRO stage {layout.stage}: {sizes}{kept[layout.stage]}"


def evaluation_plan(scope: RunScope) -> tuple[str, list[str]]:
    """Return the period of evaluations, and the evaluated splits."""
    evaluate = scope.sections.evaluate
    splits = evaluate.splits
    if splits is None:
        splits = [name for name in splits_of(scope.root) if is_evaluated(name)]
    return evaluate.every if evaluate.enabled else "never", list(splits)
