"""Optimizer step of a run: optimizers and schedules, or an object of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.compose.run_scope import RunScope
from assay.config.tree import KeyPath, Table, get_at
from assay.core.errors import ArgumentError, ConfigError, InputError, did_you_mean

if TYPE_CHECKING:
    from assay.engine.loop.process import Model
    from assay.engine.optim.optimizer_step_base import OptimizerStepBase

GIVEN = ("optimizer", "optimizers", "schedule", "schedules", "clip_norm", "non_finite")
"""Arguments that a [backward] of the user's own may take, each under its name."""


def make_optimizer_step(scope: RunScope, model: Model) -> OptimizerStepBase:
    """Build optimizers and schedules, and the object that applies gradients with them."""
    from assay.engine import MultiOptimizerStep, OptimizerStep
    from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep

    context, settings = scope.context, scope.sections.train
    paths = _paths(scope, "optimizer")
    optimizers = {name: _optimizer(scope, model, path) for name, path in paths.items()}
    if "" in optimizers:
        context.set("optimizer", optimizers[""])
    schedules = _schedules(scope, optimizers)
    if optimizers:
        context.set("optimizer", optimizers.get("", optimizers))
    if schedules:
        context.set("schedule", schedules.get("", schedules))
    how: dict[str, Any] = {"clip_norm": settings.clip_norm, "non_finite": settings.non_finite}
    node = scope.root.items.get("backward")
    if isinstance(node, Table) and node.target is not None:
        return _own(scope, node, optimizers, schedules, how)
    kind = ScaledOptimizerStep if settings.precision == "fp16" else OptimizerStep
    weights = scope.sections.backward.weights
    every = scope.sections.backward.every
    _check_names(node, weights, every, optimizers)
    if list(optimizers) == [""]:
        return kind(optimizers[""], schedule=schedules.get(""), weights=weights, **how)
    parts = {}
    for name, each in optimizers.items():
        schedule = schedules.get(name, schedules.get(""))
        parts[name] = kind(each, schedule=schedule, weights=_of(weights, name), **how)
    return MultiOptimizerStep(parts, every=every)


def _check_names(
    node: Any, weights: Mapping[str, Any], every: Mapping[str, int], optimizers: Mapping[str, Any]
) -> None:
    """Raise InputError for keys of [backward] that do not fit the optimizers."""
    if list(optimizers) == [""]:
        if every:
            raise InputError(
                "[backward] every is for several optimizers, and there is one.",
                where=_place(node, "every"),
            )
        return
    for name in weights:
        if name not in optimizers:
            fix = did_you_mean(name, optimizers) or f"there are: {', '.join(optimizers)}"
            raise InputError(
                f"[backward.weights] {name} is no optimizer.",
                where=_place(node, "weights"),
                fix=fix,
            )


def _of(weights: Mapping[str, Any], name: str) -> Mapping[str, float]:
    found = weights.get(name, {})
    if isinstance(found, Mapping):
        return found
    raise InputError(
        f"[backward.weights] {name} is a number; an optimizer of several has losses of its own.",
        fix=f"Write [backward.weights.{name}] and under it the losses by name.",
    )


def _own(
    scope: RunScope,
    node: Table,
    optimizers: dict[str, Any],
    schedules: dict[str, Any],
    how: dict[str, Any],
) -> OptimizerStepBase:
    """Build the user's [backward] object, passing only the arguments its constructor accepts."""
    from assay.build.parameters import signature_of
    from assay.build.targets import find as find_target
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


def _place(node: Any, key: str) -> str:
    return str(node.key_origin(key)) if isinstance(node, Table) and key in node.items else ""


def _paths(scope: RunScope, section: str) -> dict[str, KeyPath]:
    """Return the paths of the calls of a section by name: one is named ""."""
    node = scope.root.items.get(section)
    if node is None:
        return {}
    if isinstance(node, Table) and "type" not in node.items:
        return {str(name): (section, name) for name in node.items}
    return {"": (section,)}


def _schedules(scope: RunScope, optimizers: Mapping[str, Any]) -> dict[str, Any]:
    paths = _paths(scope, "schedule")
    node = scope.root.items.get("schedule")
    for name in paths:
        if name and name not in optimizers:
            fix = did_you_mean(name, optimizers) or f"there are: {', '.join(optimizers)}"
            raise InputError(
                f"[schedule.{name}] belongs to no optimizer.", where=_place(node, name), fix=fix
            )
    if "" in paths and "" not in optimizers and optimizers and _is_of_torch(scope, paths[""]):
        fix = f"Write {', '.join(f'[schedule.{name}]' for name in optimizers)}."
        raise InputError(
            "A scheduler of torch belongs to one optimizer, and there are several.", fix=fix
        )
    schedules: dict[str, Any] = {}
    for name, path in paths.items():
        if name:
            # A scheduler of torch asks for it by this name.
            scope.context.set("optimizer", optimizers[name])
        schedules[name] = scope.build_at(path)
    return schedules


def _is_of_torch(scope: RunScope, path: KeyPath) -> bool:
    target = getattr(get_at(scope.root, path), "target", None)
    return str(target).startswith("torch.optim.lr_scheduler") or str(target).endswith(
        "TorchSchedule"
    )


def _optimizer(scope: RunScope, model: Model, path: KeyPath) -> Any:
    """Build an optimizer, in its fused form where it has one and nothing else is asked for."""
    from assay.build.builder import problem_of
    from assay.build.targets import find as find_target
    from assay.engine.checkpoint.optimizer_state import may_fuse
    from assay.engine.optim.groups import Groups

    node = get_at(scope.root, path)
    written = node.items if isinstance(node, Table) else {}
    extra: dict[str, Any] = {}
    if isinstance(node, Table) and node.target is not None:
        trusted = scope.config.settings.trusted
        kind = find_target(node.target, user_dirs=scope.config.user_dirs, trusted=trusted)
        extra = {"fused": True} if may_fuse(kind, model, written) else {}
    if path[1:] and "params" not in written:
        extra["params"] = _parameters(model, str(path[1]), str(node.origin if node else ""))
    optimizer = scope.build_at(path, **extra)
    if isinstance(params := written.get("params"), Table):
        groups = scope.build_at((*path, "params"))  # built above: the same again
        if isinstance(groups, Groups):
            try:
                groups.check(optimizer)
            except ArgumentError as error:
                problem = problem_of(error, scope.root, (*path, "params"), params.origin)
                raise ConfigError([problem]) from error
    return optimizer


def _parameters(model: Model, name: str, where: str) -> list[Any]:
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
