"""State of a process beside its model: of its criterion, and of the modules that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from assay.core.errors import CheckpointError
from assay.engine.checkpoint.weights import load_model_state

PARTS = ("criterion", "modules")
CRITERION, MODULES = PARTS
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
    adapted = [each for name in _ADAPTED if (each := vars(process).get(name)) is not None]
    for owner in [process, *adapted]:
        for name, module in _modules_in(getattr(owner, "__dict__", {})):
            if id(module) not in known:
                known |= {id(inner) for inner in module.modules()}
                found[name] = module
    return found


def _modules_in(attributes: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    for name, value in attributes.items():
        if isinstance(value, nn.Module):
            yield name, value
        elif name != "metrics" and isinstance(value, list | tuple):
            yield from _modules_in({f"{name}.{i}": each for i, each in enumerate(value)})
        elif name != "metrics" and isinstance(value, dict) and name != "_modules":
            yield from _modules_in({f"{name}.{key}": each for key, each in value.items()})
