"""Models that compute their own loss.

`forward(fields of the batch)` returns a mapping, an object with `.loss`, or a tuple.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.data.instance import Instance
from assay.engine.loop.process import Process
from assay.engine.metrics.metric import Metric
from assay.engine.optim.denominators import (
    ModelReduction,
    report_loss,
    unknown_denominator,
    weigh_model_loss,
)
from assay.engine.optim.losses import Losses, WeightedLoss, detach_loss
from assay.engine.optim.multi_optimizer_step import as_optimizer_step
from assay.engine.optim.optimizer_step_base import OptimizerStepBase

PREDICTIONS = ("pred", "prediction_scores", "logits")
TARGETS = ("target", "targets", "labels", "label")


class OwnLoss(Process):
    """Process of a model that takes the fields of a batch by name and returns its own loss.

    In training every key with `loss` in it is a loss: they are added up, each is logged. Of an
    object with `.loss`, as the models of transformers return, that is the loss, and the others are
    logged. Of a tuple the loss is the single number in it, as of `(logits, loss)`; the first of the
    others is the prediction. In evaluation there need be none. Inference leaves out targets that
    are optional arguments of the model.

    Metrics find the model's `prediction_scores` or `logits` as `pred`, and the batch's `labels` as
    `target`; `pred` and `target` say other names. A batch that is a tuple goes to the model by
    position, the fields of an `Instance` by name.

    Where a step has several micro-batches or ranks, the loss of a model of transformers is one over
    the labels that are not ignored; `reduction` says what another model's is over: the "labels"
    that are no negative numbers, the samples ("mean"), or nothing ("sum").
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        *,
        backward: OptimizerStepBase | None = None,
        metrics: Mapping[str, Metric] | None = None,
        pred: str | None = None,
        target: str | None = None,
        reduction: ModelReduction | None = None,
    ) -> None:
        self.model = model
        self.metrics = dict(metrics or {})
        self.reduction = reduction
        if backward is None and optimizer is not None:
            backward = as_optimizer_step(optimizer)
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
        is_training = torch.is_grad_enabled()
        returned = self.model(*by_position, **fields)
        items, losses, total = self._split(returned)
        if total is None and is_training:
            raise InputError(
                f"{type(self.model).__name__} gave no loss in training: it returned"
                f" {_keys(returned)}.",
                fix='Return {"loss": ...} from forward when self.training; several keys with'
                " `loss` are added up.",
            )
        adds_up = total is not None and (not is_training or self.backward.needs_weights)
        loss = self._weigh(total, by_position, fields) if adds_up else total
        for name, value in losses.items():
            self.log(name, value, loss.weight if isinstance(loss, WeightedLoss) else None)
        output = {name: detach_loss(value) for name, value in items.items() if value is not None}
        if total is not None:
            output |= report_loss(total, loss)
        for name, among, given in (("pred", self._pred, output), ("target", self._target, fields)):
            found = next((each for each in among if each in given), None)
            if name not in output and found is not None:
                output[name] = detach_loss(given[found])
        return loss, output

    def inference_step(self, batch: Any) -> Any:
        """Return the model's output for a batch, without the targets that it can do without."""
        by_position, fields = _fields(batch)
        optional = {
            name
            for name, parameter in self._takes.parameters.items()
            if name in self._target and parameter.default is None
        }
        fields = {name: value for name, value in fields.items() if name not in optional}
        with torch.no_grad():
            returned = self.model(*by_position, **fields)
        output = {
            name: each
            for name, each in _items(returned, type(self.model).__name__).items()
            if each is not None and "loss" not in name
        }
        found = next((name for name in self._pred if name in output), None)
        return output if found is None else {**output, "pred": output[found]}

    def _split(self, returned: Any) -> tuple[dict[str, Any], dict[str, Tensor], Losses | None]:
        """Return outputs by name, the scalar losses to log, and the loss to train on, or None."""
        items = _items(returned, type(self.model).__name__)
        losses = {
            name: value for name, value in items.items() if "loss" in name and value is not None
        }
        own = getattr(returned, "loss", None) if type(returned) is not dict else None
        total = own
        if own is None and losses:
            total = sum(losses.values()) if len(losses) > 1 else next(iter(losses.values()))
        logged = {
            name: each
            for name, each in losses.items()
            if isinstance(each, Tensor) and each.numel() == 1
        }
        logged.pop("loss", None)
        return items, logged, total

    def _weigh(self, total: Any, by_position: Sequence[Any], fields: Mapping[str, Any]) -> Any:
        """Return the loss that an engine adds up; InputError where its weight is unknown."""
        given = {**self._takes.bind_partial(*by_position).arguments, **fields}
        labels = next((given[name] for name in self._target if name in given), None)
        loss = weigh_model_loss(total, self.model, labels, self.reduction)
        if loss is None and torch.is_grad_enabled():
            raise unknown_denominator(
                self.model,
                words='"labels" (over labels that are no negative numbers), "mean" (over the'
                ' samples) or "sum"',
            )
        if loss is None:
            self._note_unweighed(self.model)
        return total if loss is None else loss

    def _check(self, names: Sequence[str]) -> None:
        """Raise InputError, with both signatures, if a batch does not fit the model."""
        try:
            self._takes.bind(**dict.fromkeys(names))
        except TypeError as error:
            kind = type(self.model).__name__
            raise InputError(
                f"A batch does not fit the model: {error}.\n"
                f"    the batch has  ({', '.join(names)})\n"
                f"    {kind}.forward takes  {self._takes}",
                fix="Give the fields of a sample the names of the arguments, or the other way"
                " round.",
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


def _items(returned: Any, who: str) -> dict[str, Any]:
    """Return a model's outputs by name.

    InputError for a tuple with several numbers, of which any may be the loss.
    """
    if isinstance(returned, Tensor):
        return {"pred" if returned.dim() else "loss": returned}
    if isinstance(returned, Mapping):
        return dict(returned.items())
    if isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        return dict(returned._asdict())
    if not isinstance(returned, list | tuple):
        return dict(vars(returned))
    numbers = [
        each
        for each in returned
        if isinstance(each, Tensor) and not each.dim() and each.is_floating_point()
    ]
    if len(numbers) > 1:
        raise InputError(
            f"{who} gave a tuple with {len(numbers)} numbers in it: which of them is the loss"
            " is unknown.",
            fix='Return them by name: {"loss": loss, "logits": logits, ...}.',
        )
    others = [
        each
        for each in returned
        if isinstance(each, Tensor) and not any(each is one for one in numbers)
    ]
    return {**({"loss": numbers[0]} if numbers else {}), **({"pred": others[0]} if others else {})}


def _keys(returned: Any) -> str:
    if isinstance(returned, Mapping):
        return f"the keys {', '.join(map(str, returned))}" if returned else "an empty mapping"
    return f"a {type(returned).__name__}"
