"""Computation of modules: by torch.compile, or with activations recomputed in backward.

Recomputation (activation checkpointing) costs one more forward pass of these modules and leaves
only their inputs in memory (Chen et al., arXiv 1604.06174).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from assay.core.errors import InputError
from assay.engine.model.modules import modules_named
from assay.engine.numerics import private_torch
from assay.engine.numerics.buffers import Buffers


def compile_model(
    model: nn.Module, which: bool | str | Sequence[str], *, backend: str = "inductor"
) -> list[str]:
    """Compile the model in place at its first call; return the names of the compiled modules.

    Names of weights stay. `which`: true for the whole, "blocks" for each of the blocks that it
    repeats (compiled once for all that are alike, so sooner ready), or patterns of names. A last
    batch of another size makes torch compile once more, for any size. A graph that cannot be
    compiled runs as it is, and a warning says why.
    """
    if which is False:
        return []
    _check_home(model, backend, torch.__file__)
    found = {"": model} if which is True else modules_named(model, which, setting="[train] compile")
    compiler = private_torch.compiler_or_eager(backend, _tell_eager)
    for module in found.values():
        if type(module).forward.__module__.startswith("torch."):
            # Of its own code torch compiles only what other code calls: a bare Sequential it would
            # leave as it is.
            call = torch.compile(_plain_call_of(module), backend=compiler)
            private_torch.set_compiled_call(module, call)
        else:
            module.compile(backend=compiler)
    return [name or "the model" for name in found]


def _tell_eager(error: Exception) -> None:
    reason = next((line for line in str(error).splitlines() if line.strip()), "")
    logging.getLogger("assay").warning(
        "not compiled: %s: %s; the model runs without [train] compile", type(error).__name__, reason
    )


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


def _plain_call_of(module: nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return private_torch.plain_call(module)(*args, **kwargs)

    return call


def recompute(model: nn.Module, which: bool | str | Sequence[str]) -> list[str]:
    """Checkpoint the activations of modules of `model`; return the names of these modules.

    `which`: true or "blocks" for the blocks that the model repeats, or patterns of names. Names of
    weights stay. Gradients are the same: dropout draws the same again, and running statistics are
    not updated twice. Without gradients nothing changes.
    """
    if which is False:
        return []
    found = modules_named(
        model, "blocks" if which is True else which, setting="[train] activation_checkpoint"
    )
    for module in found.values():
        module.forward = partial(_forgetful, module, module.forward)
    return [name or "the model" for name in found]


def _forgetful(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not (module.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    # In a compiled graph every write to a buffer stands once.
    if torch.compiler.is_compiling():
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return checkpoint(
        forward, *args, use_reentrant=False, context_fn=partial(_contexts, module), **kwargs
    )


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), _without_trace(module)


@contextmanager
def _without_trace(module: nn.Module) -> Iterator[None]:
    """The second time running statistics are left as the first time made them."""
    buffers = Buffers(module)
    try:
        yield
    finally:
        buffers.put_back()
