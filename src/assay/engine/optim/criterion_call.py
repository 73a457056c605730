"""Call of a criterion whose arguments are bound by name: to fields of the batch and of the output.

A criterion of torch is called by position, `criterion(pred, target)`, unless its arguments are
named.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import nn

from assay.core.errors import InputError, choose, nearest
from assay.engine.data.instance import Part, names_in, part_of

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

    def __call__(self, pred: Any, targets: Sequence[Any], batch: Any) -> Any:
        given = _Given(names_in(pred), names_in(batch), len(targets))
        found = self._bindings.get(given)
        if found is None:
            found = self._bindings[given] = _Binder(self, given).bound()
        args = [source.value(pred, targets, batch) for source in found.by_position]
        named = {name: source.value(pred, targets, batch) for name, source in found.by_name}
        return self.criterion(*args, **named)


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

    def bound(self) -> _Binding:
        """Return the binding; InputError names what fits no parameter, or no name."""
        for name, wanted in self.call.arguments.items():
            self.found[name] = self._asked_for(name, wanted)
        for name in self.call.parameters:
            if name not in self.found and (source := self._of_name(name)) is not None:
                self.found[name] = source
        self._fill_the_rest()
        self._check()
        return self._binding()

    def _asked_for(self, name: str, wanted: str) -> _Source:
        """Return the source that `criterion_args` names."""
        whose, _, field = wanted.partition(".")
        if field and whose in ("batch", "output"):
            if field in (self.given.batch if whose == "batch" else self.given.output):
                return _Source(whose, field)  # type: ignore[arg-type]
        elif wanted in self.given.output and wanted in self.given.batch:
            raise self._ambiguous(name, wanted, "the output of the model")
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
                raise self._ambiguous(name, name, "the output of the model")
            return _Source("output", name)
        if name in PREDICTION_NAMES and not self._has_pred() and not self.given.output:
            if is_field and name not in self.inputs:
                raise self._ambiguous(name, name, "the prediction, by its name,")
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
                raise self._missing([name])
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
            raise self._missing(missing)
        if not self._has_pred() and not any(each.kind == "pred" for each in self.more):
            raise self._unused("what the model returns")
        uses_batch = self._uses("batch") or self._uses("target") or bool(self.more)
        if self.given.targets and not uses_batch:
            raise self._unused("the target, and nothing of the batch")

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

    def _missing(self, names: Sequence[str]) -> InputError:
        listed = ", ".join(f"`{name}`" for name in names)
        known = [*self.given.output, *self.given.batch]
        near = choose(names[0], known, "the names are")
        how = f'or say it: criterion_args = {{ {names[0]} = "..." }} under [process]'
        return InputError(
            f"{self.call.name} needs {listed}: {self._there()}.",
            where="[process] criterion",
            fix=f"{near} {how}" if near else how,
        )

    def _ambiguous(self, parameter: str, name: str, other: str) -> InputError:
        first = f"output.{name}" if name in self.given.output else PRED
        return InputError(
            f"`{parameter}` of {self.call.name} may be {other} or the field `{name}` of the batch.",
            where="[process] criterion",
            fix=f'Say which: criterion_args = {{ {parameter} = "{first}" }}, or "batch.{name}".',
        )

    def _unused(self, what: str) -> InputError:
        bound = ", ".join(f"{name} = {_said(source)}" for name, source in self.found.items())
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


def _said(source: _Source) -> str:
    return str(source.part) if source.kind in ("batch", "output") else source.kind
