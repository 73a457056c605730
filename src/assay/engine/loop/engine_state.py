"""State of an engine, of its process and of all that listen to it, as parts of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from assay.core.errors import AssayError, CheckpointError, InputError
from assay.core.facts import Warned
from assay.core.formatting import name_some
from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.optimizer_state import put_settings, settings_of
from assay.engine.checkpoint.own_share import PROCESS_PARTS, Share
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.weights import load_model_state
from assay.engine.loop.kept import ModuleState, Walk, has_state, name_of, plain_attributes
from assay.engine.loop.run_parts import RunParts
from assay.engine.numerics.dtensor import distribute_state_like, is_dtensor
from assay.engine.optim.optimizer_step_base import OptimizerStepBase, Stateful
from assay.engine.optim.schedules import TorchSchedule

PARTS = ("model", "optimizer", "schedule", "scaler", "backward", *PROCESS_PARTS, "state")
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
    of_process, others = _find_all(engine)
    state = engine.state.state_dict()
    if engine.state.left_out:
        state["left_out"] = engine.state.left_out
    parts = {"model": model.state_dict(), "state": state}
    parts |= {name: part.state_dict() for name, part in backward.parts(model).items()}
    parts |= _process_parts(engine.process, of_process)
    return parts | {name: _state_of(each, name) for name, each in others.items()}


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
    states = {**parts.get(PROCESS, {}), **parts.get(FROZEN, {})}
    _load_process(engine.process, _find_all(engine)[0], parts, states)
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


def stateful(engine: RunParts) -> dict[str, Stateful]:
    """The data, if they have a state, and what is kept of the listeners and by `Engine.keep`.

    By the name of their part: the class of the object, numbered from the second on.
    """
    return _find_all(engine)[1]


def _find_all(engine: RunParts) -> tuple[dict[str, Stateful], dict[str, Stateful]]:
    """Return what is kept of the process by path, and of all others by the name of their part."""
    data: Any = engine.source
    roots: list[Any] = [
        getattr(handler.fn, "__self__", handler.fn) for handler in engine.bus.order()
    ]
    dataset = getattr(data, "dataset", None)
    others = [each for each in [*roots, *engine.kept] if has_state(each)]
    walk = Walk([*_known_of(engine.process), data, engine.state.dataloader, *others])
    of_process = walk.find(engine.process)
    found: dict[str, Stateful] = {"data": data} if has_state(data) else {}
    known = {id(each) for each in _known_of(engine.process)}
    for root in [*roots, dataset, *engine.kept]:
        is_new = has_state(root) and id(root) not in known
        each = {"": root} if is_new and not any(root is known for known in found.values()) else {}
        for holder in (each | walk.find(root)).values():
            kind = re.sub(r"[^A-Za-z0-9_]", "_", name_of(holder))
            names = [kind, *(f"{kind}.{number}" for number in range(2, len(found) + 3))]
            free = (name for name in names if name not in found and not is_of_engine(name))
            found[next(free)] = holder
    return of_process, found


def _known_of(process: Any) -> list[Any]:
    """Return the objects of a process that have parts of their own in a checkpoint."""
    known: list[Any] = []
    for whole in (getattr(process, "model", None), getattr(process, "criterion", None)):
        if isinstance(whole, nn.Module):
            known += whole.modules()
    backward = getattr(process, "backward", None)
    if isinstance(backward, OptimizerStepBase):
        for holder in backward.parts(process.model).values():
            known += [holder, *getattr(holder, "__dict__", {}).values()]
        known += backward.optimizers.values()
    return known


CRITERION, PROCESS, FROZEN = PROCESS_PARTS


def process_state(process: object) -> dict[str, Any]:
    """Return the checkpoint parts of a process beside its model; empty if it has none.

    They are the state of `process.criterion`, and of all that can be reached from the process.
    """
    return _process_parts(process, Walk(_known_of(process)).find(process))


def _process_parts(process: object, kept: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the state of a process. Modules that are not trained are a part of their own.

    Its file is linked to that of the checkpoint before while it is equal.
    """
    criterion: Any = getattr(process, "criterion", None)
    state = dict(criterion.state_dict()) if hasattr(criterion, "state_dict") else {}
    parts: dict[str, Any] = {CRITERION: state, PROCESS: {}, FROZEN: {}}
    for path, holder in kept.items():
        is_frozen = isinstance(holder, ModuleState) and holder.is_frozen
        if state := _state_of(holder, f"process.{path}"):
            parts[FROZEN if is_frozen else PROCESS][path] = state
    return {name: part for name, part in parts.items() if part}


def _state_of(holder: Stateful, where: str) -> dict[str, Any]:
    try:
        return holder.state_dict()
    except (AssayError, MemoryError):
        raise
    except Exception as error:  # whatever a class of the user raises
        raise CheckpointError(
            f"state_dict of {name_of(holder)} raised {type(error).__name__}: {error}.",
            where=where,
            fix="Let it return plain data, tensors or arrays at any step.",
        ) from error


def load_process_state(process: object, parts: Mapping[str, Any]) -> None:
    """Give criterion and modules their state back. CheckpointError when it is that of others.

    Nothing else of the process: it is to be evaluated.
    """
    kept = Walk(_known_of(process)).find(process)
    modules = {path: each for path, each in kept.items() if isinstance(each, ModuleState)}
    states = {**parts.get(PROCESS, {}), **parts.get(FROZEN, {})}
    _load_process(process, modules, parts, {name: states[name] for name in modules.keys() & states})


def _load_process(
    process: object,
    kept: Mapping[str, Stateful],
    parts: Mapping[str, Any],
    states: Mapping[str, Any],
) -> None:
    """Load what is kept of a process; CheckpointError if one side lacks what the other has."""
    criterion: Any = getattr(process, "criterion", None)
    if CRITERION in parts and hasattr(criterion, "load_state_dict"):
        try:
            criterion.load_state_dict(parts[CRITERION])
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(f"The checkpoint does not fit the criterion: {error}") from error
    fix = (
        "Resume with the code it was made with, or begin a new run with its weights:"
        " assay run CONFIG --from RUN"
    )
    lacking = [path for path in kept if path not in states and not path.endswith(":buffers")]
    lacking = [path for path in lacking if _state_of(kept[path], f"process.{path}")]
    if lacking:
        raise CheckpointError(
            f"The checkpoint lacks the state of {name_some([f'process.{p}' for p in lacking])}.",
            fix=fix,
        )
    for path, state in states.items():
        if path not in kept and path.endswith(":buffers"):
            continue  # of a module that another rank has
        if path not in kept:
            raise CheckpointError(
                f"The checkpoint holds the state of process.{path}, which is not there.", fix=fix
            )
        try:
            kept[path].load_state_dict(state)
        except CheckpointError as error:
            raise CheckpointError(f"process.{path}: {error.what}") from error
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
            kind = type(error).__name__
            raise CheckpointError(f"process.{path}: {kind}: {error}", fix=fix) from error


def find_modules(process: object) -> dict[str, nn.Module]:
    """Return model, criterion and other modules of a process by name: steps may change them."""
    whole = {name: getattr(process, name, None) for name in ("model", "criterion")}
    found = {name: each for name, each in whole.items() if isinstance(each, nn.Module)}
    walk = Walk(_known_of(process))
    walk.find(process)
    return found | walk.modules


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


def unkept_attributes(engine: RunParts) -> dict[str, Any]:
    """Return the plain attributes of the user's objects that no checkpoint keeps, by path."""
    known = [engine.source, engine.state.dataloader]
    roots: dict[str, Any] = {"process": engine.process}
    roots |= {each.name: getattr(each.fn, "__self__", each.fn) for each in engine.bus.order()}
    found: dict[str, Any] = {}
    for name, root in roots.items():
        walk = Walk(known)
        walk.find(root)
        for path, thing in walk.own.items():
            has_own = has_state(thing) and not isinstance(thing, nn.Module)
            if has_own or not hasattr(thing, "__dict__") or isinstance(thing, type):
                continue
            known.append(thing)
            for attribute, value in plain_attributes(thing).items():
                found[".".join(filter(None, (name, path, attribute)))] = value
    return found
