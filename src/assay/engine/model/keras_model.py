"""Models of Keras 3, which are modules of torch under its torch backend."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

from assay.core.errors import InputError


class KerasModel(nn.Module):
    """Module around a built model of Keras 3 with KERAS_BACKEND=torch.

    Its weights are parameters of torch: optimizers, checkpoints and traces treat them as any.
    `train()` and `eval()` reach Keras, which knows no mode, as its argument `training`. Named
    arguments reach the model as one mapping of its inputs. InputError for a model of another
    backend, and for one without weights yet.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            name = type(model).__name__
            raise InputError(
                f"{name} is a model of the Keras backend {_backend()!r}, not of torch.",
                fix="Set the environment variable KERAS_BACKEND=torch before Keras is imported.",
            )
        if not getattr(model, "built", True):
            raise InputError(
                f"The Keras model {type(model).__name__} has no weights yet.",
                fix="Begin it with keras.Input(shape), or call its build(shape).",
            )
        self.model = model

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """Return the output for the inputs, positional or by name."""
        given = inputs or (named,)
        return self.model(*given, training=self.training)


def _backend() -> str:
    keras = sys.modules.get("keras")
    return str(keras.config.backend()) if keras is not None else "none"
