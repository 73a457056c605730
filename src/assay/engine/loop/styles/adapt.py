"""Adapter that makes a process of a training step written in any known style."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from assay.core.errors import InputError
from assay.engine.loop.process import Process
from assay.engine.loop.styles.duck import Duck, OnlyForward
from assay.engine.loop.styles.flags import FlaggedForward
from assay.engine.loop.styles.function import StepFunction
from assay.engine.loop.styles.own_updates import OwnProcess
from assay.engine.loop.styles.train_batch import TrainBatch
from assay.engine.optim.multi_optimizer_step import MultiOptimizerStep, as_optimizer_step
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.optimizer_step_base import OptimizerStepBase
from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep

COMPLETE = ("training_step", "validation_step", "update", "train", "eval", "backward", "model")


def as_process(
    thing: Any, *, model: nn.Module | None = None, backward: OptimizerStepBase | None = None
) -> Any:
    """Return a process for a training step of any style; raises InputError for an unknown style.

    Model and optimizer are its own if it has them (`model`; `backward`, `optimizer` or `optim`),
    else those given. A plain `OptimizerStep` of its own gives way to the one given, which has
    the settings of the config.
    """
    if isinstance(thing, Process) or all(hasattr(thing, name) for name in COMPLETE):
        own = getattr(thing, "backward", None)
        if isinstance(own, OptimizerStepBase) and isinstance(backward, OptimizerStepBase):
            thing.backward = _choose_backward(own, backward, type(thing).__name__)
        return thing
    adapter = _adapter_of(thing)(
        thing,
        _model_of(thing, model),
        backward=_backward_of(thing, backward),
        metrics=getattr(thing, "metrics", None),
    )
    if isinstance(criterion := getattr(thing, "criterion", None), nn.Module):
        # It is moved to the device, and its state is kept, as with any process.
        vars(adapter)["criterion"] = criterion
    return adapter


def _adapter_of(thing: Any) -> Callable[..., Process]:
    if hasattr(thing, "train_batch"):
        return TrainBatch
    if hasattr(thing, "training_step") and hasattr(thing, "update"):
        return Duck
    if hasattr(thing, "forward_step"):
        return OnlyForward
    if _takes_flags(thing):
        return FlaggedForward
    if callable(thing) and not isinstance(thing, nn.Module):
        return StepFunction
    raise _unknown(thing)


def _takes_flags(thing: Any) -> bool:
    forward = getattr(thing, "forward", None)
    return (
        callable(forward)
        and {"needs_loss", "requires_grad"} <= inspect.signature(forward).parameters.keys()
    )


def _model_of(thing: Any, given: nn.Module | None) -> nn.Module:
    model = getattr(thing, "model", given)
    if isinstance(model, nn.Module):
        return model
    name = getattr(thing, "__name__", type(thing).__name__)
    raise InputError(
        f"Which model {name} trains is unknown: it has no attribute `model`.",
        fix=f"Set {name}.model, or say it: StepFunction({name}, model, optimizer) for a function.",
    )


def _backward_of(thing: Any, given: OptimizerStepBase | None) -> OptimizerStepBase | None:
    own = getattr(thing, "backward", None)
    # An engine before this one put it there.
    if isinstance(adapter := getattr(own, "__self__", None), OwnProcess):
        own = adapter.backward
    if isinstance(own, OptimizerStepBase):
        return own if given is None else _choose_backward(own, given, type(thing).__name__)
    optimizer = getattr(thing, "optimizer", getattr(thing, "optim", None))
    if optimizer is None or given is None:
        return given if optimizer is None else as_optimizer_step(optimizer)
    if not any(each is optimizer for each in given.optimizers.values()):
        raise _another_optimizer(type(thing).__name__)
    return given


def _choose_backward(
    own: OptimizerStepBase, given: OptimizerStepBase, who: str
) -> OptimizerStepBase:
    """Return the part that makes the updates: the process's own or the config's.

    InputError when settings would be lost.
    """
    if own is given:
        return own
    if {*map(id, own.optimizers.values())} != {*map(id, given.optimizers.values())}:
        raise _another_optimizer(who)
    ours = _settings(own)
    theirs = _settings(given)
    if not ours:
        return given
    lost = [name for name, value in theirs.items() if ours.get(name) != value]
    if lost:
        raise InputError(
            f"{who} makes its own {type(own).__name__}, which knows nothing of {', '.join(lost)}.",
            where="[process]",
            fix=f"Let {who} take an argument `backward` and set self.backward = backward; or"
            " leave these settings out.",
        )
    return own


def _another_optimizer(who: str) -> InputError:
    return InputError(
        f"{who} makes an optimizer of its own, and there is another one besides.",
        fix="Let it take the optimizer as a parameter `optimizer`.",
    )


def _settings(part: OptimizerStepBase) -> dict[str, Any]:
    """Return a part's settings beyond a plain optimizer step, by their names in a config.

    For a part of another class the only setting is that class.
    """
    if isinstance(part, MultiOptimizerStep):
        of_all: dict[str, Any] = {"[backward] every": part.every} if part.every else {}
        for name, each in part.by_name.items():
            for setting, value in _settings(each).items():
                of_all.setdefault(setting, {})[name] = value
        return of_all
    if type(part) not in (OptimizerStep, ScaledOptimizerStep):
        return {f"[backward] {type(part).__name__}": part}
    assert isinstance(part, OptimizerStep)
    found = {
        'precision = "fp16"': isinstance(part, ScaledOptimizerStep),
        "clip_norm": part.clip_norm,
        "non_finite": part.non_finite if part.non_finite != "stop" else None,
        "[schedule]": part.rate.schedule,
        "[backward.weights]": part.weights,
    }
    return {name: value for name, value in found.items() if value}


def _unknown(thing: Any) -> InputError:
    kind = type(thing).__name__
    if isinstance(thing, nn.Module):
        return InputError(
            f"{kind} is a model: how it is trained is not said.",
            fix="Supervised(model, criterion, optimizer); or OwnLoss(model, optimizer) if it"
            " computes its loss itself.",
        )
    return InputError(
        f"{kind} cannot be trained: it is written in none of the styles that an engine knows.",
        fix="It needs forward_step(batch), train_batch(...), forward(batch, needs_loss,"
        " requires_grad), or to be a"
        " function step(batch).",
    )
