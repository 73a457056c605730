"""Parity: an exported model beside that of the record, over a split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.callbacks.evaluate import evaluate
from assay.engine.data.batches import size_of
from assay.engine.export.interface import Interface, ModelCall, ShapeSurvey, watch_calls
from assay.engine.export.runners import Runner
from assay.engine.loop.process import Process


@dataclass(slots=True)
class Deviation:
    """Largest difference of one output, absolute and relative.

    The relative one is of each value, or of the median of its batch where that is larger: near 0
    nothing is said by a quotient. Integers are compared as numbers, NaN and infinities by place.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def add(self, exported: Tensor, recorded: Tensor) -> None:
        """Compare one batch."""
        if exported.shape != recorded.shape:
            self.absolute = self.relative = math.inf
            return
        ours, theirs = recorded.detach().double(), exported.detach().double()
        is_alike = (ours == theirs) | (ours.isnan() & theirs.isnan())
        difference = torch.where(is_alike, 0.0, (ours - theirs).abs())
        difference = torch.where(difference.isnan(), math.inf, difference)
        if not difference.numel():
            return
        sizes = ours.abs()
        counted = sizes[sizes.isfinite() & (sizes > 0)]
        floor = counted.median() if counted.numel() else torch.tensor(1.0)
        self.absolute = max(self.absolute, float(difference.max()))
        by_value = difference / torch.where(sizes.isfinite(), sizes.clamp_min(floor), floor)
        self.relative = max(self.relative, float(by_value.max()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Differences of an exported model in its calls for a split, and the metrics of both.

    `left_out` batches have another size than a model that was exported for one size takes.
    """

    calls: int
    samples: int
    left_out: int
    outputs: Mapping[str, Deviation]
    recorded: Mapping[str, float]
    exported: Mapping[str, float]

    @property
    def absolute(self) -> float:
        """Largest absolute difference of any output."""
        return max((each.absolute for each in self.outputs.values()), default=math.inf)

    @property
    def relative(self) -> float:
        """Largest relative difference of any output; the tolerance is for this one."""
        return max((each.relative for each in self.outputs.values()), default=math.inf)

    def is_within(self, tolerance: float) -> bool:
        """Return True if no output differs by more."""
        return self.calls > 0 and self.relative <= tolerance


@dataclass(slots=True)
class EvaluatedSplit:
    """Split that both models are evaluated on; `options` are those of `evaluate`.

    With `only` it is batches of so many samples: a model that was exported for one size takes no
    others.
    """

    process: Process
    module: nn.Module
    batches: Callable[[], Iterable[Any]]
    options: Mapping[str, Any]
    only: int = 0
    _samples: int = field(default=0, init=False)
    _left_out: int = field(default=0, init=False)

    def survey(self, interface: Interface) -> tuple[Interface, dict[str, float]]:
        """Evaluate the record's model; return the interface with its axes, and the metrics."""
        survey = ShapeSurvey()

        def see(call: ModelCall) -> None:
            _check(call, interface)
            survey.see(call, self._samples)

        with watch_calls(self.process, self.module, interface.hooks, see):
            metrics, _ = evaluate(self.process, self._batches_noting_size(), **self.options)
        return survey.complete(interface), metrics

    def compare(
        self, interface: Interface, runner: Runner, recorded: Mapping[str, float]
    ) -> Parity:
        """Run both models on every batch, and evaluate what the exported one gives."""
        outputs = {name: Deviation() for name in interface.expected}
        calls, is_whole = 0, True

        def replace_output(call: ModelCall) -> None:
            nonlocal calls, is_whole
            calls += 1
            given = runner(call.inputs)
            for name, deviation in outputs.items():
                deviation.add(given[name], call.outputs[name])
            is_whole &= _overwrite(call, given)

        with watch_calls(self.process, self.module, interface.hooks, replace_output):
            metrics, samples = evaluate(self.process, self._batches_noting_size(), **self.options)
        if interface.hooks.after is not None and not is_whole:
            metrics = {}  # not of this model: an accuracy counts NaN, too
        return Parity(
            calls=calls,
            samples=samples,
            left_out=self._left_out,
            outputs=outputs,
            recorded=recorded,
            exported={name: value for name, value in metrics.items() if not math.isnan(value)},
        )

    def _batches_noting_size(self) -> Iterator[Any]:
        self._left_out = 0
        for batch in self.batches():
            self._samples = size_of(batch)
            if self.only and self._samples != self.only:
                self._left_out += 1
            else:
                yield batch


def _check(call: ModelCall, interface: Interface) -> None:
    """Raise InputError for a call of another form than the one that is exported."""
    lacking = [name for name in interface.example if name not in call.inputs]
    lacking += [name for name in interface.expected if name not in call.outputs]
    if lacking:
        raise InputError(
            "The process calls its model in several ways, and an export has one:"
            f" `{lacking[0]}` is not in every call.",
            fix="Let inference_step call it once.",
        )
    for name, value in interface.constants.items():
        if call.constants.get(name) != value:
            raise InputError(
                f"The model is given {name} = {value!r} for one batch and"
                f" {call.constants.get(name)!r} for another: an export keeps one.",
                fix="Give it as a tensor.",
            )


def _overwrite(call: ModelCall, given: Mapping[str, Tensor]) -> bool:
    """Put the exported outputs into those of a call, so that metrics measure them.

    Return whether all of them are there. What the export does not give, such as a loss computed
    inside the model, or an output of which `postprocess` makes another, becomes NaN: it is not
    measured.
    """
    inputs = {id(tensor) for tensor in call.inputs.values()}
    exported = {id(tensor): given[name] for name, tensor in call.outputs.items() if name in given}
    is_whole = True
    for tensor in call.returned_tensors:
        if id(tensor) in inputs or isinstance(tensor, nn.Parameter):
            continue  # it is what went in
        found = exported.get(id(tensor))
        if found is not None and found.shape == tensor.shape:
            tensor.data = found.to(tensor.dtype)
        elif tensor.is_floating_point():
            tensor.data = torch.full_like(tensor, math.nan)
            is_whole = False
    return is_whole
