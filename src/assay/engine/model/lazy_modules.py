"""Modules of torch whose weights get their shapes from the first batch."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from assay.core.errors import InputError


def refuse_lazy(model: nn.Module) -> None:
    """Raise InputError for weights without a shape, such as those of a lazy module.

    The optimizer and checkpoints need the shape before the first batch.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            owner = model.get_submodule(name.rpartition(".")[0])
            raise InputError(
                f"{name} of the model has no shape before the first batch:"
                f" {type(owner).__name__} is a lazy module.",
                where="[model]",
                fix="Give the sizes, as in nn.Linear(128, 64); or call the model once in its"
                " __init__.",
            )
