"""Parity: an exported model beside that of the record, over a split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.callbacks.evaluate import evaluate
from assay.engine.data.batches import size_of
from assay.engine.export.interface import Interface, ModelCall, ShapeSurvey, watch_calls
from assay.engine.export.program import Runner
from assay.engine.loop.process import Process
from assay.engine.numerics.structures import tensors_in
from assay.formats.export_folder import OutputDifference


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Differences of an exported model in its calls for a split, and the metrics of both.

    `left_out` batches have another size than a model that was exported for one size takes.
    """

    calls: int
    samples: int
    left_out: int
    outputs: Mapping[str, OutputDifference]
    recorded: Mapping[str, float]
    exported: Mapping[str, float]


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
        outputs = {name: OutputDifference() for name in interface.expected}
        calls, is_whole = 0, True

        def replace_output(call: ModelCall) -> None:
            nonlocal calls, is_whole
            calls += 1
            given = runner(call.inputs)
            for name, before in outputs.items():
                exported, own = (each[name].detach().double() for each in (given, call.outputs))
                found = OutputDifference.between(np, exported.numpy(), own.numpy())
                outputs[name] = before.or_larger(found)
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
        what = "The process calls its model in several ways, and an export has one"
        missing = f"`{lacking[0]}` is not in every call."
        raise InputError(f"{what}: {missing}", fix="Let inference_step call it once.")
    for name, value in interface.constants.items():
        other = call.constants.get(name)
        if other != value:
            both = f"{name} = {value!r} for one batch and {other!r} for another"
            what = f"The model is given {both}: an export keeps one."
            raise InputError(what, fix="Give it as a tensor.")


def _overwrite(call: ModelCall, given: Mapping[str, Tensor]) -> bool:
    """Put the exported outputs into those of a call, so that metrics measure them.

    Return whether all of them are there. What the export does not give, such as a loss computed
    inside the model, or an output of which `postprocess` makes another, becomes NaN: it is not
    measured.
    """
    inputs = {id(tensor) for tensor in call.inputs.values()}
    exported = {id(tensor): given[name] for name, tensor in call.outputs.items() if name in given}
    is_whole = True
    for tensor in tensors_in(call.returned):
        if id(tensor) in inputs or isinstance(tensor, nn.Parameter):
            continue  # it is what went in
        found = exported.get(id(tensor))
        if found is not None and found.shape == tensor.shape:
            tensor.data = found.to(tensor.dtype)
        elif tensor.is_floating_point():
            tensor.data = torch.full_like(tensor, math.nan)
            is_whole = False
    return is_whole
