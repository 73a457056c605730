"""Activation checkpointing: a module's activations are freed, and recomputed in backward.

It costs one more forward pass of these modules and leaves only their inputs in memory (Chen et al.,
arXiv 1604.06174).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from assay.engine.model.blocks import modules_named
from assay.engine.numerics.buffers import Buffers


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
