"""Models that compute their own loss: forward(fields of the batch) -> a mapping, or an object with `.loss`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.backward import Backward
from assay.engine.backward_part import BackwardPart
from assay.engine.instance import Instance
from assay.engine.losses import Losses
from assay.engine.metrics.metric import Metric
from assay.engine.process import Process
from assay.engine.styles.own_updates import detached

PREDICTIONS = ("pred", "prediction_scores", "logits")
TARGETS = ("target", "targets", "labels", "label")


class OwnLoss(Process):
    """A model whose arguments are the fields of a batch by name, and which gives its loss among what it returns.

    In training every key with `loss` in it is a loss: they are added up, each is logged. Of an object with `.loss`, as
    the models of transformers return, that is the loss, and the others are logged. In evaluation there need be none.
    Metrics find the model's `prediction_scores` or `logits` as `pred`, and the batch's `labels` as `target`; `pred` and
    `target` say other names. A batch that is a tuple goes to the model by position, the fields of an
    `Instance` by name.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        backward: BackwardPart | None = None,
        metrics: Mapping[str, Metric] | None = None,
        pred: str | None = None,
        target: str | None = None,
    ) -> None:
        self.model = model
        self.metrics = dict(metrics or {})
        if backward is None and optimizer is not None:
            backward = Backward(optimizer)
        if backward is not None:
            self.backward = backward
        self._pred = PREDICTIONS if pred is None else (pred,)
        self._target = TARGETS if target is None else (target,)
        self._takes = inspect.signature(model.forward)
        self._fits: set[tuple[str, ...]] = set()

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        by_position, fields = _fields(batch)
        names = tuple(fields)
        if not by_position and names not in self._fits:
            self._check(names)
        returned = self.model(*by_position, **fields)
        loss, output = self._told(returned)
        if loss is None and torch.is_grad_enabled():
            raise InputError(
                f"{type(self.model).__name__} gave no loss in training: it returned {_keys(returned)}.",
                fix='Return {"loss": ...} from forward when self.training; several keys with `loss` are added up.',
            )
        for name, among, given in (("pred", self._pred, output), ("target", self._target, fields)):
            found = next((each for each in among if each in given), None)
            if name not in output and found is not None:
                output[name] = detached(given[found])
        return loss, output

    def _told(self, returned: Any) -> tuple[Losses | None, dict[str, Any]]:
        """The loss, and everything that was returned without its graph."""
        if isinstance(returned, Tensor):
            return (returned, {"loss": returned.detach()}) if returned.dim() == 0 else (None, {"pred": returned})
        items = dict(returned.items()) if isinstance(returned, Mapping) else dict(vars(returned))
        losses = {name: value for name, value in items.items() if "loss" in name and value is not None}
        for name, value in losses.items():
            if name != "loss" and isinstance(value, Tensor) and value.numel() == 1:
                self.log(name, value)
        whole = getattr(returned, "loss", None) if type(returned) is not dict else None
        loss = whole if whole is not None else sum(losses.values()) if losses else None
        output = {name: detached(value) for name, value in items.items() if value is not None}
        return loss, output if loss is None else {**output, "loss": detached(loss)}

    def _check(self, names: Sequence[str]) -> None:
        """InputError with both signatures when the fields of a batch are not the arguments of the model."""
        try:
            self._takes.bind(**dict.fromkeys(names))
        except TypeError as error:
            kind = type(self.model).__name__
            raise InputError(
                f"A batch does not fit the model: {error}.\n"
                f"    the batch has  ({', '.join(names)})\n"
                f"    {kind}.forward takes  {self._takes}",
                fix="Give the fields of a sample the names of the arguments, or the other way round.",
            ) from None
        self._fits.add(tuple(names))


def _fields(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as positional and named arguments."""
    if isinstance(batch, Mapping):
        return (), dict(batch.items())
    if isinstance(batch, Instance):
        return (), {name: batch[name] for name in batch.keys()}  # noqa: SIM118 - it cannot be iterated
    if isinstance(batch, tuple) and hasattr(batch, "_asdict"):
        return (), batch._asdict()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return (), {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    if isinstance(batch, list | tuple):
        return tuple(batch), {}
    return (batch,), {}


def _keys(returned: Any) -> str:
    if isinstance(returned, Mapping):
        return f"the keys {', '.join(map(str, returned))}" if returned else "an empty mapping"
    return f"a {type(returned).__name__}"
