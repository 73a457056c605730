"""Call of a criterion, and the explanation of one that torch refuses to compute.

A criterion of torch is called by position, `criterion(pred, target)`. The arguments of others are
bound by name, to fields of the batch and of the output. What fails is shown with both sides, their
shapes and dtypes, the samples at fault, and the likely mistake.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from traceback import walk_tb
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.errors import InputError, choose, nearest
from assay.core.formatting import name_some
from assay.engine.data.instance import Part, part_names, part_of
from assay.engine.data.shapes import shape_of
from assay.engine.numerics.structures import tensors_in
from assay.engine.optim.out_of_memory import is_out_of_memory

PRED, TARGET = "pred", "target"
PREDICTION_NAMES = (
    *("pred", "preds", "prediction", "predictions", "y_pred", "y_hat"),
    *("output", "outputs", "logits", "input"),
)
"""Parameters that mean what the model returned. torch's own criteria call it `input`."""
TARGET_NAMES = ("target", "targets", "label", "labels", "y_true")
"""Parameters that mean the target of the batch."""

_Kind = Literal["pred", "target", "output", "batch"]


class _Source(NamedTuple):
    """Origin of an argument: the whole prediction, target number `part`, or a named field."""

    kind: _Kind
    part: Part = 0

    def value(self, pred: Any, targets: Sequence[Any], batch: Any) -> Any:
        match self.kind:
            case "pred":
                return pred
            case "target":
                return targets[int(self.part)]
            case "output":
                return part_of(pred, self.part)
            case "batch":
                return part_of(batch, self.part)


class _Given(NamedTuple):
    """Names that a call can bind to."""

    output: tuple[str, ...]
    batch: tuple[str, ...]
    targets: int


class _Binding(NamedTuple):
    """Sources of the arguments, the leading ones by position."""

    by_position: tuple[_Source, ...]
    by_name: tuple[tuple[str, _Source], ...]


class CriterionCall:
    """Call of one criterion. Arguments are bound once for each set of names, not at each step.

    `arguments` names the source of a parameter: a field of the batch or of the model's output
    (`batch.NAME` and `output.NAME` where both have it), `pred` or `target`. Any other parameter
    gets the field of its own name, then prediction and target by their usual names, then what is
    left of both by position. `inputs` and `targets` are the fields that the process calls so.

    InputError for an argument that the criterion does not have.
    """

    def __init__(
        self,
        criterion: Any,
        arguments: Mapping[str, str],
        *,
        inputs: Sequence[Part] = (),
        targets: Sequence[Part] = (),
    ) -> None:
        self.criterion = criterion
        self.name = _name_of(criterion)
        parameters = _parameters_of(criterion)
        self.parameters = {each.name: each for each in parameters or () if each.kind in _NAMED}
        self.arguments = dict(arguments)
        self.inputs = tuple(inputs)
        self.targets = tuple(targets)
        kinds = {each.kind for each in parameters or ()}
        self.is_open = parameters is None or inspect.Parameter.VAR_POSITIONAL in kinds
        takes_any_name = parameters is None or inspect.Parameter.VAR_KEYWORD in kinds
        for name in arguments:
            if name not in self.parameters and not takes_any_name:
                raise InputError(
                    f"{self.name} takes no argument `{name}`.",
                    where=f"[process] criterion_args.{name}",
                    fix=choose(name, self.parameters, "it takes"),
                )
        self._bindings: dict[_Given, _Binding] = {}

    def bind(
        self, pred: Any, targets: Sequence[Any], batch: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the criterion, by position and by name."""
        given = _Given(part_names(pred), part_names(batch), len(targets))
        found = self._bindings.get(given)
        if found is None:
            found = self._bindings[given] = _Binder(self, given).bind()
        args = [source.value(pred, targets, batch) for source in found.by_position]
        named = {name: source.value(pred, targets, batch) for name, source in found.by_name}
        return args, named


def criterion_call(
    criterion: Any,
    arguments: Mapping[str, str] | None,
    *,
    inputs: Sequence[Part] = (),
    targets: Sequence[Part] = (),
) -> CriterionCall | None:
    """Return the call of a criterion by name; None for one that is called by position."""
    if criterion is None or (not arguments and is_by_position(criterion)):
        return None
    return CriterionCall(criterion, arguments or {}, inputs=inputs, targets=targets)


def is_by_position(criterion: Any) -> bool:
    """Return True for a criterion of torch, and for one whose parameters cannot be known."""
    function = criterion
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, nn.Module):
        function = type(function).forward
    room = (getattr(function, "__module__", None) or "").partition(".")[0]
    return room == "torch" or _parameters_of(criterion) is None


class _Binder:
    """Search for the source of each parameter, for one set of names."""

    def __init__(self, call: CriterionCall, given: _Given) -> None:
        self.call = call
        self.given = given
        self.found: dict[str, _Source] = {}
        self.more: list[_Source] = []
        # A named tuple that is a pair (input, target) has names for both.
        is_pair = not call.inputs and given.targets == 1
        self.inputs = given.batch[:1] if is_pair else call.inputs
        self.targets = given.batch[1:] if is_pair else call.targets

    def bind(self) -> _Binding:
        """Return the binding; InputError names what fits no parameter, or no name."""
        for name, wanted in self.call.arguments.items():
            self.found[name] = self._source_asked_for(name, wanted)
        for name in self.call.parameters:
            if name not in self.found and (source := self._of_name(name)) is not None:
                self.found[name] = source
        self._fill_the_rest()
        self._check()
        return self._binding()

    def _source_asked_for(self, name: str, wanted: str) -> _Source:
        """Return the source that `criterion_args` names."""
        whose, _, field = wanted.partition(".")
        if field and whose in ("batch", "output"):
            if field in (self.given.batch if whose == "batch" else self.given.output):
                return _Source(whose, field)  # type: ignore[arg-type]
        elif wanted in self.given.output and wanted in self.given.batch:
            raise self._ambiguity_error(name, wanted, "the output of the model")
        elif wanted in self.given.output:
            return _Source("output", wanted)
        elif wanted in self.given.batch:
            return _Source("batch", wanted)
        elif wanted == PRED:
            return _Source("pred")
        elif wanted == TARGET and self.given.targets == 1:
            return _Source("target")
        raise InputError(
            f"`{name}` of {self.call.name} is to be `{wanted}`, which there is not:"
            f" {self._there()}.",
            where=f"[process] criterion_args.{name}",
            fix=choose(wanted, [*self.given.output, *self.given.batch, PRED, TARGET]),
        )

    def _of_name(self, name: str) -> _Source | None:
        """Return the field of this name, or the prediction or target that it usually means."""
        is_field = name in self.given.batch
        if name in self.given.output:
            if is_field:
                raise self._ambiguity_error(name, name, "the output of the model")
            return _Source("output", name)
        if name in PREDICTION_NAMES and not self._has_pred() and not self.given.output:
            if is_field and name not in self.inputs:
                raise self._ambiguity_error(name, name, "the prediction, by its name,")
            return _Source("pred")
        if is_field:
            return _Source("batch", name)
        is_target = name in TARGET_NAMES and self.given.targets == 1 and not self._has_target(0)
        return _Source("target") if is_target else None

    def _fill_the_rest(self) -> None:
        """Give prediction and targets that have no parameter yet to those that are left."""
        rest = [] if self._has_pred() else [_Source("pred")]
        rest += [
            _Source("target", place)
            for place in range(self.given.targets)
            if not self._has_target(place)
        ]
        free = [
            name
            for name, each in self.call.parameters.items()
            if name not in self.found and each.kind in _POSITIONAL
        ]
        for name, source in zip(free, rest, strict=False):
            if source.kind == "pred" and nearest(name, self.given.output):
                raise self._missing_error([name])
            self.found[name] = source
        if self.call.is_open:
            self.more = rest[len(free) :]

    def _check(self) -> None:
        missing = [
            name
            for name, each in self.call.parameters.items()
            if each.default is each.empty and name not in self.found
        ]
        if missing:
            raise self._missing_error(missing)
        if not self._has_pred() and not any(each.kind == "pred" for each in self.more):
            raise self._unused_error("what the model returns")
        uses_batch = self._uses("batch") or self._uses("target") or bool(self.more)
        if self.given.targets and not uses_batch:
            raise self._unused_error("the target, and nothing of the batch")

    def _binding(self) -> _Binding:
        by_position: list[_Source] = []
        for name, each in self.call.parameters.items():
            if each.kind not in _POSITIONAL or name not in self.found:
                break
            by_position.append(self.found[name])
        leading = list(self.call.parameters)[: len(by_position)]
        by_name = [(name, each) for name, each in self.found.items() if name not in leading]
        return _Binding((*by_position, *self.more), tuple(by_name))

    def _uses(self, kind: _Kind) -> bool:
        return any(source.kind == kind for source in self.found.values())

    def _has_pred(self) -> bool:
        return self._uses("pred") or self._uses("output")

    def _has_target(self, place: int) -> bool:
        """Return True if a parameter has this target, by its role or by the name of its field."""
        name = self.targets[place] if place < len(self.targets) else None
        found = self.found.values()
        return _Source("target", place) in found or _Source("batch", name or 0) in found

    def _there(self) -> str:
        batch = ", ".join(self.given.batch) or "no names"
        output = ", ".join(self.given.output) or "a tensor"
        return f"the batch has {batch}; the model returned {output}"

    def _missing_error(self, names: Sequence[str]) -> InputError:
        listed = ", ".join(f"`{name}`" for name in names)
        known = [*self.given.output, *self.given.batch]
        near = choose(names[0], known, "the names are")
        how = f'or say it: criterion_args = {{ {names[0]} = "..." }} under [process]'
        return InputError(
            f"{self.call.name} needs {listed}: {self._there()}.",
            where="[process] criterion",
            fix=f"{near} {how}" if near else how,
        )

    def _ambiguity_error(self, parameter: str, name: str, other: str) -> InputError:
        first = f"output.{name}" if name in self.given.output else PRED
        return InputError(
            f"`{parameter}` of {self.call.name} may be {other} or the field `{name}` of the batch.",
            where="[process] criterion",
            fix=f'Say which: criterion_args = {{ {parameter} = "{first}" }}, or "batch.{name}".',
        )

    def _unused_error(self, what: str) -> InputError:
        bound = ", ".join(
            f"{name} = {_describe_source(source)}" for name, source in self.found.items()
        )
        return InputError(
            f"{self.call.name} is given {bound or 'nothing'}, but not {what}.",
            where="[process] criterion",
            fix='Name it: criterion_args = { NAME = "pred" } under [process].',
        )


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)


def _parameters_of(criterion: Any) -> list[inspect.Parameter] | None:
    """Return the parameters of the call; None for a function of C that does not tell them."""
    called = criterion.forward if isinstance(criterion, nn.Module) else criterion
    try:
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return None


def _name_of(criterion: Any) -> str:
    if isinstance(criterion, nn.Module):
        return f"{type(criterion).__name__}.forward"
    return getattr(criterion, "__name__", None) or type(criterion).__name__


def _describe_source(source: _Source) -> str:
    return str(source.part) if source.kind in ("batch", "output") else source.kind


_BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
"""Criteria whose targets are numbers of classes; the prediction has the classes in dim 1."""
_BY_PROBABILITY = (nn.BCELoss, nn.BCEWithLogitsLoss)
_BY_ENTRY = (
    *(nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss),
    *(nn.PoissonNLLLoss, nn.SoftMarginLoss, nn.HingeEmbeddingLoss),
)
_BY_ENTRY_FUNCTIONS = (
    *(F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.huber_loss),
    *(F.poisson_nll_loss, F.soft_margin_loss, F.hinge_embedding_loss),
)
"""Criteria that compare entry by entry, and broadcast."""
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
    is_of_torch = all(name.partition(".")[0] == "torch" for name in frames)
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


def refuse_crossed(criterion: Any, pred: Any, target: Any) -> None:
    """Raise CriterionError if each prediction would be compared with each target.

    Torch broadcasts (N, 1) and (N) to (N, N), and trains without a word but a warning.
    """
    if not isinstance(target, Tensor) or pred.shape == target.shape or target.numel() < 2:
        return
    is_one_each = pred.dim() != target.dim() and pred.squeeze().shape == target.squeeze().shape
    if is_one_each and (isinstance(criterion, _BY_ENTRY) or criterion in _BY_ENTRY_FUNCTIONS):
        name = type(criterion).__name__ if isinstance(criterion, nn.Module) else criterion.__name__
        fix, _ = _mistake(criterion, pred.detach(), target.detach())
        raise CriterionError(
            f"{name} would compare each of {pred.numel()} predictions with each target.",
            where=f"{name}(pred {shape_of(pred)}, target {shape_of(target)})",
            fix=fix,
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
    return f"sample{'s' if names[1:] else ''} {name_some([*map(str, names)], _SHOWN)} of {of}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
