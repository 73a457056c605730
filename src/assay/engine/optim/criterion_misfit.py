"""Explanation of a criterion that torch refuses to compute.

It shows both sides with shapes and dtypes, the samples at fault, and the likely mistake.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.data.shapes import shape_of
from assay.engine.numerics.structures import tensors_in
from assay.engine.optim.out_of_memory import is_out_of_memory
from assay.engine.optim.reductions import Reductions

_BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
"""Criteria whose targets are numbers of classes; the prediction has the classes in dim 1."""
_BY_PROBABILITY = (nn.BCELoss, nn.BCEWithLogitsLoss)
_DTYPE = re.compile(
    r"Found dtype (\w+) but expected (\w+)|must have the same dtype, but got (\w+) and (\w+)"
)
_DTYPES = {
    "Double": torch.float64,
    "Long": torch.int64,
    "Int": torch.int32,
    "Byte": torch.uint8,
    "Half": torch.float16,
}
_SHOWN = 5
_WATCH = Reductions.__module__
"""It notes what torch computes, so it is between a criterion and torch."""


class CriterionError(InputError):
    """Failure of torch to compute a criterion; `rows`: the batch's samples at fault, if any."""

    def __init__(self, what: str, *, where: str, fix: str, rows: Sequence[int] = ()) -> None:
        super().__init__(what, where=where, fix=fix)
        self.rows = tuple(rows)


def misfit(error: Exception, criterion: Any, pred: Tensor, target: Any) -> CriterionError | None:
    """Explain why a torch criterion failed; None where the error itself tells more.

    A criterion of the user's has its line in the traceback. Fake tensors, which a rehearsal
    calculates with, have errors of their own.
    """
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)][1:]
    is_of_torch = all(name.partition(".")[0] == "torch" or name == _WATCH for name in frames)
    if not is_of_torch or is_out_of_memory(error) or type(pred).__name__ == "FakeTensor":
        return None
    name = type(criterion).__name__
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    where = f"{name}(pred {shape_of(pred)}, target {shape_of(target)})"
    fix = ""
    rows: list[int] = []
    if isinstance(target, Tensor):
        fix, rows = _mistake(criterion, pred.detach(), target.detach())
    return CriterionError(
        f"{name} cannot be computed: {said.rstrip('.')}.", where=where, fix=fix, rows=rows
    )


def blame_dtype(batch: Any, error: BaseException) -> None:
    """Raise InputError if a step failed because the batch has another dtype than the weights."""
    found = _DTYPE.search(str(error)) if isinstance(error, RuntimeError) else None
    wrong = {_DTYPES.get(name) for name in found.groups()} if found is not None else set()
    odd = sorted({shape_of(each) for each in tensors_in(batch) if each.dtype in wrong})
    if found is not None and odd:
        raise InputError(
            f"The step cannot be computed: {found[0]}.",
            where=f"the batch has {', '.join(odd)}",
            fix="Let the data set give float32: `x.float()` of torch, `x.astype(np.float32)` of"
            " numpy.",
        ) from error


def _mistake(criterion: Any, pred: Tensor, target: Tensor) -> tuple[str, list[int]]:
    """Return what the person most likely meant, and the samples that are at fault."""
    if pred.dim() and target.dim() and len(pred) != len(target):
        return (
            f"Let the model return one row a sample: {len(pred)} rows are not {len(target)}"
            " targets.",
            [],
        )
    weight = getattr(criterion, "weight", None)
    if isinstance(weight, Tensor) and not weight.is_floating_point():
        numbers = ", ".join(str(float(each)) for each in weight.flatten()[:_SHOWN])
        return f"Write the weights with a point: weight = [{numbers}].", []
    if isinstance(criterion, _BY_CLASS):
        return _class_mistake(criterion, pred, target)
    if (
        isinstance(criterion, _BY_PROBABILITY)
        and target.shape == pred.shape
        and target.is_floating_point()
    ):
        rows = _rows((target < 0) | (target > 1))
        if rows:
            return "Give targets between 0 and 1.", rows
    if target.shape != pred.shape and target.squeeze().shape == pred.squeeze().shape:
        fix = (
            f"Let both have one shape: `target.reshape({list(pred.shape)})`, or pred.squeeze()"
            " in the model."
        )
        return fix, []
    if target.shape != pred.shape:
        is_class = (
            target.shape == pred.shape[:1] + pred.shape[2:] and not target.is_floating_point()
        )
        classes = "; for the number of a class, take torch.nn.CrossEntropyLoss" if is_class else ""
        shapes = [str(list(side.shape[1:]) or "one number") for side in (pred, target)]
        return f"Let both have one shape a sample: {shapes[0]} is not {shapes[1]}{classes}.", []
    if target.dtype != pred.dtype:
        return (
            f"Let the data set give {_name(pred.dtype)}: `target.to(torch.{_name(pred.dtype)})`.",
            [],
        )
    return "", []


def _class_mistake(criterion: Any, pred: Tensor, target: Tensor) -> tuple[str, list[int]]:
    by_sample = pred.shape[:1] + pred.shape[2:]  # of a target for classes in dim 1
    classes = pred.shape[1] if pred.dim() > 1 else pred.shape[0]
    weight = getattr(criterion, "weight", None)
    if isinstance(weight, Tensor) and len(weight) != classes:
        return f"Give a weight for each class: {classes}, not {len(weight)}.", []
    if pred.dim() > 2 and target.shape == pred.shape[:-1] and target.shape != by_sample:
        return "The classes are the second dim: `pred.movedim(-1, 1)`.", []
    if target.shape == pred.shape and not target.is_floating_point():
        return "The target looks one-hot: give the number of the class, `target.argmax(1)`.", []
    if target.dim() == pred.dim() and target.shape[1:2] == (1,):
        return f"The target has a dim too many: `target.squeeze(1)`, as {list(by_sample)}.", []
    if target.shape == by_sample and target.dtype != torch.int64:
        return "Numbers of classes are int64: `target.long()`.", []
    if target.shape != by_sample:
        return (
            f"Give a target of {list(by_sample)}, or a model with other outputs: dim 1 has the"
            " classes.",
            [],
        )
    ignored = getattr(criterion, "ignore_index", -100)
    wrong = ((target < 0) | (target >= classes)) & (target != ignored)
    rows = _rows(wrong)
    if not rows:
        return "", []
    least = int(target[wrong].min())
    most = int(target[wrong].max())
    if int(target[target != ignored].min()) == 1 and most == classes:
        return (
            "Classes are counted from 0: `target - 1`. The model has outputs for 0 to"
            f" {classes - 1}.",
            rows,
        )
    if least < 0:
        return f"Leave {least} out, or let the criterion ignore it: ignore_index = {least}.", rows
    return (
        f"Give the model {most + 1} outputs, or targets from 0 to {classes - 1}: {most} is none"
        " of them.",
        rows,
    )


def _rows(wrong: Tensor) -> list[int]:
    """Return the samples in which something is wrong; none where that cannot be told any more."""
    try:
        return (
            wrong.reshape(len(wrong), -1).any(1).nonzero().flatten().tolist() if wrong.dim() else []
        )
    except RuntimeError:  # a device that has failed answers nothing
        return []


def samples_line(rows: Sequence[int], samples: Sequence[int]) -> str:
    """Name samples by their index in the data set if known, else by their place in the batch."""
    known = [samples[row] for row in rows if row < len(samples)]
    names, of = (known, "data.train") if len(known) == len(rows) else (list(rows), "the batch")
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"sample{'s' if names[1:] else ''} {', '.join(map(str, names[:_SHOWN]))}{more} of {of}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
