"""Process of a run: task, model, optimizer step, criterion and the training step itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.compose.make_optimizer_step import make_optimizer_step
from assay.compose.run_scope import RunScope
from assay.compose.tasks import make_task
from assay.core.errors import InputError
from assay.core.sections import TrainSection

if TYPE_CHECKING:
    from assay.build import Context
    from assay.engine import Process
    from assay.engine.loop.process import Model


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
    """Build the model, move it to the device and keep this rank's part of it."""
    from assay.engine import seed_all
    from assay.engine.loop.device import channels_last, move, use_threads
    from assay.engine.model.lazy_modules import refuse_lazy
    from assay.engine.numerics.seed import INIT, key

    sections = scope.sections
    seed_all(key(scope.seed, INIT))
    if make_task(scope) is not None:
        seed_all(key(scope.seed, INIT))  # whatever the task drew, the model begins the same
    model: Model = scope.build("model")
    refuse_lazy(model)
    use_threads(sections.threads, model, ranks=scope.ranks_here)
    move(model, scope.device)
    if sections.train.channels_last:
        channels_last(model)
    if is_pipeline:
        # Patterns name blocks of the whole model; a rank is about to have a few of them.
        _compile(model, sections.train, is_pipeline=True)
    if scope.mesh is not None:
        from assay.engine.parallel.partition import partition_model

        partition_model(model, scope.mesh, sections.parallel)
    return model


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
    from assay.engine.model.compiling import compiled
    from assay.engine.model.recompute import recompute

    if is_pipeline and train.compile is True:
        raise InputError(
            "[train] compile = true is for a whole model; a pipeline has parts of it.",
            fix='Write compile = "blocks", or patterns of names.',
        )
    recompute(model, train.activation_checkpoint)
    compiled(model, train.compile)


def promise_no_training(context: Context) -> None:
    """Promise errors in place of the objects that only training has."""
    from assay.build import Promise

    for name in ("optimizer", "schedule", "backward", "engine", "state"):
        context.promise(name, Promise(never="this is a test, which does not train"))
