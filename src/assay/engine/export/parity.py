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
from assay.formats.export_folder import BATCH, OutputDifference

MOST_SAMPLES, MOST_FORMS = 32, 64
"""Samples that are run together, and shapes of samples that are told apart to find so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Differences of an exported model in its calls for a split, and the metrics of both.

    `left_out` batches have another size than a model that was exported for one size takes. `batch`
    different samples gave together what each gives alone; where it is 1, `why_alone` says why.
    """

    calls: int
    samples: int
    left_out: int
    outputs: Mapping[str, OutputDifference]
    recorded: Mapping[str, float]
    exported: Mapping[str, float]
    batch: int
    why_alone: str


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
        self,
        interface: Interface,
        runner: Runner,
        recorded: Mapping[str, float],
        tolerance: float,
    ) -> Parity:
        """Run both models on every batch, and evaluate what the exported one gives."""
        outputs = {name: OutputDifference() for name in interface.expected}
        calls, is_whole = 0, True
        trial = BatchTrial(interface, runner, tolerance)

        def replace_output(call: ModelCall) -> None:
            nonlocal calls, is_whole
            calls += 1
            trial.keep_samples(call.inputs)
            given = runner(call.inputs)
            for name, before in outputs.items():
                found = _compare(given[name], call.outputs[name], tolerance)
                outputs[name] = before.or_larger(found)
            is_whole &= _overwrite(call, given)

        with watch_calls(self.process, self.module, interface.hooks, replace_output):
            metrics, samples = evaluate(self.process, self._batches_noting_size(), **self.options)
        if interface.hooks.after is not None and not is_whole:
            metrics = {}  # not of this model: an accuracy counts NaN, too
        batch, why_alone = trial.judge()
        return Parity(
            calls=calls,
            samples=samples,
            left_out=self._left_out,
            outputs=outputs,
            recorded=recorded,
            exported={name: value for name, value in metrics.items() if not math.isnan(value)},
            batch=batch,
            why_alone=why_alone,
        )

    def _batches_noting_size(self) -> Iterator[Any]:
        self._left_out = 0
        for batch in self.batches():
            self._samples = size_of(batch)
            if self.only and self._samples != self.only:
                self._left_out += 1
            else:
                yield batch


class BatchTrial:
    """Different samples of a split, run by the exported model together and each alone.

    Nothing else shows that a batch may be made of the samples of several requests: they may mix
    in a mean, an attention over the wrong axis, or a normalization that was left in training.
    """

    def __init__(self, interface: Interface, runner: Runner, tolerance: float) -> None:
        self._runner, self._tolerance = runner, tolerance
        self._forms: dict[Any, dict[bytes, dict[str, Tensor]]] = {}
        sides = (interface.example, interface.axes), (interface.expected, interface.output_axes)
        fixed = [
            name
            for tensors, axes in sides
            for name in tensors
            if axes.get(name, {}).get(0) != BATCH
        ]
        self._why_alone = ""
        if fixed:
            self._why_alone = f"the first axis of `{fixed[0]}` is not that of the samples"

    def keep_samples(self, inputs: Mapping[str, Tensor]) -> None:
        """Keep the samples of a call that are of one form and not there yet."""
        if self._why_alone or len({len(each) for each in inputs.values()}) != 1:
            return
        form = tuple((each.dtype, each.shape[1:]) for each in inputs.values())
        kept = self._forms.setdefault(form, {})
        if len(self._forms) > MOST_FORMS:
            del self._forms[form]
            return
        for i in range(len(next(iter(inputs.values())))):
            if len(kept) == MOST_SAMPLES:
                return
            sample = {name: each[i : i + 1].detach() for name, each in inputs.items()}
            content = b"".join(_bytes_of(each) for each in sample.values())
            if content not in kept:
                kept[content] = {name: each.clone() for name, each in sample.items()}

    def judge(self) -> tuple[int, str]:
        """Return how many samples gave together what each gives alone, or 1 and why not."""
        if self._why_alone:
            return 1, self._why_alone
        samples = list(max(self._forms.values(), key=len, default={}).values())
        if len(samples) < 2:
            return 1, "the data compared on have no two different samples of one shape"
        joined = {name: torch.cat([each[name] for each in samples]) for name in samples[0]}
        try:
            together = self._runner(joined)
            alone = [self._runner(each) for each in samples]
        except Exception as error:  # of any kind: a model may be for the sizes of the split alone
            return 1, f"the model fails on a batch of other samples: {_first_line(error)}"
        for name, whole in together.items():
            parts = torch.cat([each[name] for each in alone])
            if not _compare(whole, parts, self._tolerance).is_within(self._tolerance):
                return 1, f"`{name}` of a sample depends on the others of its batch"
        return len(samples), ""


def _compare(exported: Tensor, recorded: Tensor, tolerance: float) -> OutputDifference:
    arrays = (each.detach() for each in (exported, recorded))
    plain = (each.double() if each.is_floating_point() else each for each in arrays)
    theirs, ours = (each.numpy() for each in plain)
    return OutputDifference.between(np, theirs, ours, tolerance)


def _bytes_of(tensor: Tensor) -> bytes:
    """Return the content of a tensor of any dtype, also of one that numpy lacks."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


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
