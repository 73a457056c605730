"""torch.compile for a model or its parts, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from assay.core.errors import InputError
from assay.engine.model.blocks import modules_named
from assay.engine.numerics import private_torch


def compiled(
    model: nn.Module, which: bool | str | Sequence[str], *, backend: str = "inductor"
) -> list[str]:
    """Compile the model in place at its first call; return the names of the compiled modules.

    Names of weights stay. `which`: true for the whole, "blocks" for each of the blocks that it
    repeats (compiled once for all that are alike, so sooner ready), or patterns of names. A last
    batch of another size makes torch compile once more, for any size.
    """
    if which is False:
        return []
    _check_home(model, backend, torch.__file__)
    found = {"": model} if which is True else modules_named(model, which, setting="[train] compile")
    for module in found.values():
        if type(module).forward.__module__.startswith("torch."):
            # Of its own code torch compiles only what other code calls: a bare Sequential it would
            # leave as it is.
            call = torch.compile(_called(module), backend=backend)
            private_torch.set_compiled_call(module, call)
        else:
            module.compile(backend=backend)
    return [name or "the model" for name in found]


def _check_home(model: nn.Module, backend: str, torch_file: str) -> None:
    """InputError where torch would fail in the first step, with a page from a C++ compiler."""
    devices = {parameter.device.type for parameter in model.parameters()}
    if backend == "inductor" and "cpu" in devices and " " in torch_file:
        raise InputError(
            "torch.compile cannot work for a CPU: the path to torch holds a space, which its"
            " compiler takes apart.",
            where=torch_file,
            fix="Make the environment in a folder without spaces, or leave out [train] compile.",
        )


def _called(module: nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return private_torch.plain_call(module)(*args, **kwargs)

    return call
