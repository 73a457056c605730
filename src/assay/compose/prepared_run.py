"""Engine of a run and everything in it: model, optimizer step, process, loaders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.launch import Launch
from assay.compose.loaders import make_loader, splits_of
from assay.compose.run_scope import RunScope, make_task, promise_no_training
from assay.config.tree import KeyPath, Table, get_at
from assay.core.errors import ArgumentError, ConfigError, InputError, did_you_mean
from assay.core.ports import Bind
from assay.core.schema import is_evaluated, parse_duration_s, parse_steps
from assay.core.sections import StandardSections, TrainSection
from assay.core.stop import Stop
from assay.core.terminal import for_terminal

if TYPE_CHECKING:
    from assay.compose.weights import Weights
    from assay.engine import Engine, Evaluate, Process, Save
    from assay.engine.loop.process import Model
    from assay.engine.optim.optimizer_step_base import OptimizerStepBase


GIVEN = ("optimizer", "optimizers", "schedule", "schedules", "clip_norm", "non_finite")
"""Arguments that a [backward] of the user's own may take, each under its name."""


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

    def fill(self, weights: Weights) -> str:
        """Load weights into the model, on each rank into its share; return a note on misfits."""
        from assay.engine.loop.engine_state import share_of

        readers = self.scope.mesh.readers if self.scope.mesh is not None else None
        return weights.fill(self.engine.process.model, share_of(self.engine), readers)

    def saver(self, *, attempt: int | None = None) -> Any:
        """Return a saver for the checkpoints of an attempt."""
        from assay.engine import Saver

        assert self.saver_folder is not None
        self.attempt = attempt or self.attempt
        keep = self.scope.sections.checkpoint.keep
        mesh = self.scope.mesh
        return Saver(
            self.saver_folder,
            keep=keep,
            attempt=self.attempt,
            writers=mesh.writers if mesh is not None else None,
            readers=mesh.readers if mesh is not None else None,
        )


def make_engine(
    scope: RunScope, launch: Launch, *, saver_folder: Path | None = None, bind: Bind | None = None
) -> PreparedRun:
    """Build everything that trains: process, loaders and engine, joined with the other ranks."""
    from assay.engine import Loader
    from assay.engine.parallel.join import join_mesh

    process = make_process(scope, training=True)
    train = make_loader(scope, "train")
    engine, length = build_engine(scope, launch, process, train, bind or scope.context.bind)
    backward = getattr(process, "backward", None)
    if backward is not None:  # without one the engine says so
        engine.bounds.start_schedule(engine.state, backward)
    parallel = join_mesh(engine, scope.mesh, scope.sections, scope.device)
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
    from assay.engine.loop.bounds import larger

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


def _describe_limits(scope: RunScope) -> str:
    from assay.engine.loop.device import threads_in_use
    from assay.engine.numerics.precision import limits

    return limits(
        scope.device,
        deterministic=scope.sections.train.deterministic,
        seeded=bool(scope.seed),
        threads=threads_in_use(),
    )


def _describe_zero(scope: RunScope) -> str:
    """Describe the stage of ZeRO, "" where it is off."""
    parallel = scope.sections.parallel
    if scope.mesh is not None:
        return scope.mesh.layout.describe_zero(parallel)
    is_on = parallel.zero is not None and parallel.zero.enabled
    return "ZeRO: one process has everything, there is nothing to share out" if is_on else ""


def evaluation_plan(scope: RunScope) -> tuple[str, list[str]]:
    """Return the period of evaluations, and the evaluated splits."""
    evaluate = scope.sections.evaluate
    splits = evaluate.splits
    if splits is None:
        splits = [name for name in splits_of(scope.root) if is_evaluated(name)]
    return evaluate.every if evaluate.enabled else "never", list(splits)


def make_process(scope: RunScope, *, training: bool) -> Process:
    """Build task, model, optimizer, criterion and process, in the order of their dependencies."""
    from assay.engine.checkpoint.optimizer_state import idle_optimizer

    context, train = scope.context, scope.sections.train
    is_pipeline = scope.mesh is not None and scope.mesh.layout.pipeline > 1
    model = _make_model(scope, is_pipeline=is_pipeline and training)
    context.set("model", model)
    context.set("params", list(model.parameters()))
    backward = make_optimizer_step(scope, model) if training else None
    if backward is not None:
        context.set("backward", backward)
    else:
        context.set("optimizer", idle_optimizer())
    if "criterion" in scope.root.items:
        context.set("criterion", scope.build("criterion"))
    elif not training:
        context.set("criterion", None)
    process = _wrap_process(scope, model, backward)
    context.set("process", process)
    if not training:
        promise_no_training(context)
    elif not is_pipeline:
        # Last of all: what is built with the model sees it as it was written.
        _compile(model, train)
    return process


def _make_model(scope: RunScope, *, is_pipeline: bool) -> Model:
    """Build the model, keep this rank's part of it and move that to the device."""
    from assay.engine.loop.device import move, pick_threads, use_threads
    from assay.engine.numerics.precision import gather_dtype

    sections, mesh = scope.sections, scope.mesh
    constructor = _model_constructor(scope)
    if mesh is None or not mesh.layout.is_divided:
        model, record = constructor(), None
    else:
        from assay.engine.parallel.join import build_model

        model, record = build_model(constructor, mesh)
    threads = pick_threads(sections.threads, model, ranks=scope.ranks_here)
    if is_pipeline:
        # Patterns name blocks of the whole model; a rank is about to have a few of them.
        _compile(model, sections.train, is_pipeline=True)
    if mesh is not None:
        from assay.engine.parallel.join import partition_model

        partition_model(model, mesh, sections.parallel, gather_dtype(sections), record=record)
    use_threads(threads, model)  # not before: some values depend on how many compute them
    move(model, scope.device)
    return model


def _model_constructor(scope: RunScope) -> Callable[[], Model]:
    """Return a function that builds the model, each time anew and to the same bits."""
    from assay.engine import seed_all
    from assay.engine.loop.device import channels_last
    from assay.engine.model.modules import refuse_lazy
    from assay.engine.numerics.seed import INIT, stream_key

    seed_all(stream_key(scope.seed, INIT))
    make_task(scope)
    built = dict(scope.context.built)

    def construct() -> Model:
        scope.context.built.clear()
        scope.context.built.update(built)
        seed_all(stream_key(scope.seed, INIT))  # whatever the task drew, the model begins the same
        model: Model = scope.build("model")
        refuse_lazy(model)
        if scope.sections.train.channels_last:
            channels_last(model)
        return model

    return construct


def _wrap_process(scope: RunScope, model: Model, backward: Any) -> Process:
    """Build [process], and make its forward step run in the precision that the config names."""
    from assay.engine import as_process
    from assay.engine.loop.device import place
    from assay.engine.numerics.precision import in_precision

    written = scope.build("process")
    process: Process = as_process(written, model=model, backward=backward)
    for owner in {id(written): written, id(process): process}.values():
        place(owner, scope.device)
    sections = scope.sections
    process.forward_step = in_precision(  # type: ignore[method-assign]
        sections.train.precision,
        scope.device,
        process.forward_step,
        evaluate=sections.evaluate.precision,
    )
    return process


def _compile(model: Model, train: TrainSection, *, is_pipeline: bool = False) -> None:
    """Apply activation checkpointing and torch.compile as [train] says."""
    from assay.engine.model.compiling import compile_model, recompute

    if is_pipeline:
        _refuse_whole_compile(train)
    recompute(model, train.activation_checkpoint)
    compile_model(model, train.compile)


def _refuse_whole_compile(train: TrainSection) -> None:
    if train.compile is True:
        raise InputError(
            "[train] compile = true is for a whole model; a pipeline has parts of it.",
            fix='Write compile = "blocks", or patterns of names.',
        )


def make_optimizer_step(scope: RunScope, model: Model) -> OptimizerStepBase:
    """Build optimizers and schedules, and the object that applies gradients with them."""
    from assay.engine import MultiOptimizerStep, OptimizerStep
    from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep

    context, settings = scope.context, scope.sections.train
    paths = _call_paths(scope.root, "optimizer")
    optimizers = {name: _build_optimizer(scope, model, path) for name, path in paths.items()}
    if "" in optimizers:
        context.set("optimizer", optimizers[""])
    schedules = _build_schedules(scope, optimizers)
    if optimizers:
        context.set("optimizer", optimizers.get("", optimizers))
    if schedules:
        context.set("schedule", schedules.get("", schedules))
    how: dict[str, Any] = {"clip_norm": settings.clip_norm, "non_finite": settings.non_finite}
    node = scope.root.items.get("backward")
    if isinstance(node, Table) and node.target is not None:
        return _build_own_step(scope, node, optimizers, schedules, how)
    kind = ScaledOptimizerStep if settings.precision == "fp16" else OptimizerStep
    weights = scope.sections.backward.weights
    every = scope.sections.backward.every
    _check_names(node, weights, every, optimizers)
    if list(optimizers) == [""]:
        return kind(optimizers[""], schedule=schedules.get(""), weights=weights, **how)
    parts = {}
    for name, each in optimizers.items():
        schedule = schedules.get(name, schedules.get(""))
        parts[name] = kind(each, schedule=schedule, weights=_weights_of(weights, name), **how)
    return MultiOptimizerStep(parts, every=every)


def check_part_keys(root: Table, sections: StandardSections) -> None:
    """Raise InputError for names in [backward] and [schedule] that belong to no optimizer.

    So does [train] compile = true with a pipeline. All of it is known before anything is built.
    """
    optimizers = _call_paths(root, "optimizer")
    node = root.items.get("backward")
    if not isinstance(node, Table) or node.target is None:
        _check_names(node, sections.backward.weights, sections.backward.every, optimizers)
        if "" not in optimizers:
            for name in optimizers:
                _weights_of(sections.backward.weights, name)
    _check_schedules(root, optimizers)
    if (sections.parallel.pipeline or 1) > 1:
        _refuse_whole_compile(sections.train)


def _check_names(
    node: Any, weights: Mapping[str, Any], every: Mapping[str, int], optimizers: Mapping[str, Any]
) -> None:
    """Raise InputError for keys of [backward] that do not fit the optimizers."""
    if list(optimizers) == [""]:
        if every:
            raise InputError(
                "[backward] every is for several optimizers, and there is one.",
                where=_key_place(node, "every"),
            )
        return
    for name in weights:
        if name not in optimizers:
            fix = did_you_mean(name, optimizers) or f"there are: {', '.join(optimizers)}"
            raise InputError(
                f"[backward.weights] {name} is no optimizer.",
                where=_key_place(node, "weights"),
                fix=fix,
            )


def _weights_of(weights: Mapping[str, Any], name: str) -> Mapping[str, float]:
    own_weights = weights.get(name, {})
    if isinstance(own_weights, Mapping):
        return own_weights
    raise InputError(
        f"[backward.weights] {name} is a number; an optimizer of several has losses of its own.",
        fix=f"Write [backward.weights.{name}] and under it the losses by name.",
    )


def _build_own_step(
    scope: RunScope,
    node: Table,
    optimizers: dict[str, Any],
    schedules: dict[str, Any],
    how: dict[str, Any],
) -> OptimizerStepBase:
    """Build the user's [backward] object, passing only the arguments its constructor accepts."""
    from assay.build.parameters import signature_of
    from assay.build.targets import find_target
    from assay.engine.optim.optimizer_step_base import OptimizerStepBase

    target = find_target(
        str(node.target), user_dirs=scope.config.user_dirs, trusted=scope.config.settings.trusted
    )
    signature = signature_of(target)
    takes = signature.by_keyword() if signature else {}
    there = {
        "optimizers": optimizers,
        "schedules": schedules,
        **{key: value for key, value in how.items() if value},
    }
    if "" in optimizers:
        there["optimizer"] = optimizers[""]
    if "" in schedules:
        there["schedule"] = schedules[""]
    _refuse_not_taken(scope, node, [key for key in how if key not in takes])
    part = scope.build_at(
        ("backward",), **{key: value for key, value in there.items() if key in takes}
    )
    if isinstance(part, OptimizerStepBase):
        if "" not in optimizers and list(part.optimizers) == [""]:
            scope.context.set("optimizer", part.optimizers[""])
        return part
    raise InputError(
        f"[backward] is a {type(part).__name__}, which is no OptimizerStepBase.",
        where=str(node.origin),
        fix="Derive it from assay.engine.OptimizerStepBase, or from OptimizerStep.",
    )


def _refuse_not_taken(scope: RunScope, node: Table, keys: Sequence[str]) -> None:
    """Raise InputError for a key of [train] that the user's object does not accept."""
    train = scope.root.items.get("train")
    for key in keys:
        if isinstance(train, Table) and key in train.items:
            raise InputError(
                f"[train] {key} is given, and {node.target} does not take it.",
                where=str(train.key_origin(key)),
                fix=f"Leave it out, or let {node.target} take {key}.",
            )


def _key_place(node: Any, key: str) -> str:
    return str(node.key_origin(key)) if isinstance(node, Table) and key in node.items else ""


def _call_paths(root: Table, section: str) -> dict[str, KeyPath]:
    """Return the paths of the calls of a section by name: one is named ""."""
    node = root.items.get(section)
    if node is None:
        return {}
    if isinstance(node, Table) and "type" not in node.items:
        return {str(name): (section, name) for name in node.items}
    return {"": (section,)}


def _check_schedules(root: Table, optimizers: Mapping[str, Any]) -> dict[str, KeyPath]:
    """Return the paths of the schedules; InputError for one that belongs to no optimizer."""
    paths = _call_paths(root, "schedule")
    node = root.items.get("schedule")
    for name in paths:
        if name and name not in optimizers:
            fix = did_you_mean(name, optimizers) or f"there are: {', '.join(optimizers)}"
            raise InputError(
                f"[schedule.{name}] belongs to no optimizer.", where=_key_place(node, name), fix=fix
            )
    if "" in paths and "" not in optimizers and optimizers and _is_of_torch(root, paths[""]):
        fix = f"Write {', '.join(f'[schedule.{name}]' for name in optimizers)}."
        raise InputError(
            "A scheduler of torch belongs to one optimizer, and there are several.", fix=fix
        )
    return paths


def _build_schedules(scope: RunScope, optimizers: Mapping[str, Any]) -> dict[str, Any]:
    paths = _check_schedules(scope.root, optimizers)
    schedules: dict[str, Any] = {}
    for name, path in paths.items():
        if name:
            # A scheduler of torch asks for it by this name.
            scope.context.set("optimizer", optimizers[name])
        built = scope.build_at(path)
        schedules[name] = getattr(built, "lr_sched", built)  # of a wrapper, as alchemy has
    return schedules


def _is_of_torch(root: Table, path: KeyPath) -> bool:
    target = getattr(get_at(root, path), "target", None)
    return str(target).startswith("torch.optim.lr_scheduler") or str(target).endswith(
        "TorchSchedule"
    )


def _build_optimizer(scope: RunScope, model: Model, path: KeyPath) -> Any:
    """Build an optimizer, in its fused form where it has one and nothing else is asked for."""
    from assay.build.builder import argument_problem
    from assay.build.targets import find_target
    from assay.engine.checkpoint.optimizer_state import may_fuse
    from assay.engine.optim.groups import Groups, unwrap_optimizer

    node = get_at(scope.root, path)
    written = node.items if isinstance(node, Table) else {}
    extra: dict[str, Any] = {}
    if isinstance(node, Table) and node.target is not None:
        trusted = scope.config.settings.trusted
        kind = find_target(node.target, user_dirs=scope.config.user_dirs, trusted=trusted)
        extra = {"fused": True} if may_fuse(kind, model, written) else {}
    if path[1:] and "params" not in written:
        extra["params"] = _parameters_of(model, str(path[1]), str(node.origin if node else ""))
    optimizer = unwrap_optimizer(scope.build_at(path, **extra))
    if isinstance(params := written.get("params"), Table):
        groups = scope.build_at((*path, "params"))  # built above: the same again
        if isinstance(groups, Groups):
            try:
                groups.check(optimizer)
            except ArgumentError as error:
                problem = argument_problem(error, scope.root, (*path, "params"), params.origin)
                raise ConfigError([problem]) from error
    return optimizer


def _parameters_of(model: Model, name: str, where: str) -> list[Any]:
    """Return the parameters of the part of the model that an optimizer is named after."""
    parts = dict(model.named_modules())
    parameters = list(parts[name].parameters()) if name in parts else []
    if parameters:
        return parameters
    fix = did_you_mean(name, [part for part in parts if part])
    fix = (
        fix
        or f'Write params = {{ type = "assay.engine.Groups", only = "..." }} in [optimizer.{name}].'
    )
    raise InputError(
        f"The model has no part {name!r} for [optimizer.{name}] to train.", where=where, fix=fix
    )
