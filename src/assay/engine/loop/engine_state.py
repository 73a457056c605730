"""State of an engine, of its process and of all that listen to it, as parts of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError, InputError
from assay.core.facts import Warned
from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.optimizer_state import put_settings, settings_of
from assay.engine.checkpoint.own_share import PROCESS_PARTS, Share
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.weights import load_model_state
from assay.engine.loop.run_parts import RunParts
from assay.engine.numerics.dtensor import distribute_state_like, is_dtensor
from assay.engine.optim.optimizer_step_base import Stateful
from assay.engine.optim.schedules import TorchSchedule

PARTS = ("model", "optimizer", "schedule", "scaler", "backward", "criterion", "modules", "state")
"""Parts of an engine's own state; of several optimizers each has a part of its own, as
`optimizer.critic`."""


def capture_state(engine: RunParts) -> dict[str, Any]:
    """Everything that this process writes into a checkpoint, by part.

    Each listener with a state is a part of its own.
    """
    parts = own_parts(engine)
    return parts if engine.pipeline is None else engine.pipeline.merge_checkpoint(parts)


def own_parts(engine: RunParts) -> dict[str, Any]:
    """Return the same of what this OS process has of the model."""
    model, backward = engine.process.model, engine.process.backward
    state = {**engine.state.state_dict(), **_owed_handlers(engine)}
    if engine.state.left_out:
        state["left_out"] = engine.state.left_out
    parts = {"model": model.state_dict(), "state": state}
    parts |= {name: part.state_dict() for name, part in backward.parts(model).items()}
    parts |= process_state(engine.process)
    return parts | {name: listener.state_dict() for name, listener in stateful(engine).items()}


def _owed_handlers(engine: RunParts) -> dict[str, Any]:
    """Return the handlers of the event being fired that a resumed run has to call.

    After an error all that were not called, else those whose state is kept as of before their call.
    """
    owners = list(stateful(engine).values())
    owed = (
        engine.state.owed
        or engine.bus.firing.failed
        or engine.bus.firing.find_owed(
            lambda handler: any(getattr(handler.fn, "__self__", None) is owner for owner in owners)
        )
    )
    if owed is None:
        return {}
    return {"owed": {"event": str(owed.event), "count": owed.count, "names": list(owed.names)}}


def share_of(engine: RunParts) -> Share | None:
    """Return the share of this rank in the model, to read with the others; None in one process."""
    if not engine.ranks.is_distributed:
        return None
    layouts = {
        name: parameter
        for name, parameter in engine.process.model.named_parameters(remove_duplicate=False)
        if is_dtensor(parameter)
    }
    elsewhere = engine.pipeline.elsewhere if engine.pipeline is not None else ()
    return Share(layouts=layouts, elsewhere=elsewhere)


def restore(
    engine: RunParts,
    parts: Mapping[str, Any],
    *,
    resizes: bool = True,
    changed: Sequence[str] = (),
) -> None:
    """Load a checkpoint into an engine that has not run yet, and into its listeners.

    `resizes`: buffers of the model take the shapes that they had grown to. `changed` are keys of
    the config that are not those of the checkpoint: a scheduler of torch that depends on one is run
    from its beginning.

    CheckpointError if the checkpoint was made with other optimizers.
    """
    if engine.pipeline is not None:
        parts = engine.pipeline.local_checkpoint(parts)
    load_model_state(engine.process.model, parts["model"], resizes=resizes)
    backward = engine.process.backward
    holders = backward.parts(engine.process.model)
    odd = {name for name in parts if _is_of_optimizer(name)} ^ {
        name for name in holders if _is_of_optimizer(name)
    }
    if odd:
        there = (
            "is in the checkpoint, and not in this run"
            if odd <= parts.keys()
            else "is not in the checkpoint"
        )
        raise CheckpointError(
            f"{', '.join(sorted(odd))} {there}: it was made with other optimizers."
        )
    for name, holder in holders.items():
        if isinstance(holder, TorchSchedule) and (
            name not in parts or _is_changed(name.partition(".")[2], changed, backward.optimizers)
        ):
            holder.begin_anew(parts.get(name, {}))
        elif name in parts:
            holder.load_state_dict(parts[name])
    load_process_state(engine.process, parts)
    engine.state.load_state_dict(parts["state"])
    restore_listeners(engine, parts)


def restore_changed(engine: RunParts, parts: Mapping[str, Any], changed: Sequence[str]) -> None:
    """Load a checkpoint like `restore`, but keep settings of optimizers that were changed since.

    `changed` are the keys of the config that differ from those of the checkpoint.
    """
    optimizers = list(engine.process.backward.optimizers.values())
    asked = [settings_of(each) for each in optimizers]
    # A buffer of another size is no grown one where the model itself is another.
    is_same_model = not any(key.partition(".")[0] == "model" for key in changed)
    restore(engine, parts, resizes=is_same_model, changed=changed)
    names = {key.rpartition(".")[2] for key in changed if key.startswith("optimizer.")}
    for optimizer, settings in zip(optimizers, asked, strict=True):
        # Of another class all settings are others: AdamW is an Adam with decoupled weight decay.
        whole = {name for each in settings for name in each} if "type" in names else names
        put_settings(optimizer, settings, whole)


def _is_changed(name: str, changed: Sequence[str], names: Collection[str]) -> bool:
    """Return whether a changed key is of the optimizer `name`, or of its schedule."""
    paths = [key.split(".") for key in changed]
    return any(
        path[0] in ("optimizer", "schedule") and (name in path[1:2] or not {*path[1:2]} & {*names})
        for path in paths
    )


def resume_engine(engine: RunParts, saver: Saver, name: str | int = "") -> int:
    """Restore the newest readable checkpoint of `saver`, or the one named; return its step.

    See `Engine.resume`.
    """
    found, skipped = saver.complete()
    step = 0
    if name:
        step = saver.find(name).step
        parts = saver.load(name, share=share_of(engine))
        restore(engine, parts)
    elif found:
        newest, parts, skipped = saver.newest(share=share_of(engine))
        step = newest.step
        restore(engine, parts)
    engine.recorder.rewind(step)
    if saver.is_first:
        saver.set_aside(step)
    for each in skipped:
        message = f"{each.name} is no checkpoint: {each.why}. The run resumes from step {step}."
        engine.recorder.tell(Warned(message=message, step=step))
    return step


def unlike(engine: RunParts, parts: Mapping[str, Any]) -> list[str]:
    """Return the parts of a loaded checkpoint that differ from the engine's present state."""
    now = own_parts(engine)
    if engine.pipeline is not None:
        parts = engine.pipeline.local_checkpoint(parts)
    return [
        name
        for name, state in parts.items()
        if name in now
        and digest_state(now[name]) != digest_state(distribute_state_like(now[name], state))
    ]


def is_of_engine(part: str) -> bool:
    """Return whether a checkpoint part belongs to the engine itself, not to a listener."""
    return part.partition(".")[0] in PARTS


def _is_of_optimizer(part: str) -> bool:
    return part.partition(".")[0] == "optimizer"


def restore_listeners(engine: RunParts, parts: Mapping[str, Any]) -> None:
    """Load the states of a checkpoint into the listeners of an engine.

    A state without a listener, and a listener without a state, are recorded as warnings.
    """
    if engine.pipeline is not None:
        parts = engine.pipeline.local_checkpoint(parts)
    listeners = stateful(engine)
    for name, listener in listeners.items():
        if name in parts:
            listener.load_state_dict(parts[name])
        else:
            message = f"The checkpoint holds no state of {name}, which begins anew."
            engine.recorder.tell(Warned(message=message, step=engine.state.step))
    others = {name for name in parts if is_of_engine(name)}
    for name in parts.keys() - listeners.keys() - others:
        message = f"The checkpoint holds a state of {name}, which listens no more: it is lost."
        engine.recorder.tell(Warned(message=message, step=engine.state.step))


class OwnState:
    """State of a loop that is a dict: loading it replaces what is in the dict."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.values.clear()
        self.values.update(state)


def as_stateful(thing: Any) -> Stateful:
    """Return an object with a state as it is, and a dict as an object whose state it is.

    InputError for anything else.
    """
    if isinstance(thing, dict):
        return OwnState(thing)
    if has_state(thing):
        return thing  # type: ignore[no-any-return]
    kind = type(thing).__name__
    raise InputError(
        f"A {kind} has no state that a checkpoint could keep.",
        fix=f"Give {kind} the methods state_dict() and load_state_dict(state); or keep a dict:"
        ' own = engine.keep({"count": 0}).',
    )


def has_state(thing: Any) -> bool:
    """Return True for an object that gives its state and takes it back."""
    names = ("state_dict", "load_state_dict")
    return not isinstance(thing, type) and all(callable(getattr(thing, n, None)) for n in names)


def stateful(engine: RunParts) -> dict[str, Stateful]:
    """The data, if they have a state, the listeners that have one, and what the engine was given.

    By the name of their part: that of a listener is its class, numbered from the second on. With a
    listener go the objects that it calls, which its `items_called()` returns.
    """
    found: dict[str, Stateful] = {}
    data: Any = engine.source
    if has_state(data):
        found["data"] = data
    # Modules and optimizers of the engine are parts already.
    listening: list[Any] = [
        owner for owner in engine.bus.owners(object) if not isinstance(owner, nn.Module | Optimizer)
    ]
    callers = [owner for owner in listening if hasattr(owner, "items_called")]
    called = [each for caller in callers for each in caller.items_called()]
    for owner in [*listening, *called, *engine.kept]:
        if has_state(owner) and not any(owner is each for each in found.values()):
            kind = re.sub(r"[^A-Za-z0-9_]", "_", type(owner).__name__)
            names = [kind, *(f"{kind}.{number}" for number in range(2, len(found) + 3))]
            free = (name for name in names if name not in found and not is_of_engine(name))
            found[next(free)] = owner
    return found


CRITERION, MODULES = PROCESS_PARTS
_ADAPTED = ("thing", "wrapper", "step")
"""Attributes in which the engine's adapters hold the user's object."""


def process_state(process: object) -> dict[str, Any]:
    """Return the checkpoint parts of a process beside its model; empty if it has none.

    They are the state of `process.criterion`, and of the modules among its attributes, by name: a
    teacher, say, that follows the model.
    """
    criterion: Any = getattr(process, "criterion", None)
    state = criterion.state_dict() if hasattr(criterion, "state_dict") else {}
    modules = {name: module.state_dict() for name, module in own_modules(process).items()}
    parts = {CRITERION: dict(state), MODULES: {name: of for name, of in modules.items() if of}}
    return {name: part for name, part in parts.items() if part}


def load_process_state(process: object, parts: Mapping[str, Any]) -> None:
    """Give criterion and modules their state back. CheckpointError when it is that of others."""
    criterion: Any = getattr(process, "criterion", None)
    if CRITERION in parts and hasattr(criterion, "load_state_dict"):
        try:
            criterion.load_state_dict(parts[CRITERION])
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(f"The checkpoint does not fit the criterion: {error}") from error
    modules = own_modules(process)
    for name, state in parts.get(MODULES, {}).items():
        if name not in modules:
            raise CheckpointError(
                f"The checkpoint holds the weights of process.{name}, which is no module here.",
                fix="Give the process that attribute, as when the checkpoint was made.",
            )
        try:
            load_model_state(modules[name], state, resizes=True)
        except CheckpointError as error:
            raise CheckpointError(f"process.{name}: {error.what}") from error


def own_modules(process: object) -> dict[str, nn.Module]:
    """Return the modules among the attributes of a process, by name, but model and criterion.

    Those within lists and mappings count too; parts of the model or the criterion do not.
    """
    known = {
        id(module)
        for whole in (getattr(process, "model", None), getattr(process, "criterion", None))
        if isinstance(whole, nn.Module)
        for module in whole.modules()
    }
    found: dict[str, nn.Module] = {}
    attributes = getattr(process, "__dict__", {})
    adapted = [each for name in _ADAPTED if (each := attributes.get(name)) is not None]
    for owner in [process, *adapted]:
        for name, module in _modules_in(getattr(owner, "__dict__", {})):
            if id(module) not in known:
                known |= {id(inner) for inner in module.modules()}
                found[name] = module
    return found


def find_modules(process: object) -> dict[str, nn.Module]:
    """Return model, criterion and other modules of a process by name: steps may change them."""
    whole = {name: getattr(process, name, None) for name in ("model", "criterion")}
    found = {name: each for name, each in whole.items() if isinstance(each, nn.Module)}
    return found | own_modules(process)


@contextmanager
def eval_modes(process: Any) -> Iterator[None]:
    """Inside, all modules of a process are in eval mode: none learns from what is evaluated.

    The `eval` of the process has the last word. Afterwards each module is in its mode of before.
    """
    roots = find_modules(process).values()
    modes = [(module, module.training) for root in roots for module in root.modules()]
    try:
        for root in roots:
            root.eval()
        process.eval()
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def _modules_in(attributes: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    for name, value in attributes.items():
        if isinstance(value, nn.Module):
            yield name, value
        elif name != "metrics" and isinstance(value, list | tuple):
            yield from _modules_in({f"{name}.{i}": each for i, each in enumerate(value)})
        elif name != "metrics" and isinstance(value, dict) and name != "_modules":
            yield from _modules_in({f"{name}.{key}": each for key, each in value.items()})
